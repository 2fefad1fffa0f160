"""Shares are told to the pipes that take shares, once on each path."""

import pytest
from graph_parts import Chain, Count, Join, Pass, Shares

from headrace.errors import ConfigError
from headrace.pipes.sharding import SHARDING_PRIORITIES, apply_sharding, is_sharding_pipe, reacts_to

DEFAULT, DISTRIBUTED, MULTIPROCESSING = SHARDING_PRIORITIES


def test_the_documented_priorities_have_the_documented_values():
    assert [priority.value for priority in SHARDING_PRIORITIES] == [1, 2, 3]
    assert [priority.name for priority in SHARDING_PRIORITIES] == ["DEFAULT", "DISTRIBUTED", "MULTIPROCESSING"]


def test_each_sharding_pipe_is_told_once_on_whatever_paths():
    shares = Shares(Count())
    other = Shares(Count())
    pipe = Join(Pass(shares), Chain(shares, other))
    assert apply_sharding(pipe, 3, 2, MULTIPROCESSING) is pipe
    assert shares.applied == other.applied == [(3, 2, MULTIPROCESSING)]


def test_a_filter_for_one_group_is_not_told_of_another():
    shares = Shares(Count(), DISTRIBUTED)
    apply_sharding(shares, 2, 0, MULTIPROCESSING)
    assert shares.applied == []
    apply_sharding(shares, 2, 1, DISTRIBUTED)
    assert shares.applied == [(2, 1, DISTRIBUTED)]
    assert reacts_to(shares, DISTRIBUTED)
    assert not reacts_to(shares, DEFAULT)


def test_two_filters_on_one_path_are_refused_for_the_same_group_only():
    first = Shares(Count(), DISTRIBUTED)
    second = Shares(Pass(first), MULTIPROCESSING)
    apply_sharding(second, 2, 0, DISTRIBUTED)
    apply_sharding(second, 4, 1, MULTIPROCESSING)
    assert first.applied == [(2, 0, DISTRIBUTED)]
    assert second.applied == [(4, 1, MULTIPROCESSING)]
    with pytest.raises(RuntimeError, match=r"Sharding twice on a single pipeline.*both for MULTIPROCESSING"):
        apply_sharding(Shares(second), 2, 0, MULTIPROCESSING)
    with pytest.raises(RuntimeError, match="Sharding twice on a single pipeline"):
        apply_sharding(Join(Count(), Pass(Shares(Pass(Shares(Count()))))), 2, 0)


def test_a_graph_that_is_refused_is_left_as_it_was():
    first = Shares(Count())
    with pytest.raises(RuntimeError, match="Sharding twice"):
        apply_sharding(Shares(Pass(first)), 2, 1)
    assert first.applied == []


def test_filters_on_different_paths_do_not_disturb_each_other():
    pipe = Join(Shares(Count()), Shares(Count()))
    apply_sharding(pipe, 2, 1)
    assert all(shares.applied == [(2, 1, DEFAULT)] for shares in pipe.datapipes)


def test_filters_behind_items_that_are_shares_already_stay_inert():
    dealt = Count()
    inert = Shares(Pass(dealt))
    other = Shares(Count())
    apply_sharding(Shares(Join(inert, other)), 2, 0, MULTIPROCESSING, inert_after=[dealt])
    assert inert.applied == []
    assert other.applied == [(2, 0, MULTIPROCESSING)]


class Old(Pass):
    def apply_sharding(self, num_of_instances, instance_id):
        self.told = num_of_instances, instance_id


class Open(Pass):
    def apply_sharding(self, *numbers, **group):
        self.told = (*numbers, group["sharding_group"])


class Renamed(Pass):
    def apply_sharding(self, count, which, who):
        self.told = count, which, who


@pytest.mark.parametrize(("kind", "told"), [(Old, (3, 1)), (Open, (3, 1, DISTRIBUTED)), (Renamed, (3, 1, DISTRIBUTED))])
def test_sharding_methods_of_other_signatures_are_called_too(kind, told):
    pipe = kind(Count())
    assert is_sharding_pipe(pipe)
    apply_sharding(pipe, 3, 1, DISTRIBUTED)
    assert pipe.told == told


@pytest.mark.parametrize(("number", "which"), [(0, 0), (2, 2), (2, -1), (1.5, 0)])
def test_impossible_shares_are_refused(number, which):
    with pytest.raises(ConfigError, match=r"num_of_instances|instance_id"):
        apply_sharding(Shares(Count()), number, which)
    with pytest.raises(ValueError, match=r"num_of_instances|instance_id"):
        apply_sharding(Count(), number, which)
