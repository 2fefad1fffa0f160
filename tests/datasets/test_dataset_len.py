"""`len(dataset)`, as torch's users ask for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.datasets import CachedDataset2, DistributeFilesDataset, MapDataset, MultiProcDataset, init_dataset
from headrace.sources import HDFWriter


def seqs(num: int) -> list[dict[str, Any]]:
    return [{"data": np.full((i % 3 + 1, 2), i, np.float32)} for i in range(num)]


def hdf_of(folder: Any, num: int, name: str = "a.hdf") -> str:
    with HDFWriter(folder / name) as writer:
        for i, seq in enumerate(seqs(num)):
            writer.append(f"{name}-{i}", seq)
    return str(folder / name)


@pytest.mark.parametrize("options", [{}, {"partition_epoch": 4}, {"seq_ordering": "random", "_num_shards": 3}])
def test_it_is_that_of_the_corpus_whatever_an_epoch_has(tmp_path: Any, options: dict[str, Any]) -> None:
    with hr.HDFDataset(files=[hdf_of(tmp_path, 11)], **options) as dataset:
        assert len(dataset) == 11
        dataset.init_seq_order(epoch=2)
        assert len(dataset) == 11


def test_what_a_filter_drops_does_not_count(tmp_path: Any) -> None:
    (tmp_path / "tags").write_text("a.hdf-1\na.hdf-4\n")
    with hr.HDFDataset(files=[hdf_of(tmp_path, 11)], seq_list_filter_file=str(tmp_path / "tags")) as dataset:
        assert len(dataset) == 2


def test_composed_datasets_tell_it(tmp_path: Any) -> None:
    parts = [{"class": "HDFDataset", "files": [hdf_of(tmp_path, num, f"{num}.hdf")]} for num in (3, 4)]
    with init_dataset({"class": "ConcatDataset", "datasets": parts}) as dataset:
        assert len(dataset) == 7
    with MultiProcDataset(parts[0], num_workers=0) as dataset:
        assert len(dataset) == 3


def test_files_tell_it_as_soon_as_they_were_counted(tmp_path: Any) -> None:
    dataset = DistributeFilesDataset(
        files=[hdf_of(tmp_path, num, f"{num}.hdf") for num in (3, 4)],
        get_sub_epoch_dataset=lambda files: {"class": "HDFDataset", "files": files},
        partition_epoch=2,
        num_workers=0,
    )
    with dataset:
        with pytest.raises(TypeError, match=r"DistributeFilesDataset .* has no len\(\)"):
            len(dataset)
        dataset.count_files()
        assert len(dataset) == 7


class Stream(CachedDataset2):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_inputs, self.num_outputs = 2, {"data": (2, 2)}

    def _collect_single_seq(self, seq_idx: int) -> Any:
        raise AssertionError("nothing is read")


class Told(Stream):
    def get_total_num_seqs(self) -> int:  # type: ignore[override] # without `fast`, as in older code
        return 5


def test_of_a_stream_it_is_a_clear_error() -> None:
    with pytest.raises(TypeError, match=r"Stream .* has no len\(\): how many sequences it has is not known"):
        len(Stream())


def test_a_class_of_the_users_tells_it_by_get_total_num_seqs() -> None:
    assert len(Told()) == 5


def test_a_dataset_is_true_though_it_is_empty() -> None:
    empty = MapDataset([], data_types={"data": {"shape": (None, 2)}})
    assert empty
    assert len(empty) == 0
    assert Stream()


def test_len_of_the_dataset_of_a_loader(tmp_path: Any) -> None:
    with hr.HDFDataset(files=[hdf_of(tmp_path, 11)]) as dataset, hr.DataLoader(dataset, batch_size=4) as loader:
        assert len(loader.dataset) == 11
        assert sum(batch.num_seqs for batch in loader) == 11
