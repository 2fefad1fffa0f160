"""What is common to all workers: identity, streams that go on, errors on their way to the consumer."""

from __future__ import annotations

import threading

import pytest

from headrace.engine import CurrentItem, Failure, Job, Mode, WorkerInfo, get_worker_info, note_item, skip_item
from headrace.engine.events import Done, Failed, StreamEnded
from headrace.engine.user.worker_info import WorkerScope, set_process_scope, worker_scope
from headrace.engine.worker import Worker
from headrace.errors import ConfigError, TransformError

INFO = WorkerInfo(1, 3, "test", 0)


class NeedsTwo(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


class HoldsLock(Exception):
    def __init__(self) -> None:
        super().__init__("locked")
        self.lock = threading.Lock()


class SpeechlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Counting:
    """Counts up to 6, raises at some numbers, and can go on after that."""

    def __init__(self, bad: set[int]) -> None:
        self.bad, self.item = bad, -1

    def __iter__(self) -> Counting:
        return self

    def __next__(self) -> int:
        self.item += 1
        if self.item == 6:
            raise StopIteration
        if self.item in self.bad:
            raise LookupError(f"no {self.item}")
        return self.item


def caught(error: Exception) -> Exception:
    try:
        raise error
    except type(error) as raised:
        return raised


def crossed(error: Exception, item: CurrentItem | None = None) -> Failure:
    return Failure.from_bytes(Failure.of(caught(error), item=item, num_own_frames=0).to_bytes())


# --- errors ---


def test_an_error_of_ours_crosses_whole() -> None:
    error = crossed(ConfigError("a is 1", where="here", fix="say 2")).raisable(4, 1)
    assert isinstance(error, ConfigError)
    assert (error.what, error.where, error.fix) == ("a is 1", "here", "say 2")


def test_an_error_that_crossed_carries_ticket_worker_place_and_the_traceback_there() -> None:
    error = crossed(LookupError("no 5"), CurrentItem("seq-5", 2)).raisable(4, 1)
    assert isinstance(error, LookupError)
    first, second, third, *_, last = error.__notes__[0].splitlines()
    assert first == "headrace: tag 'seq-5', epoch 2, ticket 4, worker 1"
    assert second == "The worker's traceback:"
    assert third == "Traceback (most recent call last):"
    assert last == "LookupError: no 5"


@pytest.mark.parametrize("error", [NeedsTwo("this", "that"), HoldsLock()])
def test_an_error_that_cannot_be_rebuilt_becomes_one_that_names_its_type(error: Exception) -> None:
    failure = crossed(error)
    assert failure.exception is None
    raised = failure.raisable(4, 1)
    assert isinstance(raised, TransformError)
    assert raised.what == f"a worker's function raised {__name__}.{type(error).__name__}: {error}"
    assert "in caught" in raised.__notes__[0]


def test_an_error_of_a_class_that_was_made_in_a_function_crosses_with_its_type() -> None:
    class MadeHere(ValueError):
        pass

    assert type(crossed(MadeHere("x")).raisable(0, 0)) is MadeHere


def test_an_error_whose_text_cannot_be_had_is_told_all_the_same() -> None:
    failure = crossed(SpeechlessError())
    assert "__str__ raised" in failure.text
    assert "SpeechlessError" in failure.type_name


# --- identity ---


def test_outside_of_workers_there_is_nobody_and_places_mean_nothing() -> None:
    assert get_worker_info() is None
    note_item(tag="x")
    with pytest.raises(LookupError):
        skip_item(LookupError("x"))


def test_a_worker_process_is_the_same_worker_in_all_of_its_threads() -> None:
    seen = []
    set_process_scope(WorkerScope(INFO))
    try:
        thread = threading.Thread(target=lambda: seen.append(get_worker_info()))
        thread.start()
        thread.join()
    finally:
        set_process_scope(None)
    assert seen == [INFO]
    assert get_worker_info() is None


def test_each_place_is_published_and_counted() -> None:
    published: list[CurrentItem] = []
    scope = WorkerScope(INFO, on_item=lambda tag, epoch: published.append(CurrentItem(tag, epoch)))
    with worker_scope(scope):
        note_item(tag="a", epoch=1)
        note_item(epoch=2)
    assert published == [CurrentItem("a", 1), CurrentItem(None, 2)]
    assert [str(place) for place in published] == ["tag 'a', epoch 1", "epoch 2"]
    assert scope.num_items == 2


# --- streams ---


def perform_all(worker: Worker, num_tickets: int) -> list:
    with worker_scope(worker.scope):
        assert worker.set_up() is None
        events = [worker.perform(1, ticket, None) for ticket in range(num_tickets)]
    return [
        event.result.take() if isinstance(event, Done) else event.failure.text if isinstance(event, Failed) else event
        for event in events
    ]


def test_a_stream_that_is_begun_again_passes_over_what_was_given_errors_included() -> None:
    worker = Worker(Job(lambda info: lambda bad: Counting(bad)), INFO)
    worker.begin_run(Mode.STREAM, {1, 4}, first_item=3)
    assert perform_all(worker, 5) == [3, "no 4", 5, StreamEnded(INFO.worker_idx, 6, 1), None]


def test_a_stream_that_ends_before_the_place_where_it_was_tells_its_length() -> None:
    worker = Worker(Job(lambda info: lambda bad: Counting(bad)), INFO)
    worker.begin_run(Mode.STREAM, set(), first_item=9)
    assert perform_all(worker, 2) == [StreamEnded(INFO.worker_idx, 6, 1), None]


def test_a_generator_that_raises_is_over() -> None:
    def generate(_: object):
        yield 0
        raise LookupError("no more")

    worker = Worker(Job(lambda info: generate), INFO)
    worker.begin_run(Mode.STREAM)
    assert perform_all(worker, 3) == [0, "no more", None]


def test_a_stream_whose_cleaning_up_raises_is_closed_all_the_same() -> None:
    closed = []

    def generate(_: object):
        try:
            yield 0
        finally:
            closed.append(True)
            raise OSError("while closing")

    worker = Worker(Job(lambda info: generate), INFO)
    worker.begin_run(Mode.STREAM)
    assert perform_all(worker, 1) == [0]
    worker.end_run()
    assert closed == [True]
    worker.begin_run(Mode.STREAM)
    assert perform_all(worker, 1) == [0]
    worker.end_run()
