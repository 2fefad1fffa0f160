"""`DistributeFilesDataset`: each sub-epoch is the sub-dataset of its files, whoever reads it."""

import copy
import json
import os
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest

from headrace.datasets import (
    CachedDataset2,
    DatasetSeq,
    DistributeFilesDataset,
    MultiProcDataset,
    StaticDataset,
    init_dataset,
)
from headrace.datasets.distribute.shared import Shared
from headrace.engine import EngineOptions, Skipping
from headrace.engine.process.executor import ProcessExecutor
from headrace.errors import ConfigError, HeadraceError, OptionalNotImplementedError, SourceError
from headrace.files.cache.entry import CachedFile
from headrace.files.lists.sizes import FileTable
from headrace.sources import HDFWriter, TokenWriter
from servers import FileServer

pytestmark = pytest.mark.usefixtures("warm_workers")


@pytest.fixture(autouse=True, scope="module")
def _own_cache_folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


EXECUTORS = ["inline", "thread", "process"]
IN_PROCESS = ["inline", "thread"]  # where processes would show nothing new
SIZES = [3, 1, 4, 1, 5, 9, 2, 6]


def write_file(path, numbers, *, key="data", dtype=np.float32):
    """Write an HDF5 file whose sequence i holds its number, as many times as that number mod 3 and one more."""
    with HDFWriter(path) as writer:
        for number in numbers:
            writer.append(f"n{number}", {key: np.full((number % 3 + 1, 2), number, dtype)})
    return str(path)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    first = np.cumsum([0, *SIZES])
    return [write_file(folder / f"{i}.hdf", range(first[i], first[i] + size)) for i, size in enumerate(SIZES)]


def hdf(files):
    return {"class": "HDFDataset", "files": files}


def shuffled_hdf(files):
    return {"class": "HDFDataset", "files": files, "seq_ordering": "random"}


class Stream(CachedDataset2):
    """The sequences of some files, one after the other, and no other way."""

    def __init__(self, files, **options):
        super().__init__(**options)
        self._files = files
        self.num_outputs = {"data": (2, 2)}

    def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):
        super().init_seq_order(epoch, seq_list, seq_order)
        inner = init_dataset(hdf(self._files))
        self._stream = iter(() if epoch is None else inner.epoch(epoch))
        return True

    def _collect_single_seq(self, seq_idx):
        seq = next(self._stream, None)  # whatever seq_idx is
        return None if seq is None else DatasetSeq(seq_idx, seq.features, seq_tag=seq.tag)


def stream_of(files):
    return {"class": Stream, "files": files}


def read(dataset, epoch):
    return [
        (seq.seq_idx, seq.tag, seq.complete_frac, {key: value.tolist() for key, value in seq.features.items()})
        for seq in dataset.epoch(epoch)
    ]


def read_by_place(dataset, epoch):
    dataset.init_seq_order(epoch=epoch)
    seqs, place = [], 0
    while dataset.is_less_than_num_seqs(place):
        dataset.load_seqs(place, place + 1)
        features = {key: dataset.get_data(place, key).tolist() for key in dataset.get_data_keys()}
        seqs.append((place, dataset.get_tag(place), dataset.get_complete_frac(place), features))
        place += 1
    return seqs


def tags(dataset, epoch):
    return [seq.tag for seq in dataset.epoch(epoch)]


@pytest.fixture
def open_dataset():
    opened = []

    def open_(files, function=hdf, **options):
        options = {"partition_epoch": 3, "buffer_size": 20, **options}
        dataset = DistributeFilesDataset(files=files, get_sub_epoch_dataset=function, **options)
        opened.append(dataset)
        dataset.initialize()
        return dataset

    yield open_
    for dataset in opened:
        dataset.close()


