"""`hr.progress`: a line over an iteration, on a terminal, in a log, and after an error."""

from __future__ import annotations

import copy
import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import headrace as hr
from headrace.show import bars, iteration, watched


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def make_loader(num_seqs: int = 20, **options) -> hr.DataLoader:
    items = [{"data": np.zeros((number % 5 + 1, 2), np.float32)} for number in range(num_seqs)]
    return hr.DataLoader(hr.MapDataset(items), batching=hr.FixedCount(2), **options)


def lines_of(loader, **options) -> list[str]:
    file = io.StringIO()
    for _ in hr.progress(loader, file=file, **options):
        pass
    return file.getvalue().splitlines()


def test_it_gives_the_batches_and_a_last_line() -> None:
    with make_loader() as loader, make_loader() as other:
        file = io.StringIO()
        given = [batch.tags for batch in hr.progress(loader, file=file)]
        assert given == [batch.tags for batch in other]
        (line,) = file.getvalue().splitlines()
        assert line.startswith("epoch 1  10/10 steps  ")
        assert " seqs/s  waiting " in line
        assert lines_of(loader)[0].startswith("epoch 2  10/10 steps")


def test_it_is_the_loader_in_all_else() -> None:
    with make_loader() as loader:
        shown = hr.progress(loader, file=io.StringIO())
        assert len(shown) == len(loader) == 10
        shown.set_epoch(3)
        batches = iter(shown)
        next(batches)
        assert shown.state_dict() == loader.state_dict()
        assert loader.position.epoch == 3
        del batches
        assert copy.copy(shown)._loader is loader
        with pytest.raises(AttributeError):
            shown.no_such_thing  # noqa: B018


def test_a_resumed_epoch_counts_the_steps_before() -> None:
    with make_loader() as loader:
        batches = iter(loader)
        next(batches), next(batches), next(batches)
        state = loader.state_dict()
    with make_loader() as loader:
        loader.load_state_dict(state)
        (line,) = lines_of(loader)
    assert line.startswith("epoch 1  10/10 steps")


def test_a_log_gets_lines_now_and_then_and_each_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iteration, "_LOG_SECONDS", 0.0)
    with make_loader() as loader:
        lines = lines_of(loader, label="training")
    assert [line.split("  ")[1] for line in lines] == [f"{n}/10 steps" for n in range(1, 11)] + ["10/10 steps"]
    assert all(line.startswith("training  ") for line in lines)
    assert " left" in lines[0]


def test_any_iterable_will_do() -> None:
    (line,) = lines_of([1, 2, 3])
    assert line.startswith("3/3 steps")
    (line,) = lines_of(number for number in range(4))
    assert line.startswith("4 steps")
    assert lines_of([]) == []


def test_a_terminal_gets_a_bar_whose_last_line_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    file = Terminal()
    with make_loader() as loader:
        for _ in hr.progress(loader, file=file):
            pass
    drawn = file.getvalue()
    assert "\x1b[?25l" in drawn  # the cursor is hidden,
    assert drawn.rindex("\x1b[?25h") > drawn.rindex("10/10 steps")  # and comes back below the last line


TERMINAL = {"TERM": "xterm", "COLUMNS": "100", "PYTHON_COLORS": "0"}  # colours of tracebacks, from Python 3.13 on


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "ValueError"])
def test_an_error_leaves_a_clean_terminal(error: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import headrace as hr\n"
        "def train():\n"
        "    for number in hr.progress(list(range(100))):\n"
        "        if number == 7:\n"
        f"            raise {error}('it went wrong')\n"
        "train()\n"
    )
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(Path(hr.__file__).parents[1]), **TERMINAL}
    child = subprocess.Popen(
        [sys.executable, str(program)], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    written = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        written += piece
    os.close(ours)
    assert child.wait(120) != 0
    text = written.decode()
    assert f"{error}: it went wrong" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1


def test_nobody_watches_a_log_or_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert not watched.is_watched()
    with watched.watched_progress("indexing", "part") as tell:
        assert tell is None


def test_of_the_ranks_of_a_machine_the_first_one_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    try:
        with open(theirs, "w", closefd=False) as terminal:
            monkeypatch.setattr(sys, "stderr", terminal)
            monkeypatch.setattr(os, "tcgetpgrp", lambda fd: os.getpgrp())
            monkeypatch.delenv("HEADRACE_PROGRESS", raising=False)
            seen = []
            for rank in ("0", "1"):
                monkeypatch.setenv("LOCAL_RANK", rank)
                seen.append(watched.is_watched())
    finally:
        os.close(ours)
        os.close(theirs)
    assert seen == [True, False]


def test_what_takes_long_is_shown_to_who_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    file = Terminal()
    monkeypatch.setattr(sys, "stderr", file)
    monkeypatch.setattr(watched, "is_watched", lambda: True)
    for patience, is_shown in ((60.0, False), (0.0, True)):
        monkeypatch.setattr(watched, "PATIENCE_SECONDS", patience)
        with watched.watched_progress("indexing", "part") as tell:
            assert tell is not None
            tell(1, 3)
        assert ("indexing" in file.getvalue()) == is_shown


def watch(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Let somebody watch who has no patience, and return what is drawn."""
    file = Terminal()
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "stderr", file)
    monkeypatch.setattr(watched, "is_watched", lambda: True)
    monkeypatch.setattr(watched, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(bars.TerminalBar, "pause_seconds", 0.0)
    return file


def test_planning_of_an_epoch_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = watch(monkeypatch)
    items = [{"data": np.zeros((number % 5 + 1, 2), np.float32)} for number in range(200)]
    options = {"batching": hr.FrameBudget(20), "window_seqs": 50}
    with hr.DataLoader(hr.StaticDataset(items), **options) as loader:
        len(loader)
    assert "planning: 3/4  " in drawn.getvalue()
    assert "\x1b[?25h" in drawn.getvalue()


def test_a_copy_that_is_waited_for_is_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drawn = watch(monkeypatch)
    for name in "ab":
        (tmp_path / name).write_bytes(bytes(3_000_000))
    with hr.FileCache(cache_directory=tmp_path / "cache") as cache:
        cache.get_file(tmp_path / "a")
        assert "copying: 3.0 MB/3.0 MB  " in drawn.getvalue()
        shown = drawn.getvalue()
        cache.get_file(tmp_path / "a")
        cache.prefetch([tmp_path / "b"])
        assert cache.wait_prefetched(120)
    assert drawn.getvalue() == shown  # nobody waits for what is there, or is copied ahead


def test_threads_share_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = watch(monkeypatch)
    shared = watched.SharedProgress("copying", "bytes")
    with shared.part(1000) as tell, shared.part(2000) as tell_other:
        tell(400)
        tell_other(1200)
        assert "copying: 1.6 kB/3.0 kB  " in drawn.getvalue()
        tell(0)  # it starts over
        assert "copying: 1.2 kB/3.0 kB  " in drawn.getvalue()
    assert drawn.getvalue().count("\x1b[?25l") == drawn.getvalue().count("\x1b[?25h") == 1
    with shared.part(10) as tell:
        tell(5)
    assert "copying: 5 B/10 B  " in drawn.getvalue()
