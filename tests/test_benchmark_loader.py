"""The loader benchmark: it runs without any peer, and what a peer fails by is a line of the result and not the end."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.slow
@pytest.mark.long  # what it measures takes longer on a busy machine
def test_the_loader_benchmark_measures_headrace_alone(tmp_path):
    figures, plot = tmp_path / "figures.json", tmp_path / "plot.svg"
    options = ["--quick", "--peers", "headrace", "--seconds", "0.05", "--json", figures, "--plot", plot]
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "loader.py", *options], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    (measured,) = json.loads(figures.read_text())["results"].values()
    assert not [(key, rounds) for key, rounds in measured.items() if "error" in rounds[0]]
    assert measured["speech cheap"][0]["frames"] > 0
    assert 0 < measured["costs speech"][0]["padding"] < 0.1
    assert len(set(measured["costs words"][0]["steps"])) == 1
    assert all(len(measured[key][0]["seconds"]) == 3 for key in measured if key.startswith("resume"))
    assert "### Frames per second" in done.stdout
    assert ET.parse(plot).getroot().tag.endswith("svg")


def test_what_a_peer_fails_by_is_shown_and_what_it_cannot_do(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    from measuring.loader_report import report

    ours = {"frames": 300.0, "batches": 3.0, "cpu_seconds": 0.1, "pss_mib": 20.0}
    results = {
        "Headrace": {"speech cheap": [ours, ours], "resume 10": [{"seconds": [0.1, 0.1, 0.1]}]},
        "one": {"speech cheap": [{**ours, "frames": 100.0}, {"error": "Boom: no"}], "resume 10": [{"seconds": None}]},
        "two": {"speech cheap": [{"error": "Boom: no"}] * 2, "resume 10": [{"error": "not done after 9 s"}]},
    }
    about = {"python": "3", "cores": 2, "load before and after": [0, 1], "seconds": 9, "words": "none", "rounds": 2}
    lines = report(results, about).splitlines()
    assert "| one | 100 |  |  |  |" in lines
    assert "| two | failed |  |  |  |" in lines
    assert "| one | 3.00 x |  |  |  |" in lines
    assert "| one | cannot | cannot | cannot |" in lines
    assert "| two | failed | failed | failed |" in lines
    assert "- two, resume 10: not done after 9 s" in lines