# --- the stream ---


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("executor", "num_workers"),
    [("process", 0), ("inline", 2), ("thread", 1), ("thread", 3), ("process", 1), ("process", 3)],
)
@pytest.mark.parametrize(("function", "seq_ordering"), [(hdf, "random"), (shuffled_hdf, "default")])
def test_a_sub_epoch_is_the_sub_dataset_of_its_files(
    open_dataset, files, function, seq_ordering, num_workers, executor
):
    outer = open_dataset(files, function, seq_ordering=seq_ordering, num_workers=num_workers, executor=executor)
    for epoch in (1, 2, 3, 4, 2, 9, 10):
        inner = init_dataset(function(outer.get_files(epoch)))
        expected = read(inner, (epoch - 1) // 3 + 1)
        assert read(outer, epoch) == expected
        assert outer.num_seqs == len(expected)
        assert read_by_place(outer, epoch) == expected


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("executor", "buffer_size", "preload"),
    [
        ("inline", 1, 0),
        ("inline", 7, 2),
        ("thread", None, 5),
        ("thread", 1, 0),
        ("thread", 1000, 1),
        ("process", 1, 5),
        ("process", 2, 0),
        ("process", 1000, 2),
    ],
)
def test_buffer_and_preloading_change_nothing(open_dataset, files, executor, buffer_size, preload):
    outer = open_dataset(
        files, shuffled_hdf, buffer_size=buffer_size, preload_next_n_sub_epochs=preload, executor=executor
    )
    for epoch in (1, 2, 3, 4):
        assert read(outer, epoch) == read(init_dataset(shuffled_hdf(outer.get_files(epoch))), (epoch - 1) // 3 + 1)


@pytest.mark.parametrize("executor", IN_PROCESS)
def test_a_sub_dataset_that_only_streams_is_read_from_its_start(open_dataset, files, executor):
    outer = open_dataset(files, stream_of, executor=executor)
    for epoch in (1, 2, 1, 4):
        inner = init_dataset(hdf(outer.get_files(epoch)))
        assert [(seq[1], seq[3]) for seq in read(outer, epoch)] == [(seq[1], seq[3]) for seq in read(inner, 1)]
    outer.init_seq_order(epoch=1)
    outer.load_seqs(5, 6)
    assert outer.get_tag(5) == tags(init_dataset(hdf(outer.get_files(1))), 1)[5]


def test_several_workers_cannot_share_a_stream_and_that_is_said_before_they_start(files):
    dataset = DistributeFilesDataset(files=files, get_sub_epoch_dataset=stream_of, num_workers=2)
    with pytest.raises(ConfigError, match="2 workers cannot share a Stream"):
        dataset.initialize()
    assert dataset.engine_report is None


@pytest.mark.parametrize("executor", IN_PROCESS)
@pytest.mark.parametrize("function", [hdf, stream_of])
def test_jumping_ahead_gives_the_right_sequence(open_dataset, files, executor, function):
    outer = open_dataset(files, function, partition_epoch=1, buffer_size=2, executor=executor)
    outer.init_seq_order(epoch=1)
    for place in (0, 1, 11, 29, 30):
        outer.load_seqs(place, place + 1)
        assert outer.get_tag(place) == f"n{place}"
    assert not outer.is_less_than_num_seqs(31)


def test_what_is_jumped_over_is_not_read(open_dataset, files):
    seen = []

    def note(features):
        seen.append(int(features["data"][0, 0]))
        return features

    outer = open_dataset(
        files, lambda files: {**hdf(files), "transform": note}, partition_epoch=1, use_worker_proc=False
    )
    outer.init_seq_order(epoch=1)
    outer.load_seqs(30, 31)
    assert outer.get_tag(30) == "n30"
    assert seen == [30]


def test_asking_for_the_number_of_sequences_reads_nothing_twice(open_dataset, files):
    seen = []

    def note(features):
        seen.append(int(features["data"][0, 0]))
        return features

    outer = open_dataset(
        files, lambda files: {**hdf(files), "transform": note}, partition_epoch=1, use_worker_proc=False
    )
    outer.init_seq_order(epoch=1)
    assert outer.num_seqs == 31
    assert len(list(outer.iterate_epoch())) == 31
    assert seen == list(range(31))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_leaving_a_sub_epoch_early_and_starting_another_is_clean(open_dataset, files, executor):
    outer = open_dataset(files, shuffled_hdf, executor=executor)
    for epoch in (1, 2, 3, 7, 5, 1, 1):
        for seq, _ in zip(outer.epoch(epoch), range(epoch), strict=False):
            assert seq.tag
    expected = read(init_dataset(shuffled_hdf(outer.get_files(5))), 2)
    assert read(outer, 5) == expected
    outer.finish_epoch(free_resources=True)
    assert read(outer, 5) == expected
    outer.finish_epoch()
    assert outer.num_seqs == len(expected)
    assert read(outer, 5) == expected


@pytest.mark.parametrize("executor", IN_PROCESS)
def test_empty_files_and_sub_epochs_are_legal(open_dataset, tmp_path, executor):
    files = [write_file(tmp_path / f"{i}.hdf", numbers) for i, numbers in enumerate([[], [], [1, 2]])]
    outer = open_dataset(files, executor=executor)
    assert [tags(outer, epoch) for epoch in (1, 2, 3, 4)] == [[], [], ["n1", "n2"], []]
    outer.init_seq_order(epoch=2)
    assert outer.num_seqs == 0
    assert outer.get_data_keys() == ["data"]


def test_the_sub_dataset_gets_the_full_epoch_and_the_seed_of_the_outer_dataset(open_dataset, files):
    made = []

    def function(files):
        made.append(shuffled_hdf(files))
        return made[-1]

    outer = open_dataset(files, function, random_seed_offset=5, use_worker_proc=False)
    inner = init_dataset({**shuffled_hdf(outer.get_files(4)), "random_seed_offset": 5})
    assert read(outer, 4) == read(inner, 2)
    assert "random_seed_offset" not in made[-1]


def test_a_function_may_return_a_dataset(open_dataset, files):
    outer = open_dataset(files, lambda files: init_dataset(shuffled_hdf(files)), executor="process")
    for epoch in (1, 2, 5):
        expected = read(init_dataset(shuffled_hdf(outer.get_files(epoch))), (epoch - 1) // 3 + 1)
        assert read(outer, epoch) == expected


# --- the documented examples ---


def test_the_first_documented_example_works_without_an_ordering(files, tmp_path):
    hdf_files = tmp_path / "hdf_files.txt"
    hdf_files.write_text("# a list\n" + "\n".join(files) + "\n")

    def get_sub_epoch_dataset(files_subepoch):
        return {"class": "HDFDataset", "files": files_subepoch}

    train = {
        "class": "DistributeFilesDataset",
        "files": str(hdf_files),
        "get_sub_epoch_dataset": get_sub_epoch_dataset,
        "partition_epoch": 4,
        "seq_ordering": "random",
    }
    with init_dataset(train) as dataset:
        assert sorted(tag for epoch in range(1, 5) for tag in tags(dataset, epoch)) == sorted(
            f"n{i}" for i in range(31)
        )


def test_the_multimodal_documented_example_works(tmp_path):
    def write(name, numbers, key):
        path = tmp_path / f"{name}.hdf"
        with HDFWriter(path, labels={"classes": ["a", "b"]} if key == "classes" else None) as writer:
            for number in numbers:
                frames = number % 4 + 1
                data = {
                    "data": np.full((frames, 3), number, np.float32),
                    "classes": np.full(frames, number % 2, np.int32),
                }
                writer.append(f"n{number}", {key: data[key]})
        return str(path)

    tree = []
    for i in range(6):
        numbers = range(5 * i, 5 * i + 5)
        features = tuple(write(f"features-{i}-{j}", numbers[j::2], "data") for j in range(2))
        alignments = tuple(write(f"alignments-{i}-{j}", list(reversed(numbers))[j::2], "classes") for j in range(2))
        tree.append((alignments, features))

    def get_sub_epoch_dataset(files_subepoch):
        alignments = [file for alignment_files, _ in files_subepoch for file in alignment_files]
        features = tuple(file for _, feature_files in files_subepoch for file in feature_files)
        return {
            "class": "MetaDataset",
            "data_map": {"classes": ("alignments", "classes"), "data": ("features", "data")},
            "datasets": {
                "alignments": {"class": "HDFDataset", "files": alignments, "seq_ordering": "random"},
                "features": {"class": "HDFDataset", "files": features},
            },
            "seq_order_control_dataset": "alignments",
        }

    train = {
        "class": "DistributeFilesDataset",
        "files": tree,
        "get_sub_epoch_dataset": get_sub_epoch_dataset,
        "partition_epoch": 3,
        "seq_ordering": "random",
        "num_workers": 2,
    }
    with init_dataset(train) as dataset:
        assert set(dataset.get_data_keys()) == {"data", "classes"}
        assert dataset.labels["classes"] == ["a", "b"]
        seen = []
        for epoch in (1, 2, 3):
            for seq in dataset.epoch(epoch):
                number = int(seq.tag[1:])
                seen.append(number)
                np.testing.assert_array_equal(seq["data"], np.full((number % 4 + 1, 3), number))
                np.testing.assert_array_equal(seq["classes"], np.full(number % 4 + 1, number % 2))
        assert sorted(seen) == list(range(30))


# --- files ---


def test_entries_reach_the_function_as_they_are_and_in_order(open_dataset, files):
    trees = [(files[0], files[1]), {"b": files[2], "a": [files[3]]}, Path(files[4]), files[5]]
    given = []

    def function(entries):
        given.append(entries)
        flat = [files[0]] if len(entries) == 1 else files
        return hdf(flat)

    outer = open_dataset(trees, function, partition_epoch=2, use_worker_proc=False)
    for epoch in (1, 2):
        outer.init_seq_order(epoch=epoch)
    assert given[0] == trees[:1]
    assert [entry for entries in given[1:] for entry in entries] == trees
    assert outer.files == trees


@pytest.mark.parametrize("executor", EXECUTORS)
def test_cached_files_are_read_from_the_cache_and_released(open_dataset, files, tmp_path, executor):
    folder = tmp_path / "cache"
    outer = open_dataset(
        files,
        lambda files: hdf([CachedFile(file) for file in files]),
        file_cache={"cache_directory": str(folder)},
        executor=executor,
        num_workers=2,
    )
    assert not folder.exists()  # learning the layout copied nothing
    assert outer.get_data_dim("data") == 2
    for epoch in (1, 2, 3, 4):
        assert tags(outer, epoch) == tags(init_dataset(hdf(outer.get_files(epoch))), 1)
    copies = [path for path in folder.rglob("*.hdf") if path.is_file()]
    assert len(copies) == len(files)


def test_a_cache_with_room_for_one_sub_epoch_will_do(open_dataset, files, tmp_path):
    sizes = [sum(os.path.getsize(file) for file in files[a : a + 2]) for a in range(len(files) - 1)]
    outer = open_dataset(
        files,
        lambda files: hdf([CachedFile(file) for file in files]),
        partition_epoch=4,
        file_cache={"cache_directory": str(tmp_path / "cache"), "max_bytes": max(sizes) + 1000, "wait_seconds": 20},
    )
    for epoch in range(1, 10):
        assert tags(outer, epoch) == tags(init_dataset(hdf(outer.get_files(epoch))), 1)


@pytest.mark.extra
def test_learning_the_layout_of_remote_files_waits_until_it_is_needed(open_dataset, files, tmp_path):
    pytest.importorskip("aiohttp")
    with FileServer({Path(file).name: Path(file).read_bytes() for file in files}) as server:
        urls = [server.url(Path(file).name) for file in files]

        def function(files):
            return hdf([CachedFile(file) for file in files])

        options = {"file_cache": {"cache_directory": str(tmp_path / "cache")}, "executor": "inline"}
        outer = open_dataset(urls, function, **options)
        assert not server.requests
        assert outer.get_data_dim("data") == 2
        assert {request.path for request in server.requests if request.method == "GET"} == {"/0.hdf"}
        assert (outer.num_inputs, outer.get_data_keys()) == (2, ["data"])
        again = open_dataset(urls, function, **options)
        server.requests.clear()
        again.init_seq_order(epoch=2)  # knows no layout yet, and learns it from what it reads
        assert again.num_outputs == outer.num_outputs
        fetched = {Path(request.path).name for request in server.requests if request.method == "GET"}
        assert fetched == {Path(file).name for file in again.get_files(2)} - {"0.hdf"}
        for epoch in (1, 2, 3):
            assert tags(again, epoch) == tags(outer, epoch)
        again.close()
        outer.close()


def test_the_files_of_the_next_sub_epoch_are_fetched_while_this_one_is_read(open_dataset, files, tmp_path, wait_until):
    cache = tmp_path / "cache"
    outer = open_dataset(
        files,
        lambda files: hdf([CachedFile(file) for file in files]),
        file_cache={"cache_directory": str(cache)},
        executor="process",
    )
    outer.init_seq_order(epoch=1)
    assert outer.num_seqs
    wanted = {Path(file).name for epoch in (1, 2) for file in outer.get_files(epoch)}

    def cached():
        # `os.walk` does not mind what goes away meanwhile, such as files that are parts of others until they are whole.
        return {name for _, _, names in os.walk(cache) for name in names if name.endswith(".hdf")}

    wait_until(lambda: cached() == wanted, "the files of the next sub-epoch are not there")


# --- ranks ---


@pytest.mark.parametrize("balance", ["in_order", "largest_first"])
@pytest.mark.parametrize("seq_ordering", ["default", "random"])
def test_ranks_and_sub_epochs_together_read_everything_once(open_dataset, files, balance, seq_ordering):
    options = {"partition_epoch": 2, "seq_ordering": seq_ordering, "balance": balance, "distrib_shard_files": True}
    ranks = [open_dataset(files, rank=rank, world_size=3, use_worker_proc=False, **options) for rank in range(3)]
    for full_epoch in range(3):
        epochs = (2 * full_epoch + 1, 2 * full_epoch + 2)
        assert sorted(tag for dataset in ranks for epoch in epochs for tag in tags(dataset, epoch)) == sorted(
            f"n{i}" for i in range(31)
        )
        for epoch in epochs:
            for rank, dataset in enumerate(ranks):
                assert all(other.get_files(epoch, rank) == dataset.get_files(epoch) for other in ranks)
    assert (ranks[1].ranks.rank, ranks[1].ranks.world_size) == (1, 3)
    assert (ranks[1].num_shards, ranks[1].shard_index) == (3, 1)


def test_without_a_distributed_training_the_same_code_reads_everything(open_dataset, files, monkeypatch, caplog):
    for name in [name for name in os.environ if name.startswith(("RANK", "WORLD", "LOCAL_", "SLURM", "OMPI", "PMI"))]:
        monkeypatch.delenv(name)
    outer = open_dataset(files, distrib_shard_files=True, partition_epoch=1, use_worker_proc=False)
    with caplog.at_level("INFO", logger="headrace.datasets"):
        assert len(tags(outer, 1)) == 31
    assert "0 of 1" in caplog.text


def test_the_rank_may_be_told_by_the_environment_until_the_first_epoch(open_dataset, files, monkeypatch):
    outer = open_dataset(files, distrib_shard_files=True, use_worker_proc=False)
    copy_of_outer = copy.deepcopy(outer)
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    for dataset in (outer, copy_of_outer):
        dataset.init_seq_order(epoch=1)
        assert (dataset.ranks.rank, dataset.ranks.world_size) == (1, 2)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name)
    later = copy.deepcopy(outer)  # as it comes into a worker that does not know its rank
    assert tags(later, 2) == tags(outer, 2)


def test_given_shards_must_not_contradict_the_rank(open_dataset, files):
    ranks = {"distrib_shard_files": True, "rank": 1, "world_size": 2, "use_worker_proc": False}
    same = open_dataset(files, _num_shards=2, _shard_index=1, **ranks)
    finer = open_dataset(files, _num_shards=4, _shard_index=2, partition_epoch=2, **ranks)
    assert (same.num_shards, same.shard_index) == (2, 1)
    assert (finer.num_shards, finer.shard_index) == (4, 2)
    for shards in ({"_num_shards": 2, "_shard_index": 0}, {"_num_shards": 3, "_shard_index": 1}):
        wrong = DistributeFilesDataset(files=files, get_sub_epoch_dataset=hdf, **shards, **ranks)
        with pytest.raises(ConfigError, match="rank 1 of 2"):
            wrong.initialize()


def test_exactly_one_level_shards(open_dataset, files):
    def sharded(files):
        return {**hdf(files), "_num_shards": 2, "_shard_index": 0}

    outer = DistributeFilesDataset(files=files, get_sub_epoch_dataset=sharded, _num_shards=2, _shard_index=1)
    with pytest.raises(ConfigError, match="two levels"):
        outer.initialize()
    alone = open_dataset(files, sharded, partition_epoch=1, use_worker_proc=False)
    assert len(tags(alone, 1)) == 16


def test_the_legacy_sharding_is_there_on_request_and_its_loss_is_told_once(open_dataset, files, caplog):
    options = {"partition_epoch": 1, "_num_shards": 2, "_shard_index": 0, "use_worker_proc": False}
    whole = {fix: tags(open_dataset(files, sharding_fix=fix, **options), 1) for fix in (None, True)}
    assert whole[None] == whole[True]
    legacy = open_dataset(files, sharding_fix=False, **options)
    for _ in range(2):
        assert tags(legacy, 1) == whole[None][: (len(whole[None]) + 1) // 2]
    assert caplog.text.count("sharding_fix=False") == 1


def test_canonical_shards_are_the_same_for_any_number_of_ranks(open_dataset, files):
    def delivered(num_ranks):
        return {
            epoch: sorted(
                tag
                for rank in range(num_ranks)
                for tag in tags(
                    open_dataset(
                        files,
                        num_canonical_shards=4,
                        partition_epoch=2,
                        seq_ordering="random",
                        distrib_shard_files=True,
                        rank=rank,
                        world_size=num_ranks,
                        use_worker_proc=False,
                    ),
                    epoch,
                )
            )
            for epoch in (1, 2)
        }

    whole = delivered(1)
    assert sorted(whole[1] + whole[2]) == sorted(f"n{i}" for i in range(31))
    assert delivered(2) == whole
    assert delivered(3) == whole
    assert delivered(4) == whole


@pytest.mark.parametrize(("executor", "num_workers"), [("inline", 1), ("thread", 2), ("process", 1)])
def test_one_dataset_object_may_be_a_part_of_all_sub_epochs(open_dataset, files, tmp_path, executor, num_workers):
    everything = init_dataset(hdf(files))
    labels = []
    for i, start in enumerate(range(0, 30, 10)):
        with HDFWriter(tmp_path / f"{i}.hdf") as writer:
            for number in range(start, start + 10):
                writer.append(f"n{number}", {"classes": np.full(2, number, np.int32)})
        labels.append(str(tmp_path / f"{i}.hdf"))

    def join(label_files):
        words = {"class": "HDFDataset", "files": label_files, "seq_ordering": "random"}
        return {
            "class": "MetaDataset",
            "datasets": {"features": everything, "words": words},
            "data_map": {"data": ("features", "data"), "classes": ("words", "classes")},
            "seq_order_control_dataset": "words",
        }

    options = {"executor": executor, "num_workers": num_workers, "buffer_size": 2}
    outer = open_dataset(labels, join, preload_next_n_sub_epochs=2, **options)
    for epoch in (1, 2, 3, 1):
        seqs = list(outer.epoch(epoch))
        assert len(seqs) == 10
        for seq in seqs:
            assert seq["data"][0, 0] == seq["classes"][0] == int(seq.tag[1:])


def test_many_short_sub_epochs_leave_the_background_nothing_to_do(open_dataset, files, caplog):
    outer = open_dataset(files[:1] * 150, partition_epoch=150, preload_next_n_sub_epochs=1, use_worker_proc=False)
    for epoch in range(1, 151):
        assert len(tags(outer, epoch)) == SIZES[0]
    outer.close()
    assert not caplog.records


# --- numbers of sequences ---


@pytest.mark.parametrize("executor", IN_PROCESS)
def test_counting_files_tells_the_numbers_of_all_ranks_before_the_epoch(open_dataset, files, executor):
    options = {"partition_epoch": 2, "seq_ordering": "random", "_num_shards": 3, "remainder": "keep"}
    ranks = [open_dataset(files, _shard_index=rank, executor=executor, **options) for rank in range(3)]
    assert ranks[0].num_seqs_of(1) is None
    calls = []
    ranks[0].count_files(progress=lambda *done: calls.append(done))
    assert calls == [(i + 1, len(files)) for i in range(len(files))]
    for epoch in (1, 2, 5):
        assert [ranks[0].num_seqs_of(epoch, rank) for rank in range(3)] == [
            len(tags(dataset, epoch)) for dataset in ranks
        ]
    assert ranks[0].get_total_num_seqs(fast=True) == 31
    with pytest.raises(OptionalNotImplementedError):
        ranks[1].get_total_num_seqs()
    with pytest.raises(ConfigError, match="rank"):
        ranks[0].num_seqs_of(1, 3)


def test_what_is_kept_of_a_count_is_what_the_files_hold_and_not_what_an_option_leaves(open_dataset, files, tmp_path):
    kept = tmp_path / "tags.txt"
    kept.write_text("n0\nn3\nn4\n")
    outer = open_dataset(
        files, lambda files: {**hdf(files), "seq_list_filter_file": str(kept)}, partition_epoch=1, num_workers=0
    )
    outer.count_files()
    assert outer.num_seqs_of(1) == len(tags(outer, 1)) == 3
    table = FileTable.of(files)
    assert table.num_seqs.tolist() == SIZES
    assert table.num_frames.sum() == sum(number % 3 + 1 for number in range(31))


def test_what_is_counted_in_other_files_is_not_kept_for_those_of_the_list(open_dataset, files, tmp_path):
    others = {file: write_file(tmp_path / f"{i}.hdf", range(7)) for i, file in enumerate(files)}
    trees = [(file, others[file]) for file in files]
    for of_list, function in [
        ([str(tmp_path / f"{i}.hdf") for i in range(len(files))], lambda names: hdf([files[0]] * len(names))),
        (trees, lambda entries: hdf([second for _, second in entries])),
    ]:
        outer = open_dataset(of_list, function, partition_epoch=1, use_worker_proc=False)
        outer.count_files()
        assert (FileTable.of(of_list).num_seqs == -1).all()
    both = open_dataset(trees, lambda entries: hdf([name for entry in entries for name in entry]), num_workers=0)
    both.count_files()
    assert FileTable.of(trees).num_seqs.tolist() == [size + 7 for size in SIZES]


def test_drop_cuts_to_the_smallest_rank_once_files_are_counted(open_dataset, files):
    def open_ranks(**options):
        return [
            open_dataset(files, partition_epoch=2, _num_shards=3, _shard_index=rank, use_worker_proc=False, **options)
            for rank in range(3)
        ]

    whole = {epoch: [tags(dataset, epoch) for dataset in open_ranks()] for epoch in (1, 2)}
    assert any(len(set(map(len, of_epoch))) > 1 for of_epoch in whole.values())
    ranks = open_ranks(remainder="drop")
    for dataset in ranks:
        dataset.count_files()
    for epoch in (1, 2):
        smallest = min(map(len, whole[epoch]))
        for rank, dataset in enumerate(ranks):
            assert tags(dataset, epoch) == whole[epoch][rank][:smallest]
            assert [row[1] for row in read_by_place(dataset, epoch)] == whole[epoch][rank][:smallest]
            assert dataset.num_seqs == dataset.num_seqs_of(epoch) == smallest
            assert not dataset.is_less_than_num_seqs(smallest)
            assert copy.deepcopy(dataset).num_seqs_of(epoch) == smallest


def test_numbers_are_learnt_from_what_is_read(open_dataset, files):
    outer = open_dataset(files, use_worker_proc=False)
    assert [outer.num_seqs_of(epoch) for epoch in (1, 2, 3)] == [None, None, None]
    numbers = [len(tags(outer, epoch)) for epoch in (1, 2, 3)]
    assert [outer.num_seqs_of(epoch) for epoch in (1, 2, 3, 4, 5, 6)] == numbers * 2


def test_counts_that_do_not_add_up_are_an_error_and_not_a_wrong_cut(open_dataset, files):
    twice = [files[0], files[0], files[1]]
    outer = open_dataset(
        twice, lambda files: {**hdf(files), "unique_seq_tags": True}, partition_epoch=1, use_worker_proc=False
    )
    outer.count_files()
    with pytest.raises(ConfigError, match="4 sequences, but 7 were counted"):
        tags(outer, 1)


def test_asking_in_the_middle_of_an_epoch_does_not_disturb_it(open_dataset, files):
    outer = open_dataset(files, partition_epoch=1, buffer_size=8, executor="thread")
    seqs = outer.epoch(1)
    seen = [next(seqs).tag for _ in range(5)]
    assert outer.get_total_num_seqs() == 31
    seen += [next(seqs).tag for _ in range(5)]
    outer.count_files()
    seen += [seq.tag for seq in seqs]
    assert seen == [f"n{i}" for i in range(31)]


def test_the_whole_is_known_where_one_sub_epoch_has_it(open_dataset, files):
    whole = open_dataset(files, partition_epoch=1, executor="thread")
    assert whole.get_total_num_seqs() == 31
    assert list(whole.get_all_tags()) == [f"n{i}" for i in range(31)]
    whole.init_seq_order(epoch=3)
    whole.load_seqs(0, 4)
    assert list(whole.get_all_tags()) == [f"n{i}" for i in range(31)]
    whole.load_seqs(4, 9)
    assert [whole.get_tag(i) for i in range(4, 9)] == [f"n{i}" for i in range(4, 9)]
    with pytest.raises(OptionalNotImplementedError):
        whole.get_total_num_seqs(fast=True)
    parts = open_dataset(files, executor="inline")
    for ask in (parts.get_total_num_seqs, parts.get_all_tags):
        with pytest.raises(OptionalNotImplementedError):
            ask()
    assert parts.have_seqs()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_sequences_have_no_corpus_index_since_their_files_are_no_corpus(open_dataset, files, executor):
    outer = open_dataset(files, executor=executor)
    assert {seq.corpus_idx for seq in outer.epoch(1)} == {None}
    assert not outer.have_corpus_seq_idx()


# --- layout ---


def test_the_layout_is_that_of_the_first_entry_and_needs_no_process(open_dataset, files):
    outer, inner = open_dataset(files), init_dataset(hdf(files[:1]))
    assert outer.engine_report is None
    assert outer.get_data_keys() == inner.get_data_keys()
    assert (outer.num_inputs, outer.num_outputs, outer.labels) == (inner.num_inputs, inner.num_outputs, {})
    for ask in ("get_data_dim", "get_data_dtype", "is_data_sparse", "get_data_shape"):
        assert getattr(outer, ask)("data") == getattr(inner, ask)("data")
    assert outer.engine_report is None
    with pytest.raises(ConfigError, match="no data key 'dta'"):
        outer.get_data_dim("dta")


def test_a_layout_that_only_sequences_show_is_learnt_from_them(open_dataset, files):
    class Silent(Stream):
        def __init__(self, **options):
            super().__init__(**options)
            self.num_outputs = None

    outer = open_dataset(files, lambda files: {"class": Silent, "files": files}, executor="process")
    assert outer.num_outputs is None
    outer.init_seq_order(epoch=1)
    assert outer.get_data_keys() == ["data"]
    assert outer.get_data_dim("data") == 2
    assert len(tags(outer, 2)) == len(tags(init_dataset(hdf(outer.get_files(2))), 1))


def test_a_window_joins_frames_here_too(open_dataset, files):
    outer = open_dataset(files, window=3, use_worker_proc=False)
    inner = init_dataset({**hdf(outer.get_files(2)), "window": 3})
    assert read(outer, 2) == read_by_place(outer, 2) == read(inner, 1)
    assert outer.get_data_dim("data") == inner.get_data_dim("data") == 6
    assert outer.get_data_shape("data") == inner.get_data_shape("data")


@pytest.mark.parametrize("executor", IN_PROCESS)
@pytest.mark.parametrize(
    ("other", "text"),
    [({"key": "classes", "dtype": np.float32}, "data keys"), ({"dtype": np.float64}, "float64")],
)
def test_files_with_other_data_are_refused_and_both_are_named(open_dataset, tmp_path, executor, other, text):
    paths = [write_file(tmp_path / "a.hdf", [1, 2]), write_file(tmp_path / "b.hdf", [3], **other)]
    outer = open_dataset(paths, partition_epoch=2, executor=executor)
    assert tags(outer, 1) == ["n1", "n2"]
    with pytest.raises(HeadraceError, match=text) as caught:
        tags(outer, 2)
    assert "a.hdf" in str(caught.value)
    assert "b.hdf" in str(caught.value)
    assert tags(outer, 3) == ["n1", "n2"]


def test_class_indices_of_which_each_sub_epoch_has_others_are_fine(open_dataset, files):
    def function(files):
        return {"class": "StaticDataset", "data": [{"data": np.arange(len(files) + len(files[0]), dtype=np.int32)}]}

    outer = open_dataset([files[0], *files], function, partition_epoch=4, executor="thread")
    assert [len(tags(outer, epoch)) for epoch in (1, 2, 3, 4)] == [1] * 4
    assert outer.is_data_sparse("data")


# --- errors ---


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"files": []}, "empty"),
        ({"files": ("a", "b")}, "file list"),
        ({"files": "list.csv"}, "list"),
        ({"partition_epoch": 9}, "partition_epoch=9"),
        ({"get_sub_epoch_dataset": {}}, "get_sub_epoch_dataset"),
        ({"preload_next_n_sub_epochs": -1}, "preload"),
        ({"buffer_size": 0}, "buffer_size"),
        ({"distrib_shard_files": 1}, "distrib_shard_files"),
        ({"sharding_fix": "yes"}, "sharding_fix"),
        ({"use_worker_proc": None}, "use_worker_proc"),
        ({"balance": "even"}, "balance"),
        ({"remainder": "pad"}, "remainder"),
        ({"num_canonical_shards": 0}, "num_canonical_shards"),
        ({"num_workers": -1}, "num_workers"),
        ({"executor": "processes"}, "processes"),
        ({"seq_ordering": "sorted"}, "seq_ordering=sorted"),
        ({"seq_ordering": "random:2"}, "seq_ordering"),
        ({"unique_seq_tags": True}, "unique_seq_tags"),
        ({"repeat_epoch": 2}, "repeat_epoch"),
        ({"rank": 1, "world_size": 2}, "distrib_shard_files=True"),
        ({"rank": 2, "world_size": 2, "distrib_shard_files": True}, "rank 2 of 2"),
        ({"rank": 1, "distrib_shard_files": True}, "given together"),
        ({"file_cache": 3}, "file_cache"),
        ({"file_cache": {"max_bites": 3}}, "max_bites"),
    ],
)
def test_wrong_options_are_refused_when_built(files, options, text):
    with pytest.raises(ConfigError, match=text):
        DistributeFilesDataset(**{"files": files, "get_sub_epoch_dataset": hdf, **options})


