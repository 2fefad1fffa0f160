"""Operations behind dispatch points stay in the workers, though joins follow; the stream is that of one process."""

from itertools import cycle

import pytest
from graph_parts import Count, Pass, ShardingRoundRobinDispatcher
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipes.graph import hoist_joins, list_pipes, replace, sources_of, split_graph
from headrace.pipes.graph.explain import wiring_of
from headrace.pipes.graph.hoist import BranchFeeder, BranchMarker, BranchReader, plan_hoists
from headrace.pipes.graph.state import graph_state, restore_graph
from headrace.pipes.ops.batch import Batcher
from headrace.pipes.ops.branches.join import (
    Concater,
    Multiplexer,
    MultiplexerLongest,
    SampleMultiplexer,
    Zipper,
    ZipperLongest,
)
from headrace.pipes.ops.map import Mapper


def dispatch(pipe):
    return ShardingRoundRobinDispatcher(pipe)


def name(kind):
    return lambda item: (kind, item)


class Share(Pass):
    """What one of several workers gets."""

    def __init__(self, datapipe, worker, num_workers):
        super().__init__(datapipe)
        self.worker, self.num_workers = worker, num_workers

    def __iter__(self):
        for number, item in enumerate(self.datapipe):
            if number % self.num_workers == self.worker:
                yield item


def run_split(build, num_workers):
    """Do in one process what the reading service does in several: deal out, work, take in turns."""
    streams = []
    for worker in range(num_workers):
        end = hoist_joins(build())
        root = split_graph(end).dispatch_root
        streams.append(iter(replace(end, root, Share(root, worker, num_workers))))
    waiting = list(streams)
    got = []
    for stream in cycle(streams):
        if not waiting:
            return got
        if stream in waiting:
            try:
                got.append(next(stream))
            except StopIteration:
                waiting.remove(stream)
    return got


JOINS = {
    "zip": Zipper,
    "zip_longest": lambda *pipes: ZipperLongest(*pipes, fill_value="nothing"),
    "mux": Multiplexer,
    "mux_longest": MultiplexerLongest,
    "concat": Concater,
    "sample": lambda *pipes: SampleMultiplexer(dict.fromkeys(pipes, 1.0), seed=3),
}


@pytest.mark.parametrize("num_workers", [1, 2, 3, 5])
@pytest.mark.parametrize("join", JOINS.values(), ids=JOINS)
def test_the_stream_is_that_of_one_process_for_any_number_of_workers(join, num_workers):
    def build():
        left = Mapper(Mapper(dispatch(Count(7)), name("a")), name("b"))
        right = Mapper(dispatch(Count(4)), name("c"))
        return Mapper(join(left, right, dispatch(Count(9))), name("end"))

    assert run_split(build, num_workers) == list(build())


def test_only_what_is_upstream_of_the_dispatch_points_and_the_join_are_dispatched():
    left, right = Mapper(dispatch(Count(7)), name("a")), Mapper(dispatch(Count(4)), name("b"))
    join = Zipper(left, right)
    end = hoist_joins(join)
    assert type(end) is BranchReader
    parts = split_graph(end)
    assert parts.dispatch_root is join
    assert {id(left), id(right), id(end)} <= {id(pipe) for pipe in parts.replicated}
    assert not {id(left), id(right)} & {id(pipe) for pipe in parts.dispatched}


def test_joins_of_joins_are_moved_too():
    def build():
        inner = Multiplexer(Mapper(dispatch(Count(5)), name("a")), Mapper(dispatch(Count(6)), name("b")))
        outer = Zipper(Mapper(inner, name("c")), Mapper(dispatch(Count(8)), name("d")))
        return Concater(outer, Mapper(dispatch(Count(3)), name("e")))

    assert len(plan_hoists(build())) == 3
    for num_workers in (1, 2, 3):
        assert run_split(build, num_workers) == list(build())
    end = hoist_joins(build())
    dispatched = split_graph(end).dispatched
    assert not any(type(pipe) is Mapper for pipe in dispatched)


