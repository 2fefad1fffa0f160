"""`DistributeFilesDataset`: each sub-epoch is the sub-dataset of its files, whoever reads it."""

import copy
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
from servers import FileServer, S3Server, has_s3

pytestmark = pytest.mark.usefixtures("warm_workers")


@pytest.fixture(autouse=True, scope="module")
def _own_cache_folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


EXECUTORS = ["inline", "thread", "process"]
IN_PROCESS = ["inline", "thread"]  # where processes would show nothing new
HERE = {"use_worker_proc": False}
SKIPPING = EngineOptions(on_error=Skipping())
SIZES = [3, 1, 4, 1, 5, 9, 2, 6]
ALL_TAGS = [f"n{i}" for i in range(sum(SIZES))]


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


def hdf(files, **options):
    return {"class": "HDFDataset", "files": files, **options}


def shuffled(files):
    return hdf(files, seq_ordering="random")


def cached(files, **options):
    return hdf([CachedFile(file) for file in files], **options)


def cached_shuffled(files):
    return cached(files, seq_ordering="random")


def changed_by(transform):
    return lambda files: hdf(files, transform=transform)


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


class Broken(Stream):
    """Cannot be opened if one of its files is number 7."""

    def __init__(self, files, **options):
        super().__init__(files, **options)
        if any("7.hdf" in file for file in files):
            raise ZeroDivisionError("seven")


def broken(files):
    return {"class": Broken, "files": files}


class BreaksOff(Stream):
    """Has an error, of no sequence, after five."""

    def _collect_single_seq(self, seq_idx):
        if seq_idx == 5:  # within a range that is read at once
            raise ZeroDivisionError("five")
        return super()._collect_single_seq(seq_idx)


def breaks_off(files):
    return {"class": BreaksOff, "files": files}


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


def tags(dataset, *epochs):
    return [seq.tag for epoch in epochs for seq in dataset.epoch(epoch)]


def expected_of(outer, epoch, function=hdf, where=None):
    """Read the sub-dataset of the files of a sub-epoch by itself, from `where` they lie."""
    files = [file if where is None else where[file] for file in outer.get_files(epoch)]
    return read(init_dataset(function(files)), (epoch - 1) // outer.partition_epoch + 1)


def expected_tags(outer, epoch, function=hdf, where=None):
    return [tag for _, tag, *_ in expected_of(outer, epoch, function, where)]


@pytest.fixture
def open_dataset(files):
    opened = []

    def open_(function=hdf, files=files, **options):
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
    ("executor", "num_workers"), [("process", 0), ("inline", 2), ("thread", 3), ("process", 1), ("process", 3)]
)
@pytest.mark.parametrize("function", [hdf, shuffled, lambda files: init_dataset(shuffled(files))])
def test_a_sub_epoch_is_the_sub_dataset_of_its_files(open_dataset, function, num_workers, executor):
    outer = open_dataset(function, seq_ordering="random", num_workers=num_workers, executor=executor)
    for epoch in (1, 2, 3, 4, 2, 9, 10):
        expected = expected_of(outer, epoch, function)
        assert read(outer, epoch) == expected
        assert outer.num_seqs == len(expected)
        assert read_by_place(outer, epoch) == expected
    outer.finish_epoch(free_resources=True)
    assert read(outer, 10) == expected
    outer.finish_epoch()
    assert outer.num_seqs == len(expected)
    assert {seq.corpus_idx for seq in outer.epoch(10)} == {None}  # the files are no corpus
    assert not outer.have_corpus_seq_idx()


