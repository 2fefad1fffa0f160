"""Progress on stderr."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from headrace.show import bars, reporters
from headrace.show.reporters import describe_state, open_reporter, report_progress


def run_reporter(console: Console, *, quiet: bool = False) -> None:
    with open_reporter(console, "epoch 1", 4, quiet=quiet) as reporter:
        for number in range(4):
            reporter.update(number + 1, 100 * (number + 1))


def test_a_terminal_gets_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bars.TerminalBar, "pause_seconds", 0.0)
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    run_reporter(console)
    drawn = console.file.getvalue()
    assert "epoch 1" in drawn
    assert "4/4" in drawn
    assert drawn.endswith("\x1b[2K")  # the line is cleared at the end
    assert drawn.count("\x1b[?25l") == drawn.count("\x1b[?25h") == 1


def test_a_log_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), width=30)  # shorter than the lines, which stay whole
    run_reporter(console)
    assert console.file.getvalue() == ""  # far less than the time between two lines has passed
    monkeypatch.setattr(reporters, "_LOG_SECONDS", 0.0)
    run_reporter(console)
    lines = console.file.getvalue().splitlines()
    assert [line.split()[2] for line in lines] == ["1/4", "2/4", "3/4", "4/4"]


def test_quiet_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bars.TerminalBar, "pause_seconds", 0.0)
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    run_reporter(console, quiet=True)
    assert console.file.getvalue() == ""


def test_work_that_began_before_it_is_shown_counts_from_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(reporters.time, "monotonic", lambda: now)
    monkeypatch.setattr(reporters, "_LOG_SECONDS", 0.0)
    console = Console(file=io.StringIO(), width=80)
    with report_progress(console, "indexing", unit="part", quiet=False, after=2.0) as tell:
        tell(1, 40)
        assert console.file.getvalue() == ""
        now = 110.0
        tell(20, 40)
    assert console.file.getvalue() == "indexing: 20/40  2 part/s  10.0 s left\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((0, 0, 10, 0.0), "0/10  0 seq/s"),
        ((1_500_000, 0, None, 1.0, "bytes"), "1.5 MB  1.5 MB/s"),
        ((5, 5000, None, 1.0), "5  5 seq/s  5.0 kB/s"),
        ((10, 0, 10, 1.0), "10/10  10 seq/s  0.000 s left"),
        ((12, 0, 10, 1.0), "12/10  12 seq/s  0.000 s left"),
    ],
)
def test_the_state_says_what_is_known(arguments: tuple, text: str) -> None:
    assert describe_state(*arguments) == text
