"""How the sequences of a batch share rows: one after the other, with the ids of segments and positions.

Read `layout.py` first. A segment is a sequence in its row; ids count from 1 in each row, and 0 is padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, did_you_mean

from .layout import (
    Allocate,
    Column,
    LayoutOptions,
    Seq,
    TextColumn,
    checked_allocate,
    gather_columns,
    lay_out,
    name_seqs,
    pad_value_of,
)


@dataclass(frozen=True)
class RowLayout:
    """Where the sequences of a packed batch go.

    Args:
        rows: Row of each sequence, `int[n]`, ascending, as in a plan.
        row_tokens: Tokens of a row. A row with a single sequence that is longer makes all rows as long as that.
        num_rows: Rows of the batch; None: as many as are used.
        packed_keys: The keys that share rows; None: all that have a time axis. Others are padded, a row a sequence.
    """

    rows: NDArray[Any]
    row_tokens: int
    num_rows: int | None = None
    packed_keys: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Arrays of a batch of n sequences in R rows of T tokens.

    Attributes:
        arrays: By data key: `any[R, T, ...]` if packed; else as in a `PaddedBatch`, with n rows.
        lengths: Frames of each sequence, `int32[n]`, by data key, for packed and padded keys.
        segment_ids: Which sequence of its row a token is of, from 1; 0 is padding, `int32[R, T]`.
        positions: Which token of its sequence it is, from 0; 0 in the padding, `int32[R, T]`.
        rows: Row of each sequence, `int32[n]`.
        starts: First token of each sequence in its row, `int32[n]`.

    Examples:
        >>> import numpy as np
        >>> from headrace.batching import RowLayout, pack_batch
        >>> layout = RowLayout(rows=np.array([0, 0]), row_tokens=4)
        >>> batch = pack_batch([{"data": np.array([1, 2])}, {"data": np.array([3])}], layout)
        >>> batch.arrays["data"].tolist()
        [[1, 2, 3, 0]]
    """

    arrays: dict[str, NDArray[Any] | list[Any]]
    lengths: dict[str, NDArray[np.int32]]
    segment_ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    rows: NDArray[np.int32]
    starts: NDArray[np.int32]


def pack_batch(
    seqs: Sequence[Seq],
    layout: RowLayout,
    options: LayoutOptions | None = None,
    *,
    allocate: Allocate | None = None,
    tags: Sequence[str] | None = None,
) -> PackedBatch:
    """Lay out the sequences of a batch in shared rows.

    Args:
        seqs: Arrays, numbers or texts by data key; the same keys in each; at least one sequence.
        layout: Which sequence goes where.
        options: What to pad with. `multiple_of` is for the keys that do not share rows.
        allocate: Called as `allocate(name, shape, dtype)` for each array, `segment_ids` and `positions` included; its
            result is filled, whatever was in it.
        tags: Names of the sequences, for errors.

    Raises:
        SourceError: Sequences do not fit together, or the packed keys of one differ in length. They are named.
        ConfigError: The layout does not suit the sequences, or what was allocated has another shape or dtype.
    """
    options = LayoutOptions() if options is None else options
    columns = gather_columns(seqs, options, tags)
    return pack_columns(columns, layout, options, allocate=checked_allocate(allocate), tags=tags)


def pack_columns(
    columns: Mapping[str, Column | TextColumn],
    layout: RowLayout,
    options: LayoutOptions,
    *,
    allocate: Allocate,
    tags: Sequence[str] | None = None,
) -> PackedBatch:
    """Lay out the columns of a batch in shared rows, see `pack_batch`; allocated arrays are not checked."""
    packed = _packed_columns(columns, layout)
    lengths = _common_lengths(packed, tags)
    plan = _PackedRows.of(layout, lengths)
    packed_keys = {column.key for column in packed}
    arrays: dict[str, NDArray[Any] | list[Any]] = {}
    all_lengths = {}
    for key, column in columns.items():
        if isinstance(column, Column) and column.lengths is not None:
            all_lengths[key] = column.lengths
        if isinstance(column, Column) and key in packed_keys:
            out = allocate(key, (*plan.shape, *column.inner), column.dtype)
            pad_value = pad_value_of(column, options) if options.pad_values else np.zeros((), column.dtype)[()]
            column.write(plan.open_rows(out, lengths, pad_value))
            arrays[key] = out
        else:
            arrays[key] = lay_out(column, options, allocate)
    int32 = np.dtype(np.int32)
    segment_ids = allocate("segment_ids", plan.shape, int32)
    positions = allocate("positions", plan.shape, int32)
    plan.fill_tokens(segment_ids, np.repeat(plan.numbers, lengths))
    before = np.cumsum(lengths) - lengths
    plan.fill_tokens(positions, np.arange(lengths.sum()) - np.repeat(before, lengths))
    return PackedBatch(arrays, all_lengths, segment_ids, positions, plan.rows, plan.starts)