@pytest.mark.parametrize("executor", IN_PROCESS)
@pytest.mark.parametrize("function", [hdf, stream_of])
def test_jumping_ahead_gives_the_right_sequence_and_a_stream_is_read_from_its_start(open_dataset, executor, function):
    outer = open_dataset(function, partition_epoch=2, buffer_size=2, executor=executor)
    for epoch in (1, 2, 1, 4):
        expected = expected_tags(outer, epoch)
        assert tags(outer, epoch) == expected
        outer.init_seq_order(epoch=epoch)
        for place in (0, 1, len(expected) // 2, len(expected) - 2, len(expected) - 1):
            outer.load_seqs(place, place + 1)
            assert outer.get_tag(place) == expected[place]
        assert not outer.is_less_than_num_seqs(len(expected))


def test_what_is_jumped_over_is_not_read_and_nothing_is_read_twice(open_dataset):
    seen = []

    def note(features):
        seen.append(int(features["data"][0, 0]))
        return features

    outer = open_dataset(changed_by(note), partition_epoch=1, **HERE)
    outer.init_seq_order(epoch=1)
    outer.load_seqs(30, 31)
    assert (outer.get_tag(30), seen) == ("n30", [30])
    seen.clear()
    outer.init_seq_order(epoch=1)
    assert outer.num_seqs == len(list(outer.iterate_epoch())) == 31
    assert seen == list(range(31))


@pytest.mark.parametrize("executor", IN_PROCESS)
def test_empty_files_and_sub_epochs_are_legal(open_dataset, tmp_path, executor):
    files = [write_file(tmp_path / f"{i}.hdf", numbers) for i, numbers in enumerate([[], [], [1, 2]])]
    outer = open_dataset(files=files, executor=executor)
    assert [tags(outer, epoch) for epoch in (1, 2, 3, 4)] == [[], [], ["n1", "n2"], []]
    outer.init_seq_order(epoch=2)
    assert (outer.num_seqs, outer.get_data_keys()) == (0, ["data"])


def only_noise(features, rng):
    return {"data": rng.random(features["data"].shape, dtype=np.float32)}


def read_meta(files):
    data_map = {"data": ("inner", "data")}
    return {"class": "MetaDataset", "datasets": {"inner": changed_by(only_noise)(files)}, "data_map": data_map}


@pytest.mark.parametrize("function", [changed_by(only_noise), read_meta])
def test_sub_epochs_and_draws_are_the_same_for_any_number_of_ranks_and_workers(open_dataset, function):
    options = {"num_canonical_shards": 4, "partition_epoch": 2, "seq_ordering": "random", "distrib_shard_files": True}

    def noise_of(num_ranks, epochs=(1, 2), **others):
        ranks = [open_dataset(function, rank=i, world_size=num_ranks, **options, **others) for i in range(num_ranks)]
        return [
            {seq.tag: seq["data"].tobytes() for dataset in ranks for seq in dataset.epoch(epoch)} for epoch in epochs
        ]

    alone = noise_of(1, **HERE)
    draws = [draw for noise in alone for draw in noise.values()]
    assert len(draws) == len(set(draws)) == len(ALL_TAGS)
    for num_ranks in (2, 3, 4):
        assert noise_of(num_ranks, **HERE) == alone
    assert noise_of(1, num_workers=2) == alone
    assert not set(draws) & {draw for noise in noise_of(1, (3, 4), **HERE) for draw in noise.values()}


@pytest.mark.parametrize(("executor", "num_workers"), [("inline", 1), ("thread", 2), ("process", 1)])
def test_one_dataset_object_may_be_a_part_of_all_sub_epochs(open_dataset, files, tmp_path, executor, num_workers):
    everything = init_dataset(hdf(files))
    labels = [
        write_file(tmp_path / f"{i}.hdf", range(start, start + 10), key="classes", dtype=np.int32)
        for i, start in enumerate((0, 10, 20))
    ]

    def join(label_files):
        return {
            "class": "MetaDataset",
            "datasets": {"features": everything, "words": shuffled(label_files)},
            "data_map": {"data": ("features", "data"), "classes": ("words", "classes")},
            "seq_order_control_dataset": "words",
        }

    options = {"executor": executor, "num_workers": num_workers, "buffer_size": 2}
    outer = open_dataset(join, labels, preload_next_n_sub_epochs=2, **options)
    for epoch in (1, 2, 3, 1):
        seqs = list(outer.epoch(epoch))
        assert len(seqs) == 10
        assert all(seq["data"][0, 0] == seq["classes"][0, 0] == int(seq.tag[1:]) for seq in seqs)


def test_many_short_sub_epochs_leave_the_background_nothing_to_do(open_dataset, files, caplog):
    outer = open_dataset(files=files[:1] * 150, partition_epoch=150, preload_next_n_sub_epochs=1, **HERE)
    assert len(tags(outer, *range(1, 151))) == 150 * SIZES[0]
    outer.close()
    assert not caplog.records


def test_sub_epochs_that_are_over_are_closed(open_dataset):
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

    outer = open_dataset(Watched, partition_epoch=8, preload_next_n_sub_epochs=2, executor="inline")
    tags(outer, *range(1, 17))
    assert max(most) <= 4  # the current one, two coming ones, and one that is being closed
    outer.close()
    assert not open_now


# --- the documented example ---


def test_the_multimodal_documented_example_works(open_dataset, tmp_path):
    def write(key, i, j, numbers):
        path = tmp_path / f"{key}-{i}-{j}.hdf"
        with HDFWriter(path, labels={"classes": ["a", "b"]} if key == "classes" else None) as writer:
            for number in numbers[j::2]:
                data = np.full((number % 4 + 1, 3), number, np.float32)
                writer.append(f"n{number}", {key: data if key == "data" else data[:, 0].astype(np.int32) % 2})
        return str(path)

    tree = []
    for i in range(6):
        numbers = list(range(5 * i, 5 * i + 5))
        features = tuple(write("data", i, j, numbers) for j in range(2))
        tree.append((tuple(write("classes", i, j, numbers[::-1]) for j in range(2)), features))

    def get_sub_epoch_dataset(files_subepoch):
        alignments = [file for alignment_files, _ in files_subepoch for file in alignment_files]
        features = tuple(file for _, feature_files in files_subepoch for file in feature_files)
        return {
            "class": "MetaDataset",
            "data_map": {"classes": ("alignments", "classes"), "data": ("features", "data")},
            "datasets": {"alignments": shuffled(alignments), "features": hdf(features)},
            "seq_order_control_dataset": "alignments",
        }

    dataset = open_dataset(get_sub_epoch_dataset, tree, seq_ordering="random", num_workers=2)
    assert set(dataset.get_data_keys()) == {"data", "classes"}
    assert dataset.labels["classes"] == ["a", "b"]
    seen = []
    for seq in (seq for epoch in (1, 2, 3) for seq in dataset.epoch(epoch)):
        number = int(seq.tag[1:])
        seen.append(number)
        np.testing.assert_array_equal(seq["data"], np.full((number % 4 + 1, 3), number))
        np.testing.assert_array_equal(seq["classes"], np.full(number % 4 + 1, number % 2))
    assert sorted(seen) == list(range(30))


# --- files ---


def test_entries_reach_the_function_as_they_are_and_in_order(open_dataset, files):
    trees = [(files[0], files[1]), {"b": files[2], "a": [files[3]]}, Path(files[4]), files[5]]
    given, made = [], []

    def function(entries):
        given.append(entries)
        made.append(shuffled([files[0]] if len(entries) == 1 else files))
        return made[-1]

    outer = open_dataset(function, trees, partition_epoch=2, random_seed_offset=5, **HERE)
    for epoch in (1, 2):
        outer.init_seq_order(epoch=epoch)
    assert given[0] == trees[:1]
    assert [entry for entries in given[1:] for entry in entries] == outer.files == trees
    assert all(config.keys() == shuffled([]).keys() for config in made)  # the seed was passed on, not written into it


@pytest.mark.parametrize("executor", EXECUTORS)
def test_cached_files_are_read_from_the_cache_and_released(open_dataset, files, tmp_path, executor):
    folder = tmp_path / "cache"
    options = {"executor": executor, "num_workers": 2}
    outer = open_dataset(cached, file_cache={"cache_directory": str(folder)}, **options)
    assert not folder.exists()  # learning the layout copied nothing
    assert outer.get_data_dim("data") == 2
    for epoch in (1, 2, 3, 4):
        assert tags(outer, epoch) == expected_tags(outer, epoch)
    assert len([path for path in folder.rglob("*.hdf") if path.is_file()]) == len(files)


def test_a_cache_with_room_for_one_sub_epoch_will_do(open_dataset, files, tmp_path):
    sizes = [sum(os.path.getsize(file) for file in files[a : a + 2]) for a in range(len(files) - 1)]
    cache = {"cache_directory": str(tmp_path / "cache"), "max_bytes": max(sizes) + 1000, "wait_seconds": 20}
    outer = open_dataset(cached, partition_epoch=4, file_cache=cache)
    for epoch in range(1, 10):
        assert tags(outer, epoch) == expected_tags(outer, epoch)


@pytest.mark.extra
def test_learning_the_layout_of_remote_files_waits_until_it_is_needed(open_dataset, files, tmp_path):
    pytest.importorskip("aiohttp")
    with FileServer({Path(file).name: Path(file).read_bytes() for file in files}) as server:
        urls = [server.url(Path(file).name) for file in files]
        options = {"file_cache": {"cache_directory": str(tmp_path / "cache")}, "executor": "inline"}
        outer = open_dataset(cached, urls, **options)
        assert not server.requests
        assert outer.get_data_dim("data") == 2
        assert {request.path for request in server.requests if request.method == "GET"} == {"/0.hdf"}
        assert (outer.num_inputs, outer.get_data_keys()) == (2, ["data"])
        again = open_dataset(cached, urls, **options)
        server.requests.clear()
        again.init_seq_order(epoch=2)  # knows no layout yet, and learns it from what it reads
        assert again.num_outputs == outer.num_outputs
        fetched = {Path(request.path).name for request in server.requests if request.method == "GET"}
        assert fetched == {Path(file).name for file in again.get_files(2)} - {"0.hdf"}
        for epoch in (1, 2, 3):
            assert tags(again, epoch) == tags(outer, epoch)
        again.close()
        outer.close()


def test_the_files_of_the_next_sub_epoch_are_fetched_while_this_one_is_read(open_dataset, tmp_path, wait_until):
    cache = tmp_path / "cache"
    outer = open_dataset(cached, file_cache={"cache_directory": str(cache)}, executor="process")
    outer.init_seq_order(epoch=1)
    assert outer.num_seqs
    wanted = {Path(file).name for epoch in (1, 2) for file in outer.get_files(epoch)}

    def found():
        # `os.walk` does not mind what goes away meanwhile, such as files that are parts of others until they are whole.
        return {name for _, _, names in os.walk(cache) for name in names if name.endswith(".hdf")}

    wait_until(lambda: found() == wanted, "the files of the next sub-epoch are not there")


@pytest.fixture
def slow():
    """Return a class of local files, of which each is only there when the test lets it: nothing is timed."""
    fsspec = pytest.importorskip("fsspec")
    local = pytest.importorskip("fsspec.implementations.local")

    class SlowFiles(local.LocalFileSystem):
        protocol = "slowfiles"
        cachable = False
        allowed = threading.Semaphore(0)
        asked = set()  # noqa: RUF012 (new in each test)

        @classmethod
        def _strip_protocol(cls, path):
            return path.removeprefix("slowfiles://")

        def get_file(self, rpath, lpath, callback=None, **options):
            self.asked.add(Path(rpath).name)
            assert self.allowed.acquire(timeout=120)
            super().get_file(rpath, lpath, callback=callback, **options)

    fsspec.register_implementation("slowfiles", SlowFiles, clobber=True)
    return SlowFiles


@pytest.mark.parametrize("max_bytes", [None, "one sub-epoch"])
def test_the_next_files_come_while_these_are_read_if_there_is_room_and_the_stream_is_the_same(
    open_dataset, files, slow, tmp_path, wait_until, max_bytes
):
    where = {f"slowfiles://{file}": file for file in files}
    room = {} if max_bytes is None else {"max_bytes": 4 * max(map(os.path.getsize, files))}
    cache = {"cache_directory": str(tmp_path / "cache"), **room}
    outer = open_dataset(cached_shuffled, list(where), executor="thread", file_cache=cache)
    for _ in range(len(outer.get_files(1)) + 1):  # one of which may have been read for the layout
        slow.allowed.release()
    outer.init_seq_order(epoch=1)
    assert outer.num_seqs == len(expected_of(outer, 1, where=where))
    if max_bytes is None:
        coming = {Path(file).name for file in outer.get_files(2)}
        wait_until(lambda: coming <= slow.asked, "the next files are not asked for")
    slow.allowed.release(1000)
    for epoch in range(1, 7):
        assert tags(outer, epoch) == expected_tags(outer, epoch, shuffled, where)


@pytest.mark.extra
def test_workers_read_objects_of_s3_through_one_cache_whatever_fails_for_a_moment(
    open_dataset, files, tmp_path, monkeypatch
):
    if not has_s3():
        pytest.skip("needs moto[server] and s3fs")
    with S3Server() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        where = {store.put("corpus", f"set/{Path(file).name}", Path(file).read_bytes()): file for file in files}
        store.faults.add("cut", path="1.hdf", after_bytes=100, times=1)
        cache = {"cache_directory": str(tmp_path / "cache")}
        outer = open_dataset(cached_shuffled, "s3://corpus/set/*.hdf", num_workers=2, file_cache=cache)
        for epoch in range(1, 7):
            assert tags(outer, epoch) == expected_tags(outer, epoch, shuffled, where)
        outer.close()
    assert {path.name for path in (tmp_path / "cache" / "data").glob("*/*")} == {Path(file).name for file in files}


def test_a_folder_is_the_files_in_it(open_dataset, files, tmp_path):
    folder = Path(files[0]).parent
    (folder / "notes.md").write_text("none of them")
    try:
        expected = [open_dataset().get_files(epoch) for epoch in (1, 2)]
        for given in (str(folder), folder, [str(folder)], [f"{folder}/"]):
            dataset = open_dataset(files=given)
            assert dataset.files == files
            assert [dataset.get_files(epoch) for epoch in (1, 2)] == expected
    finally:
        (folder / "notes.md").unlink()
    (tmp_path / "list.txt").write_text(f"# a list\n{folder}/\n{files[0]}\n")
    assert open_dataset(files=str(tmp_path / "list.txt")).files == [*files, files[0]]
    dotted = tmp_path / "corpus.v1"
    dotted.symlink_to(folder)
    assert list(map(os.path.basename, open_dataset(files=str(dotted)).files)) == list(map(os.path.basename, files))
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="no file in the folder tells its format"):
        open_dataset(files=str(tmp_path / "empty"))
    (tmp_path / "speech").mkdir()
    (tmp_path / "speech" / "a.flac").touch()
    with pytest.raises(ConfigError, match=r"(?s)the folder is one corpus \(audio folder\).*speech/\*\*/\*\.wav"):
        open_dataset(files=str(tmp_path / "speech"))


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

    def documents(files):
        return {"class": "SourceDataset", "source": {"class": "TokenSource", "by": "document"}, "files": files}

    for given in (str(tmp_path), str(tmp_path / "*.{bin,idx}"), halves, list(map(Path, halves)), names):
        dataset = open_dataset(documents, given)
        assert len(dataset.files) == 3
        assert sorted(tags(dataset, 1, 2, 3)) == [f"{name}-{number}" for name in "abc" for number in range(3)]


