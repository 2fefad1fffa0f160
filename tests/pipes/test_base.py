"""What every pipe promises: one valid iterator, positions, pickling, names, errors that say where."""

import copy
import gc
import operator
import pickle
import subprocess
import sys
import threading

import cloudpickle
import numpy as np
import pytest
from graph_parts import Chain, Count, Join, Pass, Table

from headrace.errors import ConfigError
from headrace.pipes import IterPipe, MapPipe, functional_pipe
from headrace.pipes.core.base import is_iter_pipe, is_map_pipe, is_pipe, read, stop
from headrace.pipes.core.naming import name_raiser
from headrace.pipes.core.registry import find_function, list_functions, register_function


def test_each_iteration_begins_at_the_start():
    pipe = Pass(Count(3))
    assert list(pipe) == [0, 1, 2]
    assert list(pipe) == [0, 1, 2]
    assert [item for item, _ in zip(pipe, range(2), strict=False)] == [0, 1]
    assert list(pipe) == [0, 1, 2]


def test_a_new_iterator_invalidates_the_one_before_with_a_clear_message():
    pipe = Count(3)
    first = iter(pipe)
    next(first)
    second = iter(pipe)
    with pytest.raises(RuntimeError, match=r"iterator has been invalidated.*Count"):
        next(first)
    assert list(second) == [0, 1, 2]


def test_an_iterator_of_which_nothing_was_taken_is_invalidated_too():
    pipe = Count(3)
    first, second = iter(pipe), iter(pipe)
    with pytest.raises(RuntimeError, match="invalidated"):
        next(first)
    assert list(second) == [0, 1, 2]


def test_a_reader_whose_source_is_taken_over_gets_an_error_and_no_silent_end():
    source = Count(5)
    reader = iter(Pass(source))
    assert next(reader) == 0
    assert list(source) == [0, 1, 2, 3, 4]
    with pytest.raises(RuntimeError, match="invalidated"):
        list(reader)


def test_two_pipes_that_read_one_source_at_once_are_refused():
    source = Count(5)
    with pytest.raises(RuntimeError, match=r"invalidated.*Count.*fork"):
        list(Join(Pass(source), Pass(source)))


def test_two_pipes_may_read_one_source_one_after_the_other():
    source = Count(3)
    assert list(Chain(Pass(source), Pass(source))) == [0, 1, 2, 0, 1, 2]


def test_an_exception_that_somebody_keeps_does_not_spoil_the_next_epoch():
    source = Count(4)

    class KeepsItsReader(IterPipe):
        def __iter__(self):
            items = read(source)
            for item in items:
                yield 1 // (2 - item)

    pipe = KeepsItsReader()
    kept = []
    for _ in range(2):
        with pytest.raises(ZeroDivisionError) as info:
            list(pipe)
        kept.append(info)
    assert list(source) == [0, 1, 2, 3]


def test_a_pipe_that_another_thread_is_reading_is_not_begun_anew():
    entered, go_on = threading.Event(), threading.Event()

    def wait(item):
        entered.set()
        go_on.wait(120)
        return item

    pipe = Pass(Count(2), wait)
    got = []
    thread = threading.Thread(target=lambda: got.extend(pipe))
    thread.start()
    try:
        assert entered.wait(120)
        with pytest.raises(RuntimeError, match="being read at this moment"):
            iter(pipe)
    finally:
        go_on.set()
        thread.join()
    assert got == [0, 1]


def test_what_a_generator_does_at_its_end_comes_before_the_next_begins():
    class TellsWhenItEnds(IterPipe):
        log = ()

        def __iter__(self):
            self.log += ("begin",)
            try:
                yield from range(3)
            finally:
                self.log += ("end",)

    pipe = TellsWhenItEnds()
    first = iter(pipe)
    next(first)
    next(iter(pipe))
    assert pipe.log == ("begin", "end", "begin", "end")
    stop(pipe)
    assert pipe.log == ("begin", "end", "begin", "end")
    with pytest.raises(RuntimeError, match="invalidated"):
        next(first)


