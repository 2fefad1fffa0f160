"""A data key that is delivered is shown, in every form of `num_inputs` and `num_outputs`, by every dataset above."""

import numpy as np
import pytest

import headrace as hr
from headrace.datasets import CachedDataset2, Dataset, DatasetSeq, init_dataset
from headrace.errors import ConfigError

OUTPUTS = [
    {"classes": (7, 1)},
    {"classes": [7, 1]},
    {"classes": 7},
    {"data": 11, "classes": 7},
    {"data": (11, 2), "classes": (7, 1)},
    7,
    {"classes": {"sparse_dim": 7}, "raw": {"dtype": "string", "shape": ()}},
]


class Stream(CachedDataset2):
    """Features under "data", as RETURNN's users write it: `num_inputs` names their size, `num_outputs` the targets."""

    def __init__(self, outputs=None, extra=False, num_seqs=3, **kwargs):
        super().__init__(**kwargs)
        self.num_inputs = 11
        self.num_outputs = {"classes": (7, 1)} if outputs is None else outputs
        self._extra = extra
        self._count = num_seqs

    def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):
        super().init_seq_order(epoch=epoch, seq_list=seq_list, seq_order=seq_order)
        self._num_seqs = self._count
        return True

    def _collect_single_seq(self, seq_idx):
        if seq_idx >= self._count:
            return None
        features = {"data": np.full((5, 11), seq_idx, np.float32), "classes": np.zeros(5, np.int32)}
        if self._extra:
            features["extra"] = np.zeros(2, np.float32)
        return DatasetSeq(seq_idx, features)


class Bare(Dataset):
    """The same, without `CachedDataset2`, and declared by the class."""

    num_inputs, num_outputs = 11, {"classes": (7, 1)}
    num_seqs = 3

    def load_seqs(self, start, end):
        pass

    def get_data(self, seq_idx, key):
        return np.full((5, 11), seq_idx, np.float32) if key == "data" else np.zeros(5, np.int32)

    def get_seq_length(self, seq_idx):
        return hr.NumbersDict({"data": 5, "classes": 5})


def wrapped(kind, inner):
    if kind == "bare":
        return inner
    options = {
        "MultiEpochDataset": {"dataset": inner(), "multi_epoch": 2},
        "PostprocessingDataset": {"dataset": inner(), "map_seq": lambda seq, **_: seq},
    }
    return lambda: init_dataset({"class": kind, **options[kind]})


WRAPPERS = [
    "bare",
    "MultiEpochDataset",
    "PostprocessingDataset",
]


def opened(dataset):
    dataset.initialize()
    return dataset


def assert_shows_what_it_delivers(dataset, dtypes=("float32", "int32")):
    for _ in range(2):
        assert dataset.get_data_keys() == ["data", "classes"]
        assert dataset.get_target_list() == ["classes"]
        assert dataset.num_outputs == {"data": (11, 2), "classes": (7, 1)}
        assert dataset.num_inputs == 11
        assert (dataset.get_data_dim("data"), dataset.get_data_dim("classes")) == (11, 7)
        assert (dataset.get_data_shape("data"), dataset.get_data_shape("classes")) == ([11], [])
        assert (dataset.is_data_sparse("data"), dataset.is_data_sparse("classes")) == (False, True)
        assert (dataset.get_data_dtype("data"), dataset.get_data_dtype("classes")) == dtypes
        seqs = list(dataset.epoch(1))
        assert seqs
        for seq in seqs:
            assert sorted(seq.features) == ["classes", "data"]
            assert seq["data"].shape == (5, 11)


@pytest.mark.parametrize("outputs", OUTPUTS, ids=str)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_data_are_shown_and_delivered_however_they_are_declared(wrapper, outputs):
    with wrapped(wrapper, lambda: opened(Stream(outputs)))() as dataset:
        assert_shows_what_it_delivers(dataset)


@pytest.mark.parametrize("wrapper", WRAPPERS[:-1])
def test_the_same_holds_for_what_a_class_declares(wrapper):
    with wrapped(wrapper, lambda: opened(Bare()))() as dataset:
        assert_shows_what_it_delivers(dataset)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_loader_delivers_them(wrapper):
    with hr.DataLoader(wrapped(wrapper, lambda: opened(Stream({"classes": 7})))(), batch_size=2) as loader:
        for batch in loader:
            assert batch["data"].shape == (batch.num_seqs, 5, 11)
            assert batch["classes"].shape == (batch.num_seqs, 5)


def test_a_key_that_was_not_declared_is_shown_once_it_is_there_and_never_dropped_in_silence():
    dataset = opened(Stream(extra=True))
    assert dataset.get_data_keys() == ["data", "classes"]
    dataset.init_seq_order(epoch=1)
    dataset.load_seqs(0, 1)
    assert dataset.get_data_keys() == ["data", "classes", "extra"]
    assert (dataset.get_data_dtype("extra"), dataset.get_data_dim("extra")) == ("float32", 1)


def test_what_the_window_makes_of_them_is_shown():
    dataset = opened(Stream(window=3))
    assert dataset.get_data_dim("data") == 33
    assert [seq["data"].shape for seq in dataset.epoch(1)] == [(5, 33)] * 3


@pytest.mark.parametrize("outputs", [{"classes": (7, 1, 2)}, {"classes": "7"}, {"classes": (-1, 1)}, "classes"])
def test_other_forms_are_refused(outputs):
    with pytest.raises(ConfigError, match="num_outputs"):
        opened(Stream(outputs))


def test_a_property_of_the_users_own_stays_what_it_is():
    class Own(Stream):
        @property
        def num_outputs(self):
            return {"data": [11, 2], "classes": [7, 1]}

        @num_outputs.setter
        def num_outputs(self, outputs):
            assert outputs == {"classes": (7, 1)}  # from the constructor only

    dataset = opened(Own())
    assert [seq["data"].shape for seq in dataset.epoch(1)] == [(5, 11)] * 3
    assert dataset.get_data_dim("data") == 11
