"""The documented life cycle and the short way to read, on data in memory."""

import copy
import itertools
import pickle

import numpy as np
import pytest

from headrace.datasets import CachedDataset, FromListDataset, MapDataset, StaticDataset
from headrace.errors import ConfigError, HeadraceError, OptionalNotImplementedError, SourceError, TransformError
from headrace.order import Laplace
from headrace.sources import MemorySource

LENGTHS = [i * i % 17 + 1 for i in range(30)]


def pickled(dataset):
    return pickle.loads(pickle.dumps(dataset))


def seqs():
    return [
        {
            "data": np.full((length, 2), i, dtype=np.float32) + np.arange(length, dtype=np.float32)[:, None] / 100,
            "classes": np.arange(length, dtype=np.int32) % 5,
        }
        for i, length in enumerate(LENGTHS)
    ]


def make(epoch=None, **options):
    dataset = StaticDataset(seqs(), **options)
    dataset.initialize()
    if epoch is not None:
        dataset.init_seq_order(epoch=epoch)
    return dataset


def indices(dataset, epoch=1):
    return [seq.corpus_idx for seq in dataset.epoch(epoch)]


# --- the order ---


def test_the_documented_loop_and_the_short_way_give_the_same():
    dataset = make(seq_ordering="laplace:3", partition_epoch=2)
    for epoch in (1, 2, 3):
        dataset.init_seq_order(epoch=epoch)
        documented, fractions, seq_idx = [], [], 0
        while dataset.is_less_than_num_seqs(seq_idx):
            dataset.load_seqs(seq_idx, seq_idx + 1)
            arrays = [dataset.get_data(seq_idx, key).tolist() for key in ("data", "classes")]
            documented.append((dataset.get_tag(seq_idx), *arrays))
            fractions.append(dataset.get_complete_frac(seq_idx))
            seq_idx += 1
        assert seq_idx == dataset.num_seqs == 15
        assert (fractions, fractions[-1]) == (sorted(fractions), 1)
        with pytest.raises(IndexError):
            dataset.get_complete_frac(15)
        assert documented == [(seq.tag, seq["data"].tolist(), seq["classes"].tolist()) for seq in dataset.epoch(epoch)]


def test_an_ordering_is_a_text_a_policy_or_a_function_of_the_epoch_and_may_be_set_later():
    assert indices(make(seq_ordering=Laplace(num_bins=3)), 2) == indices(make(seq_ordering="laplace:3"), 2)
    dataset = make(seq_ordering=lambda epoch, **_: "default" if epoch == 1 else "reverse")
    assert (indices(dataset, 1), indices(dataset, 2)) == (list(range(30)), list(range(29, -1, -1)))
    dataset.partition_epoch, dataset.seq_ordering = 3, "reverse"
    assert (indices(dataset, 1), dataset.seq_ordering) == (list(range(29, 19, -1)), "reverse")
    with pytest.raises(ConfigError):
        dataset.repeat_epoch = 2


def test_epoch_is_a_number_and_a_reader():
    dataset = make()
    assert dataset.epoch == 0
    dataset.init_seq_order(epoch=4)
    assert (dataset.epoch, dataset.epoch % 2) == (4, 0)
    assert len(list(dataset.epoch(2))) == 30
    assert dataset.epoch == pickled(dataset.epoch) == 2


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, None, "1"])
def test_an_epoch_that_is_no_positive_number_is_refused(wrong):
    with pytest.raises(ConfigError, match="numbered 1, 2"):
        make().epoch(wrong)
    if wrong not in (0, None):  # an epoch without sequences
        with pytest.raises(ConfigError, match="epoch"):
            make(epoch=wrong)


def test_an_iterator_over_an_older_epoch_says_that_it_is_stale():
    dataset = make()
    first = dataset.epoch(1)
    next(first)
    second = dataset.epoch(2)
    next(second)
    with pytest.raises(ConfigError, match="stale"):
        next(first)
    assert next(second).seq_idx == 1