def test_fewer_files_than_sub_epochs_times_ranks_are_refused_before_a_process_starts(open_dataset, files):
    outer = open_dataset(files, partition_epoch=3, _num_shards=3)
    with pytest.raises(ConfigError, match="3 sub-epochs x 3 shards"):
        outer.init_seq_order(epoch=1)
    assert outer.engine_report is None


def test_a_missing_file_is_named_before_a_process_starts(open_dataset, files, tmp_path):
    outer = open_dataset([*files, str(tmp_path / "missing.hdf")])
    with pytest.raises(SourceError, match=r"missing\.hdf"):
        outer.init_seq_order(epoch=1)
    assert outer.engine_report is None
    with pytest.raises(SourceError, match=r"missing\.hdf"):
        DistributeFilesDataset(files=[str(tmp_path / "missing.hdf")], get_sub_epoch_dataset=hdf).initialize()


@pytest.mark.parametrize("made", [None, 3, [], {"files": []}, "HDFDataset:files=a", dict])
def test_a_function_that_returns_no_dataset_is_refused(files, made):
    outer = DistributeFilesDataset(files=files, get_sub_epoch_dataset=lambda files: made)
    with pytest.raises(ConfigError, match="returned no dataset") as caught:
        outer.initialize()
    assert "0.hdf" in str(caught.value)