def test_dropping_the_iterator_ends_all_pipes_upstream():
    source = Count(3)
    iterator = iter(Pass(Pass(source)))
    next(iterator)
    assert source.is_under_way
    del iterator
    gc.collect()
    assert not source.is_under_way


def test_a_pipe_may_return_itself_from_iter():
    class Itself(IterPipe):
        def __iter__(self):
            self.left = 3
            return self

        def __next__(self):
            if self.left == 0:
                raise StopIteration
            self.left -= 1
            return self.left

    pipe = Itself()
    assert list(pipe) == [2, 1, 0]
    assert list(Pass(pipe)) == [2, 1, 0]
    reader = iter(Pass(pipe))
    next(reader)
    assert pipe.is_under_way
    iter(pipe)
    with pytest.raises(RuntimeError, match="invalidated"):
        list(reader)


def test_a_pipe_may_return_any_iterator():
    class OverAList(IterPipe):
        def __iter__(self):
            return iter([1, 2])

    assert list(OverAList()) == list(Pass(OverAList())) == [1, 2]


def test_a_subclass_of_a_subclass_may_call_the_iteration_of_its_base():
    class Negated(Pass):
        def __iter__(self):
            for item in super().__iter__():
                yield -item

    class AndOne(Negated):
        def __iter__(self):
            yield from super().__iter__()
            yield 1

    class Inherits(AndOne): ...

    for pipe in (AndOne(Count(3)), Inherits(Count(3))):
        assert list(pipe) == list(Pass(pipe)) == [0, -1, -2, 1]


def test_the_iteration_may_come_from_a_class_that_is_no_pipe():
    class Mixed:
        def __iter__(self):
            yield from (7, 8)

    class Both(Mixed, IterPipe): ...

    assert list(Both()) == list(Pass(Both())) == [7, 8]


def test_a_pipe_without_an_iteration_says_so():
    with pytest.raises(NotImplementedError, match="Empty has no __iter__"):
        list(type("Empty", (IterPipe,), {})())
    with pytest.raises(NotImplementedError, match="Empty has no __iter__"):
        list(Pass(type("Empty", (IterPipe,), {})()))
    with pytest.raises(NotImplementedError, match="Empty has no __getitem__"):
        type("Empty", (MapPipe,), {})()[0]


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])
def test_a_copy_made_in_the_middle_begins_at_the_start_and_disturbs_nothing(duplicate):
    pipe = Pass(Pass(Count(4)))
    iterator = iter(pipe)
    assert [next(iterator), next(iterator)] == [0, 1]
    other = duplicate(pipe)
    assert not other.is_under_way
    if duplicate is not copy.copy:  # a shallow copy has the same source, which can be read once at a time
        assert list(other) == [0, 1, 2, 3]
    assert list(iterator) == [2, 3]


def test_classes_of_a_main_script_travel_by_value():
    namespace = {"IterPipe": IterPipe, "__name__": "__main__"}
    exec(
        "class Base(IterPipe):\n    def __iter__(self):\n        yield 1\n"
        "class Sub(Base):\n    def __iter__(self):\n        yield from super().__iter__()\n        yield 2\n",
        namespace,
    )
    there = "import sys, pickle; p = pickle.loads(sys.stdin.buffer.read()); print(list(p), list(p), p.is_under_way)"
    done = subprocess.run(
        [sys.executable, "-c", there],
        input=cloudpickle.dumps(namespace["Sub"]()),
        capture_output=True,
        timeout=240,
        check=True,
    )
    assert done.stdout.split(b"\n")[0] == b"[1, 2] [1, 2] False"


def test_a_length_that_is_not_known_is_a_type_error_that_says_so():
    assert len(Count(4)) == 4
    with pytest.raises(TypeError, match="Pass instance doesn't have valid length"):
        len(Pass(Count()))
    with pytest.raises(TypeError, match="valid length"):
        len(type("Open", (MapPipe,), {})())


def test_a_pipe_is_true_whatever_its_length():
    assert Count(0)
    assert Pass(Count())
    assert Table([])


def test_only_pipes_can_be_added_to_pipes():
    with pytest.raises(TypeError):
        operator.add(Count(), [1])
    with pytest.raises(TypeError):
        Count() + Table([1])