def no_plan_cases():
    yield "not one to one", Zipper(Batcher(dispatch(Count()), 2), dispatch(Count()))
    yield "nothing to move", Zipper(dispatch(Count()), dispatch(Count()))
    yield "one branch is not dispatched", Zipper(Mapper(dispatch(Count()), str), Mapper(Count(), str))
    yield "no dispatch point", Zipper(Mapper(Count(), str), Mapper(Count(), str))
    yield "an operation that nobody knows", Zipper(Pass(dispatch(Count())), Mapper(dispatch(Count()), str))
    yield (
        "a class of the user's by a known name",
        type("Zipper", (Zipper,), {"__module__": "mine"})(
            Mapper(dispatch(Count()), str), Mapper(dispatch(Count()), str)
        ),
    )
    shared = Mapper(dispatch(Count()), str)
    yield "an operation that two pipes read", Zipper(shared, Mapper(shared, str), dispatch(Count()))


@pytest.mark.parametrize("pipe", [pytest.param(pipe, id=why) for why, pipe in no_plan_cases()])
def test_other_graphs_stay_as_they_are(pipe):
    before = list_pipes(pipe)
    assert plan_hoists(pipe) == []
    assert hoist_joins(pipe) is pipe
    assert list_pipes(pipe) == before


def test_planning_changes_nothing():
    pipe = Zipper(Mapper(dispatch(Count(2)), str), dispatch(Count(2)))
    before = list_pipes(pipe)
    assert len(plan_hoists(pipe)) == 1
    assert list_pipes(pipe) == before
    assert list(pipe) == [("0", 0), ("1", 1)]


def test_a_moved_join_can_be_resumed_and_begun_again_in_the_middle():
    def build():
        return hoist_joins(Multiplexer(Mapper(dispatch(Count(4)), name("a")), Mapper(dispatch(Count(4)), name("b"))))

    whole = list(build())
    assert len(whole) == 8
    for taken in range(9):
        pipe = build()
        iterator = iter(pipe)
        assert [next(iterator) for _ in range(taken)] == whole[:taken]
        other = build()
        restore_graph(other, graph_state(pipe))
        assert list(other) == whole[taken:]
        assert list(pipe) == whole


def test_an_error_in_a_moved_operation_names_the_operation():
    pipe = hoist_joins(Zipper(Mapper(dispatch(Count(4)), lambda item: 1 // (1 - item)), Mapper(dispatch(Count()), str)))
    with pytest.raises(ZeroDivisionError) as info:
        list(pipe)
    assert "Mapper(fn=" in info.value.__notes__[0]


TREES = st.recursive(
    st.integers(0, 6),
    lambda inner: st.one_of(
        st.tuples(st.just("map"), inner), st.tuples(st.sampled_from(sorted(JOINS)), inner, inner, inner)
    ),
    max_leaves=9,
)


def build_tree(tree):
    if isinstance(tree, int):
        return dispatch(Count(tree))
    kind, *inner = tree
    if kind == "map":
        return Mapper(build_tree(inner[0]), name(str(inner)))
    return JOINS[kind](*map(build_tree, inner))


@given(TREES, st.integers(1, 3))
def test_any_tree_of_joins_and_functions_gives_the_stream_of_one_process(tree, num_workers):
    assert run_split(lambda: build_tree(tree), num_workers) == list(build_tree(tree))


@given(TREES)
def test_what_is_explained_is_what_is_done(tree):
    pipe = build_tree(tree)
    explained = wiring_of(pipe, plan_hoists(pipe))
    pipes = list_pipes(pipe)
    end = hoist_joins(pipe)

    def sources_shown(reader):
        """The sources in the rewritten graph, where the pipes of ours in between are passed over."""
        for source in sources_of(reader):
            if isinstance(source, BranchMarker):
                yield from sources_shown(source)
            elif isinstance(source, BranchFeeder):
                yield joins[id(source)]
            elif isinstance(source, BranchReader):
                yield from exits_of(source)
            else:
                yield source

    def exits_of(reader):
        for end in reader.ends:
            if isinstance(end, BranchFeeder):
                yield joins[id(end)]
            elif isinstance(end, BranchReader):
                yield from exits_of(end)
            else:
                yield end

    joins = {}  # of each feeder, the join whose items it gets
    for reader in [each for each in list_pipes(end) if isinstance(each, BranchReader)]:
        for feeder in reader.feeders:
            joins[id(feeder)] = reader.datapipe
    for feeder, join in list(joins.items()):
        while isinstance(join, BranchFeeder):
            join = joins[id(join)]
        joins[feeder] = join
    for each in pipes:
        found = {id(source) for source in sources_shown(each)}
        assert found == {id(source) for source in explained[id(each)]}
