"""How progress is drawn: a bar on a terminal and in a notebook, a plain line now and then elsewhere, as in a log.

Invariant: all bars of one terminal are lines of one drawing, whatever opens them, so none is drawn over another.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

_PAUSE_SECONDS = 0.1  # smooth for the eye
_BAR_WIDTH = 16


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


class _Screen:
    """The bars that are open on one terminal.

    Args:
        console: Of the terminal.
    """

    def __init__(self, console: Console) -> None:
        columns = BarColumn(bar_width=_BAR_WIDTH), TextColumn("{task.description}", markup=False)
        self.progress = Progress(*columns, console=console, auto_refresh=False, transient=True)
        self.num_open = 0


_screens: dict[Any, _Screen] = {}  # by the file that is written to
_mutex = threading.RLock()  # protects `_screens`; a finalizer of this thread may close a bar meanwhile


class TerminalBar:
    """A bar and a text in one line, which is drawn anew each time.

    Args:
        console: A terminal.
        stays: Whether the last line stays when it is closed.
    """

    first_seconds, pause_seconds = 0.0, _PAUSE_SECONDS

    def __init__(self, console: Console, *, stays: bool) -> None:
        self._file, self._stays = console.file, stays
        with _mutex:
            screen = _screens.get(self._file)
            if screen is None:
                screen = _screens[self._file] = _Screen(console)
                screen.progress.start()
            screen.num_open += 1
            self._screen: _Screen | None = screen
            self._task: TaskID = screen.progress.add_task("", total=None)

    def draw(self, text: str, num_done: int, total: int | None) -> None:
        """Draw the line anew, and those of the other bars."""
        if self._screen is not None:
            self._screen.progress.update(self._task, description=text, completed=num_done, total=total)
            self._screen.progress.refresh()

    def close(self) -> None:
        """Leave the last line, or nothing; the cursor below it, and the bars that are still open."""
        with _mutex:
            screen, self._screen = self._screen, None
            if screen is None:
                return
            progress = screen.progress
            screen.num_open -= 1
            if not screen.num_open:
                del _screens[self._file]
                progress.live.transient = not self._stays
                progress.stop()
                return
            (task,) = (task for task in progress.tasks if task.id == self._task)
            progress.remove_task(self._task)
            if self._stays:
                progress.console.print(progress.make_tasks_table([task]))  # above those that are open
            progress.refresh()


class NotebookBar:
    """A bar and a text as an output of a cell, which is replaced each time; needs no widgets.

    Args:
        stays: Whether the last line stays when it is closed.
    """

    first_seconds, pause_seconds = 0.0, _PAUSE_SECONDS

    def __init__(self, *, stays: bool) -> None:
        self._stays = stays
        self._shown: Any = None  # the output; None: not yet

    def draw(self, text: str, num_done: int, total: int | None) -> None:
        """Replace the line."""
        full = _BAR_WIDTH * min(num_done, total) // total if total else 0
        self._show(f"{'━' * full}{'─' * (_BAR_WIDTH - full)} {text}")

    def close(self) -> None:
        """Leave the last line, or nothing."""
        if self._shown is not None and not self._stays:
            self._show("")

    def _show(self, line: str) -> None:
        from IPython.display import display  # type: ignore[import-not-found, unused-ignore]

        output = {"text/plain": line}
        if self._shown is None:
            self._shown = display(output, raw=True, display_id=True)
        else:
            self._shown.update(output, raw=True)


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
    if console.is_jupyter:
        return NotebookBar(stays=stays)
    return TerminalBar(console, stays=stays) if console.is_terminal else LogLines(console, log_seconds)
