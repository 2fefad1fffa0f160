"""What the benchmarks say of themselves: which published ratio has become worse."""

from __future__ import annotations

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(2, ""), (1, ""), (0.91, ""), (0.89, "**slower**"), (0.05, "**behind**"), (None, "not measured")],
)
def test_what_is_slower_than_published_is_named(monkeypatch, factor, verdict):
    monkeypatch.syspath_prepend(BENCHMARKS)
    from measuring.ahead import PUBLISHED, compared

    case, published = "64KiB x 1", PUBLISHED["loader_items"]["64KiB x 1"]
    figures = {}
    if factor is not None:
        ours = 7.0 * published * factor
        figures = {case: {"headrace": {"batches": ours}, "torch": {"batches": 7.0}, "other": {"batches": 2.0}}}
    (line,) = [line for line in compared("loader_items", figures) if f"| {case} |" in line]
    assert line.split("|")[-2].strip() == verdict


def test_every_published_case_is_one_that_is_measured(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    from measuring import item_batches, items, loader_report
    from measuring.ahead import PUBLISHED

    assert PUBLISHED["loader_items"].keys() <= item_batches.CASES.keys()
    assert PUBLISHED["loader"].keys() <= set(loader_report.RATES.values())
    assert {what.partition(",")[0] for what in PUBLISHED["transport"]} <= items.KINDS.keys()
