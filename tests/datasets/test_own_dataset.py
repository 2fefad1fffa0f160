"""What a user's own class over `Dataset` must do, and what is said if it does not."""

import numpy as np
import pytest

import headrace as hr
from headrace import ConfigError, DataLoader, FixedCount, FrameBudget, NumbersDict, ResumeError
from headrace.datasets import Dataset, StaticDataset


class Sines(Dataset):
    """A class as RETURNN's users write it: an order, and lengths."""

    def __init__(self, num_seqs=40, shift=0, **kwargs):
        super().__init__(**kwargs)
        self.shift = shift
        self.num_inputs, self.num_outputs = 1, {"data": (1, 2)}
        self._num_seqs, self._order = num_seqs, []

    def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):
        super().init_seq_order(epoch, seq_list, seq_order)
        self._order = self.get_seq_order_for_epoch(epoch, self._num_seqs) if seq_order is None else list(seq_order)
        return True

    def get_current_seq_order(self):
        return self._order

    @property
    def num_seqs(self):
        return len(self._order)

    def get_total_num_seqs(self, *, fast=False):
        return self._num_seqs

    def get_all_tags(self):
        return [f"sine-{corpus_idx}" for corpus_idx in range(self._num_seqs)]

    def get_data_keys(self):
        return ["data"]

    def length_of(self, corpus_idx):
        return 5 + (corpus_idx * 37 + self.shift) % 41

    def get_tag(self, seq_idx):
        return f"sine-{self._order[seq_idx]}"

    def get_seq_length(self, seq_idx):
        return NumbersDict({"data": self.length_of(self._order[seq_idx])})

    def load_seqs(self, start, end):
        pass

    def get_data(self, seq_idx, key):
        corpus_idx = self._order[seq_idx]
        return np.full((self.length_of(corpus_idx), 1), corpus_idx, np.float32)


class IgnoresOrder(Sines):
    def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):
        return super().init_seq_order(epoch, seq_list)


class TakesNoOrder(Sines):
    def init_seq_order(self, epoch=None, seq_list=None):
        return super().init_seq_order(epoch, seq_list)


class SortsOrder(Sines):
    def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):
        return super().init_seq_order(epoch, seq_list, None if seq_order is None else sorted(seq_order))


class OutsideOfCorpus(Sines):
    def get_current_seq_order(self):
        return [corpus_idx + 30 for corpus_idx in self._order]


class AnswersInAnEpoch(Sines):
    def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):
        self.is_started = (epoch, seq_list, seq_order) != (None, None, None)
        return super().init_seq_order(epoch, seq_list, seq_order)

    def get_current_seq_order(self):
        assert self.is_started
        return super().get_current_seq_order()


FIX = "let these be the order of the epoch, and tell its corpus indices by get_current_seq_order"


def test_the_order_is_asked_for_only_in_an_epoch():
    dataset = AnswersInAnEpoch(7, seq_ordering="random")
    expected = [seq.tag for seq in Sines(7, seq_ordering="random").epoch(1)]
    with DataLoader(dataset, batching=FixedCount(2), num_workers=1, executor="inline") as loader:
        assert [tag for batch in loader for tag in batch.tags] == expected


STARTED = r"init_seq_order\(seq_order=\[.*\] of \d+ sequences\) has started the order \[.*\] of "


@pytest.mark.parametrize("way", ["itself", "loader's workers", "by_workers"])
@pytest.mark.parametrize(
    ("own", "what", "fix"),
    [
        (IgnoresOrder, STARTED + "40 seq", FIX),
        (SortsOrder, STARTED + r"\d+ seq", FIX),
        (TakesNoOrder, "its init_seq_order has no parameter seq_order", FIX),
        (OutsideOfCorpus, r"get_current_seq_order holds the corpus index \d+, but the corpus has 40 seq", ""),
    ],
)
@pytest.mark.parametrize("batching", [FrameBudget(150), FixedCount(4)])
def test_an_order_that_a_class_does_not_take_is_refused(own, what, fix, way, batching):
    options = {"batching": batching}
    if way == "loader's workers":
        options |= {"num_workers": 2, "executor": "process" if own is IgnoresOrder else "thread"}
    config = WAYS.get(way, WAYS["itself"])({"class": own, "seq_ordering": "random"})
    with pytest.raises(ConfigError, match=what) as caught, DataLoader(config, **options) as loader:
        list(loader)
    assert f"where: {own.__name__} " in str(caught.value)
    assert fix in str(caught.value)


class WithoutSize(Sines):
    """Does not tell how many sequences it has."""

    def get_total_num_seqs(self):
        return super().get_total_num_seqs()


def mapped(seq, **_):
    return seq


WAYS = {
    "itself": lambda config: config,
    "mapped": lambda config: {
        "class": "PostprocessingDataset",
        "dataset": config,
        "map_seq": mapped,
        "map_seq_preserves_lengths": True,
    },
    "by_workers": lambda config: {"class": "MultiProcDataset", "dataset": config, "num_workers": 0, "buffer_size": 3},
}


