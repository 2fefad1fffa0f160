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
ARRAYS = {
    "data": np.zeros((5, 11), np.float32),
    "classes": np.zeros(5, np.int32),
    "id": np.array([3]),
    "words": np.ones((2, 1), np.float32),
}


class Stream(CachedDataset2):
    """Features under "data", as RETURNN's users write it: `num_inputs` names their size, `num_outputs` the targets."""

    num_inputs = 11

    def __init__(self, outputs=None, keys=("data", "classes"), **kwargs):
        super().__init__(**kwargs)
        self.num_outputs, self.keys = outputs or OUTPUTS[0], keys

    def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):
        super().init_seq_order(epoch=epoch, seq_list=seq_list, seq_order=seq_order)
        self._num_seqs = 3
        return True

    def _collect_single_seq(self, seq_idx):
        return DatasetSeq(seq_idx, {key: ARRAYS[key] for key in self.keys}) if seq_idx < 3 else None


class Bare(Dataset):
    """The same, without `CachedDataset2`, and declared by the class."""

    num_inputs, num_outputs, num_seqs = 11, OUTPUTS[0], 3

    def __init__(self, outputs=None, **kwargs):
        super().__init__(**kwargs)
        if outputs is not None:
            self.num_outputs = outputs

    def load_seqs(self, start, end):
        pass

    def get_data(self, seq_idx, key):
        return ARRAYS[key]


WRAPPERS = {
    "alone": lambda inner: inner,
    "MultiEpochDataset": lambda inner: init_dataset({"class": "MultiEpochDataset", "dataset": inner, "multi_epoch": 2}),
    "PostprocessingDataset": lambda inner: init_dataset(
        {"class": "PostprocessingDataset", "dataset": inner, "map_seq": lambda seq, **_: seq}
    ),
}


def opened(dataset):
    dataset.initialize()
    return dataset


@pytest.mark.parametrize("outputs", [None, *OUTPUTS], ids=str)
@pytest.mark.parametrize("own", [Stream, Bare])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_data_are_shown_and_delivered_however_they_are_declared(wrapper, own, outputs):
    with WRAPPERS[wrapper](opened(own(outputs))) as dataset:
        for _ in range(2):
            assert dataset.get_data_keys() == ["data", "classes"]
            assert dataset.get_target_list() == ["classes"]
            assert dataset.num_outputs == {"data": (11, 2), "classes": (7, 1)}
            assert dataset.num_inputs == 11
            for key, layout in (("data", (11, [11], False, "float32")), ("classes", (7, [], True, "int32"))):
                asked = dataset.get_data_dim, dataset.get_data_shape, dataset.is_data_sparse, dataset.get_data_dtype
                assert tuple(ask(key) for ask in asked) == layout
            seqs = list(dataset.epoch(1))
            assert seqs
            assert all(sorted(seq.features) == ["classes", "data"] for seq in seqs)
            assert all(seq["data"].shape == (5, 11) for seq in seqs)
        with hr.DataLoader(dataset, batch_size=2) as loader:
            for batch in loader:
                assert batch["data"].shape == (batch.num_seqs, 5, 11)
                assert batch["classes"].shape == (batch.num_seqs, 5)


@pytest.mark.parametrize(
    ("outputs", "keys"),
    [
        ({"data": (11, 2)}, ["data"]),
        ({"data": (11, 2), "classes": (7, 1), "id": (9, 1)}, ["data", "classes", "id"]),
        ({"id": 9, "data": 11, "words": {"dim": 1, "shape": (None, 1)}}, ["data", "id", "words"]),
        ({"data": (11, 2), "id": (9, 1), "text": {"dtype": "string", "shape": ()}}, ["data", "id"]),
    ],
    ids=str,
)
def test_every_data_key_that_num_outputs_names_is_delivered(outputs, keys):
    made = Bare(outputs)
    assert made.get_data_keys() == keys
    made.initialize()
    assert (made.get_data_keys(), made.get_target_list()) == (keys, keys[1:])
    assert sorted(next(iter(made.epoch(1))).features) == sorted(keys)
    with hr.DataLoader(made, batch_size=2) as loader:
        assert [sorted(batch) for batch in loader] == [sorted(keys)] * 2


def test_a_class_that_names_its_data_keys_itself_is_asked():
    class Fewer(Bare):
        def get_target_list(self):
            return ["id"]

    class All(Bare):
        def get_data_keys(self):
            return ["words", "data"]

    outputs = {"data": (11, 2), "classes": (7, 1), "id": (9, 1), "words": (1, 2)}
    for own, keys in ((Fewer, ["data", "id"]), (All, ["words", "data"])):
        with init_dataset({"class": own, "outputs": outputs}) as dataset:
            assert [list(seq.features) for seq in dataset.epoch(1)] == [keys] * 3


def test_a_key_that_was_not_declared_is_shown_once_it_is_there_and_never_dropped_in_silence():
    dataset = opened(Stream(keys=("data", "classes", "words")))
    assert dataset.get_data_keys() == ["data", "classes"]
    dataset.init_seq_order(epoch=1)
    dataset.load_seqs(0, 1)
    assert dataset.get_data_keys() == ["data", "classes", "words"]
    assert (dataset.get_data_dtype("words"), dataset.get_data_dim("words")) == ("float32", 1)


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
