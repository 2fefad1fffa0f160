"""The documented life cycle and the short way to read, on data in memory."""

import copy
import itertools
import pickle

import numpy as np
import pytest

from headrace.datasets import FromListDataset, MapDataset, StaticDataset
from headrace.errors import ConfigError, HeadraceError, OptionalNotImplementedError, SourceError, TransformError
from headrace.order import Laplace

LENGTHS = [i * i % 17 + 1 for i in range(30)]


def seqs():
    return [
        {
            "data": np.full((length, 2), i, dtype=np.float32) + np.arange(length, dtype=np.float32)[:, None] / 100,
            "classes": np.arange(length, dtype=np.int32) % 5,
        }
        for i, length in enumerate(LENGTHS)
    ]


def make(**options):
    dataset = StaticDataset(seqs(), **options)
    dataset.initialize()
    return dataset


def indices(dataset, epoch):
    return [seq.corpus_idx for seq in dataset.epoch(epoch)]


def test_the_documented_loop_and_the_short_way_give_the_same():
    dataset = make(seq_ordering="laplace:3", partition_epoch=2)
    for epoch in (1, 2, 3):
        dataset.init_seq_order(epoch=epoch)
        documented, seq_idx = [], 0
        while dataset.is_less_than_num_seqs(seq_idx):
            dataset.load_seqs(seq_idx, seq_idx + 1)
            documented.append(
                (dataset.get_tag(seq_idx), dataset.get_data(seq_idx, "data"), dataset.get_data(seq_idx, "classes"))
            )
            seq_idx += 1
        assert seq_idx == dataset.num_seqs == 15
        short = [(seq.tag, seq["data"], seq["classes"]) for seq in dataset.epoch(epoch)]
        assert [tag for tag, *_ in documented] == [tag for tag, *_ in short]
        for (_, data_a, classes_a), (_, data_b, classes_b) in zip(documented, short, strict=True):
            np.testing.assert_array_equal(data_a, data_b)
            np.testing.assert_array_equal(classes_a, classes_b)


def test_a_policy_object_is_the_same_as_its_text():
    assert indices(make(seq_ordering=Laplace(num_bins=3)), 2) == indices(make(seq_ordering="laplace:3"), 2)


def test_a_function_chooses_the_order_of_each_epoch():
    dataset = make(seq_ordering=lambda epoch, **_: "default" if epoch == 1 else "reverse")
    assert indices(dataset, 1) == list(range(30))
    assert indices(dataset, 2) == list(range(29, -1, -1))


def test_a_wrong_ordering_is_refused_when_the_dataset_is_built():
    with pytest.raises(ConfigError, match="laplace"):
        StaticDataset(seqs(), seq_ordering="laplce:3")


def test_epoch_is_a_number_and_a_reader():
    dataset = make()
    assert dataset.epoch == 0
    dataset.init_seq_order(epoch=4)
    assert dataset.epoch == 4
    assert dataset.epoch % 2 == 0
    assert len(list(dataset.epoch(2))) == 30
    assert dataset.epoch == 2
    assert pickle.loads(pickle.dumps(dataset.epoch)) == 2


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, None, "1"])
def test_an_epoch_that_is_no_positive_number_is_refused(wrong):
    with pytest.raises(ConfigError, match="numbered 1, 2"):
        make().epoch(wrong)


def test_an_iterator_over_an_older_epoch_says_that_it_is_stale():
    dataset = make()
    first = dataset.epoch(1)
    next(first)
    second = dataset.epoch(2)
    next(second)
    with pytest.raises(ConfigError, match="stale"):
        next(first)
    assert next(second).seq_idx == 1


def test_without_an_epoch_there_are_no_sequences():
    dataset = make()
    assert dataset.num_seqs == 0
    assert not dataset.is_less_than_num_seqs(0)
    dataset.init_seq_order(epoch=1)
    assert dataset.num_seqs == 30
    dataset.finish_epoch(free_resources=True)
    assert dataset.num_seqs == 0
    with pytest.raises(IndexError, match="init_seq_order"):
        dataset.get_data(0, "data")