def segment_bounds(segment_ids: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return where segments begin in the rows of a batch laid end to end, and the end of the last, `int32[S + 1]`.

    That is what attention for sequences of different lengths takes as `cu_seqlens`, for an array of R * T tokens. The
    padding at the end of a row is a segment, too: it attends to itself alone.

    Args:
        segment_ids: `int32[R, T]`.
    """
    flat = segment_ids.ravel()
    begins = np.ones(flat.size, bool)
    if flat.size:
        begins[1:] = flat[1:] != flat[:-1]
        begins[:: segment_ids.shape[1]] = True
    return np.append(np.flatnonzero(begins), flat.size).astype(np.int32)


def attention_mask(segment_ids: NDArray[np.int32], *, causal: bool = False) -> NDArray[np.bool_]:
    """Return which token (axis 1) may attend to which (axis 2), `bool[R, T, T]`: to those of its own segment.

    Tokens of the padding attend to nothing, and nothing to them.

    Args:
        segment_ids: `int32[R, T]`, an array or a tensor, as is what is returned.
        causal: Whether a token attends to no later ones.
    """
    mask: NDArray[np.bool_] = (segment_ids[:, :, None] == segment_ids[:, None, :]) & (segment_ids[:, :, None] > 0)
    if causal:
        mask = mask.tril() if hasattr(mask, "tril") else np.tril(mask)
    return mask


def _packed_columns(columns: Mapping[str, Column | TextColumn], layout: RowLayout) -> list[Column]:
    timed = {
        key: column for key, column in columns.items() if isinstance(column, Column) and column.lengths is not None
    }
    if layout.packed_keys is None:
        packed = list(timed.values())
    else:
        unknown = [key for key in layout.packed_keys if key not in timed]
        if unknown:
            raise ConfigError(
                f"packed_keys has {unknown[0]!r}, which has no time axis here", fix=did_you_mean(unknown[0], timed)
            )
        packed = [timed[key] for key in layout.packed_keys]
    if not packed:
        raise ConfigError(f"there is no data key with a time axis to pack, only {', '.join(columns) or 'no keys'}")
    return packed


def _common_lengths(packed: list[Column], tags: Sequence[str] | None) -> NDArray[np.int64]:
    """Return the frames of each sequence, which are the same for all packed keys, `int64[n]`."""
    lengths = packed[0].lengths
    assert lengths is not None
    for column in packed[1:]:
        assert column.lengths is not None
        differs = np.flatnonzero(column.lengths != lengths)
        if len(differs):
            seq = int(differs[0])
            raise SourceError(
                f"the data keys {packed[0].key!r} and {column.key!r} cannot share rows: a sequence has "
                f"{lengths[seq]} and {column.lengths[seq]} frames of them",
                where=name_seqs(tags, seq),
                fix="name the keys that share rows in packed_keys=(...) of Pack",
            )
    return lengths.astype(np.int64)


@dataclass(frozen=True, slots=True)
class _PackedRows:
    """Where each of n sequences is in R rows of T tokens."""

    rows: NDArray[np.int32]
    starts: NDArray[np.int32]
    numbers: NDArray[np.int32]  # in its row, from 1
    row_ends: NDArray[np.int64]  # used tokens of each row, `int64[R]`
    shape: tuple[int, int]

    @classmethod
    def of(cls, layout: RowLayout, lengths: NDArray[np.int64]) -> _PackedRows:
        rows = np.asarray(layout.rows)
        used = int(rows[-1]) + 1 if len(rows) else 0
        num_rows = used if layout.num_rows is None else layout.num_rows
        if len(rows) != len(lengths) or (len(rows) and (rows[0] < 0 or bool(np.any(np.diff(rows) < 0)))):
            raise ConfigError(f"{len(lengths)} sequences need ascending rows, one each, got {rows.tolist()}")
        if used > num_rows:
            raise ConfigError(f"row {used - 1} is outside a batch of {num_rows} rows")
        firsts = np.searchsorted(rows, rows)  # the first sequence of the row of each
        before = np.cumsum(lengths) - lengths
        starts = before - before[firsts]
        row_ends = np.zeros(num_rows, np.int64)
        row_ends[rows] = starts + lengths  # the last one of a row is written last
        num_tokens = layout.row_tokens
        if len(rows) and row_ends.max() > num_tokens:
            if len(rows) > 1:
                raise ConfigError(
                    f"row {np.argmax(row_ends)} has {row_ends.max()} tokens, and row_tokens is {num_tokens}",
                    fix="the lengths of the sequences must be those of the plan: do not change them in a transform",
                )
            num_tokens = int(row_ends.max())
        numbers = np.arange(len(rows)) - firsts + 1
        return cls(
            rows.astype(np.int32), starts.astype(np.int32), numbers.astype(np.int32), row_ends, (num_rows, num_tokens)
        )

    def open_rows(self, out: NDArray[Any], lengths: NDArray[np.int64], pad_value: Any) -> list[NDArray[Any]]:
        """Write the padding, and return the slice of `out` for each sequence."""
        for row, end in enumerate(self.row_ends.tolist()):
            out[row, end:] = pad_value
        spans = zip(self.rows.tolist(), self.starts.tolist(), lengths.tolist(), strict=True)
        return [out[row, start : start + length] for row, start, length in spans]

    def fill_tokens(self, out: NDArray[np.int32], tokens: NDArray[Any]) -> None:
        """Write one number for each token, `int[N]`, and 0 in the padding."""
        start = 0
        for row, end in enumerate(self.row_ends.tolist()):
            out[row, :end] = tokens[start : start + end]
            out[row, end:] = 0
            start += end
