"""Several sequences in a row, so that there is hardly any padding and every batch has the same shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, check_count
from headrace.order.policy import set_field

from .base import Batching, check_data_key
from .packed_layout import RowLayout
from .pieces import Pieces, TooLong, apply_too_long, check_too_long
from .plan import Groups, WindowKey

_Strategy = Literal["first_fit", "best_fit"]
_MAX_TOKENS = 2**31 - 1
_NUM_CLASSES = 2048  # number of classes that lengths are rounded up to, which costs at most one part in 2048 a sequence


@dataclass(frozen=True)
class Pack(Batching):
    """Rows of `row_tokens` that hold several sequences each, `num_rows` of them a batch.

    The sequences of a window are placed longest first, in the first row with room for them, or in the one with the
    least room left over (first-fit and best-fit decreasing: D. S. Johnson, "Near-optimal bin packing algorithms",
    1973; at most 11/9 of the fewest rows possible). All sequences of a length are placed at once, so the cost depends
    on the number of lengths, at most 2048, not of sequences. Then the rows are shuffled, since long sequences would
    come first otherwise; in a row, sequences keep the order of the epoch.

    Every batch has the same shape: a sequence that is longer than a row is cut, and the last batch of a window, which
    may use fewer rows, is filled up with empty ones (not so with `too_long="alone"`).

    Args:
        row_tokens: Tokens (or frames) of a row.
        num_rows: Rows of a batch.
        strategy: `"first_fit"` or `"best_fit"`.
        data_key: The data key whose lengths count; None for the main key of the dataset.
        too_long: What to do with a sequence that is longer than a row: `"chunk"`, cut into the fewest chunks that fit,
            of equal length; `"drop"`; `"error"`; or `"alone"`, a batch of one row as long as it needs, so that batches
            have different shapes. All are counted.
        packed_keys: The data keys that share rows; they must be as long as the reference in each sequence. The others
            are padded, one row for each sequence. None: all that have a time axis.

    Raises:
        ConfigError: An option is wrong.
    """

    row_tokens: int
    num_rows: int
    strategy: _Strategy = "first_fit"
    data_key: str | None = None
    too_long: TooLong = "chunk"
    packed_keys: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Check all options."""
        for name in ("row_tokens", "num_rows"):
            set_field(self, name, check_count(f"Pack: {name}", getattr(self, name), minimum=1, maximum=_MAX_TOKENS))
        if self.strategy not in get_args(_Strategy):
            raise ConfigError(f'Pack: strategy must be "first_fit" or "best_fit", got {self.strategy!r}')
        check_data_key("Pack", self.data_key)
        check_too_long("Pack", self.too_long)
        keys = self.packed_keys
        if keys is not None:
            if isinstance(keys, str) or not all(isinstance(key, str) for key in keys):
                raise ConfigError(f"Pack: packed_keys must be a tuple of data keys, got {keys!r}")
            set_field(self, "packed_keys", tuple(keys))

    def __str__(self) -> str:
        """Return the text of the options, always with `too_long`: its default has changed."""
        text = super().__str__()
        return text if "too_long=" in text else f"{text[:-1]}, too_long={self.too_long!r})"

    @property
    def shares_rows(self) -> bool:
        """Always: sequences share rows."""
        return True

    def row_layout(self, rows: NDArray[np.int32]) -> RowLayout:
        """Return the layout of a batch, given the row of each sequence, `int32[n]`."""
        num_rows = None if self.too_long == "alone" else self.num_rows
        return RowLayout(rows, self.row_tokens, num_rows, self.packed_keys)

    def cut(self, pieces: Pieces) -> Pieces:
        """Apply `too_long` to sequences that are longer than a row."""
        return apply_too_long(pieces, self.row_tokens, self.too_long, self)

    def fullness(self, frames: NDArray[np.int64]) -> float:
        """Return the share of a batch that the tokens fill."""
        return float(np.clip(frames, 1, self.row_tokens).sum()) / (self.row_tokens * self.num_rows)

    def group(self, frames: NDArray[np.int64], key: WindowKey) -> Groups:
        """Place the pieces in rows, shuffle the rows and group them."""
        is_alone = frames > self.row_tokens
        rows = np.full(len(frames), -1, np.int64)
        rows[~is_alone] = place_in_rows(frames[~is_alone], self.row_tokens, self.strategy)
        num_rows = int(rows.max(initial=-1)) + 1
        num_full = -(-num_rows // self.num_rows)
        batches, row_in_batch = self._shuffle_rows(num_rows, key)
        batch_of = batches[rows]
        batch_of[is_alone] = num_full + np.arange(np.count_nonzero(is_alone))
        row_of = row_in_batch[rows]
        row_of[is_alone] = 0
        pieces = np.lexsort((row_of, batch_of))  # stable: pieces of a row keep their order
        num_batches = num_full + int(np.count_nonzero(is_alone))
        starts = np.searchsorted(batch_of[pieces], np.arange(num_batches + 1))
        costs = np.full(num_batches, self.num_rows * self.row_tokens, np.int64)
        if num_full:
            costs[num_full - 1] = (num_rows - (num_full - 1) * self.num_rows) * self.row_tokens
        costs[num_full:] = frames[is_alone]
        return Groups(pieces, starts, costs, row_of[pieces].astype(np.int32), padded=costs)

    def _shuffle_rows(self, num_rows: int, key: WindowKey) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the batch of each row, and its row there, `int64[num_rows + 1]`; the last stands for no row."""
        shuffled = np.zeros(num_rows + 1, np.int64)
        shuffled[np.argsort(key.random_keys("rows", num_rows), kind="stable")] = np.arange(num_rows)
        return np.divmod(shuffled, self.num_rows)


def place_in_rows(frames: NDArray[np.int64], row_tokens: int, strategy: _Strategy) -> NDArray[np.int64]:
    """Return the row of each piece, `int64[n]`: rows are numbered from 0, none is empty.

    O(number of different lengths x number of rows), vectorised over the rows. An empty piece takes the room of one
    token.

    Args:
        frames: `int64[n]`, none above `row_tokens`.
        row_tokens: Room in a row.
        strategy: Which row to choose where a piece fits into several.
    """
    quantum = -(-row_tokens // _NUM_CLASSES)
    room = row_tokens // quantum
    sizes = np.clip(-(-frames // quantum), 1, room).astype(np.int16)
    by_size = np.argsort(-sizes, kind="stable")
    lengths, firsts = np.unique(-sizes[by_size], return_index=True)
    firsts = np.append(firsts, len(by_size))
    rows = np.empty(len(frames), np.int64)
    rooms = np.empty(len(frames), np.int16)  # room left in each row that was opened
    num_open = 0
    for size, first, end in zip((-lengths).tolist(), firsts[:-1].tolist(), firsts[1:].tolist(), strict=True):
        fitting = np.flatnonzero(rooms[:num_open] >= size)
        if strategy == "best_fit":
            fitting = fitting[np.argsort(rooms[fitting], kind="stable")]
        # of equal sizes, a row takes as many as it can before the next row gets one, by either strategy
        slots = _take_slots(rooms, fitting[: end - first], size, end - first)
        missing = end - first - len(slots)
        if missing:
            in_row = room // size
            new_slots = num_open + np.arange(missing) // in_row
            num_open = int(new_slots[-1]) + 1
            rooms[new_slots] = room - size * in_row
            rooms[num_open - 1] = room - size * ((missing - 1) % in_row + 1)
            slots = np.concatenate([slots, new_slots])
        rows[by_size[first:end]] = slots
    return rows


def _take_slots(rooms: NDArray[np.int16], fitting: NDArray[np.int64], size: int, num: int) -> NDArray[np.int64]:
    """Place at most `num` pieces of a size in rows that fit, in that order; return the row of each, and take its room.

    No more than `num` rows need to be given: each of them takes at least one piece.
    """
    takes = rooms[fitting] // size
    ends = np.cumsum(takes)
    if len(ends) and ends[-1] > num:
        last = int(np.searchsorted(ends, num))
        fitting, takes = fitting[: last + 1], takes[: last + 1]
        takes[last] -= ends[last] - num
    rooms[fitting] -= takes * np.int16(size)
    return np.repeat(fitting, takes)
