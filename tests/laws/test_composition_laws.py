"""Laws over all classes of datasets, in one another: a part may be shared, copied and read elsewhere; the digests of a
loader's state tell each recipe from those that deliver something else; and a loader delivers the dataset's own stream.
"""

import copy
import functools
import io
import pickle
import random
import tempfile

import cloudpickle
import numpy as np
import pytest
from dataset_recipes import RECIPES, Draw, entry_of, nodes, with_objects
from hypothesis import example, given
from hypothesis import strategies as st

import headrace.datasets
from examples_of_laws import examples
from headrace import ResumeError
from headrace.batching import FixedCount, FrameBudget
from headrace.datasets import Dataset, init_dataset
from headrace.datasets.reading.reader import ReadRequest
from headrace.loading import DataLoader

SEEDS = st.integers(0, 2**32)
DEPTHS = st.integers(0, 3)
NOT_HERE = {
    "AudioDataset": "its class adds a source only",
    "CachedDataset": "a base class",
    "CachedDataset2": "a base class",
    "Dataset": "a base class",
    "HuggingFaceDataset": "its class adds a source only",
    "LmDataset": "its class adds a source only",
    "MapDatasetWrapper": "another name of MapDataset",
    "OggZipDataset": "its class adds a source only",
}


@pytest.fixture(autouse=True, scope="module")
def _own_cache_folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def test_every_class_has_a_recipe():
    exported = [name for name in headrace.datasets.__all__ if name[0].isupper()]
    classes = [name for name in exported if isinstance(getattr(headrace.datasets, name), type)]
    classes = [name for name in classes if issubclass(getattr(headrace.datasets, name), Dataset)]
    assert sorted(classes) == sorted((RECIPES.keys() | NOT_HERE.keys()) - {"Alternating", "Indexed", "Streamed"})


def drawn(seed, depth, folder, name=None):
    return Draw(random.Random(seed), folder, depth).config(name)


def row(seq):
    return seq.tag, {key: array.tobytes() for key, array in seq.features.items()}


def stream(dataset, epoch):
    return [row(seq) for seq in dataset.epoch(epoch)]


def fresh_stream(config, epoch):
    with init_dataset(config) as dataset:
        return stream(dataset, epoch)


def copied(dataset, how):
    if how == "pickle":
        buffer = io.BytesIO()
        cloudpickle.dump(dataset, buffer)
        return pickle.loads(buffer.getvalue())
    return getattr(copy, how)(dataset)


POSITIONED = {"Alternating", "Indexed", "Streamed", "DistributeFilesDataset"}  # when it is read


def ask_and_read(dataset, stream_of, rng, *, reads):
    """Ask a dataset about an epoch, and read some of it by a reader, as nobody must notice who reads another epoch."""
    epoch = rng.randint(1, 4)
    corpus = dataset.get_corpus()
    corpus.order_text(epoch)
    try:
        order, counted = corpus.order(epoch)
    except headrace.errors.OptionalNotImplementedError:
        return
    if not reads or not len(order):
        return
    start = rng.randrange(len(order))
    stop = min(start + 3, len(order))
    reader = corpus.reader()
    some = None if counted is None else counted[start:stop]
    reader.start(ReadRequest.of(epoch, order.block(start, stop), some))
    assert [row(reader.read(number)) for number in range(stop - start)] == stream_of(epoch)[start:stop]


