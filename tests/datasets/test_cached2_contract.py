"""Sub-classes of CachedDataset2: data that come one after the other."""

import numpy as np
import pytest

import headrace as hr
from headrace.datasets import CachedDataset2, Dataset, DatasetSeq, StaticDataset
from headrace.errors import ConfigError, OptionalNotImplementedError, SourceError


class Stream(CachedDataset2):
    """Sequences 0..count-1, whose number is told or not."""

    def __init__(self, count, told=False, frac=None, **options):
        super().__init__(**options)
        self.count, self.told, self.frac, self.collected = count, told, frac, []

    def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):
        super().init_seq_order(epoch, seq_list, seq_order)
        self.collected.clear()
        if epoch is not None and self.told:
            self._num_seqs = self.count
        return True

    def _collect_single_seq(self, seq_idx):
        self.collected.append(seq_idx)
        if seq_idx >= self.count:
            return None
        data, targets = np.full((seq_idx + 1, 3), seq_idx, np.float32), np.arange(2, dtype=np.int32)
        frac = self.frac and self.frac * (seq_idx + 1)
        return DatasetSeq(seq_idx, data, targets=targets, complete_frac=frac)


def begun(dataset):
    dataset.init_seq_order(epoch=1)
    return dataset


@pytest.mark.parametrize("told", [False, True])
def test_each_sequence_is_collected_once_and_in_order(told):
    dataset = Stream(5, told)
    assert [seq.tag for seq in dataset.epoch(1)] == [f"seq-{i}" for i in range(5)]
    assert dataset.collected == list(range(5)) if told else list(range(6))
    assert dataset.num_seqs == 5
    assert [seq.seq_idx for seq in dataset.epoch(2)] == list(range(5))


@pytest.mark.parametrize("told", [False, True])
def test_an_empty_epoch_is_legal(told):
    dataset = Stream(0, told)
    assert list(dataset.epoch(1)) == []
    assert (dataset.num_seqs, dataset.have_seqs()) == (0, False)


def test_the_number_of_sequences_is_unknown_until_the_end():
    dataset = begun(Stream(2, estimated_num_seqs=7))
    with pytest.raises(OptionalNotImplementedError):
        _ = dataset.num_seqs
    assert dataset.estimated_num_seqs == 7
    assert dataset.get_complete_frac(0, allow_only_lr_suitable=True) is None
    assert [dataset.get_complete_frac(i) for i in (0, 6, 99)] == [1 / 7, 1, 1]
    assert not dataset.is_less_than_num_seqs(2)
    assert dataset.num_seqs == 2
    assert dataset.estimated_num_seqs == 2
    unknown = begun(Stream(2))  # a pseudo value
    pseudo = [unknown.get_complete_frac(i) for i in range(100)]
    assert pseudo == sorted(pseudo)
    assert 0 < pseudo[0] < pseudo[-1] < 1
    told = begun(Stream(4, frac=0.25))
    told.load_seqs(0, 2)
    assert told.get_complete_frac(1) == 0.5


def test_going_back_says_what_is_gone():
    dataset = begun(Stream(5))
    dataset.load_seqs(2, 4)
    assert [seq.seq_idx for seq in dataset.added_data] == [2, 3]
    with pytest.raises(ConfigError, match="goes back"):
        dataset.load_seqs(1, 2)
    with pytest.raises(ConfigError, match="gone"):
        dataset.get_data(0, "data")
    with pytest.raises(IndexError, match="no sequence 9"):
        dataset.get_data(9, "data")


def test_the_layout_is_learnt_from_the_first_sequence():
    dataset = Stream(3)
    dataset.initialize()
    with pytest.raises(ConfigError, match="not known before the first"):
        dataset.get_data_keys()
    dataset.init_seq_order(epoch=1)
    assert dataset.get_data_keys() == ["data", "classes"]
    assert dataset.get_data_dtype("classes") == "int32"
    assert dataset.is_data_sparse("classes")
    assert dataset.get_data_dim("data") == 3
    assert dataset.get_data_shape("data") == [3]
    assert dataset.collected == [0]
    assert len(list(dataset.epoch(1))) == 3


def test_a_declared_layout_needs_no_sequence():
    class Declared(Stream):
        def __init__(self, count):
            super().__init__(count)
            self.num_inputs = 3
            self.num_outputs = {"data": (3, 2), "classes": (2, 1)}

    dataset = Declared(3)
    dataset.initialize()
    assert dataset.get_data_keys() == ["data", "classes"]
    assert dataset.get_data_shape("classes") == []
    assert dataset.collected == []


def test_a_window_applies_to_collected_data_and_changes_no_sequence_that_the_sub_class_keeps():
    class Keeps(Stream):
        seqs = tuple(DatasetSeq(i, np.ones((2, 1), np.float32)) for i in range(3))

        def _collect_single_seq(self, seq_idx):
            return self.seqs[seq_idx] if seq_idx < 3 else None

    class Samples(CachedDataset2):
        def _collect_single_seq(self, seq_idx):
            return DatasetSeq(seq_idx, np.zeros(4, np.float32))

    dataset = begun(Stream(3, window=3))
    assert (dataset.get_data(2, "data").shape, dataset.get_data(2, "classes").shape) == ((3, 9), (2,))
    dataset = Keeps(3, window=3)
    for epoch in (1, 2):
        assert [seq["data"].shape for seq in dataset.epoch(epoch)] == [(2, 3)] * 3
    with pytest.raises(ConfigError, match="window=3 joins frames that are vectors"):
        next(Samples(window=3).epoch(1))


