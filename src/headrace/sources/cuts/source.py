"""A source of lhotse's cuts: manifests, Shar folders, and cut sets in memory, with random access.

lhotse reads Shar in sequence. Here the place of each cut and of its data is indexed once, and one `pread` for each part
finds it again; what is read goes through lhotse's own `Cut`, so transforms and mixes are lhotse's. A manifest is data:
`cuts_schema.py` lists what it may say, `cuts_roots.py` says which files it may name, `cuts_record.py` makes lhotse's
objects of it, and `cuts_decoding.py` reads their files without any program. Read `cuts_files.py` for what is a corpus,
`cuts_gather.py` for what is indexed, `cuts_table.py` for how a cut is found, `cuts_keys.py` for what becomes an array.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.index import CorpusIndex, open_or_build
from headrace.specs import DataSpec

from ..base import Source, check_corpus_idx, check_data_key
from .files import CutFiles, find_cut_files
from .gather import CutOptions, gather_held, gather_stored, index_kind
from .keys import CutKey
from .schema import NO_ROOTS, Roots
from .table import CutTable, HeldCuts, StoredCuts


class CutSource(Source):
    """Cuts of lhotse: their audio, features, custom arrays, and texts. Reading needs `headrace[lhotse]`.

    Args:
        files: A manifest (`.jsonl`, `.jsonl.gz`), a Shar folder, or a list of such; a dict of Shar fields, as
            `CutSet.from_shar(fields=...)` takes it; or a `CutSet` in memory, which is pickled with the source.
        fields: Data key -> field: `{"data": "audio", "classes": "text"}`. "audio" is float32[T, channels], "features"
            float32[T, features]; a custom `Array` (without a time axis), `TemporalArray` or `Recording` goes by its
            name. "text", "speaker", "language" and "gender" are of the supervisions, `"supervision.<name>"` a custom
            value of theirs, all else a custom value of the cut; these may be dicts with "vocab", see `parse_field`.
            "text" alone is UTF-8 bytes; the texts of several supervisions are joined by spaces. None: all that the
            first cut has in the form of an array, and its text.
        tolerance: Seconds that a recording may end before its cut does, at least 0.001. lhotse alone makes up for half
            a second, by samples in reverse.
        root: Folder, or folders, that the files lie in which a manifest names; relative paths start at the current
            folder, as lhotse has it. None: the folders of the manifests, and the current one. `"/"` allows all files.
        index: `"auto"` keeps the index of a large corpus in the cache folder and finds it there the next time; `None`
            always reads the manifests; a path opens the index that `CutSource(...).index.save(path)` wrote with the
            same options. Not for cuts in memory.

    Attributes:
        files: Paths of all files; empty for cuts in memory.

    Raises:
        ConfigError: An option is wrong, or lhotse is not installed.
        SourceError: A manifest or a shard is wrong, fields of Shar do not fit together, audio is missing, a cut does
            not have a field, an id comes twice; or a manifest names a file outside of `root`, or something that is not
            read from files as it is (a command, a URL, a pickle).
    """

    def __init__(
        self,
        files: Any,
        *,
        fields: Mapping[str, str | Mapping[str, Any]] | None = None,
        tolerance: float = 0.0,
        root: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        index: str | os.PathLike[str] | Literal["auto"] | None = "auto",
    ) -> None:
        if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 <= tolerance < math.inf:
            raise ConfigError(f"tolerance is a number of seconds, got {tolerance!r}", where="CutSource")
        options = CutOptions(None if fields is None else dict(fields), float(tolerance))
        if _is_cut_set(files):
            if index not in ("auto", None):
                raise ConfigError("cuts in memory have no index file", where="CutSource(index=...)", fix="leave it out")
            held = _eager(files)
            self._attach(None, held, options, gather_held(held, options), NO_ROOTS)
            return
        found = find_cut_files(files)
        roots = Roots.of(root, found.all)
        corpus = open_or_build(
            found.all, lambda: gather_stored(found, options, roots), index=index, kind=index_kind(found, options)
        )
        self._attach(found, [], options, corpus, roots)

    def _attach(
        self, files: CutFiles | None, held: list[Any], options: CutOptions, index: CorpusIndex, roots: Roots
    ) -> None:
        """Work out everything that follows from the options and the index."""
        self._cut_files, self._held, self._options, self._index, self._roots = files, held, options, index, roots
        meta = index.meta
        fields = options.fields if options.fields is not None else dict(meta["fields"])
        self._keys: dict[str, CutKey] = options.keys(fields, meta["kinds"])
        self.specs: dict[str, DataSpec] = {key: DataSpec.from_json(spec) for key, spec in meta["specs"].items()}
        self.labels: dict[str, Sequence[str]] = dict(meta["labels"])
        for name, key in self._keys.items():
            key.settle(self.specs[name], meta["labels"].get(name), meta["sample_rates"][name])
        self._table: CutTable = HeldCuts(held) if files is None else StoredCuts(files, index, roots)
        self._shar_fields = [key.shar_field for key in self._keys.values()]

    @property
    def index(self) -> CorpusIndex:
        """Ids, lengths, and where everything is."""
        return self._index

    @property
    def files(self) -> tuple[str, ...]:
        """Absolute paths of all files."""
        return tuple(stamp.path for stamp in self._index.files)

    def sample_rate(self, data_key: str) -> int | None:
        """Return the rate of a key with audio, in Hz; None for others, and for a corpus without cuts."""
        return self._keys[check_data_key(data_key, self.specs)].sample_rate

    def read_cut(self, corpus_idx: int) -> Any:
        """Return a cut as lhotse has it, with the data that Shar has of it in memory.

        Raises:
            IndexError: There is no such cut.
            SourceError: It cannot be read.
        """
        check_corpus_idx(corpus_idx, self._index.num_seqs)
        return self._table.cut(corpus_idx, self._cut_files.fields if self._cut_files is not None else ())

    def read(self, corpus_idx: int, data_key: str) -> NDArray[Any]:
        """Return one data key of one cut."""
        check_data_key(data_key, self.specs)
        check_corpus_idx(corpus_idx, self._index.num_seqs)
        cut = self._table.cut(corpus_idx, [self._keys[data_key].shar_field])
        return self._load(cut, corpus_idx, data_key)

    def read_seq(self, corpus_idx: int) -> dict[str, NDArray[Any]]:
        """Return all data keys of one cut."""
        check_corpus_idx(corpus_idx, self._index.num_seqs)
        cut = self._table.cut(corpus_idx, self._shar_fields)
        return {data_key: self._load(cut, corpus_idx, data_key) for data_key in self._keys}

    def read_slice(self, corpus_idx: int, data_key: str, start: int, end: int) -> NDArray[Any]:
        """Return frames start..end of one data key; of wav and flac files no other samples are read.

        Raises:
            IndexError: Not 0 <= start <= end <= its length.
            SourceError: As for `read`.
        """
        check_data_key(data_key, self.specs)
        check_corpus_idx(corpus_idx, self._index.num_seqs)
        num_frames = int(self._index.lengths(data_key)[corpus_idx])
        if not 0 <= start <= end <= num_frames:
            raise IndexError(f"frames {start}..{end} of {data_key!r} in a sequence of {num_frames} frames")
        cut = self._table.cut(corpus_idx, [self._keys[data_key].shar_field])
        part = self._keys[data_key].load_part(cut, start, end, self._table.where(corpus_idx))
        if part is not None:
            return part
        whole = self._load(cut, corpus_idx, data_key)
        return whole[start:end].copy() if self.specs[data_key].has_time else whole

    def _load(self, cut: Any, corpus_idx: int, data_key: str) -> NDArray[Any]:
        where = self._table.where(corpus_idx)
        array = self._keys[data_key].load(cut, where)
        expected = int(self._index.lengths(data_key)[corpus_idx])
        if self.specs[data_key].has_time and len(array) != expected:
            raise SourceError(
                f"{data_key!r} has {len(array)} frames, and {expected} by its manifest",
                where=where,
                fix="write the data again, or correct the manifest",
            )
        return np.asarray(array)

    def close(self) -> None:
        """Release files; a later read opens them again."""
        self._table.close()

    def __getstate__(self) -> tuple[CutFiles | None, list[Any], CutOptions, CorpusIndex, Roots]:
        return self._cut_files, self._held, self._options, self._index, self._roots

    def __setstate__(self, state: tuple[CutFiles | None, list[Any], CutOptions, CorpusIndex, Roots]) -> None:
        self._attach(*state)


def _is_cut_set(files: Any) -> bool:
    return any(kind.__name__ == "CutSet" and kind.__module__.startswith("lhotse.") for kind in type(files).__mro__)


def _eager(cuts: Any) -> list[Any]:
    """Return the cuts of a set in memory.

    Raises:
        ConfigError: The set is lazy: it can only be read in its order.
    """
    if cuts.is_lazy:
        raise ConfigError(
            "the cuts are read lazily, in their order, and a source has to find any of them",
            where="CutSource(files=...)",
            fix="give the path of the manifest or of the Shar folder, or cuts.to_eager()",
        )
    return list(cuts)
