"""What a worker leaves behind for the trainer to read: its place, and the reason of its end."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from headrace.engine.process.exit_cause import count_oom_kills, describe_exit, explain_exit
from headrace.engine.process.status_page import StatusPage, create_status_page


def _two_sides() -> tuple[StatusPage, StatusPage]:
    fd = create_status_page()
    sides = StatusPage(fd), StatusPage(fd)
    os.close(fd)
    return sides


def test_a_tag_that_is_too_long_is_cut() -> None:
    worker, trainer = _two_sides()
    worker.write_item("x" * 10_000, 3)
    place = trainer.read_item()
    assert place is not None
    assert place.tag is not None
    assert place.tag == "x" * len(place.tag)
    assert len(place.tag) > 1000
    assert place.epoch == 3


def test_exits_are_told_by_number_and_name() -> None:
    assert describe_exit(0) == "ended with exit code 0"
    assert describe_exit(-signal.SIGKILL) == "was killed by signal 9 (SIGKILL)"
    assert describe_exit(-40).startswith("was killed by signal 40")


def test_memory_is_blamed_only_if_its_count_rose_and_the_signal_fits() -> None:
    def explain(exit_code: int, before: int | None, now: int | None) -> str:
        return explain_exit(exit_code, oom_kills_before=before, oom_kills_now=now, stack="")

    assert "rose from 2 to 3" in explain(-signal.SIGKILL, 2, 3)
    for case in ((-signal.SIGKILL, 2, 2), (-signal.SIGSEGV, 2, 3), (1, 2, 3), (-signal.SIGKILL, None, 3)):
        assert "memory" not in explain(*case)


def test_the_count_of_both_kinds_of_control_groups_is_found(tmp_path: Path) -> None:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (cgroups / "memory" / "jobs").mkdir(parents=True)
    (cgroups / "here").mkdir()
    (cgroups / "memory" / "jobs" / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
    (cgroups / "here" / "memory.events").write_text("low 0\noom 9\noom_kill 5\noom_group_kill 7\n")
    for line, count in (("4:memory:/jobs", 4), ("0::/here", 5), ("0::/elsewhere", None), ("3:cpu:/jobs", None)):
        (proc / "self" / "cgroup").write_text(f"{line}\n")
        assert count_oom_kills(proc=proc, cgroups=cgroups) == count