def test_without_an_epoch_there_are_no_sequences_and_what_is_released_comes_back():
    dataset = make(seq_ordering="random", cache_byte_size=-1)
    assert (dataset.num_seqs, dataset.is_less_than_num_seqs(0)) == (0, False)
    before = indices(dataset)
    assert dataset.num_seqs == 30
    dataset.finish_epoch(free_resources=True)
    assert dataset.num_seqs == 0
    with pytest.raises(IndexError, match="init_seq_order"):
        dataset.get_data(0, "data")
    assert indices(dataset) == before
    with dataset:
        pass
    assert indices(dataset) == before


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ({"seq_order": [5, 3, 5]}, [5, 3, 5]),
        ({"seq_order": (i for i in (2, 1))}, [2, 1]),
        ({"seq_order": np.array([3, 1], dtype=np.uint8)}, [3, 1]),
        ({"seq_list": ["seq-7", "seq-0"]}, [7, 0]),
    ],
    ids=["list", "generator", "array", "tags"],
)
def test_an_explicit_order_is_taken_as_it_is(order, expected):
    dataset = make(seq_ordering="random", partition_epoch=3, _num_shards=2)
    dataset.init_seq_order(epoch=1, **order)
    assert list(dataset.get_current_seq_order()) == expected
    assert [dataset.get_tag(i) for i in range(dataset.num_seqs)] == [f"seq-{i}" for i in expected]


@pytest.mark.parametrize(
    ("order", "error", "match"),
    [
        ({"seq_list": ["seq-7", "nope"]}, SourceError, "nope"),
        ({"seq_order": [0, 30]}, ConfigError, "30"),
        ({"seq_order": [0], "seq_list": ["seq-0"]}, ConfigError, "both"),
        *(({"seq_order": wrong}, ConfigError, "whole numbers") for wrong in ([0.7, 1.9], [True], [[0, 1]], ["a"])),
        *(({"seq_list": wrong}, ConfigError, "seq_list") for wrong in ("seq-1", b"seq-1", [1])),
    ],
    ids=str,
)
def test_an_explicit_order_that_is_none_is_refused(order, error, match):
    with pytest.raises(error, match=match):
        make().init_seq_order(epoch=1, **order)


def test_copies_have_the_options_but_no_current_order():
    dataset = make(seq_ordering="random", partition_epoch=2, random_seed_offset=7, name="train")
    dataset.set_sharding(2, 1)
    expected = indices(dataset, 3)
    for other in (copy.deepcopy(dataset), pickled(dataset)):
        assert (other.name, other.epoch, other.num_seqs) == ("train", 3, 0)
        assert indices(other, 3) == expected


def test_a_filter_applies_before_sub_epochs_are_cut_and_its_file_is_read_once(tmp_path, caplog):
    keep = tmp_path / "keep.txt"
    keep.write_text("".join(f"seq-{i}\n" for i in range(0, 30, 3)) + "not-in-the-corpus\n")
    dataset, twin = (make(seq_ordering="random", partition_epoch=3, seq_list_filter_file=keep) for _ in range(2))
    parts = [indices(dataset, epoch) for epoch in (1, 2)]
    dataset.finish_epoch(free_resources=True)
    assert indices(twin, 1) == parts[0]
    keep.write_text("seq-1\n")
    parts.append(indices(dataset, 3))
    assert [len(part) for part in parts] == [4, 3, 3]
    assert sorted(itertools.chain(*parts)) == list(range(0, 30, 3))
    assert dataset.get_total_num_seqs() == 10
    assert list(dataset.get_all_tags()) == [f"seq-{i}" for i in range(0, 30, 3)]
    assert [record.message for record in caplog.records if "keep.txt" in record.message] == [
        f"the filter names 11 tags, and keeps 10 of 30 sequences: {keep}"
    ]


