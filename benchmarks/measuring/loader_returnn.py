"""RETURNN: its `HDFDataset`, its batching and its torch data pipeline, as its engine puts them together.

Two arrangements with two reading processes: `MultiProcDataset` with two workers, behind the one worker of torch's
`DataLoader` that RETURNN has by default; and two such workers that share the sequences out. The order is by length in
bins of 1000 sequences ("laplace"), the usual one for a padded batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from returnn.config import Config, set_global_config
from returnn.datasets.basic import init_dataset
from returnn.torch.data import pipeline
from returnn.torch.data.returnn_dataset_wrapper import ReturnnDatasetIterDataPipe

from .loader_contender import NUM_WORKERS, WORLD_SIZE, Batch, Contender, dear_work
from .loader_corpora import Corpus

BUFFER_SIZE = 100


def dear_map(tensors: Any, **_: Any) -> Any:
    """Work on one sequence."""
    dear_work(tensors.data["data"].raw_tensor)
    return tensors


def config_of(corpus: Corpus, *, is_dear: bool) -> dict[str, Any]:
    config = {"class": "HDFDataset", "files": [corpus.file("hdf")], "seq_ordering": "laplace:.1000"}
    return {"class": "PostprocessingDataset", "dataset": config, "map_seq": dear_map} if is_dear else config


def batches_of(dataset: Any, corpus: Corpus, *, shards: bool = False) -> Any:
    """Return the batches of a dataset, not yet padded."""
    wrapped = ReturnnDatasetIterDataPipe(dataset, shard_workers=shards)
    return pipeline.BatchingIterDataPipe(wrapped, batch_size=corpus.budget, max_seqs=None)


class Returnn(Contender):
    """See the module.

    Args:
        shards_loader: The second arrangement.
    """

    def __init__(self, *, shards_loader: bool) -> None:
        self.shards_loader = shards_loader
        set_global_config(Config())

    def stream(self, corpus: Corpus, *, is_dear: bool) -> Iterator[Batch]:
        """See `Contender`."""
        config = config_of(corpus, is_dear=is_dear)
        options = {}
        if self.shards_loader:
            options["num_workers"] = NUM_WORKERS
        else:
            config = {
                "class": "MultiProcDataset",
                "dataset": config,
                "num_workers": NUM_WORKERS,
                "buffer_size": BUFFER_SIZE,
            }
        batches = batches_of(init_dataset(config), corpus, shards=self.shards_loader)
        loader = pipeline.create_data_loader_from_batches(batches, options)
        while True:
            for batch in loader:
                yield batch["data"], batch["data:seq_len"]

    def rank_lengths(self, corpus: Corpus, rank: int) -> Iterator[NDArray[Any]]:
        """See `Contender`; each rank has a share of the sequences, and makes batches of its own."""
        dataset = init_dataset(config_of(corpus, is_dear=False))
        dataset.set_sharding(num_shards=WORLD_SIZE, shard_index=rank)
        for batch in batches_of(dataset, corpus):
            yield np.array([len(seq["data"]) for seq in batch])
