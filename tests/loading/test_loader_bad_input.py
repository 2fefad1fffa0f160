"""What bad input gets: an error that says what, where, and what to do; and what looks bad but is legal."""

import functools
import importlib.util
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from headrace import (
    ConfigError,
    HDFDataset,
    HeadraceError,
    MapDataset,
    MetaDataset,
    ResumeError,
    SourceError,
    StaticDataset,
    TransformError,
)
from headrace.batching import Buckets, Chunks, FixedCount, FrameBudget, LimitLengths, Pack
from headrace.errors import NotCarriedOverError
from headrace.loading import DataLoader
from headrace.sources import HDFWriter


def make_seqs(lengths):
    return [{"data": np.full((n, 2), i, np.float32)} for i, n in enumerate(lengths)]


LONG = [50, 60, 70, 55] * 5


# --- a budget that nothing fits into ---


@pytest.mark.parametrize(
    "batching",
    [
        FrameBudget(49),
        FrameBudget(49, too_long="drop"),
        FrameBudget(60, quadratic_length=100),
        Buckets(FrameBudget(49), num_buckets=2),
        Buckets((FrameBudget(49), FrameBudget(49)), bounds=(60,)),
        Pack(49, 2, too_long="alone"),
        LimitLengths(FixedCount(3), max_frames=49),
        Chunks(FrameBudget(30), frames=40),
    ],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_budget_smaller_than_any_sequence_is_refused_before_the_first_batch(batching, workers):
    dataset = StaticDataset(make_seqs(LONG))
    with (
        DataLoader(dataset, batching=batching, num_workers=workers, executor="thread") as loader,
        pytest.raises(ConfigError, match="is smaller than any sequence: the shortest has 50 frames") as info,
    ):
        next(iter(loader))
    assert info.value.where == "epoch 1"
    assert "raise the budget" in info.value.fix
    with DataLoader(dataset, batching=batching) as loader, pytest.raises(ConfigError, match="smaller than any"):
        len(loader)


@pytest.mark.parametrize(
    "batching",
    [FrameBudget(50), FrameBudget(49, too_long="chunk"), Chunks(FrameBudget(49), frames=20), FixedCount(1)],
)
def test_a_budget_that_fits_the_shortest_or_cuts_is_legal(batching):
    with DataLoader(StaticDataset(make_seqs(LONG)), batching=batching) as loader:
        assert {i for batch in loader for i in batch.corpus_idx.tolist()} == set(range(20))


def test_a_sub_epoch_of_nothing_but_long_sequences_is_legal():
    dataset = StaticDataset(make_seqs([5, 5, 50, 60]), seq_ordering="sorted", partition_epoch=2)
    with DataLoader(dataset, batching=FrameBudget(10)) as loader:
        assert [batch.num_seqs for epoch in loader.epochs(1, 2) for batch in epoch] == [2, 1, 1]


def test_the_lengths_of_items_count_too():
    class Items:
        def __len__(self):
            return 3

        def __getitem__(self, i):
            return {"data": np.zeros(9, np.float32)}

        def get_seq_len(self, i):
            return 9

    with DataLoader(MapDataset(Items()), batching=FrameBudget(8)) as loader, pytest.raises(ConfigError, match="has 9"):
        list(loader)
    with DataLoader([(1, 2)] * 3, batching=FixedCount(2)) as loader:
        assert len(list(loader)) == 2


# --- states of something else ---


class Sized:
    """Items that tell their lengths."""

    def __init__(self, lengths):
        self.lengths = lengths

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        return i, "text"

    def get_seq_len(self, i):
        return self.lengths[i]


def test_items_of_other_lengths_are_other_data():
    options = {"batching": FrameBudget(10), "shuffle": True}
    with DataLoader(Sized([1, 2, 3, 4]), **options) as loader:
        state = loader.state_dict()
    with DataLoader(Sized([1, 2, 3, 4]), **options) as loader:
        loader.load_state_dict(state)
    with DataLoader(Sized([1, 2, 4, 3]), **options) as loader, pytest.raises(ResumeError, match="another data"):
        loader.load_state_dict(state)


@pytest.fixture
def parts(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    paths = [str(tmp_path / "a.hdf"), str(tmp_path / "b.hdf")]
    for path in paths:
        with HDFWriter(path) as writer:
            for i in range(12):
                writer.append(f"{i}", {"data": np.full((i % 4 + 1, 2), i, np.float32)})
    return paths


def add_noise(seq, rng):
    return {**seq, "data": seq["data"] + rng.random(seq["data"].shape, dtype=np.float32)}


def open_meta(parts, control="a", own=None, **of_b):
    datasets = {"a": HDFDataset(files=[parts[0]], seq_ordering="random"), "b": HDFDataset(files=[parts[1]], **of_b)}
    return MetaDataset(
        datasets=datasets,
        data_map={"data": ("a", "data"), "noise": ("b", "data")},
        seq_order_control_dataset=control,
        **(own or {}),
    )


@pytest.mark.parametrize("control", ["a", None])
@pytest.mark.parametrize("seed", [{"random_seed_offset": 1}, {"fixed_random_seed": 7}])
def test_the_seed_of_what_a_part_of_a_meta_dataset_draws_counts(parts, control, seed):
    def saved(**of_b):
        with open_meta(parts, control, **of_b) as dataset, DataLoader(dataset, batching=FixedCount(4)) as loader:
            return next(iter(loader))["noise"].tobytes(), loader.state_dict()

    noise, state = saved(transform=add_noise)
    other_noise, other_state = saved(transform=add_noise, **seed)
    assert noise != other_noise
    assert state["digests"] != other_state["digests"]
    with (
        open_meta(parts, control, transform=add_noise, **seed) as dataset,
        DataLoader(dataset, batching=FixedCount(4)) as loader,
        pytest.raises(ResumeError, match="another order"),
    ):
        loader.load_state_dict(state)


def test_the_seed_of_a_part_that_draws_nothing_does_not_count(parts):
    def digests(**of_b):
        with open_meta(parts, **of_b) as dataset, DataLoader(dataset, batching=FixedCount(4)) as loader:
            return loader.state_dict()["digests"]

    assert digests() == digests(random_seed_offset=3)


def test_another_pairing_by_lists_is_other_data(parts):
    tags = [str(i) for i in range(12)]

    def open_pairs(others):
        datasets = {"a": HDFDataset(files=[parts[0]]), "b": HDFDataset(files=[parts[1]])}
        path = parts[0] + ".json"
        with open(path, "w") as file:
            json.dump({"a": tags, "b": others}, file)
        data_map = {"data": ("a", "data"), "other": ("b", "data")}
        return MetaDataset(datasets=datasets, data_map=data_map, seq_list_file=path)

    with open_pairs(tags) as dataset, DataLoader(dataset, batching=FixedCount(4)) as loader:
        state = loader.state_dict()
    with open_pairs(tags) as dataset, DataLoader(dataset, batching=FixedCount(4)) as loader:
        loader.load_state_dict(state)
    with (
        open_pairs(tags[1:] + tags[:1]) as dataset,
        DataLoader(dataset, batching=FixedCount(4)) as loader,
        pytest.raises(ResumeError, match="another data"),
    ):
        loader.load_state_dict(state)


def test_other_lengths_to_sort_by_are_another_order(parts):
    def open_sorted(lengths):
        path = parts[0] + ".lens.json"
        with open(path, "w") as file:
            json.dump({str(i): {"data": lengths[i]} for i in range(12)}, file)
        return open_meta(parts, None, {"seq_lens_file": path, "seq_ordering": "sorted"})

    with open_sorted(range(12)) as dataset, DataLoader(dataset, batching=FixedCount(4)) as loader:
        first = next(iter(loader)).tags
        state = loader.state_dict()
    with (
        open_sorted(range(12, 0, -1)) as dataset,
        DataLoader(dataset, batching=FixedCount(4)) as loader,
    ):
        assert next(iter(loader)).tags != first
        with pytest.raises(ResumeError, match="another order"):
            loader.load_state_dict(state)


# --- transforms and collates ---


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda array: array.astype(np.float64), "float64"),
        (lambda array: array[:, 0], "axes"),
        (lambda array: array[:, :1], "shape"),
    ],
)
@pytest.mark.parametrize("from_seq", [1, 21])  # in mid-batch, in mid-epoch
def test_a_transform_that_changes_a_key_in_mid_epoch_is_named(workers, change, text, from_seq):
    def transform(seq):
        return {"data": change(seq["data"]) if seq["data"][0, 0] >= from_seq else seq["data"]}

    options = {"batching": FixedCount(7), "transform": transform, "num_workers": workers, "executor": "thread"}
    with DataLoader(StaticDataset(make_seqs([3] * 40)), **options) as loader:
        if (text, from_seq) == ("shape", 21):
            assert len(list(loader)) == 6  # inner axes may differ from batch to batch: nobody said that they are fixed
            return
        with pytest.raises(HeadraceError, match=text) as info:
            list(loader)
    assert "'data'" in str(info.value)
    assert info.value.where


