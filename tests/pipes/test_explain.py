"""What will run where can be read before anything runs."""

import pytest
from graph_parts import Count, Join, OnlyInMain, Pass, ShardingRoundRobinDispatcher, Shares, Shuffled

from headrace.errors import ConfigError
from headrace.pipes import explain, to_graph
from headrace.pipes.graph import list_pipes, split_graph
from headrace.pipes.sharding import SHARDING_PRIORITIES


class Workers:
    """What `explain` looks at in a reading service with workers."""

    def __init__(self, num_workers, worker_prefetch_cnt=10, main_prefetch_cnt=10):
        self.num_workers = num_workers
        self.worker_prefetch_cnt = worker_prefetch_cnt
        self.main_prefetch_cnt = main_prefetch_cnt


class DistributedReadingService: ...


class Sequential:
    def __init__(self, *services):
        self.reading_services = services


class Batcher(Pass): ...


def warnings_in(text):
    return [line for line in text.split("\n") if line.startswith("warning: ")]


def test_without_a_service_everything_runs_in_the_main_process():
    pipe = Shares(Shuffled(Pass(Count(5), len)))
    expected = """\
main process:
  1 Count(n=5)
  2 Pass(fn=len) <- 1
  3 Shuffled <- 2
  4 Shares <- 3"""
    assert explain(pipe) == explain(pipe, Workers(0)) == expected


def test_all_three_processes_are_shown_with_what_is_read_ahead():
    point = ShardingRoundRobinDispatcher(Shuffled(Count()))
    pipe = Pass(OnlyInMain(Join(Pass(point), Shares(Shuffled(Count(9))))))
    expected = """\
dispatching process:
  1 Count
  2 Shuffled <- 1
  3 ShardingRoundRobinDispatcher <- 2
  -> gives items to 2 workers in turn
worker process (2 of them, each with a copy):
  4 Pass <- 3
  5 Count(n=9)
  6 Shuffled <- 5
  7 Shares <- 6
  8 Join <- 4, 7
  -> reads 4 items ahead
main process:
  9 OnlyInMain <- 8
  10 Pass <- 9
  -> reads 5 items ahead"""
    assert explain(pipe, Workers(2, 4, 5)) == expected
    assert "fullsync" in explain(pipe, Sequential(DistributedReadingService(), Workers(2)))
    assert "ahead" not in explain(pipe, Workers(2, 0, 0))


def test_workers_that_only_hand_on_are_shown():
    text = explain(ShardingRoundRobinDispatcher(Count()), Workers(3))
    assert "worker process (3 of them, each with a copy):\n  passes items on" in text
    assert "main process:\n  reads the workers in turn" in text


def test_two_services_with_workers_are_refused():
    with pytest.raises(ConfigError, match="2 of the reading services have workers"):
        explain(Count(), [Workers(1), Workers(2)])


def test_explaining_changes_nothing_and_starts_nothing():
    pipe = Join(Pass(ShardingRoundRobinDispatcher(Count())), ShardingRoundRobinDispatcher(Count()))
    before = list_pipes(pipe)
    explain(pipe, Workers(2))
    assert list_pipes(pipe) == before
    assert not any(each.is_under_way for each in before)


def test_a_source_that_nothing_shards_is_warned_of():
    pipe = Join(Shares(Shuffled(Count(1))), Pass(Count(2)))
    (warning,) = warnings_in(explain(pipe, Workers(4)))
    assert "nothing shards the items of Count(n=2)" in warning
    assert "every item is delivered 4 times" in warning
    assert not warnings_in(explain(pipe, Workers(1)))
    only = Shares(Shuffled(Count()), SHARDING_PRIORITIES.DISTRIBUTED)
    assert "nothing shards the items of Count" in explain(only, Workers(2))


def test_a_filter_behind_a_dispatch_point_is_said_to_be_inert():
    pipe = Pass(Shares(Pass(ShardingRoundRobinDispatcher(Count()))))
    (warning,) = warnings_in(explain(pipe, Workers(2)))
    assert "Shares has no effect after ShardingRoundRobinDispatcher" in warning
    assert "has no effect" in warning


def test_operations_that_a_join_keeps_in_the_dispatching_process_are_named():
    pipe = Join(Pass(ShardingRoundRobinDispatcher(Count()), len), ShardingRoundRobinDispatcher(Count()))
    (warning,) = warnings_in(explain(pipe, Workers(2)))
    assert "joined again by Join: so Pass(fn=len) cannot run in the workers" in warning


def test_batches_of_a_workers_share_are_warned_of():
    late, early = Batcher(Pass(Shares(Shuffled(Count())))), Shares(Batcher(Shuffled(Count())))
    (warning,) = warnings_in(explain(late, Workers(2)))
    assert "Batcher makes batches of one worker's share" in warning
    assert not warnings_in(explain(early, Workers(2)))
    assert not warnings_in(explain(late, Workers(1)))


def test_two_filters_of_one_group_are_warned_of_before_they_are_refused():
    pipe = Shares(Shares(Shuffled(Count())), SHARDING_PRIORITIES.DISTRIBUTED)
    (warning,) = warnings_in(explain(pipe, Workers(1)))
    assert "both for DISTRIBUTED" in warning


def test_sharding_without_a_shuffle_is_mentioned():
    (warning,) = warnings_in(explain(Shuffled(Shares(Count())), Workers(2)))
    assert "nothing is shuffled before Shares" in warning


def test_a_cache_that_is_filled_at_random_is_warned_of():
    assert "keeps the order of its first epoch" in explain(Pass(Shuffled(Count(5))).in_memory_cache(), Workers(2))
    assert "keeps the order" not in explain(Count(5).in_memory_cache().shuffle(), Workers(2))


@pytest.mark.extra
def test_graphviz_draws_each_pipe_and_what_it_reads():
    pytest.importorskip("graphviz")
    pipe = OnlyInMain(Pass(Shares(Count(4)), len))
    source = to_graph(pipe).source
    assert source.count("->") == 3
    assert "label=Count]" in source
    assert "Count(n=4)" in to_graph(pipe, debug=True).source


def test_a_cycle_is_refused_and_a_wrong_split_too():
    pipe = Pass(None)
    pipe.datapipe = pipe
    with pytest.raises(ConfigError, match="cycle"):
        explain(pipe)
    with pytest.raises(ConfigError, match="single replicable branch"):
        explain(Join(OnlyInMain(Count()), Count()), Workers(2))
    assert split_graph(Count()).main == ()
