"""Which agents were lost together."""

from __future__ import annotations

from headrace.engine.remote.seat import LossesByHost


def test_agents_of_one_machine_that_were_connected_when_the_first_was_lost_were_lost_together() -> None:
    losses = LossesByHost()
    first = losses.accident_of("a", connected_at=1.0, lost_at=10.0)
    assert losses.accident_of("a", connected_at=9.0, lost_at=11.5) == first
    other = losses.accident_of("b", connected_at=1.0, lost_at=10.1)
    assert other != first
    assert losses.accident_of("b", connected_at=2.0, lost_at=10.2) == other
    assert losses.accident_of("a", connected_at=1.5, lost_at=12.0) == first


def test_a_machine_that_loses_new_agents_again_and_again_has_as_many_accidents() -> None:
    losses = LossesByHost()
    assert len({losses.accident_of("a", connected_at=t - 0.5, lost_at=float(t)) for t in range(10)}) == 10


def test_one_that_is_lost_much_later_was_lost_by_itself() -> None:
    losses = LossesByHost()
    assert losses.accident_of("a", connected_at=1.0, lost_at=10.0) != losses.accident_of(
        "a", connected_at=1.0, lost_at=100.0
    )
