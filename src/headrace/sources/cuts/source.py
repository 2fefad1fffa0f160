"""A source of lhotse's cuts: manifests, Shar folders, and cut sets in memory, with random access.

lhotse reads Shar in sequence. Here the position of each cut and of its data is indexed once, and one `pread` for each
part finds it again; what is read goes through lhotse's own `Cut`, so transforms and mixes are lhotse's. A manifest is
data: `schema.py` lists what it may say, its `Roots` say which files it may name, `record.py` makes lhotse's
objects of it, and `library.py` reads their files without any program. Read `files.py` for what is a corpus,
`gather.py` for what is indexed, `table.py` for how a cut is found, `keys.py` for what becomes an array.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError

from ..base import check_data_key
from ..shared.paths import IndexOption
from ..shared.source import RecordSource
from .files import CutFiles, find_cut_files
from .gather import CutOptions, gather_held, gather_stored, index_kind
from .keys import CutKey
from .schema import NO_ROOTS, Roots
from .table import CutTable, HeldCuts, StoredCuts


@dataclass(frozen=True, slots=True)
class CutCorpus:
    """What a source reads: files, or cuts in memory.

    Attributes:
        files: The manifests and the files of Shar; `None` for cuts in memory.
        held: The cuts in memory.
        options: How cuts become arrays.
        roots: Where files may be that a manifest names.
    """

    files: CutFiles | None
    held: list[Any]
    options: CutOptions
    roots: Roots


class CutSource(RecordSource):
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

    _options: CutCorpus
    _changed_fix = "write the data again, or correct the manifest"

    def __init__(
        self,
        files: Any,
        *,
        fields: Mapping[str, str | Mapping[str, Any]] | None = None,
        tolerance: float = 0.0,
        root: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        index: IndexOption = "auto",
    ) -> None:
        if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 <= tolerance < math.inf:
            raise ConfigError(f"tolerance is a number of seconds, got {tolerance!r}", where="CutSource")
        options = CutOptions(None if fields is None else dict(fields), float(tolerance))
        if _is_cut_set(files):
            if index not in ("auto", None):
                raise ConfigError("cuts in memory have no index file", where="CutSource(index=...)", fix="leave it out")
            held = _eager(files)
            self._attach(CutCorpus(None, held, options, NO_ROOTS), gather_held(held, options))
            return
        found = find_cut_files(files)
        roots = Roots.of(root, found.all)
        self._open(
            CutCorpus(found, [], options, roots),
            found.all,
            lambda: gather_stored(found, options, roots),
            index=index,
            kind=index_kind(found, options),
        )

    def _prepare(self) -> None:
        meta, corpus = self._index.meta, self._options
        fields = corpus.options.fields if corpus.options.fields is not None else dict(meta["fields"])
        self._keys: dict[str, CutKey] = corpus.options.keys(fields, meta["kinds"])
        for name, key in self._keys.items():
            key.settle(self.specs[name], meta["labels"].get(name), meta["sample_rates"][name])

    def _prepare_files(self) -> None:
        super()._prepare_files()
        corpus = self._options
        self._table: CutTable = (
            HeldCuts(corpus.held) if corpus.files is None else StoredCuts(corpus.files, self._index, corpus.roots)
        )

    def sample_rate(self, data_key: str) -> int | None:
        """Return the rate of a key with audio, in Hz; None for others, and for a corpus without cuts."""
        return self._keys[check_data_key(data_key, self.specs)].sample_rate

    def _record(self, corpus_idx: int, data_keys: Sequence[str]) -> Any:
        return self._table.cut(corpus_idx, [self._keys[data_key].shar_field for data_key in data_keys])

    def _encode(self, record: Any, corpus_idx: int, data_key: str, where: str) -> NDArray[Any]:  # noqa: ARG002
        return np.asarray(self._keys[data_key].encode(record, where))

    def reads_slices(self, data_key: str) -> bool:
        """Yes, of the recordings of cuts; where samples cannot be sought, they are decoded whole."""
        return data_key in self._keys and self._keys[data_key].reads_parts

    def _load_part(self, corpus_idx: int, data_key: str, start: int, end: int) -> NDArray[Any]:
        """Return frames of a key; of wav and flac files no other samples are read."""
        cut, where = self._record(corpus_idx, (data_key,)), self._where(corpus_idx)
        part = self._keys[data_key].encode_part(cut, start, end, where)
        if part is not None:
            return part
        whole = self._checked(corpus_idx, data_key, self._encode(cut, corpus_idx, data_key, where))
        return whole[start:end].copy()

    def _where(self, corpus_idx: int) -> str:
        return self._table.where(corpus_idx)

    def close(self) -> None:
        """Release files; a later read opens them again."""
        self._table.close()
        super().close()


def _is_cut_set(files: Any) -> bool:
    return any(kind.__name__ == "CutSet" and kind.__module__.startswith("lhotse.") for kind in type(files).__mro__)


def _eager(cuts: Any) -> list[Any]:
    """Return the cuts of a set in memory.

    Raises:
        ConfigError: The set is lazy: it can only be read in its order.
    """
    if cuts.is_lazy:
        raise ConfigError(
            "the cuts are read lazily, in their order, and a source needs random access",
            where="CutSource(files=...)",
            fix="give the path of the manifest or of the Shar folder, or cuts.to_eager()",
        )
    return list(cuts)
