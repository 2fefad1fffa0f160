"""Our `ConcatSeqsDataset` against RETURNN's, where it is installed: same options, same sequences, random corpora."""

import warnings

import numpy as np
import pytest

from headrace.datasets import init_dataset
from headrace.sources import HDFWriter

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    peer_init_dataset = pytest.importorskip("returnn.datasets.basic").init_dataset

pytestmark = pytest.mark.filterwarnings("ignore")

ORDERS = [
    {},
    {"seq_ordering": "sorted"},
    {"seq_ordering": "random", "partition_epoch": 3},
    {"seq_ordering": "laplace:3", "partition_epoch": 2},
]
JOININGS = [
    {},
    {"remove_in_between_postfix": {"classes": 0}},
    {"repeat_in_between_last_frame_up_to_multiple_of": {"data": 5}},
    {
        "repeat_in_between_last_frame_up_to_multiple_of": {"data": 4, "classes": 3},
        "remove_in_between_postfix": {"classes": 0},
    },
    {"pad_narrow_data_to_multiple_of_target_len": {"data": ("classes", 3)}},
    {
        "pad_narrow_data_to_multiple_of_target_len": {"data": ("classes", 1)},
        "remove_in_between_postfix": {"classes": 0},
        "repeat_in_between_last_frame_up_to_multiple_of": {"data": 4},
    },
]


@pytest.fixture(params=[1, 2, 3])
def config(request, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(request.param)
    lengths = {f"rec/{number}": int(rng.integers(1, 9)) for number in range(int(rng.integers(2, 12)))}
    with HDFWriter(tmp_path / "in.hdf") as writer:
        for tag, frames in lengths.items():
            labels = [*rng.integers(1, 9, -(-frames // 2)).tolist(), 0]
            data = rng.normal(size=(frames, 2)).astype("float32")
            writer.append(tag, {"data": data, "classes": np.array(labels, "int32")})
    lines = [";".join(rng.choice(list(lengths), int(rng.integers(1, 5)))) for _ in range(int(rng.integers(4, 20)))]
    (tmp_path / "list.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "lens.txt").write_text(repr(lengths))
    return {
        "class": "ConcatSeqsDataset",
        "dataset": {"class": "HDFDataset", "files": [str(tmp_path / "in.hdf")], "cache_byte_size": 0},
        "seq_list_file": str(tmp_path / "list.txt"),
        "seq_len_file": str(tmp_path / "lens.txt"),
    }


def stream(dataset, epoch):
    dataset.init_seq_order(epoch=epoch)
    found, seq_idx = [], 0
    while dataset.is_less_than_num_seqs(seq_idx):
        dataset.load_seqs(seq_idx, seq_idx + 1)
        arrays = {key: dataset.get_data(seq_idx, key) for key in dataset.get_data_keys()}
        found.append(
            (dataset.get_tag(seq_idx), {key: (array.dtype.name, array.tolist()) for key, array in arrays.items()})
        )
        seq_idx += 1
    return found


@pytest.mark.parametrize("joining", JOININGS)
@pytest.mark.parametrize("order", ORDERS)
def test_joined_sequences(config, order, joining):
    options = {**config, **order, **joining}
    expected = peer_init_dataset(options)
    with init_dataset(options) as found:
        for epoch in (1, 2, 3, 4):
            assert stream(found, epoch) == stream(expected, epoch)
            assert found.num_seqs == expected.num_seqs
        assert found.get_total_num_seqs() == expected.get_total_num_seqs()
