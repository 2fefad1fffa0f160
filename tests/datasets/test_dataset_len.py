"""`len(dataset)`, as torch's users ask for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.datasets import CachedDataset2, DistributeFilesDataset, MapDataset, MultiProcDataset, init_dataset
from headrace.sources import HDFWriter


def hdf_of(folder: Any, num: int, name: str = "a.hdf") -> str:
    with HDFWriter(folder / name) as writer:
        for i in range(num):
            writer.append(f"{name}-{i}", {"data": np.full((i % 3 + 1, 2), i, np.float32)})
    return str(folder / name)


@pytest.mark.parametrize("options", [{}, {"partition_epoch": 4}, {"seq_ordering": "random", "_num_shards": 3}])
def test_it_is_that_of_the_corpus_whatever_an_epoch_has(tmp_path: Any, options: dict[str, Any]) -> None:
    with hr.HDFDataset(files=[hdf_of(tmp_path, 11)], **options) as dataset:
        assert len(dataset) == 11
        dataset.init_seq_order(epoch=2)
        assert len(dataset) == 11


def test_composed_datasets_tell_it_and_what_a_filter_drops_does_not_count(tmp_path: Any) -> None:
    (tmp_path / "tags").write_text("3.hdf-1\n3.hdf-2\n")
    parts = [{"class": "HDFDataset", "files": [hdf_of(tmp_path, num, f"{num}.hdf")]} for num in (3, 4)]
    parts[0]["seq_list_filter_file"] = str(tmp_path / "tags")
    with init_dataset({"class": "ConcatDataset", "datasets": parts}) as dataset:
        assert len(dataset) == 6
        with hr.DataLoader(dataset, batch_size=4) as loader:
            assert len(loader.dataset) == 6
    with MultiProcDataset(parts[0], num_workers=0) as dataset:
        assert len(dataset) == 2


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


def test_a_class_of_the_users_tells_it_by_get_total_num_seqs_or_else_it_is_a_clear_error() -> None:
    assert len(Told()) == 5
    with pytest.raises(TypeError, match=r"Stream .* has no len\(\): how many sequences it has is not known"):
        len(Stream())


def test_a_dataset_is_true_though_it_is_empty() -> None:
    empty = MapDataset([], data_types={"data": {"shape": (None, 2)}})
    assert empty
    assert len(empty) == 0
    assert Stream()
