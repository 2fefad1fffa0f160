"""Prints a dataset and what it delivered, in a few plain lines each."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from headrace.datasets import Dataset
from headrace.datasets.corpus import Corpus
from headrace.show.drawing import format_bytes, format_count, format_seconds

from .console import bold, shorten
from .tally import EpochTally, derive_stream_digest, sum_tallies
from .workers import describe_workers


def describe_dataset(dataset: Dataset) -> dict[str, Any]:
    """Return what a dataset holds, as plain JSON data; without keys if they are known only from its first sequence.

    A dataset with workers is described as the one that they load, with their number.
    """
    return _describe(dataset.get_corpus())


def _describe(corpus: Corpus) -> dict[str, Any]:
    workers = corpus.workers
    if workers is not None and workers.corpus not in (None, corpus):
        return {**_describe(workers.corpus), "num_workers": workers.num_workers}
    try:
        num_seqs: int | None = corpus.num_seqs()
    except NotImplementedError:
        num_seqs = None
    return {
        "class": corpus.kind,
        "num_seqs": num_seqs,
        "seq_ordering": str(corpus.orders.seq_ordering),
        "partition_epoch": corpus.orders.recipe.num_sub_epochs,
        "keys": {
            key: {
                "dtype": spec.dtype,
                "shape": list(spec.shape),
                "dim": spec.num_outputs[0],
                "sparse": spec.sparse,
            }
            for key, spec in (corpus.layout() or {}).items()
            if spec is not None
        },
    }


def describe_key(name: str, layout: dict[str, Any]) -> str:
    """Return one phrase about a data key: `data float32[T, 80]`, `classes int32[T] of 71 classes`."""
    time = ["T"] if layout.get("has_time", True) else []
    axes = ", ".join([*time, *("?" if size is None else str(size) for size in layout["shape"])])
    classes = f" of {format_count(layout['dim'])} classes" if layout["sparse"] and layout["dim"] else ""
    return f"{name} {layout['dtype']}[{axes}]{classes}"


def print_layout(output: Console, layout: dict[str, Any]) -> None:
    """Print what a dataset holds (see `describe_dataset`), in two lines."""
    count = "?" if layout["num_seqs"] is None else format_count(layout["num_seqs"])
    partition = f", partition_epoch={layout['partition_epoch']}" if layout["partition_epoch"] > 1 else ""
    workers = f", {describe_workers(layout['num_workers'])}" if layout.get("num_workers") else ""
    ordering = f"seq_ordering={layout['seq_ordering']}"
    output.print(bold(layout["class"]), f"of {count} sequences, {ordering}{partition}{workers}")
    if layout["keys"]:
        output.print(f"  {'; '.join(describe_key(name, key) for name, key in layout['keys'].items())}")


def print_epoch(output: Console, tally: EpochTally) -> None:
    """Print what one epoch delivered: how much and how fast, the lengths by key, the first and last tags."""
    output.print(bold(f"epoch {tally.epoch}:"), describe_rate(tally))
    width = max((len(key) for key in (*tally.keys, "tags")), default=0)
    for key, counts in tally.keys.items():
        lengths = f"{counts.shortest:,} / {counts.frames / tally.num_seqs:,.1f} / {counts.longest:,}"
        output.print(f"  {key:<{width}}  {format_count(counts.frames)} frames, length {lengths} (min / mean / max)")
    if tally.num_seqs:
        output.print(f"  {'tags':<{width}}  {describe_tags(tally, output.width - width - 4)}")


def print_total(output: Console, tallies: list[EpochTally]) -> None:
    """Print the sums over epochs and the digest of the stream."""
    output.print(bold("total:"), describe_rate(sum_tallies(tallies)))
    output.print(f"  stream digest: {derive_stream_digest(tallies)}")


def describe_rate(tally: EpochTally) -> str:
    """Return how much was delivered, in which time, how fast."""
    amount = f"{format_count(tally.num_seqs)} sequences, {format_bytes(tally.num_bytes)}"
    rate = f"{format_count(tally.seqs_per_second)} seq/s, {format_bytes(tally.bytes_per_second)}/s"
    return f"{amount} in {format_seconds(tally.seconds)}: {rate}"


def describe_tags(tally: EpochTally, width: int) -> str:
    """Return the first and last tags of an epoch, cut if they would take more than `width` columns.

    No tag is shown both as one of the first and as one of the last.
    """
    num_more = tally.num_seqs - len(tally.first_tags)
    last = tally.last_tags[-num_more:] if num_more else []
    gap = " … " if num_more > len(last) else ", " if last else ""
    line = _join_tags(tally.first_tags, gap, last)
    if len(line) <= width:
        return line
    room = max((width - len(gap)) // (len(tally.first_tags) + len(last)) - 2, 6)
    return _join_tags([shorten(tag, room) for tag in tally.first_tags], gap, [shorten(tag, room) for tag in last])


def _join_tags(first: list[str], gap: str, last: list[str]) -> str:
    return ", ".join(first) + gap + ", ".join(last)
