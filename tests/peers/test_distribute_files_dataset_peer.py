"""`DistributeFilesDataset` against RETURNN's: the same options, the same sequences in the same sub-epochs."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.datasets import DistributeFilesDataset
from headrace.sources import HDFWriter

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    Peer = pytest.importorskip("returnn.datasets.distrib_files").DistributeFilesDataset

pytestmark = pytest.mark.filterwarnings("ignore")

NUM_SEQS = [3, 17, 4, 9, 1, 26, 5, 12, 8, 2, 7]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(1)
    paths = []
    for i, num_seqs in enumerate(NUM_SEQS):
        paths.append(str(folder / f"{i:02}.hdf"))
        with HDFWriter(paths[-1], labels={"classes": [f"w{j}" for j in range(7)]}) as writer:
            for j in range(num_seqs):
                frames = int(rng.integers(1, 60))
                data = {"data": rng.normal(size=(frames, 3)), "classes": rng.integers(0, 7, frames)}
                writer.append(
                    f"{i}-{j}", {"data": data["data"].astype("float32"), "classes": data["classes"].astype("int32")}
                )
    return paths


def sub_epoch_dataset(ordering):
    return lambda files: {"class": "HDFDataset", "files": files, "seq_ordering": ordering}


def read(dataset, epoch):
    dataset.init_seq_order(epoch=epoch)
    seqs, place = [], 0
    while dataset.is_less_than_num_seqs(place):
        dataset.load_seqs(place, place + 1)
        arrays = [np.array(dataset.get_data(place, key)) for key in ("data", "classes")]
        seqs.append((dataset.get_tag(place), *((array.dtype, array.tolist()) for array in arrays)))
        place += 1
    return seqs


def check(files, ordering, inner, epochs, options):
    ours = DistributeFilesDataset(
        files=files, get_sub_epoch_dataset=sub_epoch_dataset(inner), seq_ordering=ordering, **options
    )
    theirs = Peer(
        files=files,
        get_sub_epoch_dataset=sub_epoch_dataset(inner),
        seq_ordering=ordering,
        sharding_fix=True,
        use_worker_proc=False,
        **{key: value for key, value in options.items() if key not in ("executor", "num_workers")},
    )
    try:
        ours.initialize()
        theirs.initialize()
        assert (ours.num_inputs, ours.labels["classes"]) == (theirs.num_inputs, theirs.labels["classes"])
        assert set(ours.get_data_keys()) == set(theirs.get_data_keys())
        for epoch in epochs:
            assert read(ours, epoch) == read(theirs, epoch)
    finally:
        ours.close()
        theirs.finish_epoch(free_resources=True)


@given(
    ordering=st.sampled_from(["default", "random"]),
    inner=st.sampled_from(["default", "random", "laplace:2", "sorted"]),
    partition_epoch=st.integers(1, 3),
    offset=st.integers(0, 5),
    fixed=st.none() | st.integers(0, 3),
    shards=st.integers(1, 3).flatmap(lambda num: st.tuples(st.just(num), st.integers(0, num - 1))),
    epochs=st.lists(st.integers(1, 9), min_size=1, max_size=4),
)
@settings(max_examples=25)
def test_sub_epochs_are_those_of_returnn(files, ordering, inner, partition_epoch, offset, fixed, shards, epochs):
    options = {
        "partition_epoch": partition_epoch,
        "random_seed_offset": offset,
        "fixed_random_seed": fixed,
        "_num_shards": shards[0],
        "_shard_index": shards[1],
        "executor": "inline",
    }
    check(files, ordering, inner, epochs, options)


def test_sub_epochs_read_by_worker_processes_are_those_of_returnn(files):
    options = {"partition_epoch": 4, "executor": "process", "num_workers": 2, "buffer_size": 10}
    check(files, "random", "random", range(1, 10), options)
