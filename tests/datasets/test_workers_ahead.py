"""While a reader has a sequence, its workers make the next one, however few they may be ahead."""

import threading

import numpy as np
import pytest

from headrace import DistributeFilesDataset, MapDatasetBase, MultiProcDataset

PATIENCE_SECONDS = 30  # for a thread of this process to get its turn


class Noted(MapDatasetBase):
    """Notes each sequence that is begun."""

    begun: list[threading.Event] = []  # noqa: RUF012 (new in each test)

    def __len__(self):
        return 6

    def __getitem__(self, i):
        Noted.begun[i].set()
        return {"data": np.full((2, 1), i, np.float32)}

    def get_seq_len(self, i):
        return 2


NOTED = {"class": "MapDataset", "map_dataset": Noted}


def multi_proc(method, buffer_size, path):
    return MultiProcDataset(NOTED, 1, buffer_size, method, executor="thread")


def files(method, buffer_size, path):
    (path / "a").write_bytes(b"a")
    return DistributeFilesDataset(
        files=[str(path / "a")], get_sub_epoch_dataset=lambda _: NOTED, buffer_size=buffer_size, executor="thread"
    )


@pytest.mark.parametrize("buffer_size", [1, 2])
@pytest.mark.parametrize(("make", "method"), [(multi_proc, "seq_order"), (multi_proc, "dedicated"), (files, None)])
def test_the_next_sequence_is_begun_while_the_reader_has_one(make, method, buffer_size, tmp_path):
    Noted.begun = [threading.Event() for _ in range(6)]
    with make(method, buffer_size, tmp_path) as dataset:
        dataset.initialize()
        dataset.init_seq_order(epoch=1)
        for seq_idx in range(5):
            dataset.load_seqs(seq_idx, seq_idx + 1)
            assert Noted.begun[seq_idx + 1].wait(PATIENCE_SECONDS)