@given(st.sampled_from(sorted(RECIPES)), SEEDS, st.integers(1, 3), st.integers(1, 3))
@examples(120)
def test_a_part_may_be_shared_copied_and_read_elsewhere(name, seed, depth, epoch):
    with tempfile.TemporaryDirectory() as folder:
        config, rng = drawn(seed, depth, folder, name), random.Random(seed)
        unshared = with_objects(config, init_dataset, None)  # an object does not inherit options, as a config does
        stream_of = functools.cache(lambda number: fresh_stream(unshared, number))
        reads = not POSITIONED & {_name(node) for node in nodes(config)}
        made = {}
        given_objects = with_objects(config, init_dataset, made)
        first, second = init_dataset(given_objects), init_dataset(given_objects)
        third = copied(first, rng.choice(["copy", "deepcopy", "pickle"]))
        third.initialize()
        readers = [
            (dataset.epoch(number), number, [])
            for dataset, number in zip((first, second, third), (epoch, epoch + 1, epoch), strict=True)
        ]
        elsewhere = [part for part in made.values() if isinstance(part, Dataset)]
        others = [part.epoch(rng.randint(1, 4)) for part in elsewhere]
        while readers:
            reader = rng.choice(readers)
            seqs, number, seen = reader
            seq = next(seqs, None)
            if seq is None:
                assert seen == stream_of(number)
                readers.remove(reader)
            else:
                seen.append(row(seq))
            if rng.random() < 0.2:
                ask_and_read(rng.choice([first, second, third]), stream_of, rng, reads=reads)
            if others and rng.random() < 0.5:
                place = rng.randrange(len(others))
                next(others[place], None)
                if rng.random() < 0.2:
                    elsewhere[place].finish_epoch(free_resources=rng.random() < 0.5)
                    others[place] = elsewhere[place].epoch(rng.randint(1, 4))
        for dataset in (first, second, third):
            dataset.close()


def set_by_method(dataset, num_shards, shard_index):
    dataset.set_sharding(num_shards, shard_index)


def assign_number_first(dataset, num_shards, shard_index):
    dataset._num_shards = num_shards
    dataset._shard_index = shard_index


def assign_index_first(dataset, num_shards, shard_index):
    dataset._shard_index, dataset._num_shards = shard_index, num_shards


def sharded_streams(config, ways, shards, epoch):
    """Return what a dataset delivers in one shard after the other, or the type of the error that says why not."""
    with init_dataset(config) as dataset:
        found = []
        try:
            for way, shard in zip(ways, shards, strict=True):
                way(dataset, *shard)
                assert (dataset._num_shards, dataset._shard_index) == shard
                found.append(stream(dataset, epoch))
                assert (dataset.num_shards, dataset.shard_index) == shard
        except headrace.ConfigError as error:
            found.append(type(error))
        return found


@given(st.sampled_from(sorted(RECIPES)), SEEDS, DEPTHS, st.integers(1, 3), st.data())
@examples(100)
def test_a_shard_may_be_assigned_as_in_classes_of_returnn(name, seed, depth, epoch, data):
    shard = st.integers(1, 4).flatmap(lambda num: st.tuples(st.just(num), st.integers(0, num - 1)))
    shards = data.draw(st.lists(shard, min_size=1, max_size=3))
    ways = data.draw(st.lists(st.sampled_from([assign_number_first, assign_index_first]), min_size=3, max_size=3))
    with tempfile.TemporaryDirectory() as folder:
        config = drawn(seed, depth, folder, name)
        expected = sharded_streams(config, [set_by_method] * len(shards), shards, epoch)
        assert sharded_streams(config, ways[: len(shards)], shards, epoch) == expected


def changed(config, rng, kind):
    """Return a config in which one option of one class in it is another one; `None` if there is none to change."""
    config = copy.deepcopy(config)
    choices = [
        (node, option, value)
        for node in nodes(config)
        for option, values in getattr(entry_of(node), kind).items()
        for value in values
        if node.get(option) is not value
    ]
    if not choices:
        return None
    node, option, value = rng.choice(choices)
    node[option] = value
    return config


def is_legal(config, epoch):
    """Tell whether the options do not contradict each other; a window that changes shapes may be seen when reading."""
    try:
        fresh_stream(config, epoch)
    except (headrace.ConfigError, headrace.TransformError):
        return False
    return True


