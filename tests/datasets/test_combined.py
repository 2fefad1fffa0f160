"""`CombinedDataset`: different sequences under one order, with random access where the parts have it."""

import copy
import os
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from joint_cases import add_noise, part, print_of, prints, row, rows, seq_of, stream, tags

from examples_of_laws import examples
from headrace.batching import Buckets, FixedCount, FrameBudget, NumbersDict
from headrace.datasets import CachedDataset, CombinedDataset, init_dataset
from headrace.datasets.wrap.runs import RunLimits
from headrace.errors import ConfigError, ResumeError, SourceError
from headrace.loading import DataLoader
from headrace.order import derive_order_seed, parse_seq_ordering, slice_bounds
from headrace.sources import HDFWriter, MemorySource

pytestmark = pytest.mark.usefixtures("warm_workers")

ORDERINGS = ["default", "reverse", "random", "laplace:2", "sorted", "random_sample", "permute", "default_every_n:2"]
OWN = ["random_dataset", "interleave", "reversed"]
SIZES = st.lists(st.integers(0, 9), min_size=1, max_size=4)
SHARDS = st.integers(1, 3).flatmap(lambda num: st.tuples(st.just(num), st.integers(0, num - 1)))
PART_OPTIONS = st.sampled_from(
    [{}, {}, {"seq_ordering": "reverse"}, {"seq_ordering": "random", "partition_epoch": 2}, {"repeat_epoch": 2}]
)


def combined(sizes, part_options=None, **options):
    names = "abcd"[: len(sizes)]
    given_options = part_options or [{}] * len(sizes)
    datasets = {name: part(name, size, **own) for name, size, own in zip(names, sizes, given_options, strict=True)}
    data_map = {(name, key): key for name in names for key in ("data", "classes")}
    return {"class": "CombinedDataset", "datasets": datasets, "data_map": data_map, **options}


def two(**options):
    """Return two tasks: speech with "data", text with "classes"; both have "data"."""
    return {
        "class": "CombinedDataset",
        "datasets": {"speech": part("a", 7, ("data",)), "text": part("b", 5, **options.pop("text", {}))},
        "data_map": {("speech", "data"): "data", ("text", "data"): "words", ("text", "classes"): "classes"},
        **options,
    }


def offered(config, epoch):
    """Return what the parts offer, one after the other: (name of the part, its row)."""
    return [
        (name, found) for name, own in sorted(config["datasets"].items()) for found in rows(init_dataset(own), epoch)
    ]


# --- the order ---


@given(SIZES, st.data(), st.sampled_from(ORDERINGS), st.integers(1, 3), SHARDS, st.integers(0, 4), st.integers(1, 7))
@examples(50)
def test_any_ordering_is_laid_over_what_the_parts_offer(sizes, data, ordering, num_parts, shards, offset, epoch):
    options = [data.draw(PART_OPTIONS) for _ in sizes]
    config = combined(
        sizes,
        options,
        seq_ordering=ordering,
        partition_epoch=num_parts,
        random_seed_offset=offset,
        _num_shards=shards[0],
        _shard_index=shards[1],
    )
    for own in config["datasets"].values():
        own.setdefault("random_seed_offset", offset)
    full_epoch = (epoch - 1) // num_parts + 1
    there = offered(config, full_epoch)
    seed = derive_order_seed(epoch, partition_epoch=num_parts, random_seed_offset=offset)
    lengths = np.array([len(found[2]["data"]) for _, found in there], np.int64)
    order = parse_seq_ordering(ordering).plan(len(there), seed, lengths)
    start, stop = slice_bounds(len(order), epoch, num_parts, *shards)
    expected = [there[place][1] for place in list(order)[start:stop]]
    dataset = init_dataset(config)
    assert [(tag, features) for tag, _, features in rows(dataset, epoch)] == [(tag, f) for tag, _, f in expected]
    assert dataset.num_seqs == len(expected)
    starts = dict(zip("abcd", np.cumsum([0, *sizes]).tolist(), strict=False))
    assert list(dataset.get_current_seq_order()) == [starts[tag[0]] + corpus_idx for tag, corpus_idx, _ in expected]
    assert list(dataset.get_all_tags()) == [
        f"{name}{i}" for name, size in zip("abcd", sizes, strict=False) for i in range(size)
    ]
    assert dataset.get_total_num_seqs() == sum(sizes)


