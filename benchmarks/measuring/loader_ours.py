"""Headrace: `DataLoader` with `Buckets`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from headrace import Buckets, DataLoader, FrameBudget, HDFDataset
from headrace.loading.iterate import LoaderPosition

from .loader_contender import NUM_WORKERS, WORLD_SIZE, Batch, Contender, Saved, dear_work
from .loader_corpora import Corpus


def dear_transform(seq: Mapping[str, Any]) -> dict[str, Any]:
    """Work on one sequence."""
    return {"data": dear_work(seq["data"])}


def open_loader(corpus: Corpus, **options: Any) -> DataLoader:
    dataset = HDFDataset(files=corpus.file("hdf"), seq_ordering="permute")
    return DataLoader(dataset, batching=Buckets(FrameBudget(corpus.budget)), seed=1, **options)


class Ours(Contender):
    """See the module."""

    def stream(self, corpus: Corpus, *, is_dear: bool) -> Iterator[Batch]:
        """See `Contender`."""
        with open_loader(corpus, num_workers=NUM_WORKERS, transform=dear_transform if is_dear else None) as loader:
            while True:
                for batch in loader:
                    yield batch["data"], batch.lengths["data"]

    def rank_lengths(self, corpus: Corpus, rank: int) -> Iterator[NDArray[Any]]:
        """See `Contender`."""
        with open_loader(corpus, rank=rank, world_size=WORLD_SIZE) as loader:
            for batch in loader:
                yield batch.lengths["data"]

    def save(self, corpus: Corpus, shares: Sequence[float]) -> list[Saved] | None:
        """See `Contender`; a plan tells what an epoch would, and need not be read."""
        with open_loader(corpus) as loader:
            plan = loader._runs.plan_of(1)
            lengths = corpus.lengths()
            found: list[Saved] = []
            for share in shares:
                position = int(loader.num_steps(1) * share)
                state = loader.state_at(LoaderPosition(1, position, plan.locate(position)))
                found.append((state, lengths[plan.task(position)[0].indices].tolist()))
            return found

    def resume(self, corpus: Corpus, state: Any) -> Iterator[Batch]:
        """See `Contender`."""
        with open_loader(corpus, num_workers=NUM_WORKERS) as loader:
            loader.load_state_dict(state)
            for batch in loader:
                yield batch["data"], batch.lengths["data"]
