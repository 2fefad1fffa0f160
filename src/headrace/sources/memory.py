"""A source whose sequences are arrays in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, did_you_mean
from headrace.index import CorpusIndex, GeneratedTags
from headrace.specs import DataSpec

from .base import Source, check_corpus_idx, check_data_key, fill_rows, num_frames_of, slice_frames
from .shared.data_types import checked_seq, learn_specs, parse_data_types, with_labels


class MemorySource(Source):
    """Sequences that are in memory already. All of them are checked when it is built, O(number of sequences).

    Arrays are kept, not copied: do not change them afterwards. What `read` returns is a copy.

    Args:
        seqs: One mapping (data key -> array, tensor, number or list of numbers) for each sequence; all with the same
            keys.
        tags: Their tags; "seq-0", "seq-1", ... if `None`. May repeat.
        labels: Data key -> class labels.
        dims: Data key -> number of classes, for sparse keys; else that of `labels` or `specs`, else the largest value
            + 1, or not known (`None`) if there are negative ones. A number that is given is believed, as the one in a
            file is: -1 for what a loss shall ignore, and values beyond it, are delivered as they are.
        specs: Layouts, see `parse_data_types`; else learnt from the first sequence. Only these keys are used.

    Raises:
        ConfigError: The arguments do not fit together.
        SourceError: A sequence has another layout than the specs, or than the first one.

    Examples:
        >>> import headrace as hr
        >>> import numpy as np
        >>> seqs = [{"data": np.zeros((frames, 40), np.float32), "classes": [0, 1]} for frames in (3, 5)]
        >>> source = hr.MemorySource(seqs, labels={"classes": ["no", "yes"]})
        >>> source.index.lengths("data").tolist(), source.specs["classes"].dim
        ([3, 5], 2)
    """

    def __init__(
        self,
        seqs: Sequence[Mapping[str, Any]],
        *,
        tags: Sequence[str] | None = None,
        labels: Mapping[str, Sequence[str]] | None = None,
        dims: Mapping[str, int] | None = None,
        specs: Mapping[str, DataSpec | Mapping[str, Any]] | None = None,
    ) -> None:
        if isinstance(seqs, Mapping):
            raise ConfigError(
                f"the sequences are a {type(seqs).__name__} of columns, not one dict for each sequence",
                where="MemorySource",
                fix="give [{key: columns[key][i] for key in columns} for i in range(num_seqs)]",
            )
        if tags is not None and len(tags) != len(seqs):
            raise ConfigError(f"there are {len(tags)} tags for {len(seqs)} sequences")
        names = GeneratedTags(len(seqs)) if tags is None else tags
        wanted = (
            learn_specs(seqs[0] if len(seqs) else {}, where="sequence 0") if specs is None else parse_data_types(specs)
        )
        self._seqs = [
            checked_seq(seq, wanted, exact=specs is None, where=f"sequence {i}, tag {names[i]!r}")
            for i, seq in enumerate(seqs)
        ]
        self.labels = {key: list(values) for key, values in (labels or {}).items()}
        sized = dict(wanted)
        for key, dim in (dims or {}).items() if wanted else ():
            if key not in wanted:
                raise ConfigError(f"dims has the unknown data key {key!r}", fix=did_you_mean(key, wanted))
            if not wanted[key].sparse and dim != wanted[key].dim:
                raise ConfigError(f"the data key {key!r} is not sparse: its dim is {wanted[key].dim}, not {dim}")
            sized[key] = replace(wanted[key], dim=dim)
        complete = with_labels(sized, self.labels) if wanted else {}
        self.specs = {key: self._with_classes(key, spec) for key, spec in complete.items()}
        lengths = {
            key: np.array([num_frames_of(seq[key], spec) for seq in self._seqs], dtype=np.int64)
            for key, spec in self.specs.items()
        }
        self._index = CorpusIndex.from_columns(tags=names, lengths=lengths)

    def _with_classes(self, key: str, spec: DataSpec) -> DataSpec:
        """Add the number of classes that the values tell to the spec of a sparse key, if they are classes."""
        filled = [seq[key] for seq in self._seqs if seq[key].size] if spec.sparse and spec.dim is None else []
        if not spec.sparse or spec.dim is not None or any(int(array.min()) < 0 for array in filled):
            return spec
        return replace(spec, dim=max((int(array.max()) for array in filled), default=-1) + 1)

    @property
    def index(self) -> CorpusIndex:
        """Tags and lengths."""
        return self._index

    def for_another_reader(self) -> Source:
        """Return this one: nothing in it changes."""
        return self

    def read(self, corpus_idx: int, data_key: str) -> NDArray[Any]:
        """Return a copy of one array."""
        return self._array(corpus_idx, data_key).copy()

    def read_slice(self, corpus_idx: int, data_key: str, start: int, end: int) -> NDArray[Any]:
        """Return a copy of some frames of one array."""
        array = self._array(corpus_idx, data_key)
        return slice_frames(array, self.specs[data_key], start, end).copy()

    def reads_slices(self, data_key: str) -> bool:
        """Yes: no other frames are copied."""
        return data_key in self.specs

    @property
    def has_fast_rows(self) -> bool:
        """Yes, unless a shape has free axes."""
        return all(None not in spec.shape for spec in self.specs.values())

    def read_rows(self, corpus_indices: NDArray[np.int64], data_key: str, out: NDArray[Any]) -> None:
        """Copy one data key of several sequences into one array."""
        key, seqs = check_data_key(data_key, self.specs), self._seqs
        if corpus_indices.size:
            check_corpus_idx(int(corpus_indices.min()), len(seqs))
            fill_rows(out, [seqs[corpus_idx][key] for corpus_idx in corpus_indices.tolist()])

    def read_into(self, corpus_indices: NDArray[np.int64], data_key: str, outs: Sequence[NDArray[Any]]) -> None:
        """Copy one data key of several sequences, each into an array of its own."""
        key, seqs = check_data_key(data_key, self.specs), self._seqs
        if corpus_indices.size:
            check_corpus_idx(int(corpus_indices.min()), len(seqs))
        for corpus_idx, out in zip(corpus_indices.tolist(), outs, strict=True):
            out[...] = seqs[corpus_idx][key]

    def _array(self, corpus_idx: int, data_key: str) -> NDArray[Any]:
        seq = self._seqs[check_corpus_idx(corpus_idx, len(self._seqs))]
        return seq[check_data_key(data_key, self.specs)]
