"""What datasets tell of their size, during an epoch and after its end, as RETURNN's do (tests/peers compares them)."""

import numpy as np
import pytest

from headrace.datasets import init_dataset
from headrace.sources import HDFWriter

LENGTHS = [4, 1, 3, 2]
INDEXED = ["hdf", "static", "meta"]


def hdf(files):
    return {"class": "HDFDataset", "files": files, "seq_ordering": "default"}


@pytest.fixture
def configs(tmp_path, monkeypatch):
    """Describe datasets of each kind over the same four sequences, of 10 frames and 4 classes."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    path = str(tmp_path / "a.hdf")
    seqs = [{"data": np.ones((length, 5), "float32"), "classes": np.array([8], "int32")} for length in LENGTHS]
    with HDFWriter(path, labels={"classes": [str(number) for number in range(9)]}) as writer:
        for number, seq in enumerate(seqs):
            writer.append(f"seq-{number}", seq)
    return {
        "hdf": hdf([path]),
        "static": {"class": "StaticDataset", "data": seqs, "output_dim": {"data": (5, 2), "classes": (9, 1)}},
        "meta": {
            "class": "MetaDataset",
            "datasets": {"a": hdf([path]), "b": hdf([path])},
            "data_map": {"data": ("a", "data"), "classes": ("b", "classes")},
            "seq_order_control_dataset": "a",
        },
        "multi_proc": {"class": "MultiProcDataset", "dataset": hdf([path]), "num_workers": 1, "executor": "thread"},
        "distribute": {
            "class": "DistributeFilesDataset",
            "files": [path],
            "get_sub_epoch_dataset": hdf,
            "executor": "thread",
        },
    }


def read_epoch(dataset):
    for _ in dataset.epoch(1):
        pass


@pytest.mark.parametrize("name", [*INDEXED, "multi_proc", "distribute"])
def test_the_layout_and_the_number_of_sequences_are_told_also_after_the_epoch(configs, name):
    with init_dataset(configs[name]) as dataset:
        read_epoch(dataset)
        dataset.finish_epoch()
        assert dataset.num_seqs == 4
        assert dataset.num_outputs == {"data": (5, 2), "classes": (9, 1)}
        assert (dataset.num_inputs, dataset.get_data_keys()) == (5, ["data", "classes"])
        assert [dataset.get_data_dtype(key) for key in ("data", "classes")] == ["float32", "int32"]
        assert len(dataset.labels.get("classes", ())) == (0 if name == "static" else 9)
        if name in INDEXED:
            assert (dataset.get_tag(2), int(dataset.get_seq_length(2)["data"])) == ("seq-2", 3)
            assert list(dataset.get_current_seq_order()) == [0, 1, 2, 3]
            assert len(dataset.get_data(2, "data")) == 3
    assert dataset.num_seqs == 0  # all was given back


def test_what_is_drawn_for_a_sequence_is_the_same_after_the_epoch(configs):
    def noisy(features, rng):
        return {**features, "data": features["data"] * rng.normal()}

    with init_dataset({**configs["hdf"], "transform": noisy}) as dataset:
        dataset.init_seq_order(epoch=3)
        before = dataset.get_data(1, "data")
        dataset.finish_epoch()
        assert dataset.get_data(1, "data").tolist() == before.tolist()


@pytest.mark.parametrize("name", ["hdf", "meta"])
def test_hdf_files_tell_their_frames_as_one_number(configs, name):
    with init_dataset(configs[name]) as dataset:
        assert (dataset.get_num_timesteps(), type(dataset.get_num_timesteps())) == (10, int)
        assert (
            dataset.len_info(fast=True) == dataset.len_info() == f"{type(dataset).__name__}, sequences: 4, frames: 10"
        )
