"""What torchdata's own tests hold of single operations, in a few lines each."""

import io
import os
import pickle
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.dataloader2 import DataLoader2, MultiProcessingReadingService
from headrace.errors import ConfigError
from headrace.pipes import IterPipe, functional_datapipe
from headrace.pipes.core.registry import list_functions
from headrace.pipes.iter import FSSpecFileLister, IterableWrapper, StreamWrapper


def numbers(n=10):
    return IterableWrapper(range(n))


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.booleans())
def test_a_bucketbatch_shuffles_batches_within_bucket_num_of_them(batch_size, batch_num, bucket_num, drop_last):
    def sort(bucket):
        return sorted(bucket)

    pipe = numbers(24).bucketbatch(batch_size, drop_last, batch_num, bucket_num, sort_key=sort)
    batches = [list(batch) for batch in pipe]
    assert sorted(item for batch in batches for item in batch) == list(range(24 - 24 % batch_size * drop_last))
    if bucket_num == 1:
        assert (
            batches
            == [list(range(start, min(start + batch_size, 24))) for start in range(0, 24, batch_size)][: len(batches)]
        )


@pytest.mark.parametrize("flatten", [True, False])
def test_the_length_of_async_map_batches_is_known(flatten):
    async def same(item):
        return item

    pipe = numbers(50).async_map_batches(same, 16, flatten=flatten)
    assert len(pipe) == len(list(pipe)) == (50 if flatten else 4)


@pytest.mark.parametrize("columns", [(0, 2), [1], 1, None])
def test_flatmap_without_a_function_gives_the_columns_one_by_one(columns):
    rows = [((0, 1), (2, 3), (4, 5)), ((6, 7), (8, 9), (10, 11))]
    expected = [
        value
        for row in rows
        for value in (row if columns is None else [row[0], row[2]] if columns == (0, 2) else row[1])
    ]
    pipe = IterableWrapper(rows)
    assert list(pipe.flatmap(input_col=columns)) == expected
    assert list(pipe.shuffled_flatmap(input_col=columns, buffer_size=1)) == expected


@pytest.mark.parametrize(
    ("num_items", "weights", "seed", "expected"),
    [  # of torchdata 0.7.1
        (10, {"train": 0.5, "valid": 0.5}, 0, [[2, 3, 5, 7, 8], [0, 1, 4, 6, 9]]),
        (12, {"a": 6, "b": 4, "c": 2}, 7, [[0, 1, 3, 5, 6, 8], [2, 4, 7, 10], [9, 11]]),
        (11, {"a": 0.1, "b": 0.7, "c": 0.2}, 3, [[5, 6], [0, 1, 2, 3, 4, 8, 9], [7, 10]]),
        (9, {"a": 1, "b": 0}, -5, [list(range(9)), []]),
        (15, {"a": 1, "b": 1}, 2**70, [[0, 1, 2, 5, 6, 8, 11, 12], [3, 4, 7, 9, 10, 13, 14]]),
    ],
)
def test_a_random_split_is_torchdatas(num_items, weights, seed, expected):
    parts = numbers(num_items).random_split(weights=weights, seed=seed)
    assert [list(part) for part in parts] == [list(part) for part in parts] == expected


@given(
    st.integers(1, 60), st.lists(st.sampled_from([0, 0.1, 0.3, 0.7, 1, 2, 5]), min_size=1, max_size=4), st.integers()
)
def test_a_random_split_gives_each_item_to_one_part_and_known_lengths_are_true(num_items, weights, seed):
    if not any(weights):
        weights = [1.0]
    parts = numbers(num_items).random_split(weights=dict(enumerate(weights)), seed=seed)
    items = [list(part) for part in parts]
    assert sorted(item for part in items for item in part) == list(range(num_items))
    for part, found in zip(parts, items, strict=True):
        try:
            length = len(part)
        except TypeError:
            continue
        assert length == len(found)


def test_the_length_of_a_split_into_whole_numbers_is_known():
    parts = numbers().random_split(weights={"train": 0.6, "valid": 0.2, "test": 0.2}, seed=0)
    assert [len(part) for part in parts] == [6, 2, 2]


