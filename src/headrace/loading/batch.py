"""`Batch`: what a loader delivers, arrays by data key with everything that is known about them.

Invariant: all that a batch says (arrays, tags, indices, position) is a pure function of (data, recipe, seed, epoch,
position); only `step` and `is_repeat` depend on the ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.batching.packed_layout import attention_mask, segment_bounds
from headrace.errors import SourceError, TransformError, did_you_mean
from headrace.show.card import Card, Shown, layout_of_value


@dataclass(frozen=True, slots=True)
class Packing:
    """Positions of the n sequences of a packed batch, which has R rows of T tokens.

    Attributes:
        segment_ids: Which sequence of its row a token is of, from 1; 0 is padding, `int32[R, T]`.
        positions: Which token of its sequence it is, from 0; 0 in the padding, `int32[R, T]`.
        rows: Row of each sequence, `int32[n]`.
        starts: First token of each sequence in its row, `int32[n]`.

    Examples:
        >>> import headrace as hr
        >>> seqs = [{"data": [1.0, 2.0]}, {"data": [3.0]}]
        >>> with hr.DataLoader(seqs, batching=hr.Pack(row_tokens=4, num_rows=1)) as loader:
        ...     (batch,) = loader
        >>> batch.packing.segment_ids.tolist(), batch.packing.positions.tolist()
        ([[1, 1, 2, 0]], [[0, 1, 0, 0]])
    """

    segment_ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    rows: NDArray[np.int32]
    starts: NDArray[np.int32]


def _no_idx() -> NDArray[np.int64]:
    return np.zeros(0, np.int64)


@dataclass(repr=False, eq=False, slots=True, weakref_slot=True)
class Batch(Shown, MutableMapping[str, Any]):
    """Arrays of B sequences, by data key: `batch["data"]`.

    The arrays are views of shared memory where workers are processes; they stay as they are for as long as anything
    refers to them. Pickling copies them. A data key may be set, added or removed as in a dict; `lengths` stay those
    that were delivered. A trainer may make one of a mapping alone, `type(batch)({...})`: it has these arrays, no
    lengths and tags, and -1 for each number.

    Attributes:
        arrays: Data key -> `any[B, T, ...]`, padded; `any[B, ...]` for keys without a time axis; a list of B texts;
            packed keys are `any[R, T, ...]`, see `packing`.
        lengths: Frames of each sequence, `int32[B]`, by data key; for keys with time only.
        tags: Names of the sequences.
        seq_idx: Their positions in the order of the epoch, `int64[B]`.
        corpus_idx: Their corpus indices, `int64[B]`; -1 where the dataset has no such thing.
        epoch: The number of the epoch.
        position: Number of the batch in the epoch, from 0, counted over all ranks.
        step: Number of the step in the epoch, from 0, the same on all ranks.
        is_repeat: Whether it only fills up the last step of the epoch (`remainder="pad"`): another rank gets, or got,
            the same batch, so give it no weight.
        chunk_starts: First frame of each, `int64[B]`, where the batching cuts sequences; else None.
        packing: Where each sequence is, if several share a row; else None.
        data_key: The key whose frames are counted; None if no key has time.

    Examples:
        >>> import headrace as hr
        >>> import numpy as np
        >>> seqs = [{"data": np.zeros((frames, 40), np.float32), "label": frames % 2} for frames in (3, 5)]
        >>> with hr.DataLoader(seqs, batch_size=2) as loader:
        ...     batch = next(iter(loader))
        >>> batch["data"].shape, batch.lengths["data"].tolist(), batch["label"].tolist()
        ((2, 5, 40), [3, 5], [1, 1])
        >>> batch.tags, batch.epoch, batch.position
        (['seq-0', 'seq-1'], 1, 0)
    """

    arrays: dict[str, Any]
    lengths: dict[str, NDArray[np.int32]] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    seq_idx: NDArray[np.int64] = field(default_factory=_no_idx)
    corpus_idx: NDArray[np.int64] = field(default_factory=_no_idx)
    epoch: int = -1
    position: int = -1
    step: int = -1
    is_repeat: bool = False
    chunk_starts: NDArray[np.int64] | None = None
    packing: Packing | None = None
    data_key: str | None = None
    _joined_tags: str | None = field(default="", init=False, repr=False)  # what `tags` is made of, see `Made`

    __eq__ = object.__eq__  # a mapping would compare arrays, which have no one truth
    __hash__ = object.__hash__

    def take_tags(self, tags: str | list[str] | None) -> None:
        """Set the tags, in the form that a worker sends (see `Made`); the list is built on first access."""
        if isinstance(tags, list):
            self.tags = tags
        else:
            self._joined_tags = tags
            del self.tags

    if not TYPE_CHECKING:  # or every attribute would seem to be there

        def __getattr__(self, name: str) -> list[str]:
            if name != "tags":
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            joined = self._joined_tags  # it stays: another thread may be here, too
            self.tags = tags = (
                [ITEM_TAG.format(corpus_idx) for corpus_idx in self.corpus_idx.tolist()]
                if joined is None
                else joined.split(_SEPARATOR)
            )
            return tags

    def __getitem__(self, key: str) -> Any:
        try:
            return self.arrays[key]
        except KeyError:
            raise _NoKeyError(f"no data key {key!r}", fix=did_you_mean(str(key), self.arrays)) from None

    def __setitem__(self, key: str, value: Any) -> None:
        self.arrays[key] = value

    def __delitem__(self, key: str) -> None:
        if key not in self.arrays:
            raise _NoKeyError(f"no data key {key!r}", fix=did_you_mean(str(key), self.arrays))
        del self.arrays[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        """Return the number of data keys, as of any mapping; see `num_seqs` for that of the sequences."""
        return len(self.arrays)

    def map_arrays(self, function: Callable[[Any], Any]) -> Batch:
        """Apply a function to each array, including lengths and packing, and return a batch of the results."""
        packing = self.packing
        if packing is not None:
            packing = Packing(*(function(getattr(packing, one.name)) for one in fields(packing)))
        return replace(
            self,
            arrays={key: function(array) for key, array in self.arrays.items()},
            lengths={key: function(array) for key, array in self.lengths.items()},
            packing=packing,
        )

    def to(self, *args: Any, **kwargs: Any) -> Batch:
        """Return this batch with its tensors on a device: `tensor.to(...)` of each; NumPy arrays stay as they are."""
        return self.map_arrays(lambda array: array.to(*args, **kwargs) if hasattr(array, "to") else array)

    def pin_memory(self, *args: Any) -> Batch:
        """Return this batch with its tensors in page-locked memory; NumPy arrays stay as they are."""
        return self.map_arrays(lambda array: array.pin_memory(*args) if hasattr(array, "pin_memory") else array)

    @property
    def num_seqs(self) -> int:
        """Number of sequences (or chunks of them)."""
        return len(self.seq_idx)

    @property
    def segment_ids(self) -> NDArray[np.int32] | None:
        """Which sequence of its row each token is of, see `Packing`; None if rows are not shared."""
        return None if self.packing is None else self.packing.segment_ids

    @property
    def positions(self) -> NDArray[np.int32] | None:
        """Position of each token in its sequence, see `Packing`; None if rows are not shared."""
        return None if self.packing is None else self.packing.positions

    @property
    def cu_seqlens(self) -> NDArray[np.int32] | None:
        """Where segments begin in the R * T tokens of the rows, and their end, `int32[S + 1]`; None without packing.

        For attention by `cu_seqlens`; padding counts as segments, see `segment_bounds`. Of a batch of tensors it is a
        tensor on their device, for which the device is waited for.
        """
        if self.packing is None:
            return None
        segment_ids: Any = self.packing.segment_ids
        if not hasattr(segment_ids, "new_tensor"):  # not torch's
            return segment_bounds(np.asarray(segment_ids))
        found: NDArray[np.int32] = segment_ids.new_tensor(segment_bounds(segment_ids.cpu().numpy()))
        return found

    def attention_mask(self, *, causal: bool = False) -> NDArray[np.bool_] | None:
        """Return which token may attend to which, `bool[R, T, T]`: those of its own sequence; None without packing.

        Of a batch of tensors it is a tensor on their device.
        """
        return None if self.packing is None else attention_mask(self.packing.segment_ids, causal=causal)

    @property
    def num_frames(self) -> int:
        """Frames of all sequences, without padding, of `data_key`; 0 if no key has time."""
        return 0 if self.data_key is None else int(self.lengths[self.data_key].sum())

    @property
    def padding_share(self) -> float:
        """Padding as a share of the frames of the array of `data_key`, 0 to 1."""
        if self.data_key is None:
            return 0.0
        rows, frames = self.arrays[self.data_key].shape[:2]
        return 1 - self.num_frames / (rows * frames) if rows * frames else 0.0

    def __repr__(self) -> str:
        layouts = [f"{key}: {layout_of_value(value)}" for key, value in self.arrays.items()]
        if self.position < 0:  # a trainer made it from a mapping, so its origin is unknown
            return f"<Batch, {', '.join(layouts)}>"
        head = f"Batch {self.position} of epoch {self.epoch}, {self.num_seqs} sequences"
        return f"<{', '.join([head, *layouts])}>"

    def _card(self) -> Card:
        facts = (
            []
            if self.position < 0
            else [
                ("place", f"batch {self.position}, step {self.step} of epoch {self.epoch}"),
                ("size", f"{self.num_seqs:,} sequences, {self.num_frames:,} frames, {self.padding_share:.1%} padding"),
            ]
        )
        if self.is_repeat:
            facts.append(("repeat", "fills up the last step: give it no weight"))
        layouts = {key: layout_of_value(value) for key, value in self.arrays.items()}
        lengths = {key: np.asarray(lengths) for key, lengths in self.lengths.items()}
        return Card("Batch", facts, layouts, lengths)


_TEXTS = None, 0  # the layout of a data key that has no arrays


class EpochLayout:
    """The data keys of the batches of an epoch, with the dtypes and numbers of axes of their arrays: always the same.

    The first batch that is checked defines it.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[Any, int]] | None = None

    def check(self, epoch: int, number: int, arrays: Mapping[str, Any]) -> None:
        """Refuse data keys that change their dtype or number of axes in mid-epoch, appear or disappear.

        Raises:
            TransformError: One does.
        """
        known, found = self._known, {}
        for key, value in arrays.items():
            found[key] = (value.dtype, value.ndim) if isinstance(value, np.ndarray) else _TEXTS
        if known is None:
            self._known = found
        elif found != known:
            key = next(key for key in (*found, *known) if found.get(key) != known.get(key))
            before, now = (_layout_text(one.get(key)) for one in (known, found))
            raise TransformError(
                f"the data key {key!r} changes in mid-epoch: {before} before, and {now} now",
                where=f"batch {number} of epoch {epoch}",
                fix="let the transform return the same keys, dtypes and axes for all sequences",
            )