# --- in datasets of ours ---


class WithoutTags(Sines):
    """Knows its order, and not which tags there are."""

    def get_all_tags(self):
        raise NotImplementedError


PLANNED = hr.Buckets(FrameBudget(150), num_buckets=3)
JOINS = {
    "ConcatDataset": [{"seq_ordering": "random"}, {"seq_ordering": "laplace:.10", "partition_epoch": 2}, {}],
    "CombinedDataset": [
        {"seq_ordering": "sorted"},
        {"seq_ordering": "interleave"},
        {"sampling_sizes": {"a": 7, "b": 30}},
    ],
    "MixDataset": [{"weights": {"a": 2, "b": 1}}, {"weights": {"a": 1, "b": 1}, "per": "frame"}],
    "MetaDataset": [{"seq_ordering": "laplace:.10"}, {"seq_order_control_dataset": "b"}],
    "MultiEpochDataset": [{"multi_epoch": 1}, {"multi_epoch": 2}],
}
ALL_JOINS = [(kind, each) for kind, several in JOINS.items() for each in several]


def joined(kind, options, parts):
    """Return a config of two datasets in one, or of one in another."""
    if kind in WAYS:
        return WAYS[kind](parts[0])
    if kind == "MultiEpochDataset":
        return {"class": kind, "dataset": parts[0], **options}
    if kind == "ConcatDataset":
        return {"class": kind, "datasets": parts, **options}
    data_map = {("a", "data"): "data", ("b", "data"): "data"}
    if kind == "MetaDataset":
        data_map = {"data": ("a", "data"), "other": ("b", "data")}
    return {"class": kind, "datasets": dict(zip("ab", parts, strict=True)), "data_map": data_map, **options}


def own_parts(own, shift=0):
    return [{"class": own, "shift": shift, "seq_ordering": "random"}, {"class": own}]


def our_parts():
    """Return datasets of ours that have the sequences of `own_parts`, and tell as much of them."""
    with hr.init_dataset({"class": Sines}) as own:
        seqs = [{"data": seq["data"]} for seq in own.epoch(1)]
    types = {"data": {"shape": (None, 1), "dtype": "float32"}}
    stored = hr.datasets.FromListDataset(seqs, sort_data_key="data", data_types=types)
    config = {"class": "MapDataset", "map_dataset": stored, "tags": [f"sine-{i}" for i in range(40)]}
    return [{**config, "seq_ordering": "random"}, config]


def batches_of(config, batching=PLANNED, **options):
    with DataLoader(config, batching=batching, **options) as loader:
        return [(batch.tags, batch["data"].tolist()) for batch in loader]


@pytest.mark.parametrize(("kind", "options"), ALL_JOINS)
def test_a_class_that_tells_tags_order_and_lengths_is_a_part_as_ours_are(kind, options):
    expected = batches_of(joined(kind, options, our_parts()))
    found = batches_of(joined(kind, options, own_parts(Sines)))
    assert [tags for tags, _ in found] == [tags for tags, _ in expected]
    assert found == expected
    assert batches_of(joined(kind, options, own_parts(Sines)), num_workers=2, executor="thread") == expected


@pytest.mark.parametrize(
    ("kind", "options", "own"),
    [*((*each, Sines) for each in ALL_JOINS), *((way, {}, own) for way in WAYS for own in (Sines, WithoutSize))],
)
@pytest.mark.parametrize("batching", [PLANNED, FixedCount(4)])
def test_a_state_goes_on_exactly_and_only_with_the_same_lengths_where_they_decide(kind, options, own, batching):
    loaders = (DataLoader(joined(kind, options, own_parts(own, shift)), batching=batching) for shift in (0, 0, 13))
    with next(loaders) as before, next(loaders) as same, next(loaders) as other:
        batches = iter(before)
        next(batches)
        state, rest = before.state_dict(), [batch.tags for batch in batches]
        same.load_state_dict(state)
        assert [batch.tags for batch in same] == rest
        if batching is PLANNED or "per" in options or options.get("seq_ordering") in ("laplace:.10", "sorted"):
            what = r"another data \(its lengths\).*\n.*\n.*get_seq_length" if kind in WAYS else "another"
            with pytest.raises(ResumeError, match=what):
                other.load_state_dict(state)
        else:
            other.load_state_dict(state)


class WithoutLengths(Sines):
    get_seq_length = Dataset.get_seq_length