@given(SIZES, st.sampled_from([*ORDERINGS, *OWN]), st.integers(1, 3), st.integers(1, 3), st.booleans())
@examples(40)
def test_all_sub_epochs_and_shards_together_are_everything_once(sizes, ordering, num_parts, num_shards, are_shuffled):
    if ordering in ("random_sample", "default_every_n:2"):
        return
    parts = [{"seq_ordering": "random" if are_shuffled else "default"}] * len(sizes)
    dataset = init_dataset(combined(sizes, parts, seq_ordering=ordering, partition_epoch=num_parts))
    seen = []
    for shard in range(num_shards):
        dataset.set_sharding(num_shards, shard)
        for epoch in range(num_parts + 1, 2 * num_parts + 1):
            seen += tags(dataset, epoch)
    assert sorted(seen) == sorted(dataset.get_all_tags())


@given(SIZES)
@examples(30)
def test_interleaved_the_dataset_comes_next_that_is_the_least_far(sizes):
    used, expected = [0] * len(sizes), []
    while any(count < size for count, size in zip(used, sizes, strict=True)):
        fracs = [((used[i] + 1) / size, i) for i, size in enumerate(sizes) if used[i] < size]
        _, number = min(fracs)
        expected.append(f"{'abcd'[number]}{used[number]}")
        used[number] += 1
    assert tags(init_dataset(combined(sizes, seq_ordering="interleave")), 1) == expected


def test_ten_and_five_are_interleaved_two_to_one():
    found = tags(init_dataset(combined([10, 5], seq_ordering="interleave")), 1)
    assert [tag[0] for tag in found] == ["a", "a", "b"] * 5


@given(SIZES, st.sampled_from(OWN), st.sampled_from([None, 0, 0.3, 2.0, "remaining"]), st.integers(1, 3))
@examples(40)
def test_orders_by_dataset_keep_the_order_inside(sizes, ordering, scale, epoch):
    dataset = init_dataset(combined(sizes, seq_ordering=ordering, interleave_gumbel_scale=scale))
    found = tags(dataset, epoch)
    for name, size in zip("abcd", sizes, strict=False):
        assert [tag for tag in found if tag[0] == name] == [f"{name}{i}" for i in range(size)]
    assert found == tags(init_dataset(combined(sizes, seq_ordering=ordering, interleave_gumbel_scale=scale)), epoch)


def test_drawn_orders_differ_from_epoch_to_epoch_and_not_within_one():
    for options in (
        {"seq_ordering": "random_dataset"},
        {"seq_ordering": "interleave", "interleave_gumbel_scale": 1.0},
    ):
        dataset = init_dataset(combined([20, 20], partition_epoch=2, **options))
        first, second = tags(dataset, 1) + tags(dataset, 2), tags(dataset, 3) + tags(dataset, 4)
        assert sorted(first) == sorted(second)
        assert first != second
        fixed = init_dataset(combined([20, 20], fixed_random_seed=3, **options))
        assert tags(fixed, 1) == tags(fixed, 2)


def test_reversed_begins_with_the_last_dataset_and_reverse_with_the_last_sequence():
    assert tags(init_dataset(combined([2, 2], seq_ordering="reversed")), 1) == ["b0", "b1", "a0", "a1"]
    assert tags(init_dataset(combined([2, 2], seq_ordering="reverse")), 1) == ["b1", "b0", "a1", "a0"]


def test_an_ordering_may_be_a_function_of_the_epoch_and_be_set_later():
    dataset = init_dataset(combined([2, 1], seq_ordering=lambda epoch: "interleave" if epoch % 2 else "reverse"))
    assert tags(dataset, 1) == ["a0", "a1", "b0"]
    assert tags(dataset, 2) == ["b0", "a1", "a0"]
    dataset.seq_ordering = "reversed"
    assert tags(dataset, 1) == ["b0", "a0", "a1"]
    assert dataset.seq_ordering == "reversed"


@given(st.lists(st.integers(1, 6), min_size=2, max_size=2), st.lists(st.integers(1, 9), min_size=2, max_size=2))
@examples(20)
def test_samples_go_on_where_the_epoch_before_has_stopped(sizes, sampled):
    dataset = init_dataset(combined(sizes, sampling_sizes=dict(zip("ab", sampled, strict=True))))
    seen = {"a": [], "b": []}
    for epoch in range(1, 7):
        found = tags(dataset, epoch)
        assert len(found) == sum(sampled)
        for tag in found:
            seen[tag[0]].append(tag)
    for name, size in zip("ab", sizes, strict=True):
        assert seen[name] == [f"{name}{i % size}" for i in range(len(seen[name]))]


