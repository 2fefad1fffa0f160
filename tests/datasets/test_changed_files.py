"""A file that is replaced between making a dataset and reading it elsewhere: an error, and no other sequences."""

import os
import pickle

import numpy as np
import pytest

import headrace as hr
from headrace import DataLoader, FixedCount, SourceError
from headrace.sources import HDFWriter


def write(path, *, num_seqs=20, prefix="a", length=4, dim=2, start=0):
    path.unlink(missing_ok=True)
    with HDFWriter(path, specs={"data": hr.DataSpec("float32", (dim,))}) as writer:
        for number in range(num_seqs):
            writer.append(f"{prefix}{number}", {"data": np.full((length, dim), start + number, np.float32)})


METHODS = ["seq_order", "dedicated"]
REFUSED = r"20 sequences in .* bytes then"
CHANGES = {
    "tags": {"prefix": "b"},
    "fewer": {"num_seqs": 10},
    "more": {"num_seqs": 30},
    "lengths": {"length": 5},
    "layout": {"dim": 3},
    "values": {"start": 100},
}


def combined(config):
    return {"class": "CombinedDataset", "datasets": {"x": config}, "data_map": {("x", "data"): "data"}}


def in_workers(config, **options):
    return {"class": "MultiProcDataset", "dataset": config, "num_workers": 0, "buffer_size": 4, **options}


@pytest.fixture
def opened(tmp_path):
    """Return what makes a dataset of a file, by a function of the file's config."""
    datasets = []

    def make(config_of):
        if not datasets:
            write(tmp_path / "a.hdf")
        config = config_of({"class": "HDFDataset", "files": [str(tmp_path / "a.hdf")]})
        datasets.append(hr.init_dataset(config))
        return datasets[-1]

    yield make
    for dataset in datasets:
        dataset.close()


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("config_of", [dict, combined], ids=["hdf", "combined"])
def test_copies_in_other_processes_and_workers_have_the_same_sequences_or_are_refused(
    opened, tmp_path, config_of, change
):
    dataset = opened(config_of)
    carried = pickle.dumps(dataset)
    pickle.loads(carried).close()
    pools = [opened(lambda config, m=m: in_workers(config_of(config), sharding_method=m)) for m in METHODS]
    write(tmp_path / "a.hdf", **change)
    with pytest.raises(SourceError, match=REFUSED) as caught:
        pickle.loads(carried)
    assert str(tmp_path / "a.hdf") in str(caught.value)
    for pool in pools:
        with pytest.raises(SourceError, match=REFUSED):
            list(pool.epoch(1))


@pytest.mark.parametrize("config_of", [dict, in_workers], ids=["hdf", "multi_proc"])
def test_worker_processes_of_a_loader_refuse_a_file_that_was_replaced(opened, tmp_path, config_of):
    with DataLoader(opened(config_of), batching=FixedCount(4), num_workers=1) as loader:
        write(tmp_path / "a.hdf", prefix="b")
        with pytest.raises(SourceError, match="changed since the dataset was made"):
            list(loader)


def test_a_copy_of_a_file_is_the_same_file_whatever_its_time(opened, tmp_path):
    carried = pickle.dumps(opened(dict))
    content = (tmp_path / "a.hdf").read_bytes()
    (tmp_path / "a.hdf").write_bytes(content)
    os.utime(tmp_path / "a.hdf", ns=(1, 1))
    with pickle.loads(carried) as dataset:
        assert [float(seq.features["data"][0, 0]) for seq in dataset.epoch(1)] == list(range(20))


def test_the_dataset_itself_refuses_any_other_file(opened, tmp_path):
    dataset = opened(dict)
    write(tmp_path / "a.hdf", start=100)
    with pytest.raises(SourceError, match="changed since it was indexed"):
        list(dataset.epoch(1))


def test_files_that_were_added_are_those_of_the_copy(opened, tmp_path):
    dataset = opened(dict)
    write(tmp_path / "b.hdf", num_seqs=3, prefix="b")
    dataset.add_file(tmp_path / "b.hdf")
    carried = pickle.dumps(dataset)
    with pickle.loads(carried) as copied:
        assert copied.get_total_num_seqs() == 23
    write(tmp_path / "b.hdf", num_seqs=4, prefix="b")
    with pytest.raises(SourceError, match=r"23 sequences in .* bytes then, 24 in"):
        pickle.loads(carried)