def test_unique_tags_keep_the_first_in_the_order():
    data = FromListDataset([{"data": np.full((1, 1), i, np.float32)} for i in range(6)])
    dataset = MapDataset(data, tags=["a", "b", "a", "c", "b", "a"], unique_seq_tags=True, seq_ordering="reverse")
    assert [(seq.tag, seq.corpus_idx) for seq in dataset.epoch(1)] == [("a", 5), ("b", 4), ("c", 3)]


def write_lens(path, length_of):
    path.write_text("{" + ", ".join(f'"seq-{i}": {length_of(i)}' for i in range(30)) + "}")
    return path


def test_lengths_of_a_file_are_what_is_sorted_by(tmp_path):
    lens = tmp_path / "lens.json"
    for unit in (1, 8):  # whole numbers, and others
        options = {"seq_ordering": "sorted", "seq_order_seq_lens_file": write_lens(lens, lambda i: i * 7 % 30 / unit)}  # noqa: B023
        assert indices(make(**options)) == sorted(range(30), key=lambda i: i * 7 % 30)
    write_lens(lens, lambda i: 100 - i)
    dataset = MapDataset(FromListDataset(seqs()), **options)
    dataset.init_seq_order(epoch=1)
    assert dataset.supports_seq_order_sorting()
    assert (dataset.get_tag(0), dataset.get_estimated_seq_length(0)) == ("seq-29", 71)
    lens.write_text('{"seq-0": 3}')
    with pytest.raises(SourceError, match="seq-1"):
        make(epoch=1, **options)
    proof = tmp_path / "proof"
    lens.write_text(f"__import__('pathlib').Path({str(proof)!r}).touch() or {{}}")
    with pytest.raises(HeadraceError):
        make(epoch=1, **options)
    assert not proof.exists()


def test_a_list_without_lengths_cannot_be_sorted_and_says_which_option_to_give():
    with pytest.raises(HeadraceError, match="length"):
        MapDataset(FromListDataset(seqs()), seq_ordering="sorted").init_seq_order(epoch=1)
    sortable = MapDataset(FromListDataset(seqs(), sort_data_key="data"), seq_ordering="sorted")
    assert [len(seq["data"]) for seq in sortable.epoch(1)] == sorted(LENGTHS)


def test_a_map_dataset_may_bring_its_own_order_which_is_sharded_filtered_and_repeated(tmp_path):
    class Own(FromListDataset):
        def get_seq_order(self, epoch):
            return [5, 4, 3, 2, 1, 0][epoch - 1 :]

    assert indices(MapDataset(Own(seqs())), 3) == [3, 2, 1, 0]
    shards = [indices(MapDataset(Own(seqs()[:6]), _num_shards=2, _shard_index=s)) for s in (0, 1)]
    assert shards == [[5, 4, 3], [2, 1, 0]]
    keep = tmp_path / "keep.txt"
    keep.write_text("seq-1\nseq-4\n")
    assert indices(MapDataset(Own(seqs()[:6]), seq_list_filter_file=keep, repeat_epoch=2)) == [4, 1, 4, 1]


# --- reading ---


class Counting(MemorySource):
    num_reads = 0

    def read(self, corpus_idx, data_key):
        self.num_reads += 1
        return super().read(corpus_idx, data_key)


@pytest.mark.parametrize("cache_byte_size", [0, -1])
def test_what_was_read_is_kept_as_long_as_it_is_loaded_or_fits_into_the_cache(cache_byte_size):
    source = Counting(seqs())
    dataset = CachedDataset(source=source, cache_byte_size=cache_byte_size)
    dataset.init_seq_order(epoch=1)

    def reads(act):
        before = source.num_reads
        act()
        return source.num_reads - before

    again = 0 if cache_byte_size else 1
    assert reads(lambda: dataset.load_seqs(0, 30)) == 60
    assert reads(lambda: [dataset.get_data(i, "data") for i in range(28)]) == 0
    assert reads(lambda: dataset.load_seqs(29, 30)) == 0
    assert reads(lambda: dataset.get_data(29, "data")) == 0
    assert reads(lambda: dataset.get_data(28, "data")) == again  # it was dropped
    assert reads(lambda: dataset.get_data(28, "classes")) == again
    assert reads(lambda: [dataset.get_data(i, "classes") for i in (7, 3, 7, 3)]) == 4 * again


