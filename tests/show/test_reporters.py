"""Progress on stderr."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from headrace.show import reporters as progress
from headrace.show.reporters import describe_state, open_reporter


def run_reporter(console: Console, *, quiet: bool = False) -> None:
    with open_reporter(console, "epoch 1", 4, quiet=quiet) as reporter:
        for number in range(4):
            reporter.update(number + 1, 100 * (number + 1))


def test_a_terminal_gets_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress.BarReporter, "_PAUSE_SECONDS", 0.0)
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    run_reporter(console)
    drawn = console.file.getvalue()
    assert "epoch 1" in drawn
    assert "4/4" in drawn
    assert drawn.endswith("\x1b[2K")  # the line is cleared at the end


def test_a_log_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), width=80)
    run_reporter(console)
    assert console.file.getvalue() == ""  # far less than the time between two lines has passed
    monkeypatch.setattr(progress.LineReporter, "_PAUSE_SECONDS", 0.0)
    run_reporter(console)
    lines = console.file.getvalue().splitlines()
    assert [line.split()[2] for line in lines] == ["1/4", "2/4", "3/4", "4/4"]


def test_quiet_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress.BarReporter, "_PAUSE_SECONDS", 0.0)
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    run_reporter(console, quiet=True)
    assert console.file.getvalue() == ""


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((0, 0, 10, 0.0), "0/10  0 seq/s"),
        ((5, 5000, None, 1.0), "5  5 seq/s  5.0 kB/s"),
        ((10, 0, 10, 1.0), "10/10  10 seq/s  0.000 s left"),
        ((12, 0, 10, 1.0), "12/10  12 seq/s  0.000 s left"),
    ],
)
def test_the_state_says_what_is_known(arguments: tuple[int, int, int | None, float], text: str) -> None:
    assert describe_state(*arguments) == text