def test_indices_of_files_that_change_are_not_kept(open_dataset):
    def function(files):
        return {
            "class": "MetaDataset",
            "datasets": {"a": hdf(files), "b": hdf(files, index="auto")},
            "data_map": {"data": ("a", "data")},
        }

    outer, fixed = open_dataset(function, seq_ordering="random", **HERE), open_dataset(**HERE)
    datasets = outer._share.plan_of(1, None).specs[0].dataset["datasets"]
    assert (datasets["a"]["index"], datasets["b"]["index"]) == (None, "auto")
    assert "index" not in fixed._share.plan_of(1, None).specs[0].dataset


# --- ranks ---


def test_without_a_distributed_training_the_same_code_reads_everything(open_dataset, monkeypatch, caplog):
    for name in [name for name in os.environ if name.startswith(("RANK", "WORLD", "LOCAL_", "SLURM", "OMPI", "PMI"))]:
        monkeypatch.delenv(name)
    outer = open_dataset(distrib_shard_files=True, partition_epoch=1, **HERE)
    with caplog.at_level("INFO", logger="headrace.datasets"):
        assert tags(outer, 1) == ALL_TAGS
    assert "0 of 1" in caplog.text


def test_the_rank_may_be_told_by_the_environment_until_the_first_epoch(open_dataset, monkeypatch):
    outer = open_dataset(distrib_shard_files=True, **HERE)
    copy_of_outer = copy.deepcopy(outer)
    environment = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for dataset in (outer, copy_of_outer):
        dataset.init_seq_order(epoch=1)
        assert (dataset.ranks.rank, dataset.ranks.world_size) == (1, 2)
    for name in environment:
        monkeypatch.delenv(name)
    later = copy.deepcopy(outer)  # as it comes into a worker that does not know its rank
    assert tags(later, 2) == tags(outer, 2)


