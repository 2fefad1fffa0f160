"""`headrace plan`: which rank gets how much in which sub-epoch, before anything runs.

The dataset is asked for the plan (`subject.py`); numbers are in `amounts.py`, and shown by `table.py`.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from headrace.errors import ConfigError, HeadraceError
from headrace.show.reporters import report_progress

from ..configs import load_job, named_config, parse_epochs
from ..console import open_messages, open_output, print_json
from ..options import AsJson, Callables, Config, DatasetSettings, Quiet
from .amounts import UNKNOWN, Amounts
from .subject import FilesSubject, Subject, open_subject
from .table import Results, print_balance, print_bins, print_comparison, print_facts

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
        str | None,
        typer.Option(
            metavar="R[,R...]",
            help="Number of ranks; several are compared. Default: that of the config or launcher.",
        ),
    ] = None,
    callables: Callables = None,
    settings: DatasetSettings = None,
    count: Annotated[bool, typer.Option("--count", help="Open each file to count its sequences and frames.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Show how files, or sequences, are distributed over sub-epochs and ranks; starts no worker, copies no file."""
    worlds = [] if ranks is None else parse_ranks(ranks)
    given = _parse_epochs(epoch, epochs)
    job, messages = load_job(config, settings or (), callables=callables or ()), open_messages()
    with named_config(config):
        with report_progress(messages, "opening" if count else "measuring", unit="files", quiet=quiet) as progress:
            subject = open_subject(job.dataset, count=count, progress=progress)
        with subject.dataset:
            size = subject.size
            planned = given or subject.first_pass
            results = _measure(subject, planned, worlds or [subject.facts.num_ranks], messages, quiet=quiet)
    if as_json:
        print_json(_to_json(config, subject, size, results))
    else:
        _print(open_output(), subject, size, results)


def parse_ranks(text: str) -> list[int]:
    """Return the numbers of ranks of `1,2,8,64`, each once, in their order.

    Raises:
        ConfigError: One of them is not a number of ranks.
    """
    numbers = []
    for part in text.split(","):
        if not (part.strip().isdecimal() and 1 <= int(part) <= _MAX_RANKS):
            raise ConfigError(
                f"{part!r} is not a number of ranks", where=f"--ranks {text}", fix="for example --ranks 1,2,8,64"
            )
        numbers.append(int(part))
    return list(dict.fromkeys(numbers))


def _parse_epochs(epoch: int | None, epochs: str | None) -> range | None:
    if epoch is not None and epochs is not None:
        raise ConfigError("--epoch and --epochs are both given", fix="give only one of them")
    if epoch is not None:
        return range(epoch, epoch + 1)
    return None if epochs is None else parse_epochs(_DASHED.sub(r"\1..\2", epochs), "--epochs")


def _measure(subject: Subject, epochs: range, worlds: list[int], messages: Console, *, quiet: bool) -> Results:
    """Return the amounts for each number of ranks, or the error where a number is impossible."""
    results: dict[int, Amounts | HeadraceError] = {}
    for num_ranks in worlds:
        try:
            with report_progress(messages, f"planning {num_ranks} ranks", unit="parts", quiet=quiet) as progress:
                results[num_ranks] = subject.measure(epochs, num_ranks, progress)
        except ConfigError as error:
            results[num_ranks] = error
    errors = [result for result in results.values() if isinstance(result, HeadraceError)]
    if len(errors) == len(results):
        raise errors[0]
    return results


def _print(output: Console, subject: Subject, size: str, results: Results) -> None:
    print_facts(output, subject.facts, size, max(results))
    output.print()
    (first, *others) = results.values()
    if others:
        print_comparison(output, results)
    else:
        assert isinstance(first, Amounts)
        print_bins(output, first)
        output.print()
        print_balance(output, first)
        if isinstance(subject, FilesSubject) and _is_uneven(subject, first):
            output.print("for a more even distribution, try --set balance=largest_first")


def _is_uneven(subject: Subject, amounts: Amounts) -> bool:
    way = subject.facts.options.get("balance", "in_order")
    return way == "in_order" and amounts.balance(amounts.drawn).among_ranks > _UNEVEN


def _to_json(config: Path, subject: Subject, size: str, results: Results) -> dict[str, Any]:
    facts = subject.facts
    plans = []
    for num_ranks, result in results.items():
        if isinstance(result, Amounts):
            plans.append({"ranks": num_ranks, **_amounts_to_json(result)})
        else:
            plans.append({"ranks": num_ranks, "error": result.what})
    return {
        "config": str(config),
        "dataset": {"class": facts.name, "size": size, "options": dict(facts.options)},
        "plans": plans,
    }


def _amounts_to_json(amounts: Amounts) -> dict[str, Any]:
    balance = {name: dataclasses.asdict(amounts.balance(name)) for name in amounts.balanced}
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
    return {"balance": balance, "bins": bins}
