"""What `batch_shapes` says of an epoch is what its batches are."""

from __future__ import annotations

import io

import numpy as np
import pytest

import headrace as hr

LENGTHS = np.random.default_rng(7).integers(1, 60, 200)
BATCHINGS = {
    "count": hr.FixedCount(7),
    "budget": hr.FrameBudget(150),
    "buckets": hr.Buckets(hr.FrameBudget(200), bounds=(20, 40)),
    "pack": hr.Pack(80, 3),
    "pack_alone": hr.Pack(50, 3, too_long="alone"),
}


def make(batching, **options):
    items = [{"data": np.zeros((length, 2), np.float32)} for length in LENGTHS]
    dataset = hr.MapDataset(items, lengths={"data": LENGTHS}, seq_ordering="random")
    return hr.DataLoader(dataset, batching=batching, window_seqs=64, **options)


@pytest.mark.parametrize("name", BATCHINGS)
def test_they_are_those_of_the_batches(name: str) -> None:
    with make(BATCHINGS[name]) as loader:
        shapes = loader.batch_shapes(2)
        batches = list(loader.epochs(2, 2).__next__())
        assert shapes.epoch == 2
        assert shapes.num_seqs.tolist() == [batch.num_seqs for batch in batches]
        assert shapes.frames.tolist() == [batch.num_frames for batch in batches]
        assert shapes.padded_frames.tolist() == [int(np.prod(batch["data"].shape[:2])) for batch in batches]
        assert shapes.lengths.tolist() == [int(n) for batch in batches for n in batch.lengths["data"]]


def test_asking_disturbs_no_iteration_and_stops_where_it_is_told() -> None:
    with make(BATCHINGS["budget"]) as loader, make(BATCHINGS["budget"]) as other:
        tags = []
        for batch in loader:
            tags.append(batch.tags)
            if len(tags) == 3:
                assert len(loader.batch_shapes(5, max_batches=4).frames) == 4
                assert loader.batch_shapes().epoch == 1
        assert tags == [batch.tags for batch in other]
        assert loader.batch_shapes(1).by_rank(4).shape[1] == 4


def test_a_stream_and_unknown_lengths_are_refused() -> None:
    class Stream:
        def __iter__(self):
            return iter([np.zeros(3)] * 4)

    with (
        hr.DataLoader(Stream(), batch_size=2) as loader,
        pytest.raises(hr.ConfigError, match="planned while it is read"),
    ):
        loader.batch_shapes()
    with (
        hr.DataLoader(hr.MapDataset([{"data": np.zeros(3)}] * 4), batch_size=2) as loader,
        pytest.raises(hr.ConfigError, match="lengths are not known"),
    ):
        loader.batch_shapes()


@pytest.fixture(scope="module")
def fonts() -> None:
    """Have matplotlib open its fonts, which it keeps open, before anybody looks at what a test leaves open."""
    pytest.importorskip("matplotlib")
    with make(BATCHINGS["count"]) as loader:
        hr.plot(loader).savefig(io.BytesIO(), format="svg")


@pytest.mark.extra
@pytest.mark.usefixtures("fonts")
def test_plots_are_drawn_for_each_batching(tmp_path) -> None:
    for name, batching in BATCHINGS.items():
        with make(batching) as loader:
            figure = hr.plot(loader, epoch=1)
            assert len(figure.axes) == 4
            figure.savefig(tmp_path / f"{name}.svg")
    with make(BATCHINGS["count"]) as loader:
        hr.plot(loader, world_size=1000).savefig(tmp_path / "ranks.svg")


def test_without_matplotlib_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with make(BATCHINGS["count"]) as loader, pytest.raises(hr.ConfigError, match="headrace\\[report\\]"):
        hr.plot(loader)
