"""What a batching is: a frozen value that plans the batches of a window from the lengths of its sequences.

Invariants: each sequence of a window is in its plan exactly once, or counted as dropped, or cut into chunks that cover
    it; equal batchings make equal plans; `str` is a stable text of all that decides the plan, and nothing else.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError

from .packed_layout import RowLayout
from .pieces import Pieces
from .plan import WINDOW_SEQS, BatchOrder, Groups, WindowKey, WindowPlan, assemble_plan


class Batching(ABC):
    """Decides which sequences form a batch.

    A sub-class is a frozen dataclass that checks its options when built. It says how pieces are cut (`cut`) and grouped
    (`group`); the rest is the same for all.
    """

    @property
    def data_key(self) -> str | None:
        """The data key whose lengths count; None for the main key of the dataset."""
        return None

    @property
    def whole_keys(self) -> tuple[str, ...]:
        """Data keys that are given in full with each chunk, where sequences are cut."""
        return ()

    @property
    def needs_lengths(self) -> bool:
        """Whether the lengths of the sequences matter for anything but the costs."""
        return True

    @property
    def keeps_order(self) -> bool:
        """Whether batches are runs of the order of the epoch, and come in it unless another `BatchOrder` is given."""
        return False

    @property
    def shares_rows(self) -> bool:
        """Whether sequences share rows; then `group` assigns the rows, and `row_layout` knows their size."""
        return False

    def row_layout(self, rows: NDArray[np.int32]) -> RowLayout:
        """Return the layout of the sequences of a batch that share rows.

        Args:
            rows: Row of each, `int32[n]`.

        Raises:
            ConfigError: They do not share rows.
        """
        raise ConfigError(
            f"{self} does not say how long rows are, so {len(rows)} sequences cannot share them",
            fix="return shares_rows and row_layout of the Pack that it wraps",
        )

    def plan_window(self, lengths: NDArray[Any], key: WindowKey, order: BatchOrder | None = None) -> WindowPlan:
        """Plan the batches of one window, O(n log n) with 0.1 to 1 us a sequence.

        Args:
            lengths: Frames of each sequence in the order of the epoch, `int[N]`.
            key: Key of the random numbers of the window.
            order: In which order the batches come; None is `BatchOrder()`.

        Raises:
            SourceError: The lengths are not whole numbers in 0..2**40.
            ConfigError: A sequence is too long, and this is to be an error.
        """
        try:
            pieces = self.cut(Pieces.of_lengths(lengths))
        except (ConfigError, SourceError) as error:
            window = f"window {key.window} of epoch {key.epoch}"
            error.where = window if error.where is None else f"{error.where}, {window}"
            raise
        return self.plan_pieces(pieces, BatchOrder() if order is None else order, key)

    def plan_pieces(self, pieces: Pieces, order: BatchOrder, key: WindowKey) -> WindowPlan:
        """Plan the batches of the pieces of a window, which are cut already."""
        return assemble_plan(pieces, self.group(pieces.frames, key), order, key)

    def window_seqs(self, target: int = WINDOW_SEQS) -> int:
        """Return the number of sequences of a window, close to `target`."""
        return target

    def count_batches(self, num_seqs: int) -> int | None:  # noqa: ARG002
        """Return the number of batches of a window if it depends on nothing but its number of sequences, else None."""
        return None

    def fullness(self, frames: NDArray[np.int64]) -> float:  # noqa: ARG002
        """Return how many full batches these pieces make at most: windows of streams grow until there are enough.

        Args:
            frames: Length of each piece, `int64[M]`.
        """
        return math.inf  # unknown for a user-defined policy: windows keep their size

    def cut(self, pieces: Pieces) -> Pieces:
        """Drop, or cut, pieces that cannot be in a batch as they are. O(n)."""
        return pieces

    @abstractmethod
    def group(self, frames: NDArray[np.int64], key: WindowKey) -> Groups:
        """Group the pieces of a window into batches.

        Args:
            frames: Length of each piece, `int64[M]`.
            key: Key of the random numbers of the window.
        """

    def __str__(self) -> str:
        """Return the class and the options that are not at their defaults: the same text, the same plan.

        An option that is added later, with a default that changes nothing, does not change the text either.
        """
        options = ((field, getattr(self, field.name)) for field in fields(self))  # type: ignore[arg-type]
        parts = [f"{field.name}={option_text(value)}" for field, value in options if value != field.default]
        return f"{type(self).__name__}({', '.join(parts)})"


def option_text(value: object) -> str:
    """Return a stable text of an option, which is also how it is written in Python."""
    if isinstance(value, tuple):
        return f"({''.join(option_text(item) + ', ' for item in value).strip()})"
    return str(value) if isinstance(value, Batching) else repr(value)


def check_batching(owner: str, batching: object) -> None:
    """Refuse what is not a batching."""
    if not isinstance(batching, Batching):
        fix = f"write {batching.__name__}(...)" if isinstance(batching, type) else "give FrameBudget(...), for example"
        raise ConfigError(f"{owner} takes a batching, got {batching!r}", fix=fix)


def check_data_key(owner: str, data_key: object) -> None:
    """Refuse a data key that is not a text."""
    if data_key is not None and (not isinstance(data_key, str) or not data_key):
        raise ConfigError(f'{owner}: data_key must be a text such as "data", got {data_key!r}')
