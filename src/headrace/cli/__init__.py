"""The command line: `headrace run`, `inspect`, `index`, `convert`.

This room decides how commands are spelt, what a config file may hold, and how results and errors look in a terminal. It
never decides what a dataset delivers: every command is a thin caller of the rooms above it. Read `app.py` first.
"""

from .app import main

__all__ = ["main"]
