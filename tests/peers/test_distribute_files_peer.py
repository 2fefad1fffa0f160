"""The distribution of files against RETURNN itself."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.files.plan import FilePlan, distribute_in_order

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    distrib_files = pytest.importorskip("returnn.datasets.distrib_files")

pytestmark = pytest.mark.filterwarnings("ignore")

_NUM_CASES = 10_000


def _draw_case(rng: np.random.Generator) -> tuple[list[int], int]:
    """Return sizes and a number of bins: few or many files, alike or not, with empty and huge ones."""
    num_files = int(rng.integers(1, rng.choice([4, 12, 80])))
    limit = int(rng.choice([2, 4, 20, 1000, 2**31, 2**53, 2**62]))
    kind = rng.integers(4)
    if kind == 0:
        sizes = rng.integers(0, limit, num_files)
    elif kind == 1:  # alike, so that ties and averages between whole numbers decide
        sizes = np.full(num_files, limit - 1) + rng.integers(0, 2, num_files)
    elif kind == 2:  # a few that are much larger
        sizes = np.where(rng.random(num_files) < 0.15, limit, rng.integers(0, 3, num_files))
    else:
        sizes = np.minimum(rng.pareto(0.7, num_files) * 10, 2.0**61).astype(np.int64)
    return sizes.tolist(), int(rng.integers(1, num_files + 1))


def _peers_bins(sizes: list[int], num_bins: int) -> list[list[str]]:
    names = [str(place) for place in range(len(sizes))]
    return distrib_files.DistributeFilesDataset._distribute_evenly_by_size(
        num_bins=num_bins, file_sizes=dict(zip(names, sizes, strict=True)), files_order=names
    )


@settings(max_examples=3)
@given(seed=st.integers(0, 2**32))
def test_ten_thousand_random_cases_have_the_bins_of_returnn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    differing = []
    for _ in range(_NUM_CASES):
        sizes, num_bins = _draw_case(rng)
        pairs = itertools.pairwise(distribute_in_order(sizes, num_bins))
        if [[str(file) for file in range(start, stop)] for start, stop in pairs] != _peers_bins(sizes, num_bins):
            differing.append((sizes, num_bins))
    assert not differing


@settings(max_examples=300)
@given(sizes=st.lists(st.integers(0, 2**62), min_size=1, max_size=30), data=st.data())
def test_cases_that_hypothesis_looks_for_have_the_bins_of_returnn(sizes: list[int], data: st.DataObject) -> None:
    num_bins = data.draw(st.integers(1, len(sizes)))
    pairs = itertools.pairwise(distribute_in_order(sizes, num_bins))
    bins = [[str(file) for file in range(start, stop)] for start, stop in pairs]
    assert bins == _peers_bins(sizes, num_bins)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Files of many sizes, some of them empty."""
    folder = tmp_path_factory.mktemp("files")
    sizes = np.random.default_rng(5).integers(0, 2000, 40) * np.random.default_rng(6).integers(0, 2, 40)
    for place, size in enumerate(sizes):
        (folder / f"{place:02}").write_bytes(bytes(int(size)))
    return sorted(str(path) for path in folder.iterdir())


def _peers_files(files: list[Any], epochs: range, **options: Any) -> list[list[Any]]:
    """Return what the class of the peer hands to the function that makes the dataset of a sub-epoch."""
    seen: list[list[Any]] = []

    def note(files_of_sub_epoch: list[Any]) -> dict[str, Any]:
        seen.append(list(files_of_sub_epoch))
        data = [{"data": np.zeros((1, 1), np.float32)}]
        return {"class": "StaticDataset", "data": data, "output_dim": {"data": (1, 2)}, "seq_ordering": "default"}

    dataset = distrib_files.DistributeFilesDataset(
        files=files,
        get_sub_epoch_dataset=note,
        use_worker_proc=False,
        preload_next_n_sub_epochs=0,
        sharding_fix=True,  # else its sub-dataset would be sharded again
        **options,
    )
    dataset.initialize()
    seen.clear()  # the first file, by which it learns the data keys
    for epoch in epochs:
        dataset.init_seq_order(epoch=epoch)
    return seen


@settings(max_examples=40)
@given(
    ordering=st.sampled_from(["default", "random"]),
    partition_epoch=st.integers(1, 5),
    num_shards=st.integers(1, 4),
    num_files=st.integers(20, 40),
    seed=st.one_of(
        st.fixed_dictionaries({"random_seed_offset": st.integers(0, 1000)}),
        st.fixed_dictionaries({"fixed_random_seed": st.integers(0, 2**32 - 1), "random_seed_offset": st.just(2)}),
    ),
    data=st.data(),
)
def test_every_sub_epoch_and_shard_has_the_files_of_the_class_of_returnn(
    files: list[str],
    ordering: Any,
    partition_epoch: int,
    num_shards: int,
    num_files: int,
    seed: dict[str, int],
    data: st.DataObject,
) -> None:
    # pairs and repeated entries too: their size is what counts, not their names
    trees: list[Any] = [file if place % 3 else (file, files[0]) for place, file in enumerate(files[:num_files])]
    trees[-1] = trees[0]
    shard = data.draw(st.integers(0, num_shards - 1))
    epochs = range(1, 3 * partition_epoch + 1)
    expected = _peers_files(
        trees,
        epochs,
        seq_ordering=ordering,
        partition_epoch=partition_epoch,
        _num_shards=num_shards,
        _shard_index=shard,
        **seed,
    )
    size_of = {file: Path(file).stat().st_size for file in files}
    sizes = [size_of[tree] if isinstance(tree, str) else sum(size_of[file] for file in tree) for tree in trees]
    plan = FilePlan(sizes, partition_epoch, num_shards, ordering, **seed)
    assert [[trees[place] for place in plan.files_of(epoch, shard)] for epoch in epochs] == expected
