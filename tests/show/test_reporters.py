"""Progress on stderr."""

from __future__ import annotations

import io
import sys
import types

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


def test_bars_of_one_terminal_are_lines_of_one_drawing() -> None:
    """Each has a console of its own, as a loader's bar and that of a copy which it waits for."""
    file = io.StringIO()
    first, second = (
        bars.open_bar(Console(file=file, force_terminal=True, width=80), stays=stays, log_seconds=0.0)
        for stays in (True, False)
    )
    first.draw("steps", 1, 4)
    second.draw("copying", 2, 4)
    both = file.getvalue()
    assert both.count("\x1b[?25l") == 1  # the cursor is hidden once
    last = both.rsplit("\x1b[2K", 1)[1]
    assert "steps" in last
    assert "copying" in last
    first.close()
    first.close()
    assert both.count("\x1b[?25h") == 0
    second.draw("copying", 3, 4)
    above, last = file.getvalue().rsplit("\x1b[2K", 1)
    assert "copying" in last
    assert "steps" not in last
    assert "steps" in above[len(both) :]  # its line stays, above
    second.close()
    assert file.getvalue().count("\x1b[?25h") == 1
    assert not bars._screens


def test_a_notebook_needs_no_widgets(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []

    class Handle:
        def update(self, output, raw):
            shown.append((output["text/plain"], raw))

    def display(output, raw, display_id):
        shown.append((output["text/plain"], raw and display_id))
        return Handle()

    module = types.ModuleType("IPython.display")
    module.display = display
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    console = Console(file=io.StringIO(), force_jupyter=True)
    for stays in (True, False):
        bar = bars.open_bar(console, stays=stays, log_seconds=0.0)
        bar.draw("steps", 1, 4)
        bar.draw("steps", 4, 4)
        bar.close()
    lines = [f"{'━' * 4}{'─' * 12} steps", f"{'━' * 16} steps"]
    assert shown == [(line, True) for line in (*lines, *lines, "")]


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
