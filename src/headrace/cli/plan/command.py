"""`headrace plan`: which rank gets how much in which sub-epoch, before anything runs.

The dataset is asked for the plan (`subject.py`); numbers are in `amounts.py`, and shown by `table.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.errors import ConfigError
from headrace.show.reporters import report_progress

from ..configs import load_job, named_config, parse_epochs
from ..console import open_messages, open_output, print_json
from ..options import AsJson, Callables, Config, DatasetSettings, Quiet
from .amounts import UNKNOWN, Amounts
from .subject import FilesSubject, PlannedDataset, open_subject
from .table import print_balance, print_bins, print_facts

_DASHED = re.compile(r"(\d+)-(\d+)")
_UNEVEN = 1.1  # max/mean: above it, ranks wait long enough to make another distribution worthwhile
_MAX_RANKS = 65_536  # more is surely a typing error, and would take for ever


def plan(
    config: Config,
    epoch: Annotated[int | None, typer.Option(min=1, help="Show this sub-epoch only.")] = None,
    epochs: Annotated[
        str | None,
        typer.Option(metavar="N|A..B", help="N: epochs 1 to N; A..B: epochs A to B. Default: the first full pass."),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(min=1, max=_MAX_RANKS, help="Number of ranks. Default: that of the config or launcher."),
    ] = None,
    callables: Callables = None,
    settings: DatasetSettings = None,
    count: Annotated[bool, typer.Option("--count", help="Open each file to count its sequences and frames.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Show how files, or sequences, are distributed over sub-epochs and ranks; starts no worker, copies no file."""
    given = _parse_epochs(epoch, epochs)
    job, messages = load_job(config, settings or (), callables=callables or ()), open_messages()
    with named_config(config):
        with report_progress(messages, "opening" if count else "measuring", unit="files", quiet=quiet) as progress:
            subject = open_subject(job.dataset, count=count, progress=progress)
        with contextlib.closing(subject.corpus):
            size, num_ranks = subject.size, ranks or subject.facts.num_ranks
            label = f"planning {num_ranks} ranks"
            with report_progress(messages, label, unit="parts", quiet=quiet) as progress:
                amounts = subject.measure(given or subject.first_pass, num_ranks, progress)
    if as_json:
        print_json(_to_json(config, subject, size, amounts))
        return
    output = open_output()
    print_facts(output, subject.facts, size, num_ranks)
    output.print()
    print_bins(output, amounts)
    output.print()
    print_balance(output, amounts)
    if isinstance(subject, FilesSubject) and _is_uneven(subject, amounts):
        output.print("for a more even distribution, try --set balance=largest_first")


def _parse_epochs(epoch: int | None, epochs: str | None) -> range | None:
    if epoch is not None and epochs is not None:
        raise ConfigError("--epoch and --epochs are both given", fix="give only one of them")
    if epoch is not None:
        return range(epoch, epoch + 1)
    return None if epochs is None else parse_epochs(_DASHED.sub(r"\1..\2", epochs), "--epochs")


def _is_uneven(subject: PlannedDataset, amounts: Amounts) -> bool:
    way = subject.facts.options.get("balance", "in_order")
    return way == "in_order" and amounts.balance(amounts.drawn).among_ranks > _UNEVEN


def _to_json(config: Path, subject: PlannedDataset, size: str, amounts: Amounts) -> dict[str, Any]:
    facts = subject.facts
    bins = [
        {
            "epoch": epoch,
            "rank": rank,
            **{
                name: int(column[row, rank]) for name, column in amounts.by_name.items() if column[row, rank] != UNKNOWN
            },
        }
        for row, epoch in enumerate(amounts.epochs)
        for rank in range(amounts.num_ranks)
    ]
    return {
        "config": str(config),
        "dataset": {"class": facts.name, "size": size, "options": dict(facts.options)},
        "ranks": amounts.num_ranks,
        "balance": {name: dataclasses.asdict(amounts.balance(name)) for name in amounts.balanced},
        "bins": bins,
    }