def test_samples_are_divided_into_sub_epochs_and_take_any_order():
    dataset = init_dataset(combined([5, 3], sampling_sizes={"a": 2, "b": 4}, partition_epoch=2, seq_ordering="random"))
    for full_epoch in range(3):
        found = tags(dataset, 2 * full_epoch + 1) + tags(dataset, 2 * full_epoch + 2)
        expected = [f"a{(2 * full_epoch + i) % 5}" for i in range(2)]
        expected += [f"b{(4 * full_epoch + i) % 3}" for i in range(4)]
        assert sorted(found) == sorted(expected)


def test_a_filter_keeps_sub_epochs_even_and_unique_tags_are_unique_among_all_parts(tmp_path):
    path = tmp_path / "wanted.txt"
    path.write_text("a1\nb0\nb3\na4\n")
    dataset = init_dataset(combined([6, 6], seq_list_filter_file=str(path), partition_epoch=2))
    assert [tags(dataset, epoch) for epoch in (1, 2)] == [["a1", "a4"], ["b0", "b3"]]
    assert list(dataset.get_all_tags()) == ["a1", "a4", "b0", "b3"]
    assert dataset.get_total_num_seqs() == 4
    config = combined([3, 3], unique_seq_tags=True)
    config["datasets"]["b"]["tags"] = ["a1", "x", "a1"]
    assert tags(init_dataset(config), 1) == ["a0", "a1", "a2", "x"]
    config = combined([6, 6])
    config["datasets"]["a"]["seq_list_filter_file"] = str(path)
    dataset = init_dataset(config)
    assert dataset.get_total_num_seqs() == 8 == dataset.num_seqs + len(tags(dataset, 1))


def test_lengths_are_those_that_the_parts_sort_by(tmp_path):
    path = tmp_path / "lens.txt"
    path.write_text(repr({"a0": 9, "a1": 0, "b0": 3, "b1": 5}))
    assert tags(init_dataset(combined([2, 2], seq_ordering="sorted", seq_order_seq_lens_file=path)), 1) == [
        "a1",
        "b0",
        "b1",
        "a0",
    ]
    config = combined([2, 2], seq_ordering="sorted")
    config["datasets"]["a"]["seq_order_seq_lens_file"] = path
    dataset = init_dataset(config)
    assert tags(dataset, 1) == ["a1", "b0", "b1", "a0"]
    assert [dataset.get_estimated_seq_length(place) for place in range(4)] == [0, 1, 3, 9]


# --- reading ---


def test_what_a_dataset_lacks_has_no_frames():
    dataset = init_dataset(two())
    assert dataset.get_data_keys() == ["data", "classes", "words"]
    assert dataset.num_outputs == {"data": (2, 2), "words": (2, 2), "classes": (999, 1)}
    for tag, _, features in rows(dataset, 1):
        own = {key: value.tolist() for key, value in seq_of(tag[0], int(tag[1:])).items()}
        if tag[0] == "a":
            assert features == {"data": own["data"], "classes": [], "words": []}
        else:
            assert features == {"data": [], "classes": own["classes"], "words": own["data"]}
    dataset.init_seq_order(1)
    empty = dataset.get_data(0, "words")
    assert (empty.shape, empty.dtype) == ((0, 2), np.float32)
    assert dataset.get_seq_length(0) == NumbersDict({"data": 1, "classes": 0, "words": 0})
    assert dataset.get_data_slice(8, "words", 1, 3).shape == (2, 2)
    assert dataset.get_num_timesteps()["words"] == sum(len(seq_of("b", i)["data"]) for i in range(5))


def test_a_data_key_without_time_is_zero_where_it_is_lacking():
    seqs = [{"data": np.ones((2, 2), np.float32), "speaker": np.float32(3)}]
    config = {
        "class": "CombinedDataset",
        "datasets": {"a": {"class": "StaticDataset", "data": seqs}, "b": part("b", 1)},
        "data_map": {("a", "data"): "data", ("b", "data"): "data", ("a", "speaker"): "speaker"},
    }
    found = [seq["speaker"] for seq in init_dataset(config).epoch(1)]
    assert [(value.shape, value.tolist()) for value in found] == [((), 3.0), ((), 0.0)]