@pytest.mark.parametrize(
    ("name", "mode"), [("a.tar.gz", "w:gz"), ("a.tar.xz", "w:xz"), ("A.TGZ", "w:gz"), ("a.tar", "w")]
)
def test_decompress_finds_the_archive_in_a_compressed_tar(tmp_path, name, mode):
    path = str(tmp_path / name)
    with tarfile.open(path, mode) as tar:
        tar.addfile(tarfile.TarInfo("x"), io.BytesIO())
    ((_, archive),) = IterableWrapper([path]).open_files("rb").decompress()
    assert [member.name for member in archive] == ["x"]
    archive.close()


def test_fullsync_takes_any_positive_time():
    assert numbers(3).fullsync(timeout=0.5).timeout == 0.5
    for wrong in (0, -1, "1", True, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="timeout"):
            numbers(3).fullsync(timeout=wrong)


@pytest.mark.parametrize("masks", ["", "*.txt"])
def test_a_root_that_is_a_file_is_given_as_it_was_named(masks, tmp_path):
    fsspec = pytest.importorskip("fsspec")
    fsspec.filesystem("memory").touch("foo/bar1")
    assert list(FSSpecFileLister("memory://foo/bar1", masks)) == ["memory://foo/bar1"]
    (tmp_path / "x").touch()
    assert list(FSSpecFileLister(f"file://{tmp_path}/x", masks)) == [f"file://{tmp_path}/x"]


def test_a_pipe_says_for_itself_that_it_is_not_replicable():
    pipe = numbers(6).sharding_filter().map(lambda _: os.getpid())
    pipe.is_replicable = lambda: False
    with DataLoader2(pipe, reading_service=MultiProcessingReadingService(1)) as loader:
        assert set(loader) == {os.getpid()}


def test_a_stream_over_what_can_be_pickled_can_be(tmp_path):
    again = pickle.loads(pickle.dumps(StreamWrapper(io.BytesIO(b"abc"), name="mine")))
    assert (again.name, again.read()) == ("mine", b"abc")
    with StreamWrapper((tmp_path / "x").open("w")) as stream, pytest.raises(TypeError, match="an open file"):
        pickle.dumps(stream)


def test_functional_datapipe_is_the_decorator_of_users_pipes():
    @functional_datapipe("plus_one_for_the_test")
    class PlusOne(IterPipe):
        def __init__(self, source_datapipe):
            self.source_datapipe = source_datapipe

        def __iter__(self):
            yield from (item + 1 for item in self.source_datapipe)

    assert list(numbers(3).plus_one_for_the_test()) == [1, 2, 3]
    assert list_functions(IterPipe)["plus_one_for_the_test"] is PlusOne


@pytest.mark.extra
def test_functional_datapipe_decorates_torchs_pipes_too():
    data = pytest.importorskip("torch.utils.data")

    @functional_datapipe("plus_two_for_the_test")
    class PlusTwo(data.IterDataPipe):
        def __init__(self, source_datapipe):
            self.source_datapipe = source_datapipe

        def __iter__(self):
            yield from (item + 2 for item in self.source_datapipe)

    assert list(numbers(3).plus_two_for_the_test()) == [2, 3, 4]
    assert list(data.datapipes.iter.IterableWrapper(range(3)).plus_two_for_the_test()) == [2, 3, 4]


def test_the_names_of_torchdatas_utils_are_there():
    from headrace.pipes import utils

    stream = utils.StreamWrapper(io.BytesIO(b"abc"))
    utils.janitor([{"a": (stream,)}])
    assert stream.closed
    assert utils.pin_memory_fn("text") == "text"
    assert callable(utils.to_graph)


@pytest.mark.extra
def test_nested_tensors_come_through_workers():
    torch = pytest.importorskip("torch")
    pipe = (
        IterableWrapper([2, 3])
        .sharding_filter()
        .map(lambda n: torch.nested.nested_tensor([torch.ones(2), torch.ones(n)]))
    )
    with DataLoader2(pipe, reading_service=MultiProcessingReadingService(1)) as loader:
        assert [[part.shape[0] for part in item.unbind()] for item in loader] == [[2, 2], [2, 3]]
