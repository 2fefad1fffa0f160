"""The children of a process, also of one that ends while they are looked for."""

import gc
import os
from pathlib import Path

import pytest

from headrace.engine.process import proc_tree


def test_nothing_stays_open_where_a_process_ends_while_its_children_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_gone(path: Path) -> bytes:
        raise FileNotFoundError(path)

    monkeypatch.setattr(proc_tree, "_kernel_lists_children", lambda: True)
    monkeypatch.setattr(Path, "read_bytes", is_gone)
    assert proc_tree.children_of(os.getpid()) == []
    gc.collect()  # an iterator that is left open is a warning, and so an error
