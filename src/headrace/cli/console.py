"""The two streams of a command: results go to stdout, progress, warnings and errors to stderr.

Tags, file names and messages are printed as they are: `[brackets]` are not markup, and nothing is coloured by guessing.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console
from rich.text import Text


class ReaderGoneError(Exception):
    """The output is no longer read. Not a `BrokenPipeError`: that may come from user code."""


class _PlainConsole(Console):
    """A console that leaves a broken pipe to the error boundary, where rich would exit with code 1."""

    def on_broken_pipe(self) -> None:
        """Raise the error.

        Raises:
            ReaderGoneError: Always.
        """
        raise ReaderGoneError


def open_output() -> Console:
    """Return a console on stdout; long lines are not wrapped."""
    return _PlainConsole(markup=False, highlight=False, emoji=False, soft_wrap=True)


def open_messages() -> Console:
    """Return a console on stderr."""
    return _PlainConsole(stderr=True, markup=False, highlight=False, emoji=False, soft_wrap=True)


def print_json(data: Any) -> None:
    """Print one JSON object, and nothing else, on stdout."""
    text = json.dumps(data, indent=2, ensure_ascii=False)
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError as error:
        raise ReaderGoneError from error


def bold(text: str) -> Text:
    """Return a text for a heading."""
    return Text(text, style="bold")


def shorten(text: str, width: int) -> str:
    """Return `text` in at most `width` columns, with an ellipsis in the middle if it is cut."""
    if len(text) <= width:
        return text
    keep = max(width - 1, 2)
    return f"{text[: keep - keep // 2]}…{text[len(text) - keep // 2 :]}"