@pytest.mark.parametrize(
    "config",
    [
        lambda files: {**hdf(files), "partition_epoch": 2},
        lambda files: {"class": "MultiProcDataset", "dataset": {**hdf(files), "partition_epoch": 2}},
        lambda files: {"class": "MetaDataset", "datasets": {"a": [{"partition_epoch": 3}]}},
        lambda files: init_dataset({**hdf(files), "partition_epoch": 2}),
    ],
)
def test_a_sub_dataset_with_sub_epochs_is_refused(files, config):
    outer = DistributeFilesDataset(files=files, get_sub_epoch_dataset=config)
    with pytest.raises(ConfigError, match="sub dataset should not have partition_epoch"):
        outer.initialize()


def test_a_sub_dataset_may_say_that_it_has_no_sub_epochs(open_dataset, files):
    for value in (None, 0, 1):
        outer = open_dataset(files, lambda files, value=value: {**hdf(files), "partition_epoch": value}, num_workers=0)
        assert tags(outer, 1)


def test_an_explicit_order_is_refused(open_dataset, files):
    outer = open_dataset(files, use_worker_proc=False)
    for given in ({"seq_list": ["n1"]}, {"seq_order": [1]}):
        with pytest.raises(ConfigError, match="seq_list and seq_order"):
            outer.init_seq_order(epoch=1, **given)