def test_any_place_can_be_read_at_any_time_and_any_order_be_given():
    dataset = init_dataset(combined([6, 7], seq_ordering="random"))
    expected = rows(dataset, 2)
    dataset.init_seq_order(2)
    for place in (11, 0, 5, 5, 12):
        assert row(dataset.get_seq(place)) == expected[place]
        assert dataset.get_data(place, "data").tolist() == expected[place][2]["data"]
        assert dataset.get_tag(place) == expected[place][0]
        assert dataset.get_complete_frac(place) == (place + 1) / 13
    assert [found[0] for found in rows(dataset, 1, seq_list=["b3", "a2", "b3"])] == ["b3", "a2", "b3"]
    assert [found[0] for found in rows(dataset, 1, seq_order=[12, 0, 6])] == ["b6", "a0", "b0"]
    seq = dataset.get_corpus_seq(8)
    assert (seq.seq_tag, seq.corpus_idx, seq["data"].tolist()) == ("b2", 8, seq_of("b", 2)["data"].tolist())
    dataset.init_seq_order(2)
    with pytest.raises(IndexError, match="outside an epoch of 13"):
        dataset.get_seq(13)
    with pytest.raises(ConfigError, match="no data key 'dat'"):
        dataset.get_data(0, "dat")
    with pytest.raises(SourceError, match="no tag 'c1'"):
        dataset.init_seq_order(1, seq_list=["c1"])


def test_the_documented_way_of_reading_gives_the_same():
    dataset = init_dataset(combined([6, 5, 4], seq_ordering="random_dataset"))
    expected = rows(dataset, 3)
    dataset.init_seq_order(epoch=3)
    seq_idx = 0
    while dataset.is_less_than_num_seqs(seq_idx):
        dataset.load_seqs(seq_idx, seq_idx + 4)
        tag, _, features = expected[seq_idx]
        assert dataset.get_tag(seq_idx) == tag
        for key, value in features.items():
            assert dataset.get_seq_length(seq_idx)[key] == len(value)
            assert dataset.get_data(seq_idx, key).tolist() == value
        seq_idx += 1
    assert seq_idx == 15


def test_chunks_and_batches_are_made_of_it_as_of_any_dataset():
    dataset = init_dataset(combined([6, 5], chunking="2:1"))
    dataset.init_seq_order(1)
    batches = dataset.generate_batches(batch_size=20, max_seqs=4, recurrent_net=True, used_data_keys=["data"])
    places = []
    while batches.has_more():
        (batch,) = batches.peek_next_n(1)
        batches.advance(1)
        places += [piece.seq_idx for piece in batch.seqs]
    assert sorted(set(places)) == list(range(11))


def test_the_order_is_made_without_reading_and_each_sequence_is_read_once():
    class Counting(MemorySource):
        def __init__(self, name, num_seqs):
            super().__init__([seq_of(name, i) for i in range(num_seqs)], tags=[f"{name}{i}" for i in range(num_seqs)])
            self.reads = []

        def read(self, corpus_idx, data_key):
            self.reads.append(corpus_idx)
            return super().read(corpus_idx, data_key)

    sources = {name: Counting(name, 3) for name in "ab"}
    datasets = {name: CachedDataset(source=source) for name, source in sources.items()}
    dataset = CombinedDataset(datasets, {("a", "data"): "data", ("b", "data"): "data"}, seq_ordering="laplace:2")
    dataset.initialize()
    dataset.init_seq_order(1)
    list(dataset.get_current_seq_order())
    dataset.get_all_tags()
    dataset.get_num_timesteps()
    dataset.get_seq_length(0)
    with DataLoader(dataset, batching=Buckets(FrameBudget(8), num_buckets=2)) as loader:
        assert len(loader) > 0
    assert [source.reads for source in sources.values()] == [[], []]
    rows(dataset, 1)
    assert [sorted(source.reads) for source in sources.values()] == [[0, 1, 2]] * 2


def test_sequences_that_repeat_draw_anew_and_the_same_each_time():
    options = {"transform": add_noise, "repeat_epoch": 2}
    config = combined([3, 3], [options, {"transform": add_noise}], seq_ordering="random", partition_epoch=2)
    dataset = init_dataset(config)
    found = rows(dataset, 1) + rows(dataset, 2)
    texts = {str(features) for _, _, features in found}
    assert len(texts) == len(found) == 9
    assert found == rows(init_dataset(config), 1) + rows(init_dataset(config), 2)
    assert not texts & {str(features) for _, _, features in rows(dataset, 3) + rows(dataset, 4)}


