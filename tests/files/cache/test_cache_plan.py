"""Plans that all processes see."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace.files.cache import plan as cache_plan
from headrace.files.cache.entry import derive_source_digest
from headrace.files.cache.plan import FuturePlan, read_distances

_PLANS = """
import sys
from headrace.files.cache.plan import FuturePlan
plan = FuturePlan(sys.argv[1])
plan.replace(sys.argv[2:])
print("planned", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def plan(tmp_path: Path):
    made = FuturePlan(str(tmp_path))
    yield made
    made.close()
    assert os.listdir(tmp_path) == []


def _distances(folder: Path, *sources: str) -> list[float]:
    found = read_distances(str(folder))
    return [found.get(derive_source_digest(source), math.inf) for source in sources]


def test_a_plan_says_how_many_files_are_needed_before_each(plan, tmp_path):
    plan.replace(["/a", "/b", "/a", "/c"])
    assert [plan.distance_of(source) for source in ("/a", "/b", "/c", "/d")] == [0, 1, 3, math.inf]
    assert _distances(tmp_path, "/a", "/b", "/c", "/d") == [0, 1, 3, math.inf]
    plan.note_used("/a")
    assert [plan.distance_of(source) for source in ("/a", "/b", "/c")] == [1, 0, 2]
    assert _distances(tmp_path, "/a", "/b", "/c") == [1, 0, 2]
    plan.replace(["/c"])
    assert _distances(tmp_path, "/a", "/c") == [math.inf, 0]
    plan.replace([])
    assert os.listdir(tmp_path) == []
    assert plan.distance_of("/c") == math.inf


def test_what_is_used_out_of_order_leaves_the_place_of_what_was_passed_over(plan, tmp_path):
    plan.replace(["/a", "/b", "/c"])
    plan.note_used("/c")
    plan.note_used("/unknown")
    assert [plan.distance_of(source) for source in ("/a", "/b", "/c")] == [0, 1, math.inf]
    assert plan.remaining() == ["/a", "/b"]
    plan.note_used("/a")
    plan.note_used("/b")
    assert plan.remaining() == []
    assert _distances(tmp_path, "/a", "/b", "/c") == [math.inf] * 3


@examples(50)
@given(st.lists(st.sampled_from("abcdef"), max_size=20), st.lists(st.sampled_from("abcdefg"), max_size=30))
def test_each_use_takes_one_place_off_the_plan(tmp_path_factory, planned, used):
    folder = tmp_path_factory.mktemp("plans")
    made = FuturePlan(str(folder))
    made.replace(planned)
    left = list(planned)
    for source in used:
        made.note_used(source)
        if source in left:
            left.remove(source)
        assert sorted(made.remaining()) == sorted(left)
        for other in "abcdefg":
            assert math.isinf(made.distance_of(other)) == (other not in left)
    made.close()
    assert os.listdir(folder) == []


@examples(20)
@given(st.lists(st.tuples(st.lists(st.sampled_from("abcd"), max_size=5), st.integers(0, 5)), max_size=3))
def test_the_least_distance_of_all_plans_counts(tmp_path_factory, specs):
    folder = tmp_path_factory.mktemp("plans")
    plans = [FuturePlan(str(folder)) for _ in specs]
    for made, (sources, num_used) in zip(plans, specs, strict=True):
        made.replace(sources)
        for source in sources[:num_used]:
            made.note_used(source)
    expected = [min((made.distance_of(source) for made in plans), default=math.inf) for source in "abcd"]
    assert _distances(folder, *"abcd") == expected
    for made in plans:
        made.close()


def test_only_the_next_files_of_a_long_plan_are_published(plan, tmp_path, monkeypatch):
    monkeypatch.setattr(cache_plan, "_MAX_PUBLISHED", 2)
    plan.replace(["/a", "/b", "/c"])
    assert _distances(tmp_path, "/a", "/b", "/c") == [0, 1, math.inf]
    assert plan.distance_of("/c") == 2


def test_the_nearest_use_in_any_plan_counts_and_a_killed_process_has_none(plan, tmp_path):
    plan.replace(["/x", "/y", "/a"])
    command = [sys.executable, "-c", _PLANS, str(tmp_path), "/a", "/b"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "planned\n"
        assert _distances(tmp_path, "/a", "/b", "/y") == [0, 1, 1]
        assert len(os.listdir(tmp_path)) == 2
        process.kill()
        process.wait()
        assert _distances(tmp_path, "/a", "/b", "/y") == [2, math.inf, 1]
        assert len(os.listdir(tmp_path)) == 1


@pytest.mark.parametrize(
    "text",
    [b"", b"\n", b"{", b'{"position":1}', b'{"position":1}\n["a"', b'{"position":"x"}\n[]', b'{"position":1}\n[1]'],
)
def test_a_torn_plan_is_no_plan(plan, tmp_path, text):
    plan.replace(["/a"])
    (name,) = os.listdir(tmp_path)
    (tmp_path / name).write_bytes(text)
    assert read_distances(str(tmp_path)) == {}


def test_a_plan_that_cannot_be_written_holds_for_this_process(plan, tmp_path):
    with_limit = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    with_limit += "resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))\n"
    with_limit += "import os, sys; from headrace.files.cache.plan import FuturePlan\n"
    with_limit += "plan = FuturePlan(sys.argv[1]); plan.replace(['/a', '/b']); print(plan.distance_of('/b'))\n"
    with_limit += "print(os.listdir(sys.argv[1])); plan.note_used('/a'); plan.close()"
    done = subprocess.run([sys.executable, "-c", with_limit, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["1", "[]"]


def test_a_plan_may_be_withdrawn_in_the_middle_of_a_question(plan, tmp_path):
    """As by the garbage collector, in the thread that asks."""

    class Asked(str):
        def encode(self, *args) -> bytes:
            plan.close()
            return super().encode(*args)

    plan.replace(["/a"])
    with plan._mutex:
        assert plan.distance_of(Asked("/a")) in (0, math.inf)
    assert plan.distance_of("/a") == math.inf
    assert os.listdir(tmp_path) == []