def _layout_text(layout: tuple[Any, int] | None) -> str:
    if layout is None:
        return "not there"
    return "texts or objects" if layout[0] is None else f"{layout[0]} with {layout[1]} axes"


class _NoKeyError(SourceError, KeyError):
    """The error for an unknown data key; also a `KeyError`, so that `batch.get(key)` and `key in batch` work."""

    __str__ = SourceError.__str__


# --- on its way from a worker: plain containers, which take half the time of a class of their own ---

_MARK, _SEPARATOR = "headrace batch", "\0"
ITEM_TAG = "seq-{}"  # of what has no tag of its own, by its corpus index

Made: TypeAlias = tuple[
    str,
    str | list[str] | None,
    NDArray[np.int64] | None,
    dict[str, Any],
    dict[str, NDArray[np.int32]],
    tuple[NDArray[np.int32], ...] | None,
]
"""A mark; the tags of the members that were read, joined, or None: `ITEM_TAG`; which members of the task these are,
`int64[k]`, None: all; data key -> array; data key -> `int32[k]`; `segment_ids`, `positions`, `rows`, `starts`, if rows
are shared."""


def pack_made(
    tags: list[str] | None,
    kept: NDArray[np.int64] | None,
    arrays: dict[str, Any],
    lengths: dict[str, NDArray[np.int32]],
    packing: tuple[NDArray[np.int32], ...] | None = None,
) -> Made:
    """Return what a worker sends, see `Made`."""
    told: str | list[str] | None = tags
    if tags is not None:
        try:
            joined = _SEPARATOR.join(tags)
        except TypeError:  # a class of the user's has tags that are no texts
            pass
        else:
            told = joined if joined.count(_SEPARATOR) == len(tags) - 1 else tags
    return _MARK, told, kept, arrays, lengths, packing


def is_made(value: Any) -> bool:
    """Tell whether a value was made by `pack_made`, and not by a collate function."""
    return type(value) is tuple and len(value) == 6 and type(value[0]) is str and value[0] == _MARK