@example("ConcatSeqsDataset", 1915, 0, 2)  # sub-epochs of the inner dataset change what its transform draws
@given(st.sampled_from(sorted(RECIPES)), SEEDS, DEPTHS, st.integers(1, 3))
@examples(200)
def test_a_state_is_refused_by_every_recipe_that_delivers_something_else(name, seed, depth, epoch):
    with tempfile.TemporaryDirectory() as folder:
        config, rng = drawn(seed, depth, folder, name), random.Random(seed)
        for kind in ("changes", "idle"):
            other_config = changed(config, rng, kind)
            if other_config is None or not is_legal(other_config, epoch):
                continue
            is_same = fresh_stream(config, epoch) == fresh_stream(other_config, epoch)
            assert is_same or kind == "changes"
            with (
                DataLoader(config, batching=FixedCount(2)) as before,
                DataLoader(other_config, batching=FixedCount(2)) as after,
            ):
                before.set_epoch(epoch)
                state = before.state_dict()
                if kind == "idle":
                    after.load_state_dict(state)
                elif not is_same:
                    with pytest.raises(ResumeError, match=r"another (data|order)"):
                        after.load_state_dict(state)


def rows_of(batch):
    return [
        (tag, batch["data"][number][: batch.lengths["data"][number]].tobytes()) for number, tag in enumerate(batch.tags)
    ]


@given(
    st.sampled_from(sorted(RECIPES)),
    SEEDS,
    DEPTHS,
    st.integers(1, 3),
    st.sampled_from([0, 0, 1, 2]),
    st.integers(1, 3),
    st.integers(0, 5),
)
@examples(80)
def test_a_loader_delivers_the_stream_of_its_dataset(name, seed, depth, epoch, num_workers, world_size, stop):
    with tempfile.TemporaryDirectory() as folder:
        config = drawn(seed, depth, folder, name)
        expected = [(tag, features["data"]) for tag, features in fresh_stream(config, epoch)]
        workers = {"num_workers": num_workers, "executor": "thread"}

        def loader(rank, **options):
            made = DataLoader(
                config, batching=FixedCount(2), rank=rank, world_size=world_size, remainder="keep", **options
            )
            made.set_epoch(epoch)
            return made

        batches, state = {}, None
        for rank in range(world_size):
            with loader(rank, **workers) as first:
                for batch in first:
                    batches[batch.step * world_size + rank] = rows_of(batch)
                    if batch.step >= stop:
                        state = first.state_dict()
                        break
            if state is not None:
                with loader(rank) as second:
                    second.load_state_dict(state)
                    for batch in second:
                        batches[batch.step * world_size + rank] = rows_of(batch)
            state = None
        assert [seq for number in sorted(batches) for seq in batches[number]] == expected


def add_draw(seq, rng):
    return {**seq, "data": np.full_like(seq["data"], rng.random())}


@given(st.sampled_from(sorted(RECIPES)), SEEDS, DEPTHS, st.integers(1, 3))
@examples(60)
def test_each_sequence_of_an_epoch_gets_draws_of_its_own(name, seed, depth, epoch):
    with tempfile.TemporaryDirectory() as folder:
        config = drawn(seed, depth, folder, name)
        for node in nodes(config):
            if "partition_epoch" in RECIPES[_name(node)].changes and not node.get("partition_epoch"):
                node["repeat_epoch"] = 2
        if not is_legal(config, epoch):
            return
        with DataLoader(config, batching=FixedCount(3), transform=add_draw) as loader:
            loader.set_epoch(epoch)
            draws = [data[0, 0] for batch in loader for data in batch["data"]]
        assert len(set(draws)) == len(draws)


def _name(node):
    return node["class"] if isinstance(node["class"], str) else node["class"].__name__


@given(st.sampled_from(sorted(RECIPES)), SEEDS, DEPTHS, st.integers(1, 3))
@examples(60)
def test_a_budget_holds_or_is_refused(name, seed, depth, epoch):
    with tempfile.TemporaryDirectory() as folder:
        config = drawn(seed, depth, folder, name)
        try:
            with DataLoader(config, batching=FrameBudget(8)) as loader:
                loader.set_epoch(epoch)
                for batch in loader:
                    frames = batch["data"].shape[0] * batch["data"].shape[1]
                    assert frames <= 8 or len(batch["data"]) == 1
        except headrace.ConfigError as error:
            assert "lengths" in str(error)  # noqa: PT017