@pytest.mark.parametrize("collate", [lambda seqs: np.array([seq["data"] for seq in seqs], object)])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_ragged_collate_is_told_the_batch_and_what_to_do(collate, workers):
    options = {"batching": FixedCount(4), "collate": collate, "num_workers": workers}
    with (
        DataLoader(StaticDataset(make_seqs([1, 2, 3, 4])), **options) as loader,
        pytest.raises(TransformError, match="Python objects") as info,
    ):
        list(loader)
    assert info.value.where == "batch 0 of epoch 1"
    assert "pad" in info.value.fix


def no_array(seq):
    return None


def no_array_for_a_key(seq):
    return {**seq, "other": {1, 2}}


def ragged_lists(seq):
    return {**seq, "other": [[1], [2, 3]]}


class Numbers:
    def __iter__(self):
        return ({"data": np.ones(n + 1)} for n in range(5))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("transform", "text"),
    [
        (no_array, "(the transform returned None|got NoneType)"),
        (no_array_for_a_key, "no array for the data key 'other', but set"),
        (ragged_lists, "no array for the data key 'other', but list"),
        (functools.partial(no_array_for_a_key), "but set"),
    ],
)
@pytest.mark.parametrize("face", ["dataset", "list", "texts", "tuples", "stream"])
def test_a_transform_that_returns_no_array_is_named_at_once(face, transform, text, workers):
    items = [{"data": np.ones(n + 1)} for n in range(5)]
    data = {
        "dataset": StaticDataset(items),
        "list": items,
        "texts": [{**item, "text": "a"} for item in items],
        "tuples": [(1, 2)] * 5,
        "stream": Numbers(),
    }[face]
    if face == "tuples" and transform is not no_array:
        return
    options = {"batch_size": 2, "transform": transform, "num_workers": workers, "executor": "thread"}
    with DataLoader(data, **options) as loader, pytest.raises(TransformError, match=text) as caught:
        next(iter(loader))
    name = getattr(transform, "__qualname__", "partial")
    assert f"transform {name}, sequence " in str(caught.value)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_in_the_layout_names_the_batch_and_no_tag(num_workers):
    def narrow(seq):
        return {"data": seq["data"][:, : 1 + int(seq["data"][0, 0]) % 2]}

    dataset = StaticDataset(make_seqs([3, 3]))
    loader = DataLoader(dataset, batching=FixedCount(2), transform=narrow, num_workers=num_workers, executor="thread")
    with loader, pytest.raises(SourceError, match="another shape") as caught:
        list(loader)
    assert "headrace: (laying out batch 0), epoch 1" in caught.value.__notes__[0]