def fail_on_entry(name):
    def function(files):
        if any(name in file for file in files):
            raise ZeroDivisionError(name)
        return hdf(files)

    return function


def test_an_error_of_the_function_comes_when_its_sub_epoch_does(open_dataset, files):
    outer = open_dataset(files, fail_on_entry("7.hdf"), executor="thread")
    assert outer.get_files(3)[-1].endswith("7.hdf")
    assert tags(outer, 1)
    assert tags(outer, 2)
    with pytest.raises(ZeroDivisionError) as caught:
        outer.init_seq_order(epoch=3)
    assert "sub-epoch 3" in "".join(caught.value.__notes__)
    assert not outer.is_less_than_num_seqs(0)  # and least of all what was read before
    assert tags(outer, 4)


@pytest.mark.parametrize("executor", IN_PROCESS)
def test_a_file_that_cannot_be_counted_is_an_error_and_shifts_no_number(open_dataset, files, executor):
    outer = open_dataset(
        files,
        lambda files: {"class": Broken, "files": files},
        executor=executor,
        engine_options=EngineOptions(on_error=Skipping()),
    )
    with pytest.raises(ConfigError, match="does not know its number of sequences"):
        outer.count_files()
    outer = open_dataset(
        files,
        lambda files: hdf(["gone"] if "3.hdf" in files[0] else files),
        executor=executor,
        engine_options=EngineOptions(on_error=Skipping()),
    )
    with pytest.raises(SourceError, match="gone"):
        outer.count_files()
    assert outer.num_seqs_of(1) is None


