"""The tables of the loader benchmark, as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from typing import Any

from .loader_contender import OURS

Results = dict[str, dict[str, list[dict[str, Any]]]]  # contender -> what was measured -> figures of each round
RATES = {
    "speech cheap": "speech, cheap",
    "words cheap": "words, cheap",
    "speech expensive": "speech, expensive",
    "words expensive": "words, expensive",
}
CANNOT, FAILED = "cannot", "failed"
Cell = Callable[[str], str]  # contender -> text


def middle(results: Results, title: str, key: str, field: str) -> float | None:
    """Return the median of a figure over the rounds in which it was measured; None if there is none."""
    found = [figures[field] for figures in results.get(title, {}).get(key, []) if figures.get(field) is not None]
    return statistics.median(found) if found else None


def ratio(results: Results, title: str, key: str, field: str) -> float | None:
    """Return the median, over the rounds, of a figure of ours over that of a peer."""
    pairs = zip(results.get(OURS, {}).get(key, []), results[title].get(key, []), strict=False)
    found = [ours[field] / peer[field] for ours, peer in pairs if field in ours and field in peer]
    return statistics.median(found) if found else None


def number(value: float) -> str:
    """Write a number with three digits that count."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def report(results: Results, about: dict[str, Any]) -> str:
    """Return all tables."""
    ways = [f"{count:,}" for count in counts_of(results, "first")]
    parts = [
        ("Frames per second", rate_table(results, "frames", number)),
        ("Batches per second", rate_table(results, "batches", number)),
        ("Frames per second, ours / theirs", ratio_table(results, "frames", lambda value: f"{value:.2f} x")),
        ("Processor seconds for a million frames, all processes", rate_table(results, "cpu_seconds", number)),
        ("The same, theirs / ours", ratio_table(results, "cpu_seconds", lambda value: f"{1 / value:.2f} x")),
        ("Padding, and eight ranks", rank_table(results)),
        ("Seconds to the first batch", first_table(results, "seconds", lambda value: f"{value:.2f}", ways)),
        ("Seconds to the first batch after a resume", resume_table(results)),
        ("PSS of all started processes per worker, MiB", memory_table(results, ways)),
    ]
    load = " and ".join(f"{value:.1f}" for value in about["load before and after"])
    head = (
        f"Python {about['python']}, {about['cores']} cores, load {load} before and after, {about['rounds']} rounds, "
        f"{about['seconds']:.0f} s. Words: {about['words']}."
    )
    return "\n\n".join([head, *("\n".join([f"### {title}", "", *lines]) for title, lines in parts), *failures(results)])


def rows(results: Results, columns: dict[str, Cell], titles: Iterable[str] | None = None) -> list[str]:
    """Return a table with a row for each contender; rows without any figure are left out."""
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for title in results if titles is None else titles:
        cells = [cell(title) for cell in columns.values()]
        if any(cells):
            lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return lines


def cell_of(results: Results, key: str, field: str, write: Callable[[Any], str]) -> Cell:
    """Return what writes one figure: empty if it was not measured, "cannot", or "failed"."""

    def cell(title: str) -> str:
        rounds = results[title].get(key, [])
        found = [figures[field] for figures in rounds if figures.get(field) is not None]
        if found:
            return write(statistics.median(found) if isinstance(found[0], int | float) else found[0])
        if any("error" in figures for figures in rounds):
            return FAILED
        return CANNOT if rounds else ""

    return cell


def rate_table(results: Results, field: str, write: Callable[[float], str]) -> list[str]:
    return rows(results, {name: cell_of(results, key, field, write) for key, name in RATES.items()})


def ratio_table(results: Results, field: str, write: Callable[[float], str]) -> list[str]:
    if OURS not in results:
        return []

    def column(key: str) -> Cell:
        return lambda title: "" if (found := ratio(results, title, key, field)) is None else write(found)

    return rows(results, {name: column(key) for key, name in RATES.items()}, [t for t in results if t != OURS])


def rank_table(results: Results) -> list[str]:
    lines: list[str] = []
    for corpus in ("speech", "words"):
        key = f"costs {corpus}"
        columns = {
            f"{corpus}: padding": cell_of(results, key, "padding", lambda value: f"{value:.2%}"),
            "frames of a batch": cell_of(results, key, "frames", number),
            "largest batch / budget": cell_of(results, key, "largest", lambda value: f"{value:.2f}"),
            "skew": cell_of(results, key, "skew", lambda value: f"{value:.3f}"),
            "steps of the ranks": cell_of(results, key, "steps", lambda both: " to ".join(map(str, sorted(set(both))))),
        }
        lines += [*([""] if lines else []), *rows(results, columns)]
    return lines


def counts_of(results: Results, what: str) -> list[int]:
    """Return the numbers of sequences for which something was measured."""
    keys = {key for measured in results.values() for key in measured if key.startswith(what + " ")}
    return sorted(int(key.rpartition(" ")[2]) for key in keys)


def first_table(results: Results, field: str, write: Callable[[float], str], names: list[str]) -> list[str]:
    counts = counts_of(results, "first")
    return rows(
        results,
        {
            f"{name} sequences": cell_of(results, f"first {count}", field, write)
            for count, name in zip(counts, names, strict=True)
        },
    )


def memory_table(results: Results, names: list[str]) -> list[str]:
    counts = counts_of(results, "first")
    columns = {
        f"{name} sequences of one byte a frame": cell_of(results, f"first {count}", "pss_mib", number)
        for count, name in zip(counts, names, strict=True)
    }
    columns |= {RATES[key]: cell_of(results, key, "pss_mib", number) for key in ("speech cheap", "words cheap")}
    return rows(results, columns)


def resume_table(results: Results) -> list[str]:
    lines: list[str] = []
    for count in counts_of(results, "resume"):
        key = f"resume {count}"

        def column(place: int, key: str = key) -> Cell:
            return cell_of(results, key, "seconds", lambda seconds: f"{seconds[place]:.3f}")

        names = [f"{count:,} sequences, at {share}" for share in ("0 %", "50 %", "99 %")]
        lines += [*([""] if lines else []), *rows(results, {name: column(place) for place, name in enumerate(names)})]
    return lines


def failures(results: Results) -> list[str]:
    """Return a paragraph about what failed."""
    found = [
        f"- {title}, {key}: {figures['error']}"
        for title, measured in results.items()
        for key, rounds in measured.items()
        for figures in rounds
        if "error" in figures
    ]
    return ["\n".join(["Failed:", "", *found])] if found else []
