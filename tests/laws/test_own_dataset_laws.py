"""Laws over classes of the user's own, right and wrong ones, in every dataset of ours."""

import pytest
from dataset_recipes import NUM_SEQS, Indexed
from hypothesis import given
from hypothesis import strategies as st

import headrace
from examples_of_laws import examples
from headrace import DataLoader, FixedCount, FrameBudget, ResumeError


class IgnoresOrder(Indexed):
    """Takes `seq_order`, and starts the order of the epoch."""

    def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):
        return super().init_seq_order(epoch, seq_list)


class TakesNoOrder(Indexed):
    """Has no parameter `seq_order`."""

    def init_seq_order(self, epoch=None, seq_list=None):
        return super().init_seq_order(epoch, seq_list)


class SortsOrder(Indexed):
    """Starts the sequences that it was asked for in another order."""

    def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):
        return super().init_seq_order(epoch, seq_list, None if seq_order is None else sorted(seq_order))


class DropsLast(Indexed):
    """Starts fewer sequences than it was asked for."""

    def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):
        return super().init_seq_order(epoch, seq_list, None if seq_order is None else seq_order[:-1])


class NamesOthers(Indexed):
    """Names other corpus indices than those that it reads, some of them outside of its corpus."""

    def get_current_seq_order(self):
        return [corpus_idx + 1 for corpus_idx in self._order]

    def get_total_num_seqs(self, *, fast=False):
        return NUM_SEQS


def double(seq, **_):
    return {**seq, "data": seq["data"] * 2}


def itself(config):
    return config


WAYS = {
    "itself": itself,
    "PostprocessingDataset": lambda config: {"dataset": config, "map_seq": double, "map_seq_preserves_lengths": True},
    "MultiEpochDataset": lambda config: {"dataset": config, "multi_epoch": 1},
    "ConcatDataset": lambda config: {"datasets": [config]},
    "CombinedDataset": lambda config: {"datasets": {"a": config}, "data_map": {("a", "data"): "data"}},
    "MixDataset": lambda config: {"datasets": {"a": config}},
    "MetaDataset": lambda config: {
        "datasets": {"a": config},
        "data_map": {"data": ("a", "data")},
        "seq_order_control_dataset": "a",
    },
    "MultiProcDataset": lambda config: {"dataset": config, "num_workers": 0, "buffer_size": 3},
}


def wrapped(way, config):
    return config if way == "itself" else {"class": way, **WAYS[way](config)}


@given(
    st.sampled_from([Indexed, IgnoresOrder, TakesNoOrder, SortsOrder, DropsLast, NamesOthers]),
    st.sampled_from(sorted(WAYS)),
    st.sampled_from([FixedCount(2), FrameBudget(8)]),
    st.sampled_from([0, 0, 2]),
    st.sampled_from(["default", "random", "reverse", "sorted"]),
    st.integers(1, 3),
)
@examples(150)
def test_each_sequence_comes_once_under_its_tag_or_the_class_is_named(own, way, batching, num_workers, ordering, epoch):
    config = {"class": own, "first": 100, "seq_ordering": ordering}
    with headrace.init_dataset({**config, "class": Indexed}) as right:
        expected = [seq.tag for seq in right.epoch(epoch)]
    try:
        options = {"num_workers": num_workers, "executor": "thread"}
        with DataLoader(wrapped(way, config), batching=batching, **options) as loader:
            loader.set_epoch(epoch)
            seqs = [
                (tag, float(data[0, 0]) / (2 if way == "PostprocessingDataset" else 1))
                for batch in loader
                for tag, data in zip(batch.tags, batch["data"], strict=True)
            ]
    except headrace.HeadraceError:
        assert own is not Indexed
        return
    assert [tag for tag, _ in seqs] == expected
    assert [f"i-{int(value)}" for _, value in seqs] == expected


class Told(Indexed):
    """Tells the lengths that it is given."""

    def __init__(self, lengths, **kwargs):
        super().__init__(**kwargs)
        self.lengths = lengths

    def _length(self, corpus_idx):
        return self.lengths[corpus_idx]


LENGTHS = st.lists(st.integers(1, 4), min_size=NUM_SEQS, max_size=NUM_SEQS)


@given(
    st.sampled_from(["itself", "PostprocessingDataset", "MultiProcDataset"]),
    st.tuples(LENGTHS, LENGTHS),
    st.sampled_from([1, 2]),
    st.sampled_from(["default", "random"]),
    st.integers(1, 3),
    st.integers(0, 3),
)
@examples(80)
def test_a_state_goes_on_where_the_lengths_are_the_same_and_nowhere_else(way, lengths, parts, ordering, epoch, stop):
    options = {"class": Told, "first": 100, "seq_ordering": ordering, "partition_epoch": parts}

    def loader(number):
        made = DataLoader(wrapped(way, {**options, "lengths": lengths[number]}), batching=FrameBudget(6))
        made.set_epoch(epoch)
        return made

    with loader(0) as before, loader(0) as same, loader(1) as other:
        batches = iter(before)
        for _, _ in zip(range(stop), batches, strict=False):
            pass
        state, rest = before.state_dict(), [batch.tags for batch in batches]
        same.load_state_dict(state)
        assert before.position.epoch > epoch or [batch.tags for batch in same] == rest
        order = before._subject.corpus.order(state["epoch"])[0]
        if [lengths[0][i] for i in order] == [lengths[1][i] for i in order]:
            other.load_state_dict(state)
        else:
            with pytest.raises(ResumeError, match=r"another data \(its lengths\)"):
                other.load_state_dict(state)