def test_a_combination_can_be_part_of_another_and_of_a_meta_dataset():
    inner = combined([2, 3], seq_ordering="interleave")
    outer = {
        "class": "CombinedDataset",
        "datasets": {"x": inner, "y": part("d", 2)},
        "data_map": {("x", "data"): "data", ("y", "data"): "data"},
        "seq_ordering": "random",
    }
    dataset = init_dataset(outer)
    assert sorted(tags(dataset, 1)) == ["a0", "a1", "b0", "b1", "b2", "d0", "d1"]
    assert dataset.get_corpus_seq(4).seq_tag == "b2"
    meta = {
        "class": "MetaDataset",
        "datasets": {"all": inner, "order": {**part("a", 2), "tags": ["b1", "a0"]}},
        "data_map": {"data": ("all", "data"), "classes": ("order", "classes")},
        "seq_order_control_dataset": "order",
    }
    assert [(tag, f["data"]) for tag, _, f in rows(init_dataset(meta), 1)] == [
        ("b1", seq_of("b", 1)["data"].tolist()),
        ("a0", seq_of("a", 0)["data"].tolist()),
    ]


# --- workers, loaders, ranks ---


def test_workers_of_a_multi_proc_dataset_change_nothing():
    inner = combined([9, 8], [{"transform": add_noise}, {}], seq_ordering="random_dataset", partition_epoch=2)
    expected = [rows(init_dataset(inner), epoch) for epoch in (1, 2)]
    with init_dataset({"class": "MultiProcDataset", "dataset": inner, "num_workers": 2, "buffer_size": 4}) as dataset:
        assert [rows(dataset, epoch) for epoch in (1, 2)] == expected


@given(
    SIZES,
    st.sampled_from([*ORDERINGS, *OWN]),
    st.integers(1, 3),
    st.integers(0, 6),
    st.sampled_from([FixedCount(3), FrameBudget(12), Buckets(FrameBudget(12), num_buckets=2)]),
)
@examples(25)
def test_loaders_on_any_ranks_deliver_one_stream_and_resume_anywhere(sizes, ordering, world_size, stop, batching):
    parts = [{"transform": add_noise}, {"seq_ordering": "random"}, {}, {"repeat_epoch": 2}][: len(sizes)]
    config = combined(sizes, parts, seq_ordering=ordering)
    with DataLoader(config, batching=batching) as loader:
        whole = prints(loader, 2)
    found = {}
    for rank in range(world_size):
        with DataLoader(config, batching=batching, rank=rank, world_size=world_size, remainder="keep") as loader:
            found.update((rank + world_size * step, batch) for step, batch in enumerate(prints(loader, 2)))
    assert [found[position] for position in range(len(found))] == whole
    if stop < len(whole):
        with DataLoader(config, batching=batching) as loader:
            loader.set_epoch(2)
            batches = iter(loader)
            before = [print_of(next(batches)) for _ in range(stop)]
            state = loader.state_dict()
        with DataLoader(init_dataset(config), batching=batching) as loader:
            loader.load_state_dict(state)
            assert before + prints(loader) == whole


