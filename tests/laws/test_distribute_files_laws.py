"""Laws over files: everything exactly once over ranks and sub-epochs, and the same stream whoever reads it."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.datasets import DistributeFilesDataset, StaticDataset
from headrace.files.lists.tree import tree_leaves

CONTENTS = st.lists(st.integers(0, 6), min_size=1, max_size=14)  # sequences in each file
OPTIONS = st.fixed_dictionaries(
    {
        "seq_ordering": st.sampled_from(["default", "random"]),
        "balance": st.sampled_from(["in_order", "largest_first"]),
        "random_seed_offset": st.integers(0, 3),
    }
)
INNER_ORDERINGS = st.sampled_from(["default", "random", "laplace:2", "sorted_reverse"])


@pytest.fixture(autouse=True, scope="module")
def _own_cache_folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def add_noise(features, rng):
    return {"data": features["data"] + rng.random(features["data"].shape, dtype=np.float32)}


class Corpus:
    """Files of numbered sequences on the disk, some of them together in trees."""

    def __init__(self, folder, contents, shape, ordering="random"):
        self.ordering = ordering
        files, number = [], 0
        for i, size in enumerate(contents):
            files.append(str(Path(folder, f"{i}.json")))
            Path(files[-1]).write_text(json.dumps(list(range(number, number + size))))
            number += size
        self.num_seqs = number
        self.trees, shape = [], list(shape)
        while files:
            kind = shape.pop() if shape else 0
            taken, files = files[: kind + 1], files[kind + 1 :]
            self.trees.append([taken[0], tuple(taken), {"b": taken[0], "a": taken[1:]}][min(kind, len(taken) - 1)])

    def dataset_of(self, trees):
        numbers = [n for tree in trees for file in tree_leaves(tree) for n in json.loads(Path(file).read_text())]
        return {
            "class": "StaticDataset",
            "data": [{"data": np.full((n % 3 + 1, 1), n, np.float32)} for n in numbers],
            "output_dim": {"data": (1, 2)},
            "input_dim": 1,
            "seq_ordering": self.ordering,
            "transform": add_noise,
        }


def stream(dataset, epoch):
    return [(seq.seq_idx, seq.tag, seq["data"].tobytes()) for seq in dataset.epoch(epoch)]


def numbers(dataset, epoch):
    return [int(seq["data"][0, 0]) for seq in dataset.epoch(epoch)]


@given(CONTENTS, st.lists(st.integers(0, 2)), OPTIONS, st.data())
@settings(max_examples=60)
def test_a_full_epoch_has_each_sequence_once_over_all_ranks_and_sub_epochs(contents, shape, options, data):
    with tempfile.TemporaryDirectory() as folder:
        corpus = Corpus(folder, contents, shape)
        world_size = data.draw(st.integers(1, min(len(corpus.trees), 4)))
        partition_epoch = data.draw(st.integers(1, len(corpus.trees) // world_size))
        num_canonical = data.draw(
            st.none() | st.integers(world_size, max(len(corpus.trees) // partition_epoch, world_size))
        )
        full_epoch = data.draw(st.integers(0, 3))
        ranks = [
            DistributeFilesDataset(
                files=corpus.trees,
                get_sub_epoch_dataset=corpus.dataset_of,
                partition_epoch=partition_epoch,
                distrib_shard_files=True,
                rank=rank,
                world_size=world_size,
                num_canonical_shards=num_canonical,
                use_worker_proc=False,
                **options,
            )
            for rank in range(world_size)
        ]
        epochs = range(full_epoch * partition_epoch + 1, (full_epoch + 1) * partition_epoch + 1)
        read = [number for dataset in ranks for epoch in epochs for number in numbers(dataset, epoch)]
        assert sorted(read) == list(range(corpus.num_seqs))
        files = [tree for rank in range(world_size) for epoch in epochs for tree in ranks[0].get_files(epoch, rank)]
        assert sorted(map(str, files)) == sorted(map(str, corpus.trees))
        for dataset in ranks:  # each knows what all others do, and asked nobody
            assert all(
                dataset.get_files(epoch, rank) == other.get_files(epoch)
                for epoch in epochs
                for rank, other in enumerate(ranks)
            )
            dataset.count_files()
            for epoch in epochs:
                wanted = min(
                    sum(len(json.loads(Path(file).read_text())) for tree in trees for file in tree_leaves(tree))
                    for trees in (dataset.get_files(epoch, rank) for rank in range(world_size))
                )
                assert dataset.num_seqs_of(epoch) == len(numbers(dataset, epoch)) == wanted


def check_same_stream(executor, contents, inner, options, data):
    with tempfile.TemporaryDirectory() as folder:
        corpus = Corpus(folder, contents, [], inner)
        partition_epoch = data.draw(st.integers(1, len(corpus.trees)))
        epochs = data.draw(st.lists(st.integers(1, 2 * partition_epoch + 1), max_size=5))
        dataset = DistributeFilesDataset(
            files=corpus.trees,
            get_sub_epoch_dataset=corpus.dataset_of,
            partition_epoch=partition_epoch,
            num_workers=data.draw(st.integers(0, 3)),
            buffer_size=data.draw(st.none() | st.integers(1, 40)),
            preload_next_n_sub_epochs=data.draw(st.integers(0, 3)),
            executor=executor,
            **options,
        )
        early = data.draw(st.integers(0, 5))
        try:
            for epoch in epochs:
                for _ in zip(range(early), dataset.epoch(epoch), strict=False):  # read some, leave
                    pass
                config = {**corpus.dataset_of(dataset.get_files(epoch))}
                config.pop("class")
                inner_dataset = StaticDataset(**config, random_seed_offset=options["random_seed_offset"])
                inner_dataset.seed_by_tag()  # places in the corpus of one sub-epoch mean nothing in another
                assert stream(dataset, epoch) == stream(inner_dataset, (epoch - 1) // partition_epoch + 1)
        finally:
            dataset.close()


@pytest.mark.parametrize("executor", ["inline", "thread"])
@given(CONTENTS, INNER_ORDERINGS, OPTIONS, st.data())
@settings(max_examples=30)
def test_workers_and_preloading_do_not_change_the_stream(executor, contents, inner, options, data):
    check_same_stream(executor, contents, inner, options, data)


@given(CONTENTS, INNER_ORDERINGS, OPTIONS, st.data())
@settings(max_examples=10)
def test_worker_processes_and_preloading_do_not_change_the_stream(contents, inner, options, data):
    check_same_stream("process", contents, inner, options, data)