def test_an_exception_names_the_pipe_that_raised_it():
    def double_or_fail(item):
        return 1 // (1 - item)

    pipe = Pass(Pass(Count(3), double_or_fail))
    iterator = iter(pipe)
    assert next(iterator) == 1
    with pytest.raises(ZeroDivisionError) as info:
        next(iterator)
    (note,) = info.value.__notes__
    assert note.startswith("This exception is thrown by __iter__ of Pass(fn=")
    assert "double_or_fail" in note
    name_raiser(info.value)
    assert len(info.value.__notes__) == 1


def test_an_exception_of_a_map_pipe_or_of_an_odd_repr_is_named_too():
    class OddRepr(Table):
        def __repr__(self):
            raise ValueError("no")

    table = OddRepr([])
    with pytest.raises(IndexError) as info:
        list(Pass(Count(1), table.__getitem__))
    assert info.value.__notes__ == ["This exception is thrown by __iter__ of OddRepr"]


def test_an_exception_without_a_pipe_gets_no_note():
    with pytest.raises(ValueError, match="invalid literal") as info:
        int("plain")
    name_raiser(info.value)
    assert not hasattr(info.value, "__notes__")


def test_the_iterator_has_what_the_pipe_has():
    pipe = Count(3)
    iterator = iter(pipe)
    next(iterator)
    assert iterator.place == 1
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = iterator.no_such_thing


def test_a_repr_shows_the_parameters_in_short():
    assert repr(Count()) == "Count"
    assert repr(Count(4)) == "Count(n=4)"
    assert repr(Pass(Count(4))) == "Pass"
    assert repr(Pass(Count(4), len)) == "Pass(fn=len)"
    assert repr(Join(Count(), Count())) == "Join"
    assert repr(Table(np.zeros((3, 4), np.float32))) == "Table(values=float32[3, 4])"
    assert repr(Table(list(range(10**6)))) == "Table(values=[0, 1, 2, 3, ...])"
    assert len(repr(Table("x" * 10**6))) < 80
    assert repr(Table(object())) == "Table(values=<object>)"


def test_names_of_pipes_are_told_apart_from_other_attributes():
    pipe = Count()
    with pytest.raises(AttributeError, match="'Count' object has no attribute 'no_such_function'"):
        _ = pipe.no_such_function
    with pytest.raises(AttributeError):
        _ = pipe._private
    assert not hasattr(pipe, "__array__")


@pytest.fixture
def twice():
    @functional_pipe("test_twice")
    class Twice(Pass):
        def __iter__(self):
            for item in read(self.datapipe):
                yield item
                yield item

    yield Twice
    from headrace.pipes.core import registry

    registry._FUNCTIONS[IterPipe].pop("test_twice")


def test_a_functional_name_stands_for_its_class(twice):
    pipe = Count(2).test_twice()
    assert type(pipe) is twice
    assert list(pipe) == [0, 0, 1, 1]
    assert "test_twice" in dir(pipe)
    assert list_functions(Count)["test_twice"] is twice
    assert find_function(Table, "test_twice") is None


def test_a_functional_name_is_given_once_but_a_cell_may_be_run_again(twice):
    with pytest.raises(ConfigError, match="have a function 'test_twice' already"):
        functional_pipe("test_twice")(Count)
    functional_pipe("test_twice")(twice)
    with pytest.raises(ConfigError, match="have a function 'reset' already"):
        functional_pipe("reset")(Pass)
    for name in ("no name", "_hidden", ""):
        with pytest.raises(ConfigError, match="is not a valid name"):
            register_function(IterPipe, name, Pass)
    with pytest.raises(ConfigError, match="int is not a pipe"):
        functional_pipe("test_int")(int)


def test_kinds_of_pipes_are_told_apart():
    assert is_pipe(Count())
    assert is_iter_pipe(Count())
    assert not is_map_pipe(Count())
    assert is_pipe(Table([]))
    assert is_map_pipe(Table([]))
    assert not is_iter_pipe(Table([]))
    assert not any(is_pipe(other) for other in (Count, [Count()], iter(Count()), 3, None))