class Broken(Stream):
    """Cannot be opened if one of its files is number 7."""

    def __init__(self, files, **options):
        super().__init__(files, **options)
        if any("7.hdf" in file for file in files):
            raise ZeroDivisionError("seven")


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("engine_options", [None, EngineOptions(on_error=Skipping())])
def test_an_error_of_the_background_comes_when_its_sub_epoch_is_asked_for(
    open_dataset, files, executor, engine_options
):
    outer = open_dataset(
        files, lambda files: {"class": Broken, "files": files}, executor=executor, engine_options=engine_options
    )
    for _ in range(2):
        assert tags(outer, 1)
        assert tags(outer, 2)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError, match="seven") as caught:
                tags(outer, 3)
            notes = "".join(caught.value.__notes__)
            assert "sub-epoch 3" in notes
            assert "7.hdf" in notes
        assert tags(outer, 4)


@pytest.mark.parametrize("executor", IN_PROCESS)
def test_an_error_while_reading_names_the_sequence_and_is_never_taken_for_the_end(open_dataset, files, executor):
    def fail_at_7(features):
        if features["data"][0, 0] == 7:
            raise ZeroDivisionError("seven")
        return features

    outer = open_dataset(
        files, lambda files: {**hdf(files), "transform": fail_at_7}, partition_epoch=1, executor=executor
    )
    for _ in range(2):
        outer.init_seq_order(epoch=1)
        for _ in range(2):  # whoever goes on meets it again
            with pytest.raises(ZeroDivisionError, match="seven") as caught:
                outer.load_seqs(0, 31)
            assert "n7" in "".join(caught.value.__notes__)


