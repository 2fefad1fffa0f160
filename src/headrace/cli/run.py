"""`headrace run`: reads epochs of a corpus, and reports what was delivered and how fast."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from headrace.datasets import Dataset, init_dataset
from headrace.show.drawing import format_count
from headrace.show.reporters import open_reporter

from .configs import load_job, named_config, parse_epochs
from .console import open_messages, open_output, print_json
from .options import AsJson, Callables, Config, DatasetSettings
from .report import describe_dataset, print_epoch, print_layout, print_total
from .tally import EpochTally, derive_stream_digest, sum_tallies
from .workers import OnError, WorkerOptions, print_report, report_to_json


def run(
    config: Config,
    epochs: Annotated[
        str | None,
        typer.Option(metavar="N|A..B", help="N: epochs 1 to N; A..B: epochs A to B. Default: the config's, or 1."),
    ] = None,
    callables: Callables = None,
    settings: DatasetSettings = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop each epoch after this many sequences.")] = None,
    num_workers: Annotated[
        int | None,
        typer.Option(min=0, help="Number of worker processes; 0 loads in this one. Default: the config's, or 0."),
    ] = None,
    buffer_size: Annotated[
        int | None, typer.Option(min=1, help="Sequences that a worker may load ahead. Default: the config's, or 100.")
    ] = None,
    on_error: Annotated[
        OnError | None,
        typer.Option(help="What to do with a sequence that fails to load. Default: the config's, or raise."),
    ] = None,
    quarantine: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Append skipped sequences, and why, to this file.")
    ] = None,
    max_errors: Annotated[
        int | None, typer.Option(min=0, help="Sequences that may be skipped in an epoch. Default: 100.")
    ] = None,
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, and only the total.")] = False,
) -> None:
    """Read epochs of a corpus in order; print what was delivered, how fast, and a digest of the stream."""
    workers = WorkerOptions(num_workers, buffer_size, on_error, quarantine, max_errors)
    job = load_job(config, settings or (), callables=callables or ())
    numbers = job.epochs if epochs is None else parse_epochs(epochs, "--epochs")
    output, messages = open_output(), open_messages()
    tallies: list[EpochTally] = []
    with named_config(config):
        opened = init_dataset(workers.apply_to(job.dataset))
    with opened as dataset:
        layout = describe_dataset(dataset)
        if not as_json and not quiet:
            print_layout(output, layout)
        for epoch in numbers:
            tallies.append(read_epoch(dataset, epoch, messages, limit=limit, quiet=quiet))
            if not as_json and not quiet:
                print_epoch(output, tallies[-1])
        own_workers = dataset.get_corpus().workers  # with their report, which is lost when it is closed
    if not as_json:
        print_total(output, tallies)
        if own_workers is not None and own_workers.report is not None:
            print_report(output, own_workers, own_workers.report, quarantine)
        return
    result = {
        "config": str(config),
        "dataset": layout,
        "epochs": [tally.to_json() for tally in tallies],
        "total": sum_tallies(tallies).rates_to_json(),
        "digest": derive_stream_digest(tallies),
    }
    if own_workers is not None and own_workers.report is not None:
        result["workers"] = report_to_json(own_workers, own_workers.report)
    print_json(result)


def read_epoch(
    dataset: Dataset, epoch: int, messages: Console, *, limit: int | None = None, quiet: bool = False
) -> EpochTally:
    """Read one epoch to its end, or its first `limit` sequences, with progress on `messages` unless `quiet`.

    Raises:
        KeyboardInterrupt: With a note on how far the run came.
    """
    tally = EpochTally(epoch)
    start = time.perf_counter()
    try:
        seqs = dataset.epoch(epoch)
        with open_reporter(messages, f"epoch {epoch}", _expected_seqs(dataset, limit), quiet=quiet) as reporter:
            for seq in seqs:
                tally.add(seq)
                reporter.update(tally.num_seqs, tally.num_bytes)
                if tally.num_seqs == limit:
                    break
    except KeyboardInterrupt as interrupt:
        interrupt.add_note(f"in epoch {epoch} after {format_count(tally.num_seqs)} sequences")
        raise
    tally.seconds = time.perf_counter() - start
    return tally


def _expected_seqs(dataset: Dataset, limit: int | None) -> int | None:
    known = [count for count in (dataset.estimated_num_seqs, limit) if count is not None and math.isfinite(count)]
    return min(known, default=None)