@pytest.mark.parametrize("ordering", ["default", "random"])
def test_files_are_read_at_once_as_one_by_one(tmp_path, ordering):
    rng, names = np.random.default_rng(1), "abc"
    for name, keys in zip(names, (("data", "classes"), ("data", "speaker"), ("data",)), strict=True):
        with HDFWriter(tmp_path / f"{name}.hdf") as writer:
            for number in range(6 if name != "b" else 4):
                seq = {**seq_of(name, number), "speaker": rng.normal(size=3).astype(np.float32)}
                writer.append(f"{name}{number}", {key: seq[key] for key in keys})
    files = {name: {"class": "HDFDataset", "files": [str(tmp_path / f"{name}.hdf")], "index": None} for name in names}
    data_map = {(name, "data"): "data" for name in names}
    data_map |= {("a", "classes"): "classes", ("b", "speaker"): "speaker"}
    config = {"class": "CombinedDataset", "datasets": files, "data_map": data_map, "seq_ordering": ordering}
    alone = init_dataset(config)
    assert alone.make_reader().fast_source() is not None
    expected = rows(alone, 2)
    with DataLoader(config, batching=FixedCount(5)) as loader:
        loader.set_epoch(2)
        found = [
            (tag, int(corpus_idx), {key: batch[key][i, : batch.lengths[key][i]].tolist() for key in batch})
            for batch in loader
            for i, (tag, corpus_idx) in enumerate(zip(batch.tags, batch.corpus_idx, strict=True))
        ]
    assert sorted(found) == sorted(expected)
    sizes = [sum(np.asarray(value).size * 4 for value in features.values()) for _, _, features in rows(alone, 1)]
    limits = RunLimits.of(alone, buffer_size=1000, max_bytes=8 * 2 * max(sizes))
    assert max(sum(np.asarray(lengths[:]) * frame_bytes for lengths, frame_bytes in limits.sizes)) == max(sizes)
    options = {"num_workers": 1, "buffer_size": 9, "executor": "thread"}
    with init_dataset({"class": "MultiProcDataset", "dataset": config, **options}) as dataset:
        assert rows(dataset, 2) == expected
    alone.close()


def test_worker_processes_of_a_loader_change_nothing():
    config = two(text={"transform": add_noise}, seq_ordering="interleave")
    found = []
    for workers in (0, 2):
        with DataLoader(config, batching=FixedCount(3), num_workers=workers) as loader:
            found.append(prints(loader, 1))
    assert found[0] == found[1]


def test_a_state_does_not_fit_another_combination():
    with DataLoader(combined([5, 5]), batching=FixedCount(2)) as loader:
        next(iter(loader))
        state = loader.state_dict()
    others = [
        combined([5, 5], seq_ordering="interleave"),
        combined([5, 5], [{}, {"seq_ordering": "reverse"}]),
        combined([5, 5], sampling_sizes=3),
        combined([5, 6]),
    ]
    for config in others:
        with DataLoader(config, batching=FixedCount(2)) as loader, pytest.raises(Exception, match="state"):
            loader.load_state_dict(state)


def thinned(iterator, **_):
    return iterator


@pytest.mark.parametrize("around", ["stream function", "workers", "meta"])
def test_a_state_knows_what_is_inside_of_a_part(around, tmp_path):
    lengths = tmp_path / "lengths.txt"
    lengths.write_text(repr({f"a{i}": 9 - i for i in range(5)}))

    def config_of(*part_options, **options):
        inside = combined([5, 4], part_options, **options)
        meta = {
            "class": "MetaDataset",
            "datasets": {"x": inside},
            "data_map": {"data": ("x", "data")},
            "seq_order_control_dataset": "x",
        }
        parts = {
            "stream function": inside,
            "workers": {"class": "ConcatDataset", "datasets": [multi_proc(inside), part("s", 2)]},
            "meta": {"class": "ConcatDataset", "datasets": [multi_proc(meta), part("s", 2, ("data",))]},
        }
        if around == "stream function":
            return {"class": "PostprocessingDataset", "dataset": inside, "map_seq_stream": thinned}
        return parts[around]

    with DataLoader(config_of({}, {}), batching=FixedCount(2)) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with DataLoader(config_of({}, {}), batching=FixedCount(2)) as loader:
        loader.load_state_dict(state)
    others = [
        config_of({}, {"seq_ordering": "random"}),
        config_of({}, {}, sampling_sizes=3),
        config_of({"seq_ordering": "sorted", "seq_order_seq_lens_file": str(lengths)}, {}),
    ]
    for config in others:
        with DataLoader(config, batching=FixedCount(2)) as loader, pytest.raises(ResumeError, match="another order"):
            loader.load_state_dict(state)


def multi_proc(inner):
    return {"class": "MultiProcDataset", "dataset": inner, "num_workers": 1, "buffer_size": 2, "executor": "thread"}