@pytest.mark.sample(3)
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_a_sequence_that_fails_is_skipped_and_written_down(open_dataset, files, executor, num_workers, tmp_path):
    def fail_at_7(features):
        if features["data"][0, 0] == 7:
            raise ZeroDivisionError("seven")
        return features

    quarantine = tmp_path / "bad.jsonl"
    outer = open_dataset(
        files,
        lambda files: {**hdf(files), "transform": fail_at_7},
        partition_epoch=1,
        executor=executor,
        num_workers=num_workers,
        engine_options=EngineOptions(on_error=Skipping(quarantine=quarantine)),
    )
    assert tags(outer, 1) == [f"n{i}" for i in range(31) if i != 7]
    (line,) = [json.loads(line) for line in quarantine.read_text().splitlines()]
    assert (line["tag"], line["epoch"]) == ("n7", 1)


def test_what_cannot_be_carried_to_a_worker_is_said_before_one_starts(open_dataset, files):
    lock = threading.Lock()

    def function(files):
        return {**hdf(files), "transform": lambda features: features if lock else None}

    outer = open_dataset(files, function)
    with pytest.raises(ConfigError, match="sub-epoch 1"):
        outer.init_seq_order(epoch=1)
    assert outer.engine_report is None


# --- copies, nesting ---


def test_copies_start_nothing_and_read_no_list_again(files, tmp_path):
    listed = []

    def list_files():
        listed.append(1)
        return list(files)

    with DistributeFilesDataset(
        files=list_files, get_sub_epoch_dataset=shuffled_hdf, partition_epoch=3, executor="thread"
    ) as dataset:
        dataset.initialize()
        expected = read(dataset, 2)
        other = copy.deepcopy(dataset)
        assert other.engine_report is None
        assert other.get_data_dim("data") == 2
        assert read(other, 2) == expected
        other.close()
    again = pickle.loads(pickle.dumps(DistributeFilesDataset(files=files, get_sub_epoch_dataset=shuffled_hdf)))
    assert again.files == files
    assert listed == [1]


@pytest.mark.sample(1)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_multi_proc_dataset_around_it_reads_everything_once(files, executor):
    config = {
        "class": "DistributeFilesDataset",
        "files": files,
        "get_sub_epoch_dataset": shuffled_hdf,
        "partition_epoch": 2,
        "seq_ordering": "random",
        "executor": executor,
    }
    with MultiProcDataset(config, 2, 4, "dedicated", executor=executor) as outer:
        outer.initialize()
        seen = [tag for epoch in (1, 2) for tag in tags(outer, epoch)]
        assert sorted(seen) == sorted(f"n{i}" for i in range(31))
    with MultiProcDataset(config, 2, 4, executor="inline") as outer:
        outer.initialize()
        with pytest.raises(ConfigError, match="dedicated"):
            outer.init_seq_order(epoch=1)


def test_ranks_and_the_workers_of_a_multi_proc_dataset_do_not_shard_twice(files):
    seen = []
    for rank in range(2):
        config = {
            "class": "DistributeFilesDataset",
            "files": files,
            "get_sub_epoch_dataset": hdf,
            "distrib_shard_files": True,
            "rank": rank,
            "world_size": 2,
            "use_worker_proc": False,
            "partition_epoch": 2,
        }
        with MultiProcDataset(config, 2, 4, "dedicated", executor="thread") as outer:
            outer.initialize()
            seen += [tag for epoch in (1, 2) for tag in tags(outer, epoch)]
    assert sorted(seen) == sorted(f"n{i}" for i in range(31))


