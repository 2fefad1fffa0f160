"""Parts of an epoch: what a dataset is asked for by those who read it in parts, such as workers who share an epoch."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.order import occurrences

from ..corpus import Corpus
from .batches import BatchApi


class PartialEpochs(BatchApi):
    """The epoch API, started with sequences that are given."""

    def init_part(
        self,
        epoch: int,
        first: int,
        indices: NDArray[np.int64],
        occurrences: NDArray[np.int64] | None = None,  # noqa: ARG002 (a contract)
    ) -> int:
        """Start a part of an epoch, as workers do who share one.

        Args:
            epoch: The epoch number.
            first: Position of the first sequence in the epoch.
            indices: `int64[n]`, corpus indices.
            occurrences: `int64[n]`, how often each of them came before in the epoch; `None` if never.

        Returns:
            The position under which the first sequence is read here: `first` where the class can count from there,
            else 0.
        """
        del first
        self.start_order(epoch, indices)
        return 0

    def start_given(
        self, epoch: int | None, seq_list: Sequence[str] | None = None, seq_order: Sequence[int] | None = None
    ) -> None:
        """Call `init_seq_order` with what is given, as a class of the user's own need not have every parameter.

        Raises:
            ConfigError: It lacks one that is needed.
        """
        both: dict[str, Any] = {"seq_list": seq_list, "seq_order": seq_order}
        given = {name: value for name, value in both.items() if value is not None}
        try:
            self.init_seq_order(epoch=epoch, **given)
        except TypeError as error:
            parameters = inspect.signature(self.init_seq_order).parameters
            lacking = [name for name in given if name not in parameters]
            if not lacking or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
                raise
            raise self._cannot_start(f"its init_seq_order has no parameter {lacking[0]}") from error

    def start_order(self, epoch: int | None, indices: NDArray[np.int64]) -> None:
        """Start an epoch in the order of these corpus indices, `int64[n]`, and check that it begins with them.

        Raises:
            ConfigError: A class of the user's own has started another order, or takes none.
        """
        self.start_given(epoch, seq_order=indices.tolist())
        started = np.asarray(self.get_checked_seq_order(2**62))
        if not np.array_equal(started[: len(indices)], indices):
            asked = f"init_seq_order(seq_order={_first_of(indices)})"
            raise self._cannot_start(f"{asked} has started the order {_first_of(started)}")

    def _cannot_start(self, what: str) -> ConfigError:
        return ConfigError(
            what,
            where=f"{type(self).__name__} {self.name!r}",
            fix="where init_seq_order is given seq_order (corpus indices) or seq_list (tags), let these be the order "
            "of the epoch, and tell its corpus indices by get_current_seq_order",
        )

    def get_occurrences(self) -> NDArray[np.int64] | None:
        """Return what `init_part` needs as `occurrences` for the current order, `int64[n]`; `None` if nothing does."""
        return None

    def count_occurrences(self) -> NDArray[np.int64]:
        """Return how often each sequence of the current order came before, `int64[n]`."""
        return occurrences(self.get_checked_seq_order())

    def forget_places(self) -> None:
        """Take it that this is read in parts whose positions are not those of the epoch."""

    def get_corpus(self) -> Corpus:
        """Return what is known of the sequences without reading them, see `Dataset.get_corpus`."""
        self._not_offered("get_corpus")

    @property
    def reads_singly(self) -> bool:
        """Whether `get_seq` reads a sequence without `load_seqs`, in any order, into arrays that are nobody else's."""
        return False


def _first_of(indices: NDArray[np.int64]) -> str:
    """Return the first few of an order as a text."""
    texts = [*map(str, indices[:4].tolist()), *(["..."] if len(indices) > 4 else [])]
    return f"[{', '.join(texts)}] of {len(indices)} sequences"