def test_given_shards_must_not_contradict_the_rank(open_dataset, files):
    ranks = {"distrib_shard_files": True, "rank": 1, "world_size": 2, **HERE}
    for shards in ((2, 1), (4, 2)):
        dataset = open_dataset(_num_shards=shards[0], _shard_index=shards[1], partition_epoch=2, **ranks)
        assert (dataset.num_shards, dataset.shard_index) == shards
    for shards in ({"_num_shards": 2, "_shard_index": 0}, {"_num_shards": 3, "_shard_index": 1}):
        wrong = DistributeFilesDataset(files=files, get_sub_epoch_dataset=hdf, **shards, **ranks)
        with pytest.raises(ConfigError, match="rank 1 of 2"):
            wrong.initialize()


def test_exactly_one_level_shards(open_dataset, files):
    def sharded(files):
        return hdf(files, _num_shards=2, _shard_index=0)

    outer = DistributeFilesDataset(files=files, get_sub_epoch_dataset=sharded, _num_shards=2, _shard_index=1)
    with pytest.raises(ConfigError, match="two levels"):
        outer.initialize()
    assert len(tags(open_dataset(sharded, partition_epoch=1, **HERE), 1)) == 16


def test_the_legacy_sharding_is_there_on_request_and_its_loss_is_told_once(open_dataset, caplog):
    options = {"partition_epoch": 1, "_num_shards": 2, "_shard_index": 0, **HERE}
    whole, of_true = (tags(open_dataset(sharding_fix=fix, **options), 1) for fix in (None, True))
    assert whole == of_true
    legacy = open_dataset(sharding_fix=False, **options)
    for _ in range(2):
        assert tags(legacy, 1) == whole[: (len(whole) + 1) // 2]
    assert caplog.text.count("sharding_fix=False") == 1


# --- numbers of sequences ---


@pytest.mark.parametrize("executor", IN_PROCESS)
@pytest.mark.parametrize("remainder", ["keep", "drop"])
def test_counting_files_tells_the_numbers_of_all_ranks_which_may_be_cut_to_the_smallest(
    open_dataset, files, executor, remainder
):
    def open_ranks(**options):
        return [open_dataset(partition_epoch=2, _num_shards=3, _shard_index=rank, **options) for rank in range(3)]

    whole = [[tags(dataset, epoch) for dataset in open_ranks(**HERE)] for epoch in (1, 2)]
    assert any(len(set(map(len, of_epoch))) > 1 for of_epoch in whole)
    ranks = open_ranks(executor=executor, remainder=remainder)
    assert ranks[0].num_seqs_of(1) is None
    calls = []
    for dataset in ranks:
        dataset.count_files(progress=lambda *done: calls.append(done))
    assert calls[: len(files)] == [(i + 1, len(files)) for i in range(len(files))]
    for epoch, of_epoch in enumerate(whole, 1):
        smallest = min(map(len, of_epoch))
        for rank, (dataset, expected) in enumerate(zip(ranks, of_epoch, strict=True)):
            cut = expected if remainder == "keep" else expected[:smallest]
            assert tags(dataset, epoch) == [row[1] for row in read_by_place(dataset, epoch)] == cut
            assert dataset.num_seqs == dataset.num_seqs_of(epoch) == ranks[0].num_seqs_of(epoch, rank) == len(cut)
            assert copy.deepcopy(dataset).num_seqs_of(epoch) == len(cut)
    assert ranks[0].get_total_num_seqs(fast=True) == 31
    with pytest.raises(OptionalNotImplementedError):
        open_ranks()[1].get_total_num_seqs()
    for dataset in (ranks[0], open_ranks(remainder="keep")[0]):
        with pytest.raises(ConfigError, match="rank"):
            dataset.num_seqs_of(1, 3)


def test_what_is_kept_of_a_count_is_what_the_files_hold_and_not_what_an_option_leaves(open_dataset, files, tmp_path):
    kept = tmp_path / "tags.txt"
    kept.write_text("n0\nn3\nn4\n")
    outer = open_dataset(lambda files: hdf(files, seq_list_filter_file=str(kept)), partition_epoch=1, num_workers=0)
    outer.count_files()
    assert outer.num_seqs_of(1) == len(tags(outer, 1)) == 3
    table = FileTable.of(files)
    assert table.num_seqs.tolist() == SIZES
    assert table.num_frames.sum() == sum(number % 3 + 1 for number in range(31))


def test_what_is_counted_in_other_files_is_not_kept_for_those_of_the_list(open_dataset, files, tmp_path):
    others = [write_file(tmp_path / f"{i}.hdf", range(7)) for i in range(len(files))]
    trees = list(zip(files, others, strict=True))
    for of_list, function in [
        (others, lambda names: hdf([files[0]] * len(names))),
        (trees, lambda entries: hdf([second for _, second in entries])),
    ]:
        open_dataset(function, of_list, partition_epoch=1, **HERE).count_files()
        assert (FileTable.of(of_list).num_seqs == -1).all()
    open_dataset(lambda entries: hdf([name for entry in entries for name in entry]), trees, **HERE).count_files()
    assert FileTable.of(trees).num_seqs.tolist() == [size + 7 for size in SIZES]


def test_numbers_are_learnt_from_what_is_read(open_dataset):
    outer = open_dataset(**HERE)
    assert [outer.num_seqs_of(epoch) for epoch in (1, 2, 3)] == [None, None, None]
    numbers = [len(tags(outer, epoch)) for epoch in (1, 2, 3)]
    assert [outer.num_seqs_of(epoch) for epoch in (1, 2, 3, 4, 5, 6)] == numbers * 2


def test_counts_that_do_not_add_up_are_an_error_and_not_a_wrong_cut(open_dataset, files):
    twice = [files[0], files[0], files[1]]
    outer = open_dataset(lambda files: hdf(files, unique_seq_tags=True), twice, partition_epoch=1, **HERE)
    outer.count_files()
    with pytest.raises(ConfigError, match="4 sequences, but 7 were counted"):
        tags(outer, 1)


def test_asking_in_the_middle_of_an_epoch_does_not_disturb_it(open_dataset):
    outer = open_dataset(partition_epoch=1, buffer_size=8, executor="thread")
    seqs = outer.epoch(1)
    seen = [next(seqs).tag for _ in range(5)]
    assert outer.get_total_num_seqs() == 31
    seen += [next(seqs).tag for _ in range(5)]
    outer.count_files()
    assert seen + [seq.tag for seq in seqs] == ALL_TAGS


def test_the_whole_is_known_where_one_sub_epoch_has_it(open_dataset):
    whole = open_dataset(partition_epoch=1, executor="thread")
    assert whole.get_total_num_seqs() == 31
    assert list(whole.get_all_tags()) == ALL_TAGS
    whole.init_seq_order(epoch=3)
    whole.load_seqs(0, 4)
    assert list(whole.get_all_tags()) == ALL_TAGS
    whole.load_seqs(4, 9)
    assert [whole.get_tag(i) for i in range(4, 9)] == ALL_TAGS[4:9]
    parts = open_dataset(executor="inline")
    for ask in (lambda: whole.get_total_num_seqs(fast=True), parts.get_total_num_seqs, parts.get_all_tags):
        with pytest.raises(OptionalNotImplementedError):
            ask()
    assert parts.have_seqs()


# --- layout ---


def test_the_layout_is_that_of_the_first_entry_and_needs_no_process(open_dataset, files):
    outer, inner = open_dataset(), init_dataset(hdf(files[:1]))
    assert outer.get_data_keys() == inner.get_data_keys()
    assert (outer.num_inputs, outer.num_outputs, outer.labels) == (inner.num_inputs, inner.num_outputs, {})
    for ask in ("get_data_dim", "get_data_dtype", "is_data_sparse", "get_data_shape"):
        assert getattr(outer, ask)("data") == getattr(inner, ask)("data")
    assert outer.engine_report is None
    with pytest.raises(ConfigError, match="no data key 'dta'"):
        outer.get_data_dim("dta")


def test_a_layout_that_only_sequences_show_is_learnt_from_them(open_dataset):
    class Silent(Stream):
        def __init__(self, **options):
            super().__init__(**options)
            self.num_outputs = None

    outer = open_dataset(lambda files: {"class": Silent, "files": files}, executor="process")
    assert outer.num_outputs is None
    outer.init_seq_order(epoch=1)
    assert outer.get_data_keys() == ["data"]
    assert outer.get_data_dim("data") == 2
    assert tags(outer, 2) == expected_tags(outer, 2)


def test_a_window_joins_frames_here_too(open_dataset):
    outer = open_dataset(window=3, **HERE)
    inner = init_dataset(hdf(outer.get_files(2), window=3))
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
    outer = open_dataset(files=paths, partition_epoch=2, executor=executor)
    assert tags(outer, 1) == ["n1", "n2"]
    with pytest.raises(HeadraceError, match=text) as caught:
        tags(outer, 2)
    assert "a.hdf" in str(caught.value)
    assert "b.hdf" in str(caught.value)
    assert tags(outer, 3) == ["n1", "n2"]


def test_class_indices_of_which_each_sub_epoch_has_others_are_fine(open_dataset, files):
    def function(files):
        return {"class": "StaticDataset", "data": [{"data": np.arange(len(files) + len(files[0]), dtype=np.int32)}]}

    outer = open_dataset(function, [files[0], *files], partition_epoch=4, executor="thread")
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


NOT_DATASETS = [None, 3, [], {"files": []}, "HDFDataset:files=a", dict]
WITH_SUB_EPOCHS = [
    lambda files: hdf(files, partition_epoch=2),
    lambda files: {"class": "MultiProcDataset", "dataset": hdf(files, partition_epoch=2)},
    lambda files: {"class": "MetaDataset", "datasets": {"a": [{"partition_epoch": 3}]}},
    lambda files: init_dataset(hdf(files, partition_epoch=2)),
]


@pytest.mark.parametrize(
    ("function", "options", "text"),
    [
        *((lambda files, made=made: made, {}, r"(?s)returned no dataset.*0\.hdf") for made in NOT_DATASETS),
        *((function, {}, "sub dataset should not have partition_epoch") for function in WITH_SUB_EPOCHS),
        (stream_of, {"num_workers": 2}, "2 workers cannot share a Stream"),
        (hdf, {"files": ["missing.hdf"]}, r"missing\.hdf"),
    ],
)
def test_what_cannot_be_is_refused_when_initialized_and_without_a_process(files, function, options, text):
    outer = DistributeFilesDataset(**{"files": files, "get_sub_epoch_dataset": function, **options})
    with pytest.raises(HeadraceError, match=text):
        outer.initialize()
    assert outer.engine_report is None


def test_what_cannot_be_is_refused_when_an_epoch_begins_and_before_a_process_starts(open_dataset, files, tmp_path):
    def uses_a_lock(files, lock=threading.Lock()):  # noqa: B008
        return hdf(files, transform=lambda features: features if lock else None)

    for options, kind, text in [
        ({"_num_shards": 3}, ConfigError, "3 sub-epochs x 3 shards"),
        ({"files": [*files, str(tmp_path / "missing.hdf")]}, SourceError, r"missing\.hdf"),
        ({"function": uses_a_lock}, ConfigError, "sub-epoch 1"),
    ]:
        outer = open_dataset(**options)
        with pytest.raises(kind, match=text):
            outer.init_seq_order(epoch=1)
        assert outer.engine_report is None
    for given in ({"seq_list": ["n1"]}, {"seq_order": [1]}):
        with pytest.raises(ConfigError, match="seq_list and seq_order"):
            open_dataset(**HERE).init_seq_order(epoch=1, **given)


def test_a_sub_dataset_may_say_that_it_has_no_sub_epochs(open_dataset):
    for value in (None, 0, 1):
        assert tags(open_dataset(lambda files, value=value: hdf(files, partition_epoch=value), num_workers=0), 1)


def test_an_error_of_the_function_comes_when_its_sub_epoch_does(open_dataset):
    def function(files):
        if any("7.hdf" in file for file in files):
            raise ZeroDivisionError
        return hdf(files)

    outer = open_dataset(function, executor="thread")
    assert outer.get_files(3)[-1].endswith("7.hdf")
    assert tags(outer, 1)
    assert tags(outer, 2)
    with pytest.raises(ZeroDivisionError) as caught:
        outer.init_seq_order(epoch=3)
    assert "sub-epoch 3" in "".join(caught.value.__notes__)
    assert not outer.is_less_than_num_seqs(0)  # and least of all what was read before
    assert tags(outer, 4)


@pytest.mark.parametrize("executor", IN_PROCESS)
def test_a_file_that_cannot_be_counted_is_an_error_and_shifts_no_number(open_dataset, executor):
    for function, kind, text in [
        (broken, ConfigError, "does not know its number of sequences"),
        (lambda files: hdf(["gone"] if "3.hdf" in files[0] else files), SourceError, "gone"),
    ]:
        outer = open_dataset(function, executor=executor, engine_options=SKIPPING)
        with pytest.raises(kind, match=text):
            outer.count_files()
        assert outer.num_seqs_of(1) is None


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("engine_options", [None, SKIPPING], ids=["raising", "skipping"])
def test_an_error_of_the_background_comes_when_its_sub_epoch_is_asked_for(open_dataset, executor, engine_options):
    outer = open_dataset(broken, executor=executor, engine_options=engine_options)
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


@pytest.mark.parametrize("executor", EXECUTORS)
def test_what_was_read_before_a_stream_breaks_off_is_delivered(open_dataset, executor):
    outer, seen = open_dataset(breaks_off, executor=executor, buffer_size=16), []
    with pytest.raises(ZeroDivisionError, match="five"):
        seen.extend(seq.tag for seq in outer.epoch(1))
    assert seen == expected_tags(outer, 1)[:5]


# --- copies, nesting ---


def test_copies_start_nothing_and_read_no_list_again(files):
    listed = []

    def list_files():
        listed.append(1)
        return list(files)

    options = {"get_sub_epoch_dataset": shuffled, "partition_epoch": 3, "executor": "thread"}
    with DistributeFilesDataset(files=list_files, **options) as dataset:
        expected = read(dataset, 2)
        with copy.deepcopy(dataset) as other:
            assert other.engine_report is None
            assert other.get_data_dim("data") == 2
            assert read(other, 2) == expected
    again = pickle.loads(pickle.dumps(DistributeFilesDataset(files=files, get_sub_epoch_dataset=shuffled)))
    assert again.files == files
    assert listed == [1]


@pytest.mark.sample(1)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_multi_proc_dataset_around_it_reads_everything_once(files, executor):
    config = {
        "class": "DistributeFilesDataset",
        "files": files,
        "get_sub_epoch_dataset": shuffled,
        "partition_epoch": 2,
        "executor": executor,
    }
    with MultiProcDataset(config, 2, 4, "dedicated", executor=executor) as outer:
        assert sorted(tags(outer, 1, 2)) == sorted(ALL_TAGS)
    with MultiProcDataset(config, 2, 4, executor="inline") as outer, pytest.raises(ConfigError, match="dedicated"):
        outer.init_seq_order(epoch=1)
    seen = []
    for rank in range(2):  # nothing is sharded twice
        ranks = {"distrib_shard_files": True, "rank": rank, "world_size": 2, **HERE}
        with MultiProcDataset({**config, **ranks}, 2, 4, "dedicated", executor="thread") as outer:
            seen += tags(outer, 1, 2)
    assert sorted(seen) == sorted(ALL_TAGS)


@pytest.mark.sample(1)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_multi_proc_dataset_inside_works(open_dataset, executor):
    def function(files):
        options = {"num_workers": 1, "buffer_size": 4, "executor": executor}
        return {"class": "MultiProcDataset", "dataset": shuffled(files), **options}

    outer = open_dataset(function, executor=executor, num_workers=2)
    for epoch in (1, 2, 4):
        assert read(outer, epoch) == expected_of(outer, epoch, shuffled)


class ElsewhereExecutor(ProcessExecutor):
    """As far as others can tell, its workers are on other machines."""

    name = "elsewhere"
    may_be_elsewhere = True


def test_workers_on_other_machines_get_the_plan_with_their_tickets(open_dataset, monkeypatch):
    monkeypatch.setattr(Shared, "put_into_memory_file", lambda self: pytest.fail("another machine cannot read it"))
    outer = open_dataset(partition_epoch=2, seq_ordering="random", num_workers=2, executor=ElsewhereExecutor())
    for epoch in (1, 2, 3):
        assert tags(outer, epoch) == expected_tags(outer, epoch)


def test_a_plan_that_cannot_be_sent_to_another_machine_is_refused_before_a_worker_starts(files, tmp_path):
    with (tmp_path / "held").open("w") as held:
        options = {"get_sub_epoch_dataset": lambda names: hdf(names, held=held), "executor": ElsewhereExecutor()}
        with (
            DistributeFilesDataset(files=files, **options) as dataset,
            pytest.raises(ConfigError, match="the dataset of sub-epoch 1"),
        ):
            dataset.init_seq_order(1)
