"""The place of a graph is data, and a graph brought to a place goes on from there."""

import json
import pickle
from contextlib import contextmanager
from itertools import islice

import pytest
from graph_parts import Chain, Count, Join, Pass

from headrace.errors import ResumeError
from headrace.pipes import IterPipe
from headrace.pipes.core.base import read
from headrace.pipes.graph.seeds import SeedGenerator, set_graph_random_seed
from headrace.pipes.graph.state import graph_state, restore_graph
from headrace.pipes.iter import IterableWrapper


def build():
    return Pass(Chain(Pass(Count(3)), Join(Count(2), Count(4)), Count(2)))


@pytest.mark.parametrize("taken", range(8))
def test_a_graph_goes_on_anywhere(taken):
    whole = list(build())
    pipe = build()
    iterator = iter(pipe)
    assert [next(iterator) for _ in range(taken)] == whole[:taken]
    state = json.loads(json.dumps(graph_state(pipe)))
    assert list(iterator) == whole[taken:]
    fresh = build()
    restore_graph(fresh, state)
    assert graph_state(fresh) == state
    assert list(fresh) == whole[taken:]
    assert list(fresh) == whole


class InPairs(Pass):
    """Like a batch: what it gives last, it gives when its source has ended; it has no state of its own."""

    def __iter__(self):
        items = read(self.datapipe)
        while pair := list(islice(items, 2)):
            yield pair


@pytest.mark.parametrize("taken", range(4))
def test_a_source_that_has_ended_is_not_read_again_by_the_same_iteration(taken):
    def build():
        return Pass(InPairs(Pass(Count(5))))

    whole = [[0, 1], [2, 3], [4]]
    pipe = build()
    iterator = iter(pipe)
    assert list(islice(iterator, taken)) == whole[:taken]
    other = build()
    state = graph_state(pipe)
    for _ in range(2):
        restore_graph(other, state)
        assert graph_state(other) == state
    iterator = iter(other)
    assert list(iterator) == whole[taken:]
    assert list(other) == whole
    restore_graph(other, state)
    iter(other)
    assert list(other) == whole  # begun anew: what had ended begins anew too


def test_a_state_taken_again_after_a_restore_is_right_too():
    pipe = Chain(InPairs(Count(3)), Count(2))
    iterator = iter(pipe)
    assert list(islice(iterator, 2)) == [[0, 1], [2]]
    other = Chain(InPairs(Count(3)), Count(2))
    restore_graph(other, graph_state(pipe))
    following = iter(other)
    assert next(following) == next(iterator) == 0
    third = Chain(InPairs(Count(3)), Count(2))
    restore_graph(third, graph_state(other))
    assert list(third) == list(following) == [1]
    assert list(third) == list(other) == [[0, 1], [2], 0, 1]


def test_what_ended_in_an_earlier_round_begins_anew_in_this_one():
    class Rounds(Pass):
        def reset(self):
            self.left = 3

        def __iter__(self):
            while self.left:
                yield from read(self.datapipe)
                self.left -= 1

        def state(self):
            return {"left": self.left}

        def restore(self, state):
            self.left = state["left"]

    def build():
        return Rounds(Chain(Count(2), InPairs(Count(3))))

    whole = list(build())
    assert len(whole) == 12
    for taken in range(13):
        pipe = build()
        iterator = iter(pipe)
        list(islice(iterator, taken))
        other = build()
        restore_graph(other, graph_state(pipe))
        assert list(other) == whole[taken:]


def test_a_shuffle_that_waits_for_its_next_round_keeps_count():
    def build():
        pipe = Count(2).concat(IterableWrapper(range(20)).shuffle()).cycle(3)
        return set_graph_random_seed(pipe, SeedGenerator(1))

    whole = list(build())
    assert whole[2:22] != whole[24:44] != whole[46:]
    for taken in (1, 2, 22, 23, 24, 44, 46):
        pipe = build()
        iterator = iter(pipe)
        list(islice(iterator, taken))
        other = build()
        restore_graph(other, graph_state(pipe))
        assert list(other) == whole[taken:]


def test_restoring_ends_what_is_under_way():
    pipe = build()
    state = graph_state(pipe)
    iterator = iter(pipe)
    next(iterator)
    restore_graph(pipe, state)
    with pytest.raises(RuntimeError, match="invalidated"):
        next(iterator)
    assert list(pipe) == list(build())


def test_a_graph_that_has_not_begun_or_has_ended_begins_at_the_start():
    pipe = build()
    state = graph_state(pipe)
    assert all(position is None for _, position, _ in state)
    list(pipe)
    assert graph_state(pipe) == state


def test_one_pipe_that_cannot_tell_its_place_makes_the_whole_unknown():
    class Mute(Pass):
        def state(self):
            return None

    pipe = Pass(Mute(Count()))
    iterator = iter(pipe)
    next(iterator)
    assert graph_state(pipe) is None


def test_attributes_of_users_may_have_the_names_of_our_methods():
    pipe = Pass(Count(3))
    pipe.state = pipe.hold = pipe.restore = "mine"
    iterator = iter(pipe)
    next(iterator)
    state = graph_state(pipe)
    restore_graph(pipe, state)
    assert list(pipe) == [1, 2]


def test_the_state_of_another_graph_is_refused():
    with pytest.raises(ResumeError, match="another graph: Count -> Pass, and this one is Count"):
        restore_graph(Count(), graph_state(Pass(Count())))


def test_pipes_are_held_from_the_end_to_the_sources_while_states_are_taken():
    log = []

    class Held(Pass):
        @contextmanager
        def hold(self):
            log.append(f"hold {self.fn}")
            yield
            log.append(f"let {self.fn} go")

        def state(self):
            log.append(f"state {self.fn}")
            return {}

        def __iter__(self):
            yield from (1, 2)

    pipe = Held(Held(Count(), "up"), "down")
    iterator = iter(pipe)
    next(iterator)
    graph_state(pipe)
    assert log == ["hold down", "hold up", "state down", "let up go", "let down go"]


def test_a_pipe_without_a_place_needs_no_restore_but_one_with_a_place_does():
    class Forgetful(IterPipe):
        def __iter__(self):
            yield from (1, 2)

        def state(self):
            return {"place": 1}

    with pytest.raises(NotImplementedError, match="Forgetful has no restore"):
        Forgetful().restore({"place": 1})
    Pass(Count()).restore({})


def test_a_state_survives_pickling_of_the_graph_it_is_of():
    pipe = build()
    iterator = iter(pipe)
    next(iterator)
    state = graph_state(pipe)
    other = pickle.loads(pickle.dumps(pipe))
    restore_graph(other, state)
    assert list(other) == list(iterator)
