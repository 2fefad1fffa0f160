"""How progress is drawn: a bar on a terminal and in a notebook, a plain line now and then elsewhere, as in a log."""

from __future__ import annotations

from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

_PAUSE_SECONDS = 0.1  # smooth for the eye


class Bar(Protocol):
    """What shows progress, in the words of who makes some.

    Attributes:
        first_seconds: How long to wait before the first drawing.
        pause_seconds: How long to wait between two drawings.
    """

    first_seconds: float
    pause_seconds: float

    def draw(self, text: str, num_done: int, total: int | None) -> None:
        """Show a text, with a bar of so much of so much."""

    def close(self) -> None:
        """Leave the console as it was. Harmless twice."""


class TerminalBar:
    """A bar and a text in one line, which is drawn anew each time.

    Args:
        console: A terminal or a notebook.
        stays: Whether the last line stays when it is closed.
    """

    first_seconds, pause_seconds = 0.0, _PAUSE_SECONDS

    def __init__(self, console: Console, *, stays: bool) -> None:
        columns = BarColumn(bar_width=16), TextColumn("{task.description}", markup=False)
        self._progress = Progress(*columns, console=console, auto_refresh=False, transient=not stays)
        self._task = self._progress.add_task("", total=None)
        self._progress.start()

    def draw(self, text: str, num_done: int, total: int | None) -> None:
        """Draw the line anew."""
        self._progress.update(self._task, description=text, completed=num_done, total=total)
        self._progress.refresh()

    def close(self) -> None:
        """Leave the last line, or nothing, and the cursor below it."""
        self._progress.stop()


class LogLines:
    """A plain line each time, all of which stay.

    Args:
        console: Not a terminal.
        pause_seconds: How long to wait between two lines, and before the first.
    """

    def __init__(self, console: Console, pause_seconds: float) -> None:
        self._console = console
        self.first_seconds = self.pause_seconds = pause_seconds

    def draw(self, text: str, num_done: int, total: int | None) -> None:
        """Write a line."""
        del num_done, total  # the text has them
        self._console.print(text, soft_wrap=True)

    def close(self) -> None:
        """Do nothing: each line is whole."""


def open_bar(console: Console, *, stays: bool, log_seconds: float) -> Bar:
    """Return what suits a console.

    Args:
        console: Where to draw.
        stays: Whether the last line of a bar stays when it is closed.
        log_seconds: How long to wait between two lines of a log.
    """
    is_watched = console.is_terminal or console.is_jupyter
    return TerminalBar(console, stays=stays) if is_watched else LogLines(console, log_seconds)