@pytest.mark.parametrize(
    ("kind", "own", "what"),
    [
        ("MixDataset", WithoutTags, r"(?s)\(WithoutTags\) does not know its corpus.*get_all_tags"),
        ("ConcatDataset", WithoutTags, r"(?s)\(WithoutTags\) does not know its corpus.*get_all_tags"),
        ("ConcatDataset", WithoutLengths, "WithoutLengths does not tell the lengths of its sequences"),
    ],
)
def test_a_class_that_does_not_tell_what_its_place_needs_is_told(kind, own, what):
    options = {"seq_ordering": "sorted"} if kind == "ConcatDataset" else {}
    with pytest.raises(ConfigError, match=what):
        batches_of(joined(kind, options, own_parts(own)), FixedCount(4))


class SortsTags(Sines):
    """Tells its tags, but not by corpus index."""

    def get_all_tags(self):
        return sorted(super().get_all_tags())


@pytest.mark.parametrize("kind", sorted(JOINS.keys() - {"MultiEpochDataset"}))
def test_tags_that_are_not_those_of_the_corpus_indices_are_no_tags_of_other_sequences(kind):
    what = r"get_all_tags has the tag 'sine-\d+' at corpus index \d+, and the sequence that was read for it has the tag"
    with pytest.raises(hr.SourceError, match=what):
        batches_of(joined(kind, {}, own_parts(SortsTags)), FixedCount(4))


@pytest.mark.parametrize("way", WAYS)
def test_who_finds_nothing_by_tags_takes_them_in_any_order(way):
    found = batches_of(WAYS[way]({"class": SortsTags, "seq_ordering": "random"}))
    assert found == batches_of(WAYS[way]({"class": Sines, "seq_ordering": "random"}))


class LongerEachEpoch(Sines):
    def length_of(self, corpus_idx):
        return super().length_of(corpus_idx) + int(self.epoch)


def test_several_epochs_in_one_with_other_lengths_in_each_are_not_planned_by_lengths():
    config = joined("MultiEpochDataset", {"multi_epoch": 2}, own_parts(LongerEachEpoch))
    with pytest.raises(ConfigError, match="another length in epoch 2 than in epoch 1"):
        batches_of(config)
    assert sum(len(tags) for tags, _ in batches_of(config, FixedCount(4))) == 80


def test_workers_are_given_a_config_or_a_dataset_of_a_class_that_none_can_name():
    class Local(Sines):
        pass

    with pytest.raises(ConfigError, match=r'\{"class": "HDFDataset", ...\}'):
        hr.MultiProcDataset([1, 2], num_workers=1, buffer_size=3)
    with hr.MultiProcDataset(Local(), num_workers=1, buffer_size=3) as dataset:
        found = [(seq.tag, seq.features["data"].tolist()) for seq in dataset.epoch(1)]
    assert len(found) == 40
    assert found == [(seq.tag, seq.features["data"].tolist()) for seq in Local().epoch(1)]


class OrdersByHand(StaticDataset):
    """Its order comes from a method of its own, and has sequences twice."""

    def get_seq_order_for_epoch(self, epoch, num_seqs, get_seq_len=None):
        return [0, 1, 1, 2, 0]


def test_repeats_in_an_order_of_a_users_own_draw_other_numbers():
    def noise(data, rng):
        return {"data": data["data"] + rng.integers(10**9)}

    data = [{"data": np.zeros((2, 1), np.int64)} for _ in range(3)]
    dataset = OrdersByHand(data=data, output_dim={"data": (1, 2)}, transform=noise)
    dataset.initialize()
    drawn = [(seq.tag, int(seq.features["data"][0, 0])) for seq in dataset.epoch(1)]
    assert [tag for tag, _ in drawn] == ["seq-0", "seq-1", "seq-1", "seq-2", "seq-0"]
    assert len(set(drawn)) == 5
    assert dataset.count_occurrences().tolist() == [0, 0, 1, 0, 1]


class ForgetsWhatWasRead(Sines):
    """Loads each sequence once, in rising order, as a stream does."""

    def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):
        self.num_loaded = 0
        return super().init_seq_order(epoch, seq_list, seq_order)

    def load_seqs(self, start, end):
        assert start >= self.num_loaded, "a sequence that is gone"
        self.num_loaded = end


@pytest.mark.parametrize("kind", ["ConcatDataset", "MetaDataset"])
def test_a_loaded_sequence_of_a_part_that_forgets_it_comes_again(kind):
    config = joined(kind, {}, [{"class": ForgetsWhatWasRead}, {"class": ForgetsWhatWasRead}])
    with hr.init_dataset(config) as dataset:
        dataset.init_seq_order(epoch=1)
        for seq_idx in range(3):
            dataset.load_seqs(seq_idx, seq_idx + 1)
            expected = np.full((dataset.get_seq_length(seq_idx)["data"], 1), seq_idx, np.float32)
            for _ in range(2):
                np.testing.assert_array_equal(dataset.get_data(seq_idx, "data"), expected)
                np.testing.assert_array_equal(dataset.get_seq(seq_idx)["data"], expected)
                np.testing.assert_array_equal(dataset.get_data_slice(seq_idx, "data", 0, 2), expected[:2])