# --- a list of names ---


def test_names_of_data_files_in_a_list_are_texts_and_that_is_said(tmp_path, caplog):
    path = tmp_path / "a.hdf"
    with HDFWriter(path) as writer:
        writer.append("x", {"data": np.zeros((2, 2), np.float32)})
    (tmp_path / "notes.xyz").write_text("no data")

    def delivered(items, **options):
        caplog.clear()
        with DataLoader(items, batch_size=2, **options) as loader:
            list(loader)
        return [record.getMessage() for record in caplog.records if "names of data files" in record.getMessage()]

    (said,) = delivered([str(path), str(path)])
    assert str(path) in said
    assert "open_source(files)" in said
    for other in (["a.hdf", "b.hdf"], [str(path), "a text"], [str(tmp_path / "notes.xyz")], ["a", "b"]):
        assert not delivered(other)
    second = tmp_path / "b.hdf"
    second.write_bytes(path.read_bytes())
    assert not delivered([str(second)], collate=len)  # who reads them is known
    assert not delivered([str(second)], transform=lambda item: item)
    assert delivered([str(second)])


# --- datasets with a slip in them ---


class Slip:
    """A map-style dataset; what each item is, a test says."""

    def __init__(self, item):
        self.item = item

    def __len__(self):
        return 6

    def __getitem__(self, number):
        return self.item(number)


class Endless:
    """Python's `iter` takes it, and never ends."""

    def __getitem__(self, number):
        return {"data": np.full(3, number)}


def test_an_object_without_a_length_is_no_endless_stream():
    with pytest.raises(ConfigError, match=r"an? Endless has __getitem__, and no __len__"):
        DataLoader(Endless(), batch_size=2)


def test_an_item_that_is_none_is_said_to_be_none():
    loader = DataLoader(Slip(lambda number: None if number == 4 else {"data": np.arange(3)}), batch_size=2)
    with pytest.raises(SourceError, match=r"the item is None\n.*item 4 of Slip"):
        list(loader)


@pytest.mark.parametrize(
    ("make", "fix"),
    [
        (lambda: StaticDataset(make_seqs([3]), seq_orderin="random"), "did you mean 'seq_ordering'"),
        (lambda: MapDataset(make_seqs([3]), partition_epoc=2), "did you mean 'partition_epoch'"),
        (lambda: HDFDataset("a.hdf", filles="b.hdf"), "did you mean 'files'"),
    ],
)
def test_an_option_of_a_dataset_that_there_is_not_is_named_with_the_closest_one(make, fix):
    with pytest.raises(TypeError, match=rf"Dataset has no option '\w+'\n.*{fix}"):
        make()


def test_an_option_of_the_data_is_sent_to_who_reads_them():
    with pytest.raises(ConfigError, match=r"no option 'targets'(.|\n)*open_source\(files, targets"):
        DataLoader("a.hdf", batch_size=2, targets={})


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_workers_on_a_ray_cluster_need_ray():
    with pytest.raises(ConfigError, match=r"pip install 'headrace\[ray\]'"):
        DataLoader([1, 2], batch_size=2, num_workers=1, executor="ray")


def test_a_dataset_of_ray_data_is_sent_through_parquet(monkeypatch):
    dataset_class = type("Dataset", (), {})
    monkeypatch.setitem(sys.modules, "ray.data", SimpleNamespace(Dataset=dataset_class))
    with pytest.raises(NotCarriedOverError, match="write_parquet"):
        DataLoader(dataset_class(), batch_size=2)
