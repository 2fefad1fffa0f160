"""Places of a run of sequences: told once for many, known to the letter after any death."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine import CurrentItem, NumberedTags, WorkerInfo, note_each, note_item, note_items, note_number
from headrace.engine.process.status_page import StatusPage, create_status_page
from headrace.engine.user.worker_info import WorkerScope, worker_scope

INFO = WorkerInfo(0, 1, "process", 0)
TAGS = st.text(max_size=20)
EPOCHS = st.none() | st.integers(-(2**62), 2**62)


def _two_sides() -> tuple[StatusPage, StatusPage]:
    fd = create_status_page()
    sides = StatusPage(fd), StatusPage(fd)
    os.close(fd)
    return sides


def _published(page: StatusPage) -> WorkerScope:
    scope = WorkerScope(INFO, on_item=page.write_item)
    scope.on_items, scope.on_number = page.write_items, page.write_number
    return scope


def _one_by_one(page: StatusPage) -> WorkerScope:
    return WorkerScope(INFO, on_item=page.write_item)


def _as_read(item: CurrentItem | None) -> CurrentItem | None:
    if item is None or item.tag is None:
        return item
    return CurrentItem(item.tag.encode(errors="replace").decode(), item.epoch)


@pytest.mark.parametrize("make_scope", [_published, _one_by_one])
@given(
    runs=st.lists(st.tuples(st.lists(TAGS, min_size=1, max_size=6), EPOCHS, st.lists(st.integers(0, 5))), max_size=5)
)
def test_the_trainer_reads_where_in_a_run_a_worker_is(
    make_scope: Callable[[StatusPage], WorkerScope], runs: list[tuple[list[str], int | None, list[int]]]
) -> None:
    worker, trainer = _two_sides()
    scope = make_scope(worker)
    with worker_scope(scope):
        for tags, epoch, numbers in runs:
            seen, counted = trainer.counter, scope.num_items
            go_to = note_items(tags, epoch)
            for number in sorted({number % len(tags) for number in numbers}):
                go_to(number)
                assert scope.item == CurrentItem(tags[number], epoch)
                assert trainer.read_item() == _as_read(scope.item)
                assert trainer.counter != seen or number == 0
                assert scope.num_items > counted
                seen = trainer.counter


@pytest.mark.parametrize("make_scope", [_published, _one_by_one])
def test_sequences_that_are_read_together_are_named_by_the_first_and_the_last(
    make_scope: Callable[[StatusPage], WorkerScope],
) -> None:
    worker, trainer = _two_sides()
    with worker_scope(make_scope(worker)):
        note_items(["a", "b", "c"], 2)(-1)
        assert trainer.read_item() == CurrentItem("a .. c", 2)
        note_items(["d"], 2)(-1)
        assert trainer.read_item() == CurrentItem("d", 2)


@pytest.mark.parametrize("tags", [["x" * 40_000, "y" * 40_000], ["a\0b", "c"]], ids=["too long", "with a separator"])
def test_a_run_that_does_not_fit_is_told_place_by_place(tags: list[str]) -> None:
    worker, trainer = _two_sides()
    assert worker.write_items(tags, 1) is None
    with worker_scope(_published(worker)):
        go_to = note_items(tags, 1)
        for number, tag in enumerate(tags):
            go_to(number)
            assert trainer.read_item() == CurrentItem(tag, 1)


@pytest.mark.parametrize("make_scope", [_published, _one_by_one, lambda page: WorkerScope(INFO)])
def test_a_place_that_is_noted_in_between_is_the_last_one_until_the_worker_moves_on(
    make_scope: Callable[[StatusPage], WorkerScope],
) -> None:
    worker, trainer = _two_sides()
    scope = make_scope(worker)
    counts = []
    with worker_scope(scope):
        go_to = note_items(["a", "b", "c", "d"], 1)
        for number in range(4):
            go_to(number)
            assert scope.item == CurrentItem("abcd"[number], 1)
            note_item(tag="its file", epoch=number)
            assert scope.item == CurrentItem("its file", number)
            if scope.on_item is not None:
                assert trainer.read_item() == scope.item
            counts.append(scope.num_items)
        go_to(1)
        assert scope.item == CurrentItem("b", 1)
        if scope.on_item is not None:
            assert trainer.read_item() == scope.item
    assert counts == sorted(set(counts))


def test_outside_of_workers_and_for_no_sequences_it_does_nothing() -> None:
    note_items(["a"])(0)
    scope = WorkerScope(INFO)
    with worker_scope(scope):
        note_items([])(0)
    assert scope.item is None


@pytest.mark.parametrize("make_scope", [_published, _one_by_one, lambda page: WorkerScope(INFO)])
@given(tags=st.lists(TAGS, min_size=1, max_size=6), epoch=EPOCHS, interrupted=st.sets(st.integers(0, 5)))
def test_items_that_are_handed_out_are_noted_each(
    make_scope: Callable[[StatusPage], WorkerScope], tags: list[str], epoch: int | None, interrupted: set[int]
) -> None:
    worker, trainer = _two_sides()
    scope = make_scope(worker)
    found, counts = [], [0]
    with worker_scope(scope):
        for number, item in enumerate(note_each(range(len(tags)), tags, epoch)):
            found.append(item)
            assert scope.item == CurrentItem(tags[number], epoch)
            if scope.on_item is not None:
                assert trainer.read_item() == _as_read(scope.item)
            if number in interrupted:  # by code that reads it
                note_item("its file")
                assert scope.item == CurrentItem("its file")
            counts.append(scope.num_items)
        whole = tags[0] if len(tags) == 1 else f"{tags[0]} .. {tags[-1]}"
        assert scope.item == CurrentItem(whole, epoch)
        if scope.on_item is not None:
            assert trainer.read_item() == _as_read(scope.item)
    assert found == list(range(len(tags)))
    assert counts == sorted(set(counts))
    assert list(note_each(found, tags, epoch)) == found  # outside of workers


def test_runs_that_are_noted_as_a_whole_are_signs_of_life_each() -> None:
    scope = WorkerScope(WorkerInfo(0, 1, "thread", 0))
    counts = []
    with worker_scope(scope):
        for _ in range(3):
            note_items(["a", "b"], 1)(-1)
            counts.append(scope.num_items)
    assert counts == sorted(set(counts))


def test_what_has_no_tag_is_named_as_it_is_told() -> None:
    assert str(CurrentItem("seq-3", 2)) == "tag 'seq-3', epoch 2"
    assert str(CurrentItem("(laying out batch 3)", 2)) == "(laying out batch 3), epoch 2"
    assert str(CurrentItem(None, 2)) == "epoch 2"
    assert str(CurrentItem()) == ""


@pytest.mark.parametrize("make_scope", [_published, _one_by_one, lambda page: WorkerScope(INFO)])
@given(numbers=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=70), epoch=EPOCHS)
def test_tags_that_are_numbers_are_known_to_the_letter_too(
    make_scope: Callable[[StatusPage], WorkerScope], numbers: list[int], epoch: int | None
) -> None:
    worker, trainer = _two_sides()
    scope, tags = make_scope(worker), NumberedTags("(ü {})", numbers)
    texts = [f"(ü {number})" for number in numbers]
    assert list(tags) == tags[:] == texts
    with worker_scope(scope):
        go_to = note_items(tags, epoch)
        for number in (0, len(numbers) // 2, len(numbers) - 1):
            go_to(number)
            assert scope.item == CurrentItem(texts[number], epoch)
            if scope.on_item is not None:
                assert trainer.read_item() == scope.item


def test_more_numbers_than_fit_are_told_place_by_place() -> None:
    worker, trainer = _two_sides()
    tags = NumberedTags("seq-{}", range(10_000))
    assert worker.write_items(tags, 1) is None
    with worker_scope(_published(worker)):
        note_items(tags, 1)(9_999)
        assert trainer.read_item() == CurrentItem("seq-9999", 1)


STEPS = st.one_of(
    st.tuples(st.just("item"), st.none() | TAGS, EPOCHS),
    st.tuples(st.just("number"), st.sampled_from(["(item {})", "ü-{}"]), st.sampled_from([None, 1, 2])),
    st.tuples(st.just("run"), st.just("{}"), EPOCHS),
    st.tuples(st.just("ticket"), st.just(""), st.none()),
)


@pytest.mark.parametrize("make_scope", [_published, _one_by_one, lambda page: WorkerScope(INFO)])
@given(steps=st.lists(STEPS, max_size=12), numbers=st.lists(st.integers(-(2**64), 2**64), min_size=12, max_size=12))
def test_what_was_noted_last_is_known_however_it_was_noted(
    make_scope: Callable[[StatusPage], WorkerScope], steps: list[tuple[str, Any, int | None]], numbers: list[int]
) -> None:
    worker, trainer = _two_sides()
    scope = make_scope(worker)
    with worker_scope(scope):
        for (kind, text, epoch), number in zip(steps, numbers, strict=False):
            seen, counted = trainer.counter, scope.num_items
            if kind == "ticket":
                scope.begin_ticket()
                worker.forget_item()
                assert scope.item is None
                assert trainer.read_item() is None
                continue
            if kind == "item":
                note_item(text, epoch)
                expected = CurrentItem(text, epoch)
            elif kind == "number":
                note_number(text, number, epoch)
                expected = CurrentItem(text.format(number), epoch)
            else:
                note_items([str(number), "other"], epoch)(0)
                expected = CurrentItem(str(number), epoch)
            assert scope.item == expected
            assert scope.num_items > counted
            if scope.on_item is not None:
                assert trainer.read_item() == _as_read(expected)
                assert trainer.counter != seen
