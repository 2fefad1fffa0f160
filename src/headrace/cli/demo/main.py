"""`headrace demo`: the main job on real recordings, from audio to a training, with what a newcomer wants to see.

All that it writes is in one folder, the index of the corpus and what the file cache keeps included.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from headrace.datasets import Dataset, MultiProcDataset, init_dataset
from headrace.errors import ConfigError, HeadraceError, InternalError, SourceError
from headrace.sources import AudioSource
from headrace.version import __version__

from ..console import bold, open_messages, open_output, shorten
from ..convert.command import describe_layout, write_corpus
from ..drawing import draw_sparkline, format_bytes, format_count, format_seconds
from ..report import describe_rate
from ..tally import EpochTally, derive_stream_digest, sum_tallies
from ..workers import DEFAULT_BUFFER_SIZE
from .files import show_files
from .training import show_training

PARTITION_EPOCH = 2
SEQ_ORDERING = "laplace:.20"
NUM_WORKERS = 2
_INDEX_VARIABLE = "HEADRACE_CACHE"
_WORKERS = f"{NUM_WORKERS} workers"


@dataclass
class _Epoch:
    """What one epoch delivered, in order."""

    tally: EpochTally
    tags: list[str] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)


def demo(
    corpus: Annotated[Path, typer.Option(help="Folder with manifest.jsonl.")] = Path("data/spoken_numbers"),
    output: Annotated[Path, typer.Option(help="Folder for all that is written.")] = Path("demo_out"),
    epochs: Annotated[int, typer.Option(min=1, help="How many epochs; two are one pass over the corpus.")] = 4,
) -> None:
    """Convert recorded words to HDF5, run epochs over them, train on them, kill and resume that, and check it all."""
    manifest = corpus / "manifest.jsonl"
    if not manifest.is_file():
        raise ConfigError(
            "the corpus of the demo is not here",
            where=str(manifest.absolute()),
            fix="run it in the root of a clone of Headrace, or pass --corpus FOLDER with a manifest.jsonl in it",
        )
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fix = "choose another one with --output FOLDER"
        raise SourceError(f"cannot make the folder: {error.strerror}", where=str(output.absolute()), fix=fix) from error
    with _index_folder(output / "index"):
        _show(open_output(), corpus, output, range(1, epochs + 1))


@contextmanager
def _index_folder(folder: Path) -> Iterator[None]:
    """Keep indices in a folder, here and in workers."""
    before = os.environ.get(_INDEX_VARIABLE)
    os.environ[_INDEX_VARIABLE] = str(folder.absolute())
    try:
        yield
    finally:
        if before is None:
            del os.environ[_INDEX_VARIABLE]
        else:
            os.environ[_INDEX_VARIABLE] = before


def _show(screen: Console, corpus: Path, output: Path, numbers: range) -> None:
    screen.print(bold(f"Headrace {__version__}: from recordings to a training"))
    hdf = _convert(screen, corpus, output)
    recipe = {"seq_ordering": SEQ_ORDERING, "partition_epoch": PARTITION_EPOCH}
    config = {"class": "HDFDataset", "files": [str(hdf)], **recipe}
    with init_dataset(config) as dataset:
        screen.print()
        screen.print(bold("2. Epochs:"), ", ".join(f"{option}={value}" for option, value in recipe.items()))
        first = [_read(dataset, number) for number in numbers]
        for epoch in first:
            _print_epoch(screen, epoch)
        screen.print("  The lines are the lengths in order: bins of 20, sorted up and down in turn.")
        again = [_read(dataset, number) for number in numbers]
        screen.print()
        screen.print(bold("3. Checks:"), "two epochs are one pass, and the stream is the same, whoever loads it")
        tags = sorted(dataset.get_all_tags())
        _check_exactly_once(screen, first, tags)
    screen.print(f"  stream digest, first run   {_digest(first)}")
    _check_same_stream(screen, "second run", first, again)
    by_workers = _read_in_workers(screen, config, numbers)
    if by_workers:
        _check_same_stream(screen, _WORKERS, first, by_workers)
    screen.print(f"  second run  {describe_rate(sum_tallies([epoch.tally for epoch in again]))}")
    if by_workers:
        _print_worker_rate(screen, [epoch.tally for epoch in by_workers])
    executor = "process" if by_workers else "thread"
    config_of_files = show_files(screen, hdf, tags, executor)
    show_training(screen, hdf, executor)
    screen.print()
    screen.print(f"Next: headrace inspect {hdf}")
    screen.print(f"      headrace plan {config_of_files} --ranks 1,2,4")


def _convert(screen: Console, corpus: Path, output: Path) -> Path:
    source = AudioSource(
        corpus / "manifest.jsonl", features="log_mel", targets={"classes": "word", "language": "language"}
    )
    hdf = output / f"{corpus.resolve().name}.hdf"
    screen.print()
    screen.print(bold("1. Audio to HDF5:"), f"{corpus} -> {hdf}")
    start = time.perf_counter()
    write_corpus(source, hdf, open_messages())
    took = format_seconds(time.perf_counter() - start)
    screen.print(f"  {format_count(len(source))} sequences, {format_bytes(hdf.stat().st_size)}, in {took}")
    screen.print(f"  {describe_layout(source)}")
    return hdf


def _read(dataset: Dataset, number: int) -> _Epoch:
    epoch = _Epoch(EpochTally(number))
    start = time.perf_counter()
    for seq in dataset.epoch(number):
        epoch.tally.add(seq)
        epoch.tags.append(seq.tag)
        epoch.lengths.append(len(seq["data"]))
    epoch.tally.seconds = time.perf_counter() - start
    return epoch


def _print_epoch(screen: Console, epoch: _Epoch) -> None:
    width = min(screen.width, 80)
    line = f"  epoch {epoch.tally.epoch}: {len(epoch.tags)} sequences, {format_count(sum(epoch.lengths))} frames:"
    for tag, length in zip(epoch.tags, epoch.lengths, strict=True):
        word = f" {shorten(tag, 16)} ({length}),"
        if len(line) + len(word) + 2 > width:
            line += " …"
            break
        line += word
    screen.print(line.removesuffix(","))
    screen.print(f"    {draw_sparkline(np.array(epoch.lengths), width - 4)}")


def _check_exactly_once(screen: Console, epochs: list[_Epoch], tags: list[str]) -> None:
    for start in range(0, len(epochs) - PARTITION_EPOCH + 1, PARTITION_EPOCH):
        parts = epochs[start : start + PARTITION_EPOCH]
        came = sorted(tag for epoch in parts for tag in epoch.tags)
        name = " + ".join(str(epoch.tally.epoch) for epoch in parts)
        if came != tags:
            wrong = (Counter(came) - Counter(tags)) + (Counter(tags) - Counter(came))
            raise InternalError(
                f"epochs {name} are not the whole corpus: {sorted(wrong)[:5]} came too often or not at all"
            )
        screen.print(f"  epochs {name}: {format_count(len(came))} sequences, the whole corpus, each exactly once")


def _digest(epochs: list[_Epoch]) -> str:
    return derive_stream_digest([epoch.tally for epoch in epochs])


def _check_same_stream(screen: Console, name: str, first: list[_Epoch], other: list[_Epoch]) -> None:
    if _digest(first) != _digest(other):
        raise InternalError(f"the same epochs differ: stream digests {_digest(first)}, and {_digest(other)} ({name})")
    screen.print(f"  stream digest, {name:<11} {_digest(other)}, equal to the bit")


def _read_in_workers(screen: Console, config: dict[str, Any], numbers: range) -> list[_Epoch]:
    """Read the same epochs through worker processes; where there can be none, say so and return nothing."""
    try:
        with MultiProcDataset(config, NUM_WORKERS, DEFAULT_BUFFER_SIZE) as dataset:
            dataset.initialize()
            return [_read(dataset, number) for number in numbers]
    except InternalError:
        raise
    except (HeadraceError, OSError) as error:  # the data were read just now, so it is the processes that fail
        screen.print(f"  {_WORKERS}: not on this machine, {getattr(error, 'what', error)}")
        return []


def _print_worker_rate(screen: Console, tallies: list[EpochTally]) -> None:
    later = tallies[1:]
    screen.print(f"  {_WORKERS}   {describe_rate(sum_tallies(later or tallies))}")
    start = f"after epoch 1, which took {format_seconds(tallies[0].seconds)} " if later else ""
    screen.print(f"              {start}with their start")