def test_it_can_be_a_sub_epoch_of_distributed_files(tmp_path):
    for name in "abcd":
        with HDFWriter(tmp_path / f"{name}.hdf") as writer:
            for number in range(4):
                writer.append(f"{name}{number}", {"data": seq_of(name, number)["data"]})

    def get_sub_epoch_dataset(files):
        datasets = {str(number): {"class": "HDFDataset", "files": [file]} for number, file in enumerate(files)}
        data_map = {(name, "data"): "data" for name in datasets}
        return {"class": "CombinedDataset", "datasets": datasets, "data_map": data_map, "seq_ordering": "interleave"}

    config = {
        "class": "DistributeFilesDataset",
        "files": [str(tmp_path / f"{name}.hdf") for name in "abcd"],
        "get_sub_epoch_dataset": get_sub_epoch_dataset,
        "partition_epoch": 2,
        "executor": "inline",
    }
    with init_dataset(config) as dataset:
        found = tags(dataset, 1), tags(dataset, 2)
    assert found[0] == ["a0", "b0", "a1", "b1", "a2", "b2", "a3", "b3"]
    assert {tag[0] for tag in found[1]} == {"c", "d"}


# --- copies, ends ---


def test_copies_work_from_another_folder_and_closing_leaves_no_file_open(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        with HDFWriter(f"{name}.hdf") as writer:
            for number in range(3):
                writer.append(f"{name}{number}", seq_of(name, number))
    config = {
        "class": "CombinedDataset",
        "datasets": {name: {"class": "HDFDataset", "files": f"{name}.hdf"} for name in "ab"},
        "data_map": [["a", "data", "data"], ["b", "data", "data"]],
        "seq_ordering": "random",
    }
    dataset = init_dataset(config)
    expected = rows(dataset, 1)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for other in (pickle.loads(pickle.dumps(dataset)), copy.deepcopy(dataset)):
        assert int(other.epoch) == 1
        assert rows(other, 1) == expected
        other.close()
    dataset.close()
    open_files = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_link(fd)]
    assert not [name for name in open_files if name.startswith(str(tmp_path))]
    assert rows(dataset, 1) == expected
    dataset.close()


def _is_link(fd):
    return os.path.islink(f"/proc/self/fd/{fd}")


def test_without_an_epoch_it_holds_no_sequences():
    dataset = init_dataset(combined([2, 2]))
    assert dataset.num_seqs == 0
    with pytest.raises(IndexError, match="has init_seq_order"):
        dataset.get_seq(0)
    tags(dataset, 1)
    dataset.finish_epoch(free_resources=True)
    assert dataset.num_seqs == 0


def test_empty_parts_are_legal():
    for ordering in ("default", "random", "interleave", "random_dataset", "sorted", "reversed"):
        assert tags(init_dataset(combined([0, 2, 0], seq_ordering=ordering, fixed_random_seed=1)), 1)
        assert tags(init_dataset(combined([0, 0], seq_ordering=ordering)), 1) == []


# --- what is refused ---


@pytest.mark.parametrize("kind", ["CombinedDataset", "ConcatDataset", "MixDataset"])
def test_a_stream_is_refused_as_a_part(kind):
    parts = {"a": part("a", 2), "b": stream("b", 2)}
    data_map = {} if kind == "ConcatDataset" else {"data_map": {("a", "data"): "data", ("b", "data"): "data"}}
    with pytest.raises(ConfigError, match=r"(?s)\(Stream\) does not know its corpus.*an iterable that does"):
        init_dataset({"class": kind, "datasets": list(parts.values()) if not data_map else parts, **data_map})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"datasets": {}}, "datasets must be a dict"),
        ({"data_map": {}}, "data_map must be a dict"),
        ({"data_map": {("a", "data"): "data", ("c", "data"): "data"}}, "no sub-dataset 'c'"),
        ({"data_map": {("a", "dat"): "data"}}, "no data key 'dat'"),
        ({"data_map": {("a", "data"): "data", ("a", "classes"): "data"}}, "mapped to the one data key 'data'"),
        ({"data_map": {"data": ("a", "data")}}, "data_map has the entry"),
        ({"data_map": [["a", "data"]]}, "data_map has the entry"),
        ({"sampling_sizes": -1}, "must be at least 0, got -1"),
        ({"sampling_sizes": 0}, "takes no sequence at all"),
        ({"sampling_sizes": {"a": 1}}, "no size for the sub-dataset 'b'"),
        ({"sampling_sizes": {"a": 1, "b": 1, "x": 1}}, "names the sub-dataset 'x'"),
        ({"sampling_sizes": {"a": 1.5, "b": 1}}, "must be an integer"),
        ({"interleave_gumbel_scale": -0.5}, "at least 0"),
        ({"interleave_gumbel_scale": float("nan")}, "at least 0"),
        ({"interleave_gumbel_scale": "much"}, '"remaining" or None'),
        ({"seq_ordering": "interleaved"}, "did you mean 'interleave'"),
        ({"window": 3}, "does not support window=3"),
        ({"data_dims": {"data": (3, 2)}}, "data_dims says"),
        ({"data_dims": {"dat": (2, 2)}}, "data_dims names the data key 'dat'"),
        ({"data_dtypes": {"dat": "int8"}}, "data_dtypes names the data key 'dat'"),
        ({"partition_epoch": 2, "repeat_epoch": 2}, "exclude each other"),
        ({"nonsense": 1}, "no option 'nonsense'"),
    ],
    ids=str,
)
def test_bad_options_are_refused_when_it_is_built(change, text):
    with pytest.raises(ConfigError, match=text):
        init_dataset(combined([2, 2]) | change)


