"""Datasets of Ray Data on a cluster of three nodes: by index, as items, as streams; and from loaders."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.errors import ConfigError, SourceError
from headrace.sources import RayDataSource
from headrace.sources.tables.ray_blocks import Blocks, Carried

ray = pytest.importorskip("ray", reason="needs headrace[ray]")
pytest.importorskip("pandas", reason="Ray Data needs it")
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    return [
        {
            "x": rng.standard_normal((1 + number % 7, 4)).astype(np.float32),
            "flat": np.arange(number % 5 + 1),
            "deep": rng.standard_normal((1 + number % 2, 2, 3)),
            "same": rng.standard_normal((2, 3)),
            "tokens": list(range(number % 4)),
            "number": number,
        }
        for number in range(60)
    ]


@pytest.fixture(scope="module")
def dataset(cluster: Any, rows: list[dict[str, Any]]) -> Iterator[Any]:
    ray.data.DataContext.get_current().enable_progress_bars = False
    return ray.data.from_items(rows, override_num_blocks=5)


def batches(data: Any, **options: Any) -> list[Any]:
    options = {"batching": hr.FrameBudget(20, data_key="x"), "shuffle": True, "seed": 1, **options}
    with hr.DataLoader(data, **options) as loader:
        return [(batch.tags, batch["x"].tolist(), batch["number"].tolist()) for batch in loader]


def test_each_row_is_read_as_it_was_given_in_any_order(dataset: Any, rows: list[dict[str, Any]]) -> None:
    source = RayDataSource(dataset)
    assert source.specs["x"].shape == (4,)
    assert source.specs["x"].has_time
    assert not source.specs["same"].has_time
    assert source.index.lengths("x").tolist() == [len(row["x"]) for row in rows]
    for number in np.random.default_rng(2).permutation(len(rows)).tolist():
        seq = source.read_seq(number)
        for key, value in rows[number].items():
            np.testing.assert_array_equal(seq[key], value)
            assert seq[key].dtype == np.asarray(value).dtype or not len(seq[key])
    source.close()
    assert source.read(7, "number") == 7


def test_blocks_whose_tensors_have_one_shape_each_are_lists_with_time_if_the_shapes_differ(cluster: Any) -> None:
    values = [np.full((2 + number // 4, 3), number) for number in range(8)]  # another shape in each block
    source = RayDataSource(ray.data.from_items([{"x": value} for value in values], override_num_blocks=2))
    assert source.specs["x"].has_time
    for number, value in enumerate(values):
        np.testing.assert_array_equal(source.read(number, "x"), value)


def test_local_processes_threads_and_workers_on_ray_give_the_stream_of_none(dataset: Any) -> None:
    expected = batches(dataset)
    assert sorted(number for _, _, numbers in expected for number in numbers) == list(range(60))
    assert batches(dataset, num_workers=2) == expected
    assert batches(dataset, num_workers=2, executor="thread") == expected
    assert batches(dataset, num_workers=1, executor=hr.RayExecutor(num_cpus=0.5, dead_seconds=30.0)) == expected


def test_a_position_that_was_saved_is_gone_on_from(dataset: Any) -> None:
    with hr.DataLoader(dataset, batching=hr.FrameBudget(20, data_key="x"), shuffle=True, seed=1) as loader:
        iterator = iter(loader)
        first = [next(iterator).tags for _ in range(3)]
        state = loader.state_dict()
    with hr.DataLoader(dataset, batching=hr.FrameBudget(20, data_key="x"), shuffle=True, seed=1) as loader:
        loader.load_state_dict(state)
        rest = [batch.tags for batch in loader]
    assert first + rest == [tags for tags, *_ in batches(dataset)]


def test_rows_with_texts_and_those_for_a_collate_are_items_as_they_are(cluster: Any) -> None:
    data = ray.data.from_items(
        [{"text": f"text {number}", "x": np.full(number, 1.0)} for number in range(9)], override_num_blocks=2
    )
    options: dict[str, Any] = {"batch_size": 3, "num_workers": 1}
    with hr.DataLoader(data, collate=lambda items: [(i["text"], len(i["x"])) for i in items], **options) as loader:
        assert [item for batch in loader for item in batch] == [(f"text {number}", number) for number in range(9)]
    with hr.DataLoader(data, batching=hr.FrameBudget(10, data_key="x")) as loader:  # needs lengths: texts as bytes
        assert sorted(bytes(seq[: len("text 1")]) for batch in loader for seq in batch["text"]) == [
            f"text {number}".encode() for number in range(9)
        ]


def test_what_is_not_materialized_is_a_stream_in_its_order(dataset: Any, rows: list[dict[str, Any]]) -> None:
    doubled = dataset.map(lambda row: {"x": row["x"], "number": row["number"] * 2})
    with hr.DataLoader(doubled, batch_size=4, num_workers=1) as loader:
        found = [(int(n), x) for batch in loader for n, x in zip(batch["number"], batch["x"], strict=True)]
    assert [number for number, _ in found] == [2 * row["number"] for row in rows]
    for (_, x), row in zip(found, rows, strict=True):
        np.testing.assert_array_equal(x[: len(row["x"])], row["x"])
    with pytest.raises(ConfigError, match="its own order"):
        hr.DataLoader(doubled, batch_size=4, shuffle=True)
    with pytest.raises(ConfigError, match="materialize"):
        RayDataSource(doubled)


def test_a_process_that_cannot_reach_the_cluster_says_so_and_how_to_go_on(
    dataset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    carried = pickle.dumps(RayDataSource(dataset))

    def refuse(**options: Any) -> None:
        raise ConnectionError(f"nobody listens at {options['address']}")

    with monkeypatch.context() as patch:
        patch.setattr(ray, "is_initialized", lambda: False)
        patch.setattr(ray, "init", refuse)
        with pytest.raises(SourceError, match="cannot connect to: nobody listens") as caught:
            pickle.loads(carried).read(0, "x")
    assert "executor='ray'" in str(caught.value)


def test_a_block_that_ray_cannot_give_is_an_error_that_names_it(cluster: Any) -> None:
    @ray.remote(num_cpus=0, max_retries=0)
    def dies() -> None:
        os._exit(1)

    with pytest.raises(SourceError, match="Ray cannot give this block") as caught:
        Blocks(Carried([dies.remote()]))[0]
    assert "piece 0" in str(caught.value)


def test_a_null_tensor_is_refused_and_pickled_objects_are_no_data_key(cluster: Any) -> None:
    pa = pytest.importorskip("pyarrow")
    from ray.data.extensions import ArrowTensorArray

    whole = ArrowTensorArray.from_numpy(np.ones((2, 3)))
    storage = pa.array([[1.0] * 3, None], whole.storage.type)
    nulls = pa.table({"x": pa.ExtensionArray.from_storage(whole.type, storage)})
    with pytest.raises(SourceError, match="null"):
        RayDataSource(ray.data.from_arrow(nulls))
    items = [{"x": np.zeros(3), "any": value} for value in (np.zeros(2), None)]
    objects = ray.data.from_items(items, override_num_blocks=1)
    assert list(RayDataSource(objects).specs) == ["x"]
    with pytest.raises(ConfigError, match="'any' has the type null"):
        RayDataSource(objects, fields={"any": "any"})


def test_what_a_loader_delivers_is_a_dataset_in_the_order_of_the_stream(dataset: Any) -> None:
    options: dict[str, Any] = {"shuffle": True, "seed": 3}
    with hr.DataLoader(dataset, batch_size=None, **options) as loader:
        expected = [[int(seq["number"]) for seq in loader] for _ in range(2)]
    with hr.DataLoader(dataset, batch_size=None, **options) as loader:
        made = [loader.to_ray_dataset(override_num_blocks=4, block_bytes=2000) for _ in range(2)]
    for _ in range(2):  # each time anew, and the loader need not be there any more
        assert [[int(row["number"]) for row in one.iter_rows()] for one in made] == expected
    assert made[0].count() == len(expected[0])
    assert made[0].materialize().num_blocks() == 4


def noisy(seq: dict[str, Any], rng: Any) -> dict[str, Any]:
    return {"x": seq["x"] + rng.random(seq["x"].shape, np.float32)}


def test_tasks_of_ray_make_the_batches_of_each_rank_from_a_saved_position_on(dataset: Any) -> None:
    options: dict[str, Any] = {"batch_size": 7, "shuffle": True, "seed": 3, "transform": noisy, "world_size": 2}
    for rank in range(2):
        with hr.DataLoader(dataset, rank=rank, **options) as loader:
            iterator = iter(loader)
            next(iterator)
            state = loader.state_dict()
            rest = list(iterator)
            second = next(iter(loader)).tags
        with hr.DataLoader(dataset, rank=rank, **options) as loader:
            loader.load_state_dict(state)
            rows = list(loader.to_ray_dataset(override_num_blocks=2).iter_rows())
            assert next(iter(loader)).tags == second
        for row, batch in zip(rows, rest, strict=True):
            np.testing.assert_array_equal(row["x"], batch["x"])
            np.testing.assert_array_equal(row["x_lengths"], batch.lengths["x"])
            assert list(row["tags"]) == batch.tags


def test_a_dataset_that_is_read_in_part_is_made_in_part(cluster: Any, tmp_path: Path) -> None:
    def leave_a_mark(item: dict[str, Any]) -> dict[str, Any]:
        (tmp_path / str(item["number"])).touch()
        return {"x": np.zeros(1 << 20, np.uint8)}

    items = [{"number": number} for number in range(200)]
    with hr.DataLoader(items, batch_size=1, transform=leave_a_mark) as loader:
        made = loader.to_ray_dataset(override_num_blocks=100, concurrency=1, block_bytes=1)
        assert len(made.take(3)) == 3
    assert 3 <= len(list(tmp_path.iterdir())) < 150


def test_a_stream_is_a_dataset_that_was_read_at_once(dataset: Any) -> None:
    from headrace.adapters.ray_data import to_ray_dataset

    class Counting:
        def __iter__(self) -> Iterator[dict[str, Any]]:
            yield from ({"number": np.int64(number)} for number in range(9))

    with hr.DataLoader(Counting(), batch_size=None) as loader:
        made = to_ray_dataset(loader, block_bytes=20)
        assert [int(row["number"]) for row in made.iter_rows()] == list(range(9))
        assert made.num_blocks() > 1
        with pytest.raises(ConfigError, match="concurrency: this epoch is read by the loader"):
            loader.to_ray_dataset(concurrency=1)
    with pytest.raises(ConfigError, match="nothing in it"):
        to_ray_dataset([])
    with hr.DataLoader(dataset, batch_size=7) as loader:
        with pytest.raises(ConfigError, match="block_bytes"):
            loader.to_ray_dataset(block_bytes=0)
        with pytest.raises(ConfigError, match=r"no option 'concurent'\s+fix: did you mean 'concurrency'"):
            loader.to_ray_dataset(concurent=3)
        with pytest.raises(ConfigError, match="Ray Data refuses these options"):
            loader.to_ray_dataset(concurrency="three")