def test_the_cache_knows_what_it_holds():
    dataset = make(1, cache_byte_size=-1)
    assert dataset.num_seqs_cached_at_start == 0
    assert not dataset.is_cached(0, 3)
    assert dataset.is_cached(0, 3, blocking=True)
    dataset.load_seqs(5, 6)
    assert dataset.num_seqs_cached_at_start == 3


@pytest.mark.parametrize("cache_byte_size", [0, 1, 1000, 5000, -1])
def test_what_a_reader_does_to_an_array_never_shows_later(cache_byte_size):
    dataset = make(cache_byte_size=cache_byte_size)
    for _ in range(2):
        for seq, plain in zip(dataset.epoch(1), seqs(), strict=True):
            np.testing.assert_array_equal(seq["data"], plain["data"])
            seq["data"][:] = 99
    for load in (False, True):
        dataset.init_seq_order(epoch=1)
        for _ in range(3):
            if load:
                dataset.load_seqs(4, 5)
            dataset.get_data(4, "data")[:] = 99
            np.testing.assert_array_equal(dataset.get_data(4, "data"), seqs()[4]["data"])


@pytest.mark.parametrize("cache_byte_size", [0, -1])
def test_slices_have_one_rule_with_and_without_a_cache(cache_byte_size):
    dataset = make(1, cache_byte_size=cache_byte_size)
    np.testing.assert_array_equal(dataset.get_data_slice(4, "data", 3, 1000), seqs()[4]["data"][3:])
    assert dataset.get_data_slice(4, "data", 100, 1000).shape == (0, 2)
    for wrong in ((-2, 3), (3, 2)):
        with pytest.raises(IndexError, match="frames"):
            dataset.get_data_slice(4, "data", *wrong)


def test_a_window_joins_neighbouring_frames_and_an_even_one_is_raised_by_one():
    assert make(window=2).window == 3
    dataset = make(1, window=3)
    padded = np.pad(seqs()[4]["data"], [(1, 1), (0, 0)])
    expected = np.concatenate([padded[:-2], padded[1:-1], padded[2:]], axis=1)
    np.testing.assert_array_equal(dataset.get_data(4, "data"), expected)
    assert (dataset.get_data_dim("data"), dataset.get_data_shape("data")) == (6, [6])
    assert dataset.get_data(4, "classes").shape == (LENGTHS[4],)
    with pytest.raises(ConfigError, match="window=3 joins frames that are vectors"):
        StaticDataset([{"data": np.arange(4, dtype=np.int32)}], window=3)


def test_frames_are_shuffled_within_groups_and_keep_their_labels():
    plain, shuffled = make(1), make(1, shuffle_frames_of_nseqs=4)
    moved = False
    for first in range(0, 30, 4):
        group = range(first, min(first + 4, 30))
        before, after = (
            np.concatenate([np.column_stack([each.get_data(i, "data"), each.get_data(i, "classes")]) for i in group])
            for each in (plain, shuffled)
        )
        assert [shuffled.get_data(i, "data").shape for i in group] == [plain.get_data(i, "data").shape for i in group]
        np.testing.assert_array_equal(np.sort(before.view("f8,f8,f8"), axis=0), np.sort(after.view("f8,f8,f8"), axis=0))
        moved |= not np.array_equal(before, after)
    assert moved
    labelled = [{"data": np.zeros((2, 1), np.float32), "label": np.array(1)}]
    with pytest.raises(SourceError, match="differ in length"):
        next(StaticDataset(labelled, shuffle_frames_of_nseqs=2).epoch(1))