def test_a_data_key_with_two_layouts_is_refused():
    other = {"class": "StaticDataset", "data": [{"data": np.zeros((2, 3), np.float32)}]}
    config = combined([2, 2])
    config["datasets"]["b"] = other
    config["data_map"] = {("a", "data"): "data", ("b", "data"): "data"}
    with pytest.raises(ConfigError, match=r"two layouts: shape is \(2,\) in 'a', and \(3,\) in 'b'"):
        init_dataset(config)
    other["data"] = [{"data": np.zeros((2, 2), np.float64)}]
    with pytest.raises(ConfigError, match="two layouts: dtype is float32 in 'a', and float64"):
        init_dataset(config)
    other["data"] = [{"data": np.zeros(2, np.int32)}]
    with pytest.raises(ConfigError, match="two layouts: sparse is False"):
        init_dataset(config)


def test_numbers_of_classes_that_differ_must_be_said():
    datasets = {
        name: {"class": "StaticDataset", "data": [{"data": np.zeros(2, np.int32)}], "input_dim": dim}
        for name, dim in (("a", 5), ("b", 9))
    }
    config = {"class": "CombinedDataset", "datasets": datasets, "data_map": {(name, "data"): "data" for name in "ab"}}
    with pytest.raises(ConfigError, match=r"data_dims=\{'data': \(9, 1\)\}"):
        init_dataset(config)
    assert init_dataset({**config, "data_dims": {"data": (9, 1)}}).get_data_dim("data") == 9
    with pytest.raises(ConfigError, match="data_dims says"):
        init_dataset({**config, "data_dims": {"data": (7, 1)}})


def test_class_labels_that_differ_are_refused(tmp_path):
    for name, labels in (("a", ["x", "y"]), ("b", ["y", "x"])):
        with HDFWriter(tmp_path / f"{name}.hdf", labels={"classes": labels}) as writer:
            writer.append(name, {"classes": np.zeros(2, np.int32)})
    datasets = {name: {"class": "HDFDataset", "files": [str(tmp_path / f"{name}.hdf")], "index": None} for name in "ab"}
    data_map = {(name, "classes"): "classes" for name in "ab"}
    with pytest.raises(ConfigError, match="other class labels in 'b'"):
        init_dataset({"class": "CombinedDataset", "datasets": datasets, "data_map": data_map})


def test_a_config_that_contains_itself_is_refused():
    config = combined([2, 2])
    config["datasets"]["b"] = config
    with pytest.raises(ConfigError, match="contains itself"):
        init_dataset(config)


def test_one_object_may_be_two_parts():
    dataset = init_dataset(part("a", 2))
    whole = CombinedDataset({"a": dataset, "b": dataset}, {("a", "data"): "data", ("b", "data"): "data"})
    assert tags(whole, 1) == tags(dataset, 1) * 2


def test_two_levels_cannot_shard():
    for config in (
        combined([4, 4], [{"_num_shards": 2}, {}], _num_shards=2),
        combined([4, 4], [{"_num_shards": 2}, {"_num_shards": 2}]),
    ):
        with pytest.raises(ConfigError, match="two levels would shard"):
            init_dataset(config)


def test_a_sample_of_an_empty_part_is_refused_with_its_name():
    dataset = init_dataset(combined([3, 0], sampling_sizes=2))
    with pytest.raises(ConfigError, match="asks for 2 sequences of 'b', which has none"):
        dataset.init_seq_order(1)


def test_what_is_not_named_is_not_opened():
    config = combined([2])
    config["datasets"]["never"] = {"class": "HDFDataset", "files": "no such file"}
    assert tags(init_dataset(config), 1) == ["a0", "a1"]
