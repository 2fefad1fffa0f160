"""Orders and batches given by a user's sampler: torch's `sampler` and `batch_sampler`.

A sampler is iterated over once for each epoch, to its end, in the trainer; so its whole order is known before the first
batch, its batches are assigned to ranks by their numbers, and a resume can begin at any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.batching import Batching, Groups, WindowKey
from headrace.datasets.corpus import Corpus
from headrace.errors import ConfigError
from headrace.order import ArrayOrder, occurrences

from .inputs import EpochOrder, PlanNeeds, Subject
from .state import digest_array


@dataclass(frozen=True)
class SampledBatches(Batching):
    """The batching of a `batch_sampler`: the batches are part of the order of an epoch."""

    @property
    def needs_lengths(self) -> bool:
        """Not needed: the sampler defines the batches."""
        return False

    def group(self, frames: NDArray[np.int64], key: WindowKey) -> Groups:
        """Not here: see `EpochPlan`."""
        raise ConfigError(f"batches of a sampler are no plan of {len(frames)} sequences", where=str(key))


@dataclass(frozen=True)
class SampledOrder:
    """The order of an epoch that a sampler gave.

    Attributes:
        indices: Corpus indices, `int64[N]`.
        starts: Where each batch starts, and the end, `int64[B + 1]`; None: the sampler gives no batches.
    """

    indices: NDArray[np.int64]
    starts: NDArray[np.int64] | None = None


def draw_indices(sampler: Any) -> SampledOrder:
    """Iterate over a sampler of corpus indices.

    Raises:
        ConfigError: It gives something else.
    """
    try:
        return SampledOrder(np.fromiter(map(index, sampler), np.int64))
    except (TypeError, OverflowError) as error:
        raise ConfigError(
            f"a sampler must yield indices: {error}",
            where=type(sampler).__name__,
            fix="pass a sampler that yields lists of indices as batch_sampler=",
        ) from error


def draw_batches(sampler: Any) -> SampledOrder:
    """Iterate over a sampler of batches of corpus indices.

    Raises:
        ConfigError: A batch is empty, or is not a list of indices.
    """
    batches = []
    for number, batch in enumerate(sampler):
        try:
            indices = np.fromiter(map(index, batch), np.int64)
        except (TypeError, OverflowError) as error:
            raise ConfigError(
                f"a batch_sampler must yield lists of indices, and batch {number} is {batch!r}",
                where=type(sampler).__name__,
                fix="pass a sampler that yields single indices as sampler=, with batch_size=",
            ) from error
        if not len(indices):
            raise ConfigError(f"batch {number} of the batch_sampler is empty", where=type(sampler).__name__)
        batches.append(indices)
    starts = np.cumsum([0, *map(len, batches)], dtype=np.int64)
    return SampledOrder(np.concatenate(batches) if batches else np.zeros(0, np.int64), starts)


class SampledSubject(Subject):
    """Another subject in the order of a sampler, which is iterated over once for each epoch.

    Args:
        subject: Whose corpus indices the sampler gives.
        sampler: Iterable; its `set_epoch` is called first, or that of the `sampler` that it has, if there is one. To be
            resumed it must give the same for the same epoch.
        draw: Asks it.

    Raises:
        ConfigError: The sampler shares the sequences out among ranks, and the dataset does so, too; or it gives its
            indices once, and each epoch needs them.
    """

    def __init__(self, subject: Subject, sampler: Any, draw: Callable[[Any], SampledOrder] = draw_indices) -> None:
        if isinstance(sampler, Iterator):
            raise ConfigError(
                f"a {type(sampler).__name__} can be iterated over only once, and each epoch iterates over its sampler",
                where=subject.name,
                fix="give a list, or an object whose __iter__ starts from the beginning",
            )
        self.name = f"{subject.name} in the order of {type(sampler).__name__}"
        self.reading, self.data_key, self.workers = subject.reading, subject.data_key, subject.workers
        self.num_shards, self.sharded_by = subject.num_shards, subject.sharded_by
        for part in (sampler, getattr(sampler, "sampler", None)):  # a batch sampler has one that gives indices
            num_replicas = getattr(part, "num_replicas", 1)
            if not isinstance(num_replicas, int) or num_replicas <= 1:
                continue
            if self.num_shards > 1:
                raise ConfigError(
                    f"two levels would divide the data: the dataset ({self.sharded_by}) and the sampler",
                    where=self.name,
                    fix="leave one of them out",
                )
            self.num_shards, self.sharded_by = num_replicas, f"num_replicas={num_replicas} of {type(part).__name__}"
            # as torch's DistributedSampler, which gives all ranks equally many; so then does its BatchSampler
            num_samples = getattr(part, "num_samples", None)
            self.has_even_shards = num_samples is not None and num_samples * num_replicas == getattr(
                part, "total_size", None
            )
            break
        self._subject, self._sampler, self._draw = subject, sampler, draw
        self._drawn: tuple[int, SampledOrder] | None = None

    def _drawn_for(self, epoch: int) -> SampledOrder:
        if self._drawn is None or self._drawn[0] != epoch:
            for part in (self._sampler, getattr(self._sampler, "sampler", None)):
                set_epoch = getattr(part, "set_epoch", None)
                if set_epoch is not None:
                    set_epoch(epoch)
                    break
            drawn = self._draw(self._sampler)
            self._check_indices(drawn.indices)
            self._drawn = epoch, drawn
        return self._drawn[1]

    def _check_indices(self, indices: NDArray[np.int64]) -> None:
        size = self.corpus.size() if len(indices) else None
        if size is None:
            return
        for found in (int(indices.min()), int(indices.max())):
            if not 0 <= found < size:
                raise ConfigError(
                    f"the sampler gives the index {found}, and there are {size} sequences", where=self.name
                )

    @property
    def corpus(self) -> Corpus:
        """That of the other subject."""
        return self._subject.corpus

    def start(self, epoch: int, wanted: PlanNeeds) -> EpochOrder:
        """Return the order that the sampler gives."""
        drawn = self._drawn_for(epoch)  # before the dataset draws anything, as `order_text` does
        inner = self._subject.start(epoch, wanted)
        order = ArrayOrder(drawn.indices)
        return EpochOrder(epoch, order, inner.lengths_of, occurrences(order), inner.shortest, drawn.starts)

    def knows_lengths(self, data_key: str | None) -> bool:
        """Ask the other subject."""
        return self._subject.knows_lengths(data_key)

    def order_text(self, epoch: int) -> str:
        """Return a digest of the indices."""
        drawn = self._drawn_for(epoch)
        text = f"{self.reading_text(epoch)}sampled {digest_array(drawn.indices)}"
        return text if drawn.starts is None else f"{text} in batches {digest_array(drawn.starts)}"

    def reading_text(self, epoch: int) -> str:
        """Return that of the other subject."""
        return self._subject.reading_text(epoch)

    def may_draw_order(self) -> bool:
        """Yes: the sampler may, as torch's do that have no generator of their own."""
        return True

    def close(self) -> None:
        """Close the other subject."""
        self._subject.close()