# --- transforms ---


def add_noise(features, rng):
    return {**features, "data": features["data"] + rng.normal(size=features["data"].shape).astype(np.float32)}


def test_a_transform_may_ask_for_a_generator_that_depends_on_epoch_and_sequence_alone():
    def noise(epoch, **options):
        return {seq.corpus_idx: seq["data"].tobytes() for seq in make(transform=add_noise, **options).epoch(epoch)}

    reference = noise(1)
    assert noise(1, seq_ordering="random") == noise(1, seq_ordering="reverse", cache_byte_size=-1) == reference
    assert noise(1, _num_shards=2, _shard_index=1).items() <= reference.items()
    assert not set(noise(2).values()) & set(reference.values())
    assert noise(1, fixed_random_seed=3) == noise(2, fixed_random_seed=3) != reference
    twice = make(transform=add_noise, repeat_epoch=2).epoch(1)
    assert len({seq["data"].tobytes() for seq in twice}) == 60


def test_lengths_are_those_of_what_a_transform_returns():
    dataset = make(1, transform=lambda features: {key: value[:1] for key, value in features.items()})
    assert (dataset.get_seq_length(4)["data"], dataset.get_num_timesteps()["data"]) == (1, 30)


@pytest.mark.parametrize(
    ("transform", "text"),
    [
        (lambda features: None, "NoneType"),
        (lambda features: {"data": features["data"]}, "data keys"),
        (lambda features: {**features, "data": features["data"].astype("float64")}, "float64"),
        (lambda features: {**features, "data": [1, 2]}, "list"),
    ],
)
def test_a_transform_that_returns_something_else_is_named_with_the_sequence(transform, text):
    with pytest.raises(TransformError, match=text) as caught:
        next(make(transform=transform).epoch(1))
    assert "seq-0" in str(caught.value)
    assert "lambda" in str(caught.value)


class ProudError(ZeroDivisionError):
    def add_note(self, note):
        raise RuntimeError("no notes")


@pytest.mark.parametrize("error", [ZeroDivisionError, ProudError])
def test_an_error_of_the_users_code_names_the_sequence_and_keeps_its_type(error):
    def fail(features):
        raise error("by the user")

    with pytest.raises(error, match="by the user") as caught:
        next(make(transform=fail, name="train").epoch(2))
    if error is ZeroDivisionError:  # the other takes no note
        assert caught.value.__notes__ == ["dataset 'train', epoch 2, sequence 'seq-0'"]


# --- layout and options ---


def test_the_layout_is_known_without_reading():
    dataset = make()
    assert dataset.get_data_keys() == ["data", "classes"]
    assert dataset.get_target_list() == ["classes"]
    for key, layout in (("data", ("float32", False, [2], 2)), ("classes", ("int32", True, [], 5))):
        asked = dataset.get_data_dtype, dataset.is_data_sparse, dataset.get_data_shape, dataset.get_data_dim
        assert tuple(ask(key) for ask in asked) == layout
    assert dataset.num_outputs == {"data": (2, 2), "classes": (5, 1)}
    assert dataset.have_seqs()
    assert dataset.len_info(fast=True) == "StaticDataset, sequences: 30, frames: unknown"
    assert StaticDataset(seqs(), target_list=[]).get_data_keys() == ["data"]


def test_an_empty_corpus_and_an_empty_sub_epoch_are_legal():
    dataset = StaticDataset(seqs()[:2], partition_epoch=5, seq_ordering="sorted")
    assert [len(list(dataset.epoch(epoch))) for epoch in range(1, 6)] == [1, 1, 0, 0, 0]
    dataset = StaticDataset([], input_dim=3, output_dim={"classes": 5})
    assert dataset.num_outputs == {"data": (3, 2), "classes": (5, 1)}
    assert list(dataset.epoch(1)) == []


