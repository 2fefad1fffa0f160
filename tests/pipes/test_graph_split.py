"""Which part of a graph runs where."""

import pytest
from graph_parts import Chain, Count, Join, OnlyInMain, Pass, ShardingRoundRobinDispatcher, Shares
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.pipes.graph import list_pipes, lowest_common_ancestor, sources_of, split_graph

Dispatch = ShardingRoundRobinDispatcher


def test_without_a_dispatch_point_all_is_replicated():
    pipe = Pass(Shares(Count()))
    parts = split_graph(pipe)
    assert parts.worker_root is parts.end is pipe
    assert parts.dispatch_root is None
    assert parts.dispatched == parts.main == ()
    assert list(parts.replicated) == list_pipes(pipe)


def test_a_dispatch_point_and_all_upstream_run_in_the_dispatching_process():
    source = Count()
    point = Dispatch(Pass(source))
    pipe = Pass(point)
    parts = split_graph(pipe)
    assert parts.dispatch_root is point
    assert parts.dispatched == (source, point.datapipe, point)
    assert parts.replicated == (pipe,)
    assert parts.worker_root is pipe


def test_a_dispatch_point_at_the_end_leaves_workers_nothing_but_to_hand_on():
    point = Dispatch(Count())
    parts = split_graph(point)
    assert parts.worker_root is parts.dispatch_root is point
    assert parts.replicated == parts.main == ()


def test_of_several_dispatch_points_in_a_row_the_last_counts():
    point = Dispatch(Pass(Dispatch(Count())))
    parts = split_graph(Pass(point))
    assert parts.dispatch_root is point
    assert len(parts.dispatched) == 4


def test_dispatched_branches_meet_in_the_dispatching_process():
    join = Join(Pass(Dispatch(Count())), Dispatch(Count()))
    pipe = Pass(join)
    parts = split_graph(pipe)
    assert parts.dispatch_root is join
    assert parts.replicated == (pipe,)


def test_a_branch_that_is_not_dispatched_stays_in_the_workers():
    other = Shares(Count())
    point = Dispatch(Count())
    join = Join(Pass(point), other)
    parts = split_graph(join)
    assert parts.dispatch_root is point
    assert {id(pipe) for pipe in parts.replicated} == {id(join), id(join.datapipes[0]), id(other), id(other.datapipe)}


def test_what_shares_a_source_with_a_dispatched_branch_is_dispatched_up_to_where_they_meet():
    source = Pass(Count())
    left, right = Dispatch(Pass(source)), Pass(Pass(source))
    join = Join(left, right)
    parts = split_graph(Pass(join))
    assert parts.dispatch_root is join
    assert len(parts.dispatched) == 7


def test_what_reads_a_source_of_the_place_where_branches_meet_is_dispatched_too():
    shared, other = Count(), Count()
    join = Join(Dispatch(shared), shared, other)
    end = Join(other, join)
    parts = split_graph(Pass(end))
    assert parts.dispatch_root is end
    assert len(parts.dispatched) == 5


def test_a_pipe_that_must_not_be_copied_and_all_downstream_run_in_the_main_process():
    sharded = Shares(Count())
    only = OnlyInMain(sharded)
    pipe = Pass(only)
    parts = split_graph(pipe)
    assert parts.worker_root is sharded
    assert parts.main == (only, pipe)
    assert split_graph(only).main == (only,)


def test_what_must_not_be_copied_but_is_upstream_of_a_dispatch_point_is_dispatched():
    parts = split_graph(Pass(Dispatch(OnlyInMain(Count()))))
    assert parts.main == ()
    assert len(parts.dispatched) == 3


def test_a_source_that_must_not_be_copied_leaves_nothing_for_workers():
    class Single(Count):
        def is_replicable(self):
            return False

    pipe = Pass(Single())
    parts = split_graph(pipe)
    assert parts.worker_root is None
    assert parts.replicated == ()
    assert parts.main == (pipe.datapipe, pipe)


def test_two_replicated_branches_that_meet_in_the_main_process_are_refused():
    pipe = Join(OnlyInMain(Shares(Count())), Shares(Count()))
    with pytest.raises(ConfigError, match="only supports single replicable branch currently"):
        split_graph(pipe)


def test_the_main_process_cannot_read_what_a_worker_reads_too():
    source = Count()
    with pytest.raises(ConfigError, match="single replicable branch"):
        split_graph(Join(OnlyInMain(Pass(source)), source))


def test_a_subclass_of_a_dispatch_point_is_a_pipe_like_others():
    class Special(Dispatch): ...

    assert split_graph(Pass(Special(Count()))).dispatch_root is None


def test_the_lowest_common_ancestor_is_where_branches_meet():
    a, b, c = Count(), Count(), Count()
    left = Join(Pass(a), b)
    end = Chain(Pass(left), Pass(c))
    assert lowest_common_ancestor(end, []) is None
    assert lowest_common_ancestor(end, [a]) is a
    assert lowest_common_ancestor(end, [a, b]) is left
    assert lowest_common_ancestor(end, [a, c]) is end
    assert lowest_common_ancestor(end, [left, a]) is left


@given(st.data())
def test_no_pipe_is_in_two_processes_and_each_process_reads_only_what_it_may(data):
    pipes = [Count()]
    for _ in range(data.draw(st.integers(1, 12))):
        kind = data.draw(st.sampled_from([Join, Join, Dispatch, OnlyInMain, Count]))
        if kind is Join:
            pipes.append(Join(*data.draw(st.lists(st.sampled_from(pipes), min_size=1, max_size=3, unique_by=id))))
        else:
            pipes.append(kind() if kind is Count else kind(data.draw(st.sampled_from(pipes))))
    end = pipes[-1]
    try:
        parts = split_graph(end)
    except ConfigError:
        only = [pipe for pipe in list_pipes(end) if type(pipe) is OnlyInMain]
        assert only, "only what stays in the main process can need two branches"
        return
    everywhere = [*parts.dispatched, *parts.replicated, *parts.main]
    assert len({id(pipe) for pipe in everywhere}) == len(everywhere) == len(list_pipes(end))
    points = [pipe for pipe in everywhere if type(pipe) is Dispatch]
    assert all(any(point is pipe for pipe in parts.dispatched) for point in points)
    where = {id(pipe): "dispatched" for pipe in parts.dispatched}
    where |= {id(pipe): "replicated" for pipe in parts.replicated} | {id(pipe): "main" for pipe in parts.main}
    for reader in everywhere:
        for source in sources_of(reader):
            crossing = where[id(source)], where[id(reader)]
            if crossing == ("dispatched", "replicated"):
                assert source is parts.dispatch_root
            elif crossing in (("replicated", "main"), ("dispatched", "main")):
                assert source is parts.worker_root
            else:
                assert crossing[0] == crossing[1]
