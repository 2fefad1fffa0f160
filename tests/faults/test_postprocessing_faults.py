"""What a `PostprocessingDataset` does when source, function or worker fails: never a short epoch in silence."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from headrace.datasets import CachedDataset2, DatasetSeq, LaplaceOrdering, PostprocessingDataset, init_dataset
from headrace.errors import HeadraceError

pytestmark = pytest.mark.usefixtures("warm_workers")

NUM_SEQS = 8
STATIC = {
    "class": "StaticDataset",
    "data": [{"data": np.full((i % 3 + 1, 2), i, np.float32)} for i in range(NUM_SEQS)],
}


class Unplugged(CachedDataset2):
    """A stream that cannot be read at one place."""

    def __init__(self, fails_at: int, error: type[BaseException] = OSError, **options: Any) -> None:
        super().__init__(**options)
        self.fails_at, self.error = fails_at, error
        self.num_outputs = {"data": (2, 2)}

    def _collect_single_seq(self, seq_idx: int) -> DatasetSeq | None:
        if seq_idx == self.fails_at:
            raise self.error("unplugged")
        if seq_idx == NUM_SEQS:
            return None
        return DatasetSeq(seq_idx, np.zeros((2, 2), np.float32), seq_tag=f"t{seq_idx}")


class KnowsItsOrder(Unplugged):
    """The same, with a known number of sequences and a known order."""

    def init_seq_order(self, epoch: Any = None, seq_list: Any = None, seq_order: Any = None) -> bool:
        super().init_seq_order(epoch)
        self.order = [] if epoch is None else list(range(NUM_SEQS)) if seq_order is None else list(seq_order)
        self._num_seqs = len(self.order)
        return True

    def get_current_seq_order(self) -> Any:
        return self.order

    def _collect_single_seq(self, seq_idx: int) -> DatasetSeq | None:
        return super()._collect_single_seq(self.order[seq_idx])


def same(data: dict[str, Any]) -> dict[str, Any]:
    return data


def pass_on(iterator: Iterator[Any]) -> Iterator[Any]:
    yield from iterator


def swallow(iterator: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from iterator
    except OSError:
        return


WAYS: dict[str, dict[str, Any]] = {
    "map_seq": {"map_seq": same},
    "stream": {"map_seq_stream": pass_on},
    "stream that catches": {"map_seq_stream": swallow},
    "laplace": {"map_seq_stream": LaplaceOrdering(2)},
}


def _read(dataset: PostprocessingDataset) -> list[str]:
    with dataset:
        dataset.initialize()
        return [seq.tag for seq in dataset.epoch(1)]


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    ("way", "fails_at", "num_workers"),
    [(way, fails_at, 0) for way in WAYS for fails_at in (0, 3, NUM_SEQS)]
    + [(way, 3, 2) for way in ("stream", "stream that catches")]
    + [("map_seq", 3, 1)],
)
def test_a_source_that_fails_is_an_error_wherever_it_does(way: str, fails_at: int, num_workers: int) -> None:
    config = {"class": Unplugged, "fails_at": fails_at}
    dataset = PostprocessingDataset(dataset=config, **WAYS[way], num_workers=num_workers, buf_size=4)
    with pytest.raises(OSError, match="unplugged") as caught:
        _read(dataset)
    notes = "".join(caught.value.__notes__)
    assert f"while sequence {fails_at} of the inner dataset" in notes
    if fails_at == 3:
        assert f"after sequence 't{2 if num_workers == 0 or way == 'map_seq' else 1}'" in notes


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_source_that_knows_its_order_and_fails_is_an_error(num_workers: int) -> None:
    config = {"class": KnowsItsOrder, "fails_at": 3}
    dataset = PostprocessingDataset(dataset=config, map_seq=same, num_workers=num_workers, buf_size=4)
    with pytest.raises(OSError, match="unplugged"):
        _read(dataset)


def test_what_was_read_before_a_failure_comes_first_and_the_failure_stays() -> None:
    streamed = {"map_seq_stream": pass_on}
    in_turn = {**streamed, "num_workers": 2, "buf_size": 40}
    for options in ({"map_seq": same, "num_workers": 1}, streamed, in_turn, {"map_seq": same}):
        with PostprocessingDataset(dataset={"class": Unplugged, "fails_at": 3}, **options) as dataset:
            dataset.initialize()
            dataset.init_seq_order(epoch=1)
            dataset.load_seqs(0, 3)
            assert dataset.get_tag(2) == "t2"
            for _ in range(2):
                with pytest.raises(OSError, match="unplugged"):
                    dataset.is_less_than_num_seqs(3)
            assert dataset.get_tag(2) == "t2"


def test_an_interrupt_does_not_end_the_epoch() -> None:
    for options in ({"map_seq": same}, {"map_seq_stream": pass_on}):
        config = {"class": Unplugged, "fails_at": 2, "error": KeyboardInterrupt}
        with PostprocessingDataset(dataset=config, **options) as dataset:
            dataset.initialize()
            dataset.init_seq_order(epoch=1)
            with pytest.raises(KeyboardInterrupt):
                dataset.load_seqs(0, 5)
            with pytest.raises(HeadraceError, match="interrupted"):
                dataset.load_seqs(1, 5)


def _fails_at_5(data: dict[str, Any]) -> dict[str, Any]:
    if data["seq_tag"] == "seq-5":
        raise ZeroDivisionError("five")
    return data


def _stream_fails_at_5(iterator: Iterator[Any]) -> Iterator[Any]:
    return map(_fails_at_5, iterator)


@pytest.mark.sample(2)
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("options", [{"map_seq": _fails_at_5}, {"map_seq_stream": _stream_fails_at_5}])
def test_a_function_that_fails_keeps_its_type_and_names_the_sequence(options: Any, num_workers: int) -> None:
    dataset = PostprocessingDataset(dataset=STATIC, **options, num_workers=num_workers, buf_size=2)
    with pytest.raises(ZeroDivisionError, match="five") as caught:
        _read(dataset)
    assert "'seq-5'" in "".join(caught.value.__notes__)


class _DiesOnce:
    """Kills its worker at the sixth sequence, once."""

    def __init__(self, once: Callable[[], bool]) -> None:
        self._once = once

    def __call__(self, data: dict[str, Any]) -> dict[str, Any]:
        if float(data["data"][0, 0]) == 5 and self._once():
            os.kill(os.getpid(), signal.SIGKILL)
        return data

    def stream(self, iterator: Iterator[Any], rng: Any) -> Iterator[Any]:
        for data in map(self, iterator):
            yield {**data, "data": data["data"] + np.float32(rng.randint(100))}


class Streamed(CachedDataset2):
    """A stream without an order, of sequences by number."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.num_outputs = {"data": (2, 2)}

    def _collect_single_seq(self, seq_idx: int) -> DatasetSeq | None:
        return None if seq_idx == NUM_SEQS else DatasetSeq(seq_idx, np.full((2, 2), seq_idx, np.float32))


@pytest.mark.sample(2)
@pytest.mark.parametrize("inner", [STATIC, {"class": Streamed}])
@pytest.mark.parametrize("kind", ["map_seq", "map_seq_stream"])
def test_the_stream_is_the_same_when_a_worker_dies_once(inner: Any, kind: str, once: Callable[[], bool]) -> None:
    function: Callable[..., Any] = _DiesOnce(once)
    function = function if kind == "map_seq" else function.stream  # type: ignore[attr-defined]
    config = {"class": "PostprocessingDataset", "dataset": inner, kind: function, "num_workers": 2, "buf_size": 3}
    with init_dataset(config) as dataset:
        dies, lives = ([(seq.tag, seq["data"].tolist()) for seq in dataset.epoch(1)] for _ in range(2))
    assert not once()
    assert dies == lives
    assert len(dies) == NUM_SEQS


def test_workers_end_with_the_dataset_and_come_back() -> None:
    with PostprocessingDataset(dataset=STATIC, map_seq_stream=pass_on, num_workers=1) as dataset:
        dataset.initialize()
        next(dataset.epoch(1))
        dataset.finish_epoch(free_resources=True)
        assert len(list(dataset.epoch(1))) == NUM_SEQS