def test_what_a_dataset_does_not_offer_says_so_and_an_unknown_data_key_is_answered_with_the_nearest():
    dataset = make(1)
    for ask in (dataset.get_data_dim, lambda key: dataset.get_data(0, key), lambda key: next(dataset.epoch(1))[key]):
        with pytest.raises(HeadraceError, match="did you mean 'classes'"):
            ask("clases")
    with pytest.raises(OptionalNotImplementedError, match="get_times"):
        dataset.get_times(0)


def test_numbers_of_numpy_are_numbers():
    plain = {"fixed_random_seed": 3, "partition_epoch": 2, "seq_ordering": "random"}
    numbers = {"fixed_random_seed": np.int64(3), "partition_epoch": np.int32(2)}
    dataset = make(np.int64(1), **{**plain, **numbers}, window=np.int64(3), chunking=np.int64(5))
    assert indices(dataset, np.int64(2)) == indices(make(**plain), 2)


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        ("cache_byte_size", ["1000", None, -2]),
        ("chunking_variance", [None, 1.5]),
        ("shuffle_frames_of_nseqs", [1.5, None]),
        ("unique_seq_tags", ["no"]),
        ("seq_list_filter_file", [["a"]]),
        ("window", ["3", -1]),
        ("seq_ordering", ["laplce:3"]),
    ],
)
def test_an_option_of_the_wrong_kind_is_refused_by_name(option, wrong):
    for value in wrong:
        with pytest.raises(ConfigError, match=option):
            make(**{option: value})


def test_what_is_named_and_is_not_there_is_refused_when_the_dataset_is_built(tmp_path):
    for option in ("seq_list_filter_file", "seq_order_seq_lens_file"):
        with pytest.raises(SourceError, match=option):
            make(**{option: tmp_path / "missing.txt"})
    with pytest.raises(ConfigError, match="missing_key"):
        make(target_list=["missing_key"])


class LikeReturnn(StaticDataset):
    """A class that was written for RETURNN, where the shard is two attributes."""

    num_calls = 0

    def __init__(self, data, shard=None, **kwargs):
        super().__init__(data, **kwargs)
        if shard is not None:
            self._shard_index, self._num_shards = shard

    def set_sharding(self, num_shards, shard_index):
        self._num_shards = num_shards
        self._shard_index = shard_index
        self.num_calls += 1


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickled])
def test_a_class_written_for_returnn_may_assign_its_shard(how):
    expected = [indices(make(_num_shards=4, _shard_index=shard)) for shard in range(4)]
    assert list(itertools.chain(*expected)) == list(range(30))
    dataset = LikeReturnn(seqs(), shard=(3, 4))
    dataset.initialize()
    assert indices(dataset) == indices(how(dataset)) == expected[3]
    dataset.set_sharding(4, 2)
    assert (dataset.num_calls, dataset.num_shards, dataset.shard_index) == (1, 4, 2)
    assert indices(dataset) == indices(how(dataset)) == expected[2]
    dataset.init_seq_order(epoch=1)
    dataset._shard_index = 0
    assert list(dataset.get_current_seq_order()) == expected[2]  # up to the next epoch
    dataset.init_seq_order(epoch=1)
    assert list(dataset.get_current_seq_order()) == expected[0]


def test_a_shard_that_can_be_none_is_refused_when_half_of_it_is_assigned_or_when_an_epoch_begins():
    dataset = make()
    for name, values in (("_num_shards", (0, True, "2")), ("_shard_index", (-1, 0.5))):
        for value in values:
            with pytest.raises(ConfigError, match=name):
                setattr(dataset, name, value)
    dataset._shard_index = 2
    for act in (lambda: dataset.init_seq_order(epoch=1), lambda: copy.copy(dataset), lambda: pickle.dumps(dataset)):
        with pytest.raises(ConfigError, match="_shard_index=2 is none of the 1 shards"):
            act()
    dataset._num_shards = 3
    assert indices(dataset) == indices(make(_num_shards=3, _shard_index=2))
