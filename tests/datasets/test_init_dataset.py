"""Datasets from configs: what is accepted, and how a mistake is answered."""

import numpy as np
import pytest

from headrace.datasets import MapDataset, StaticDataset, init_dataset
from headrace.errors import ConfigError, SourceError
from headrace.order import Laplace

SEQS = [{"data": [number]} for number in range(4)]
STATIC = {"class": "StaticDataset", "data": SEQS}
LAPLACE = StaticDataset(SEQS, seq_ordering="laplace:2")


def my_ordering(epoch, **_):
    return "reverse" if epoch == 1 else "default"


def my_transform(features):
    return {**features, "data": features["data"] * 2}


class MyMap:
    def __len__(self):
        return 2

    def __getitem__(self, i):
        return {"data": np.full((1, 1), i, np.float32)}


class Three(StaticDataset):
    """Gives what its parent needs."""

    def __init__(self, **kwargs):
        super().__init__(SEQS[:3], **kwargs)


def indices(dataset):
    return [seq.corpus_idx for seq in dataset.epoch(1)]


@pytest.mark.parametrize(
    ("description", "expected"),
    [
        (STATIC, [0, 1, 2, 3]),
        (lambda: STATIC, [0, 1, 2, 3]),
        (repr(STATIC), [0, 1, 2, 3]),
        (f"StaticDataset:data={SEQS}", [0, 1, 2, 3]),
        (f"StaticDataset:data={SEQS},seq_ordering=reverse,chunking=(5, 2),name='a,b'", [3, 2, 1, 0]),
        ({**STATIC, "class": StaticDataset}, [0, 1, 2, 3]),
        ({**STATIC, "class": "headrace.datasets:StaticDataset"}, [0, 1, 2, 3]),
        (init_dataset(STATIC), [0, 1, 2, 3]),
        ({"class": Three}, [0, 1, 2]),
        ({**STATIC, "seq_ordering": f"{__name__}:my_ordering"}, [3, 2, 1, 0]),
        ({**STATIC, "seq_ordering": Laplace(num_bins=2)}, [seq.corpus_idx for seq in LAPLACE.epoch(1)]),
    ],
)
def test_a_dict_a_function_and_text_describe_the_same_dataset(description, expected):
    dataset = init_dataset(description)
    assert isinstance(dataset, StaticDataset)
    assert indices(dataset) == expected
    assert "a,b" not in str(description) or dataset.name == "a,b"


def test_extra_options_override_and_defaults_fill_and_a_parent_gives_its_seed_and_sharding():
    default = {"seq_ordering": "reverse", "data": SEQS[:1], "name": "a"}
    dataset = init_dataset(STATIC, extra_kwargs={"name": "b"}, default_kwargs=default)
    assert (dataset.name, indices(dataset)) == ("b", [3, 2, 1, 0])
    parent = StaticDataset([], random_seed_offset=5, _num_shards=2, _shard_index=1)
    child = init_dataset({**STATIC, "random_seed_offset": 6}, parent_dataset=parent)
    assert (child.random_seed_offset, child.num_shards, child.shard_index) == (6, 2, 1)


def test_callables_are_written_as_module_and_name():
    config = {"class": "MapDataset", "map_dataset": f"{__name__}:MyMap", "transform": f"{__name__}:my_transform"}
    dataset = init_dataset(config)
    assert isinstance(dataset, MapDataset)
    assert [float(seq["data"][0, 0]) for seq in dataset.epoch(1)] == [0, 2]


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({**STATIC, "class": "StaticDatset"}, "did you mean 'StaticDataset'"),
        ({"input_dim": 2}, "'class'"),
        ({"class": "MapDataset"}, "needs the option 'map_dataset'"),
        ({"class": "StaticDataset"}, "needs the option 'data'"),
        ({**STATIC, "seq_orderng": "random"}, "did you mean 'seq_ordering'"),
        ({**STATIC, "seq_ordering": "laplace:x"}, "laplace"),
        ({**STATIC, "seq_ordering": "no_such.module:name"}, "no_such"),
        ({**STATIC, "class": "headrace.datasets:nothing"}, "nothing"),
        ({**STATIC, "class": "headrace.datasets:init_dataset"}, "not a sub-class"),
        ({**STATIC, "class": 3}, "3"),
        ("{'class': print('run')}", "literal"),
        ("{'class'", "literal"),
        ("StaticDataset:data", "option=value"),
        ("StaticDataset:data=f(1)", "cannot read"),
        (" ", "empty"),
        (7, "int"),
        ({**STATIC, "partition_epoch": 2, "repeat_epoch": 2}, "repeat_epoch"),
        ({**STATIC, "_num_shards": 2, "_shard_index": 2}, "shard_index"),
    ],
)
def test_a_mistake_is_answered_with_what_is_valid(config, text, capsys):
    with pytest.raises(ConfigError, match=text):
        init_dataset(config)
    assert capsys.readouterr().out == ""


def test_other_text_is_a_list_of_hdf_files(tmp_path):
    with pytest.raises(SourceError, match=r"missing\.hdf"):
        init_dataset(f"{tmp_path}/missing.hdf")