@pytest.mark.parametrize(
    ("options", "what"),
    [({"shuffle_frames_of_nseqs": 2}, "shuffle_frames_of_nseqs"), ({"_num_shards": 2}, "does not support sharding")],
)
def test_frames_cannot_be_shuffled_and_epochs_not_sharded_outside_of_the_cached_family(options, what):
    with pytest.raises(ConfigError, match=what):
        begun(Stream(3, **options))


def test_an_unknown_option_is_a_type_error():
    with pytest.raises(TypeError, match="seq_orderin"):
        Stream(3, seq_orderin="random")


def test_a_sub_class_can_order_its_own_corpus():
    class Corpus(Stream):
        def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):
            super().init_seq_order(epoch, seq_list, seq_order)
            self.order = self.get_seq_order_for_epoch(epoch, self.count, lambda i: -i + 10)
            self._num_seqs = len(self.order)
            return True

        def _collect_single_seq(self, seq_idx):
            return super()._collect_single_seq(self.order[seq_idx])

    assert [len(seq["data"]) - 1 for seq in Corpus(4, seq_ordering="sorted", partition_epoch=2).epoch(2)] == [1, 0]


@pytest.mark.parametrize(
    "arguments",
    [
        ({"data": np.zeros(1)}, {"targets": np.zeros(1)}),
        ([1, 2], {}),
        (np.zeros(1), {"targets": {"data": np.zeros(1)}}),
        ({"data": "text"}, {}),
    ],
)
def test_a_sequence_that_is_not_made_of_arrays_is_refused(arguments):
    features, options = arguments
    with pytest.raises(SourceError):
        DatasetSeq(0, features, **options)


def test_a_sequence_knows_its_lengths():
    seq = DatasetSeq(3, {"data": np.zeros((4, 2)), "label": np.array(5)})
    assert seq.tag == "seq-3"
    assert seq.num_frames == {"data": 4, "label": 1}
    assert "data" in seq
    assert "nope" not in seq
    assert "float64[4, 2]" in repr(seq)


def test_an_order_follows_lengths_that_change_from_epoch_to_epoch():
    dataset = Stream(3, seq_ordering="sorted")
    assert dataset.get_seq_order_for_epoch(1, 3, lambda i: [3, 2, 1][i]).tolist() == [2, 1, 0]
    assert dataset.get_seq_order_for_epoch(2, 3, lambda i: [1, 2, 3][i]).tolist() == [0, 1, 2]
    assert dataset.get_seq_order_for_epoch(3, 3, lambda i: [0.9, 0.1, 0.5][i]).tolist() == [1, 2, 0]


def test_an_epoch_that_ends_before_its_declared_number_is_an_error():
    class Wrong(Stream):
        def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):
            super().init_seq_order(epoch, seq_list, seq_order)
            self._num_seqs = 5
            return True

    dataset = Wrong(3)
    with pytest.raises(ConfigError, match="5 sequences, it ends after 3"):
        list(dataset.epoch(1))


def test_a_sub_class_may_extend_load_seqs():
    class Watched(Stream):
        calls = ()

        def _load_seqs(self, start, end):
            self.calls = [*self.calls, (start, end)]
            super()._load_seqs(start, end)

    dataset = Watched(2)
    assert len(list(dataset.epoch(1))) == 2
    assert dataset.calls == [(0, 1), (1, 2)]


@pytest.mark.parametrize("options", [{}, {"partition_epoch": 2}, {"repeat_epoch": 2}, {"unique_seq_tags": False}])
@pytest.mark.parametrize("ordering", ["default", "reverse", "random", "sorted", "laplace:2", "permute"])
def test_the_order_for_users_is_a_range_or_an_array_of_their_own(ordering, options):
    dataset = Dataset(seq_ordering=ordering, **options)
    order = dataset.get_seq_order_for_epoch(1, 10, lambda i: i % 3)
    again = dataset.get_seq_order_for_epoch(1, 10, lambda i: i % 3)
    assert isinstance(order, (range, np.ndarray))
    assert isinstance(order, range) == (ordering in ("default", "reverse") and "repeat_epoch" not in options)
    assert list(order) == list(again)
    if isinstance(order, np.ndarray):
        assert order.dtype == np.int64
        assert (order[order > 3] > 3).all()
        order[:] = 0
        assert list(dataset.get_seq_order_for_epoch(1, 10, lambda i: i % 3)) == list(again)
    assert len(dataset.get_seq_order_for_epoch(None, 10)) == 0


def test_a_sub_class_may_say_the_order_of_an_epoch_itself():
    class Backwards(StaticDataset):
        def get_seq_order_for_epoch(self, epoch, num_seqs, get_seq_len=None):
            order = super().get_seq_order_for_epoch(epoch, num_seqs, get_seq_len)
            return order[::-1]

    seqs = [{"data": np.full((2, 1), i, np.float32)} for i in range(5)]
    dataset, plain = Backwards(seqs, seq_ordering="random"), StaticDataset(seqs, seq_ordering="random")
    found = [seq.tag for seq in dataset.epoch(1)]
    assert found == [seq.tag for seq in plain.epoch(1)][::-1]
    with hr.DataLoader(dataset, batch_size=2) as loader:
        assert [tag for batch in loader for tag in batch.tags] == found