@pytest.mark.sample(1)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_multi_proc_dataset_inside_works(open_dataset, files, executor):
    def function(files):
        return {
            "class": "MultiProcDataset",
            "dataset": shuffled_hdf(files),
            "num_workers": 1,
            "buffer_size": 4,
            "executor": executor,
        }

    outer = open_dataset(files, function, executor=executor, num_workers=2)
    for epoch in (1, 2, 4):
        assert read(outer, epoch) == read(init_dataset(shuffled_hdf(outer.get_files(epoch))), (epoch - 1) // 3 + 1)


def test_indices_of_files_that_change_are_not_kept(open_dataset, files):
    made = []

    def function(files):
        made.append(files)
        return {
            "class": "MetaDataset",
            "datasets": {"a": hdf(files), "b": {**hdf(files), "index": "auto"}},
            "data_map": {"data": ("a", "data")},
        }

    outer = open_dataset(files, function, seq_ordering="random", use_worker_proc=False)
    datasets = outer._share.plan_of(1, None).specs[0].dataset["datasets"]
    assert (datasets["a"]["index"], datasets["b"]["index"]) == (None, "auto")
    fixed = open_dataset(files, use_worker_proc=False)
    assert "index" not in fixed._share.plan_of(1, None).specs[0].dataset


def test_sub_epochs_that_are_over_are_closed(open_dataset, files):
    open_now, most = set(), []

    class Watched(StaticDataset):
        def __init__(self, files, **options):
            super().__init__(data=[{"data": np.zeros((1, 1), np.float32)}] * len(files), **options)
            self.key = tuple(files)

        def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):
            if epoch is not None:
                open_now.add(self.key)
                most.append(len(open_now))
            return super().init_seq_order(epoch, seq_list, seq_order)

        def finish_epoch(self, *, free_resources=False):
            open_now.discard(getattr(self, "key", None))
            super().finish_epoch(free_resources=free_resources)

    def function(files):
        return Watched(files)

    outer = open_dataset(files, function, partition_epoch=8, preload_next_n_sub_epochs=2, executor="inline")
    for epoch in range(1, 17):
        tags(outer, epoch)
    assert max(most) <= 4  # the current one, two coming ones, and one that is being closed
    outer.close()
    assert not open_now


def test_a_folder_is_the_files_in_it(open_dataset, files, tmp_path):
    folder = Path(files[0]).parent
    (folder / "notes.md").write_text("none of them")
    try:
        expected = [open_dataset(files).get_files(epoch) for epoch in (1, 2)]
        for given in (str(folder), folder, [str(folder)], [f"{folder}/"]):
            dataset = open_dataset(given)
            assert dataset.files == files
            assert [dataset.get_files(epoch) for epoch in (1, 2)] == expected
    finally:
        (folder / "notes.md").unlink()
    (tmp_path / "list.txt").write_text(f"{folder}/\n{files[0]}\n")
    assert open_dataset(str(tmp_path / "list.txt")).files == [*files, files[0]]
    dotted = tmp_path / "corpus.v1"
    dotted.symlink_to(folder)
    assert [os.path.basename(name) for name in open_dataset(str(dotted)).files] == list(map(os.path.basename, files))
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="no file in the folder tells its format"):
        open_dataset(str(tmp_path / "empty"))
    (tmp_path / "speech").mkdir()
    (tmp_path / "speech" / "a.flac").touch()
    with pytest.raises(ConfigError, match=r"(?s)the folder is one corpus \(audio folder\).*speech/\*\*/\*\.wav"):
        open_dataset(str(tmp_path / "speech"))


def test_a_folder_of_a_store_is_what_its_url_lists(monkeypatch):
    listed = []

    def list_matches(pattern, root="", where=None):
        listed.append(root + pattern)
        return ["s3://bucket/train/a.hdf", "s3://bucket/train/b.hdf"]

    monkeypatch.setattr("headrace.files.lists.file_list.list_matches", list_matches)
    for given in ("s3://bucket/train/", ["s3://bucket/train/"]):
        dataset = DistributeFilesDataset(files=given, get_sub_epoch_dataset=hdf, partition_epoch=2)
        assert dataset.files == ["s3://bucket/train/a.hdf", "s3://bucket/train/b.hdf"]
    assert listed == ["s3://bucket/train/*"] * 2


def test_a_file_and_what_belongs_to_it_are_not_two_shares_of_the_data(open_dataset, tmp_path):
    for name in "abc":
        with TokenWriter(tmp_path / f"{name}.bin") as writer:
            for number in range(3):
                writer.append(f"{name}-{number}", {"data": np.arange(number + 1, dtype=np.int32)})
    names = sorted(str(path) for path in tmp_path.iterdir())
    assert sum(name.endswith(".idx") for name in names) == 3
    halves = [name for name in names if name.endswith((".bin", ".idx"))]
    expected = sorted(f"{name}-{number}" for name in "abc" for number in range(3))

    def documents(files):
        return {"class": "SourceDataset", "source": {"class": "TokenSource", "by": "document"}, "files": files}

    for given in (str(tmp_path), str(tmp_path / "*.{bin,idx}"), halves, list(map(Path, halves)), names):
        dataset = open_dataset(given, documents, partition_epoch=3)
        assert len(dataset.files) == 3
        assert sorted(tag for epoch in (1, 2, 3) for tag in tags(dataset, epoch)) == expected


class ElsewhereExecutor(ProcessExecutor):
    """As far as others can tell, its workers are on other machines."""

    name = "elsewhere"
    may_be_elsewhere = True


def test_workers_on_other_machines_get_the_plan_with_their_tickets(files, monkeypatch):
    options = {"files": files, "get_sub_epoch_dataset": hdf, "partition_epoch": 2, "seq_ordering": "random"}
    with DistributeFilesDataset(**options, num_workers=0) as dataset:
        expected = [[seq.seq_tag for seq in dataset.epoch(epoch)] for epoch in (1, 2, 3)]
    monkeypatch.setattr(Shared, "put_into_memory_file", lambda self: pytest.fail("another machine cannot read it"))
    with DistributeFilesDataset(**options, num_workers=2, executor=ElsewhereExecutor()) as dataset:
        assert [[seq.seq_tag for seq in dataset.epoch(epoch)] for epoch in (1, 2, 3)] == expected


def test_a_plan_that_cannot_be_sent_to_another_machine_is_refused_before_a_worker_starts(files, tmp_path):
    with (
        (tmp_path / "held").open("w") as held,
        DistributeFilesDataset(
            files=files,
            get_sub_epoch_dataset=lambda names: {**hdf(names), "held": held},
            executor=ElsewhereExecutor(),
        ) as dataset,
        pytest.raises(ConfigError, match="the dataset of sub-epoch 1"),
    ):
        dataset.init_seq_order(1)