def test_resources_come_back_with_the_next_epoch():
    dataset = make(seq_ordering="random", cache_byte_size=-1)
    before = indices(dataset, 1)
    dataset.finish_epoch(free_resources=True)
    assert indices(dataset, 1) == before
    with dataset:
        pass
    assert indices(dataset, 1) == before


def test_an_explicit_order_is_taken_as_it_is():
    dataset = make(seq_ordering="random", partition_epoch=3, _num_shards=2)
    dataset.init_seq_order(epoch=1, seq_order=[5, 3, 5])
    assert [dataset.get_tag(i) for i in range(dataset.num_seqs)] == ["seq-5", "seq-3", "seq-5"]
    dataset.init_seq_order(epoch=1, seq_list=["seq-7", "seq-0"])
    assert list(dataset.get_current_seq_order()) == [7, 0]
    with pytest.raises(SourceError, match="nope"):
        dataset.init_seq_order(epoch=1, seq_list=["seq-7", "nope"])
    with pytest.raises(ConfigError, match="30"):
        dataset.init_seq_order(epoch=1, seq_order=[0, 30])
    with pytest.raises(ConfigError, match="both"):
        dataset.init_seq_order(epoch=1, seq_order=[0], seq_list=["seq-0"])


def test_copies_have_the_options_but_no_current_order():
    dataset = make(seq_ordering="random", partition_epoch=2, random_seed_offset=7, name="train")
    dataset.set_sharding(2, 1)
    expected = indices(dataset, 3)
    for other in (copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        assert other.name == "train"
        assert other.epoch == 3
        assert other.num_seqs == 0
        assert indices(other, 3) == expected


def test_shards_divide_a_sub_epoch():
    whole = indices(make(seq_ordering="random", partition_epoch=2), 2)
    shards = [
        indices(make(seq_ordering="random", partition_epoch=2, _num_shards=3, _shard_index=s), 2) for s in range(3)
    ]
    assert list(itertools.chain(*shards)) == whole


def test_a_filter_applies_before_sub_epochs_are_cut(tmp_path):
    keep = tmp_path / "keep.txt"
    keep.write_text("".join(f"seq-{i}\n" for i in range(0, 30, 3)) + "not-in-the-corpus\n")
    dataset = make(seq_ordering="random", partition_epoch=3, seq_list_filter_file=keep)
    parts = [indices(dataset, epoch) for epoch in (1, 2, 3)]
    assert [len(part) for part in parts] == [4, 3, 3]
    assert sorted(itertools.chain(*parts)) == list(range(0, 30, 3))
    assert dataset.get_total_num_seqs() == 10
    assert list(dataset.get_all_tags()) == [f"seq-{i}" for i in range(0, 30, 3)]
    assert dataset.order_report.num_dropped_by_filter == 20


def test_unique_tags_keep_the_first_in_the_order():
    data = [{"data": np.full((1, 1), i, np.float32)} for i in range(6)]
    dataset = MapDataset(
        FromListDataset(data), tags=["a", "b", "a", "c", "b", "a"], unique_seq_tags=True, seq_ordering="reverse"
    )
    assert [(seq.tag, seq.corpus_idx) for seq in dataset.epoch(1)] == [("a", 5), ("b", 4), ("c", 3)]


def test_lengths_of_a_file_are_what_is_sorted_by(tmp_path):
    lens = tmp_path / "lens.json"
    lens.write_text("{" + ", ".join(f'"seq-{i}": {(i * 7) % 30}' for i in range(30)) + "}")
    assert indices(make(seq_ordering="sorted", seq_order_seq_lens_file=lens), 1) == sorted(
        range(30), key=lambda i: i * 7 % 30
    )
    lens.write_text("{" + ", ".join(f'"seq-{i}": {(i * 7) % 30 / 8}' for i in range(30)) + "}")
    assert indices(make(seq_ordering="sorted", seq_order_seq_lens_file=lens), 1) == sorted(
        range(30), key=lambda i: i * 7 % 30
    )
    lens.write_text('{"seq-0": 3}')
    with pytest.raises(SourceError, match="seq-1"):
        make(seq_ordering="sorted", seq_order_seq_lens_file=lens).init_seq_order(epoch=1)


def test_a_lengths_file_that_is_code_is_not_run(tmp_path):
    proof = tmp_path / "proof"
    lens = tmp_path / "lens.py"
    lens.write_text(f"__import__('pathlib').Path({str(proof)!r}).touch() or {{}}")
    with pytest.raises(HeadraceError):
        make(seq_ordering="sorted", seq_order_seq_lens_file=lens).init_seq_order(epoch=1)
    assert not proof.exists()


@pytest.mark.parametrize("option", ["seq_list_filter_file", "seq_order_seq_lens_file"])
def test_a_missing_file_is_refused_when_the_dataset_is_built(option, tmp_path):
    with pytest.raises(SourceError, match=option):
        make(**{option: tmp_path / "missing.txt"})


def test_the_cache_changes_nothing_that_is_read():
    plain = [(seq.tag, seq["data"].copy()) for seq in make(seq_ordering="random").epoch(2)]
    for size in (-1, 1, 1000, 5000):
        dataset = make(seq_ordering="random", cache_byte_size=size)
        for _ in range(2):
            for (tag, data), seq in zip(plain, dataset.epoch(2), strict=True):
                assert seq.tag == tag
                np.testing.assert_array_equal(seq["data"], data)
                seq["data"][:] = -1  # a reader may write to what it got
    assert dataset.is_cached(0, 0)


def test_the_cache_knows_what_it_holds():
    dataset = make(cache_byte_size=-1)
    dataset.init_seq_order(epoch=1)
    assert dataset.num_seqs_cached_at_start == 0
    assert not dataset.is_cached(0, 3)
    assert dataset.is_cached(0, 3, blocking=True)
    dataset.load_seqs(5, 6)
    assert dataset.num_seqs_cached_at_start == 3


def test_a_window_joins_neighbouring_frames():
    dataset = make(window=3)
    dataset.init_seq_order(epoch=1)
    plain = seqs()[4]["data"]
    padded = np.concatenate([np.zeros((1, 2), np.float32), plain, np.zeros((1, 2), np.float32)])
    expected = np.concatenate([padded[:-2], padded[1:-1], padded[2:]], axis=1)
    np.testing.assert_array_equal(dataset.get_data(4, "data"), expected)
    assert dataset.get_data_dim("data") == 6
    assert dataset.get_data_shape("data") == [6]
    assert dataset.get_data(4, "classes").shape == (LENGTHS[4],)


def test_an_even_window_is_raised_by_one_and_a_negative_one_refused():
    assert make(window=2).window == 3
    with pytest.raises(ConfigError, match="window"):
        make(window=-1)


def test_frames_are_shuffled_within_groups_and_keep_their_labels():
    plain, shuffled = make(), make(shuffle_frames_of_nseqs=4)
    plain.init_seq_order(epoch=1)
    shuffled.init_seq_order(epoch=1)
    moved = False
    for first in range(0, 30, 4):
        group = range(first, min(first + 4, 30))
        before = np.concatenate(
            [np.column_stack([plain.get_data(i, "data"), plain.get_data(i, "classes")]) for i in group]
        )
        after = np.concatenate(
            [np.column_stack([shuffled.get_data(i, "data"), shuffled.get_data(i, "classes")]) for i in group]
        )
        assert [shuffled.get_data(i, "data").shape for i in group] == [plain.get_data(i, "data").shape for i in group]
        np.testing.assert_array_equal(np.sort(before.view("f8,f8,f8"), axis=0), np.sort(after.view("f8,f8,f8"), axis=0))
        moved |= not np.array_equal(before, after)
    assert moved


def test_a_transform_may_ask_for_a_generator_that_depends_on_epoch_and_sequence_alone():
    def add_noise(features, rng):
        return {**features, "data": features["data"] + rng.normal(size=features["data"].shape).astype(np.float32)}

    def noise(epoch, **options):
        return {seq.corpus_idx: seq["data"].tobytes() for seq in make(transform=add_noise, **options).epoch(epoch)}

    reference = noise(1)
    assert noise(1, seq_ordering="random") == reference
    assert noise(1, seq_ordering="reverse", cache_byte_size=-1) == reference
    assert noise(1, _num_shards=2, _shard_index=1).items() <= reference.items()
    assert not set(noise(2).values()) & set(reference.values())
    assert noise(1, fixed_random_seed=3) == noise(2, fixed_random_seed=3) != reference


def test_a_sequence_that_comes_twice_is_transformed_with_another_draw():
    def draw(features, rng):
        return {**features, "data": np.full_like(features["data"], rng.random())}

    draws = [seq["data"][0, 0] for seq in make(transform=draw, repeat_epoch=2).epoch(1)]
    assert len(set(draws)) == 60


def test_lengths_are_those_of_what_a_transform_returns():
    dataset = make(transform=lambda features: {key: value[:1] for key, value in features.items()})
    dataset.init_seq_order(epoch=1)
    assert dataset.get_seq_length(4)["data"] == 1
    assert dataset.get_num_timesteps()["data"] == 30


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
    dataset = make(transform=transform)
    with pytest.raises(TransformError, match=text) as caught:
        next(dataset.epoch(1))
    assert "seq-0" in str(caught.value)
    assert "lambda" in str(caught.value)


def test_an_empty_corpus_and_an_empty_sub_epoch_are_legal():
    dataset = StaticDataset(seqs()[:2], partition_epoch=5, seq_ordering="sorted")
    assert [len(list(dataset.epoch(epoch))) for epoch in range(1, 6)] == [1, 1, 0, 0, 0]


def test_an_unknown_data_key_is_answered_with_the_nearest():
    dataset = make()
    dataset.init_seq_order(epoch=1)
    for ask in (
        lambda: dataset.get_data(0, "clases"),
        lambda: dataset.get_data_dim("clases"),
        lambda: next(dataset.epoch(1))["clases"],
    ):
        with pytest.raises(HeadraceError, match="did you mean 'classes'"):
            ask()


def test_progress_never_falls_and_ends_at_one():
    dataset = make(seq_ordering="random")
    dataset.init_seq_order(epoch=1)
    fractions = [dataset.get_complete_frac(i) for i in range(30)]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1
    with pytest.raises(IndexError):
        dataset.get_complete_frac(30)


def test_the_layout_is_known_without_reading():
    dataset = make()
    assert dataset.get_data_keys() == ["data", "classes"]
    assert dataset.get_target_list() == ["classes"]
    assert (dataset.get_data_dtype("data"), dataset.get_data_dtype("classes")) == ("float32", "int32")
    assert (dataset.is_data_sparse("data"), dataset.is_data_sparse("classes")) == (False, True)
    assert (dataset.get_data_shape("data"), dataset.get_data_shape("classes")) == ([2], [])
    assert dataset.get_data_dim("classes") == 5
    assert dataset.num_outputs == {"data": (2, 2), "classes": (5, 1)}
    assert dataset.have_seqs()
    assert dataset.len_info(fast=True) == "StaticDataset, sequences: 30, frames: unknown"


def test_what_a_dataset_does_not_offer_says_so():
    dataset = make()
    with pytest.raises(OptionalNotImplementedError, match="get_times"):
        dataset.get_times(0)


def test_a_list_without_lengths_cannot_be_sorted_and_says_which_option_to_give():
    dataset = MapDataset(FromListDataset(seqs()), seq_ordering="sorted")
    with pytest.raises(HeadraceError, match="length"):
        dataset.init_seq_order(epoch=1)
    sortable = MapDataset(FromListDataset(seqs(), sort_data_key="data"), seq_ordering="sorted")
    assert [len(seq["data"]) for seq in sortable.epoch(1)] == sorted(LENGTHS)


def test_a_map_dataset_may_bring_its_own_order():
    class Own(FromListDataset):
        def get_seq_order(self, epoch):
            return [epoch, 0]

    assert indices(MapDataset(Own(seqs())), 3) == [3, 0]


def test_a_target_list_chooses_keys():
    dataset = StaticDataset(seqs(), target_list=[])
    assert dataset.get_data_keys() == ["data"]
    with pytest.raises(ConfigError, match="missing_key"):
        StaticDataset(seqs(), target_list=["missing_key"])


def held(dataset):
    return [seq_idx for seq_idx in range(dataset.num_seqs) if seq_idx in dataset._loaded]


def test_an_epoch_wide_load_is_dropped_as_reading_goes_on():
    dataset = make()
    dataset.init_seq_order(epoch=1)
    dataset.load_seqs(0, 30)
    assert held(dataset) == list(range(30))
    dataset.load_seqs(29, 30)
    assert held(dataset) == [29]


def test_random_access_keeps_one_sequence_at_most():
    dataset = make(cache_byte_size=1000)
    dataset.init_seq_order(epoch=1)
    for seq_idx in (*range(30), 3, 7):
        dataset.get_data(seq_idx, "data")
        assert held(dataset) == [seq_idx]


@pytest.mark.parametrize("cache_byte_size", [0, -1])
@pytest.mark.parametrize("load", [False, True])
def test_what_a_reader_does_to_an_array_never_shows_later(cache_byte_size, load):
    dataset = make(cache_byte_size=cache_byte_size)
    dataset.init_seq_order(epoch=1)
    for _ in range(3):
        if load:
            dataset.load_seqs(4, 5)
        dataset.get_data(4, "data")[:] = 99
        np.testing.assert_array_equal(dataset.get_data(4, "data"), seqs()[4]["data"])


@pytest.mark.parametrize("cache_byte_size", [0, -1])
def test_slices_have_one_rule_with_and_without_a_cache(cache_byte_size):
    dataset = make(cache_byte_size=cache_byte_size)
    dataset.init_seq_order(epoch=1)
    np.testing.assert_array_equal(dataset.get_data_slice(4, "data", 3, 1000), seqs()[4]["data"][3:])
    assert dataset.get_data_slice(4, "data", 100, 1000).shape == (0, 2)
    for wrong in ((-2, 3), (3, 2)):
        with pytest.raises(IndexError, match="frames"):
            dataset.get_data_slice(4, "data", *wrong)


def test_an_object_with_its_own_order_is_still_sharded_filtered_and_repeated(tmp_path):
    class Own(FromListDataset):
        def get_seq_order(self, epoch):
            return [5, 4, 3, 2, 1, 0]

    shards = [indices(MapDataset(Own(seqs()[:6]), _num_shards=2, _shard_index=s), 1) for s in (0, 1)]
    assert shards == [[5, 4, 3], [2, 1, 0]]
    keep = tmp_path / "keep.txt"
    keep.write_text("seq-1\nseq-4\n")
    assert indices(MapDataset(Own(seqs()[:6]), seq_list_filter_file=keep, repeat_epoch=2), 1) == [4, 1, 4, 1]


def test_the_filter_file_is_read_once_so_that_sub_epochs_fit_together(tmp_path):
    keep = tmp_path / "keep.txt"
    keep.write_text("seq-0\nseq-1\nseq-2\nseq-3\n")
    dataset = make(seq_list_filter_file=keep, partition_epoch=2)
    first = indices(dataset, 1)
    dataset.finish_epoch(free_resources=True)
    keep.write_text("seq-6\nseq-7\n")
    assert first + indices(dataset, 2) == [0, 1, 2, 3]


def test_a_filter_that_names_unknown_tags_is_logged_once(tmp_path, caplog):
    keep = tmp_path / "keep.txt"
    keep.write_text("nobody\n")
    for _ in range(2):
        assert indices(make(seq_list_filter_file=keep), 1) == []
    assert [record.message for record in caplog.records if "keep.txt" in record.message] == [
        f"the filter names 1 tags, and keeps 0 of 30 sequences: {keep}"
    ]


def test_numbers_of_numpy_are_numbers():
    dataset = make(
        window=np.int64(3),
        fixed_random_seed=np.int64(3),
        partition_epoch=np.int32(2),
        chunking=np.int64(5),
        seq_ordering="random",
    )
    assert indices(dataset, np.int64(2)) == indices(
        make(fixed_random_seed=3, partition_epoch=2, seq_ordering="random"), 2
    )
    dataset.init_seq_order(np.int64(1))
    dataset.init_seq_order(epoch=1, seq_order=np.array([3, 1], dtype=np.uint8))
    assert dataset.get_current_seq_order() == [3, 1]


@pytest.mark.parametrize("wrong", [[0.7, 1.9], [True, False], [[0, 1]], ["a"]])
def test_an_explicit_order_that_is_no_list_of_indices_is_refused(wrong):
    with pytest.raises(ConfigError, match="whole numbers"):
        make().init_seq_order(epoch=1, seq_order=wrong)


def test_an_explicit_order_may_come_from_a_generator():
    dataset = make()
    dataset.init_seq_order(epoch=1, seq_order=(i for i in (2, 1)))
    assert list(dataset.get_current_seq_order()) == [2, 1]


@pytest.mark.parametrize("wrong", ["seq-1", b"seq-1", [1]])
def test_a_list_of_tags_that_is_none_is_refused(wrong):
    with pytest.raises(ConfigError, match="seq_list"):
        make().init_seq_order(epoch=1, seq_list=wrong)


@pytest.mark.parametrize(
    "options",
    [
        {"cache_byte_size": "1000"},
        {"cache_byte_size": None},
        {"cache_byte_size": -2},
        {"chunking_variance": None},
        {"chunking_variance": 1.5},
        {"shuffle_frames_of_nseqs": 1.5},
        {"shuffle_frames_of_nseqs": None},
        {"unique_seq_tags": "no"},
        {"seq_list_filter_file": ["a"]},
        {"window": "3"},
    ],
)
def test_an_option_of_the_wrong_kind_is_refused_by_name(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        make(**options)


@pytest.mark.parametrize("wrong", [1.5, "1", True, -1])
def test_a_wrong_epoch_is_refused_in_the_documented_call_too(wrong):
    with pytest.raises(ConfigError, match="epoch"):
        make().init_seq_order(epoch=wrong)


def test_a_window_over_what_are_no_vectors_is_refused():
    with pytest.raises(ConfigError, match="window=3 joins frames that are vectors"):
        StaticDataset([{"data": np.arange(4, dtype=np.int32)}], window=3)


def test_frames_of_a_key_without_time_cannot_be_shuffled():
    dataset = StaticDataset([{"data": np.zeros((2, 1), np.float32), "label": np.array(1)}], shuffle_frames_of_nseqs=2)
    with pytest.raises(SourceError, match="differ in length"):
        next(dataset.epoch(1))


def test_an_empty_corpus_keeps_its_declared_layout():
    dataset = StaticDataset([], input_dim=3, output_dim={"classes": 5})
    assert dataset.num_outputs == {"data": (3, 2), "classes": (5, 1)}
    assert list(dataset.epoch(1)) == []


def test_an_error_of_the_users_code_names_the_sequence_and_keeps_its_type():
    def fail(features):
        raise ZeroDivisionError("by the user")

    with pytest.raises(ZeroDivisionError, match="by the user") as caught:
        next(make(transform=fail, name="train").epoch(2))
    assert caught.value.__notes__ == ["dataset 'train', epoch 2, sequence 'seq-0'"]


def test_options_may_be_set_after_construction_as_sub_classes_do():
    dataset = make(seq_ordering="default")
    dataset.partition_epoch = 3
    dataset.seq_ordering = "reverse"
    assert indices(dataset, 1) == list(range(29, 19, -1))
    assert dataset.seq_ordering == "reverse"
    with pytest.raises(ConfigError):
        dataset.repeat_epoch = 2


def test_lengths_of_a_file_count_as_lengths(tmp_path):
    lens = tmp_path / "lens.json"
    lens.write_text("{" + ", ".join(f'"seq-{i}": {100 - i}' for i in range(30)) + "}")
    dataset = MapDataset(FromListDataset(seqs()), seq_ordering="sorted", seq_order_seq_lens_file=lens)
    dataset.init_seq_order(epoch=1)
    assert dataset.supports_seq_order_sorting()
    assert (dataset.get_tag(0), dataset.get_estimated_seq_length(0)) == ("seq-29", 71)


def test_an_error_that_takes_no_note_comes_as_it_is():
    class ProudError(Exception):
        def add_note(self, note):
            raise RuntimeError("no notes")

    def fail(features):
        raise ProudError("mine")

    with pytest.raises(ProudError, match="mine"):
        next(make(transform=fail).epoch(1))


class LikeReturnn(StaticDataset):
    """A class that was written for RETURNN, where the shard is two attributes."""

    def __init__(self, data, shard=None, **kwargs):
        super().__init__(data, **kwargs)
        if shard is not None:
            self._shard_index, self._num_shards = shard
        self.num_calls = 0

    def set_sharding(self, num_shards, shard_index):
        self._num_shards = num_shards
        self._shard_index = shard_index
        self.num_calls += 1


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda dataset: pickle.loads(pickle.dumps(dataset))])
def test_a_class_written_for_returnn_may_assign_its_shard(how):
    expected = [indices(make(_num_shards=4, _shard_index=shard), 1) for shard in range(4)]
    dataset = LikeReturnn(seqs(), shard=(3, 4))
    dataset.initialize()
    assert indices(dataset, 1) == indices(how(dataset), 1) == expected[3]
    dataset.set_sharding(4, 2)
    assert (dataset.num_calls, dataset.num_shards, dataset.shard_index) == (1, 4, 2)
    assert indices(dataset, 1) == indices(how(dataset), 1) == expected[2]
    dataset.init_seq_order(epoch=1)
    dataset._shard_index = 0
    assert list(dataset.get_current_seq_order()) == expected[2]  # up to the next epoch
    dataset.init_seq_order(epoch=1)
    assert list(dataset.get_current_seq_order()) == expected[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [("_num_shards", 0), ("_num_shards", True), ("_num_shards", "2"), ("_shard_index", -1), ("_shard_index", 0.5)],
)
def test_half_a_shard_that_can_be_none_is_refused_when_it_is_assigned(name, value):
    with pytest.raises(ConfigError, match=name):
        setattr(make(), name, value)


def test_two_halves_of_a_shard_that_contradict_are_refused_at_the_latest_when_an_epoch_begins():
    dataset = make()
    dataset._shard_index = 2
    for act in (lambda: dataset.init_seq_order(epoch=1), lambda: copy.copy(dataset), lambda: pickle.dumps(dataset)):
        with pytest.raises(ConfigError, match="_shard_index=2 is none of the 1 shards"):
            act()
    dataset._num_shards = 3
    assert indices(dataset, 1) == indices(make(_num_shards=3, _shard_index=2), 1)
