"""The main job on real recordings, from audio to a training, with what a newcomer wants to see.

All that it writes is in one folder, the index of the corpus and what the file cache keeps included.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from headrace import MultiProcDataset, __version__, init_dataset
from headrace.errors import ConfigError, HeadraceError, InternalError, SourceError

from .command import headrace
from .files import show_files
from .stream import EpochRead, describe_rate, draw_lengths, read_epoch, stream_digest
from .training import show_training

PARTITION_EPOCH = 2
SEQ_ORDERING = "laplace:.20"
NUM_WORKERS = 2
_BUFFER_SIZE = 100  # sequences that a worker may be ahead
_INDEX_VARIABLE = "HEADRACE_CACHE"
_WORKERS = f"{NUM_WORKERS} workers"
_MAX_TAG = 16


def demo(corpus: Path, output: Path, num_epochs: int) -> None:
    """Convert recorded words to HDF5, run epochs over them, train on them, kill and resume that, and check it all.

    Args:
        corpus: Folder with `manifest.jsonl`.
        output: Folder for all that is written.
        num_epochs: How many epochs are read; two are one pass over the corpus.

    Raises:
        ConfigError: The corpus is not there.
        SourceError: The folder cannot be made.
        InternalError: A check failed.
    """
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
    screen = Console(markup=False, highlight=False, emoji=False, soft_wrap=True)
    with _index_folder(output / "index"):
        _show(screen, manifest, output, range(1, num_epochs + 1))


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


def _show(screen: Console, manifest: Path, output: Path, numbers: range) -> None:
    _title(screen, f"Headrace {__version__}: from recordings to a training")
    hdf = _convert(screen, manifest, output)
    recipe = {"seq_ordering": SEQ_ORDERING, "partition_epoch": PARTITION_EPOCH}
    config = {"class": "HDFDataset", "files": [str(hdf)], **recipe}
    with init_dataset(config) as dataset:
        screen.print()
        _title(screen, "2. Epochs:", ", ".join(f"{option}={value}" for option, value in recipe.items()))
        first = [read_epoch(dataset, number) for number in numbers]
        for epoch in first:
            _print_epoch(screen, epoch)
        screen.print("  The lines are the lengths in order: bins of 20, sorted up and down in turn.")
        again = [read_epoch(dataset, number) for number in numbers]
        screen.print()
        _title(screen, "3. Checks:", "two epochs are one pass, and the stream is the same, whoever loads it")
        tags = sorted(dataset.get_all_tags())
        _check_exactly_once(screen, first, tags)
    screen.print(f"  stream digest, first run   {stream_digest(first)}")
    _check_same_stream(screen, "second run", first, again)
    by_workers = _read_in_workers(screen, config, numbers)
    if by_workers:
        _check_same_stream(screen, _WORKERS, first, by_workers)
    screen.print(f"  second run  {describe_rate(again)}")
    if by_workers:
        _print_worker_rate(screen, by_workers)
    executor = "process" if by_workers else "thread"
    config_of_files = show_files(screen, hdf, tags, executor)
    show_training(screen, hdf, executor)
    screen.print()
    screen.print(f"Next: headrace inspect {hdf}")
    screen.print(f"      headrace plan {config_of_files} --ranks 4")


def _title(screen: Console, title: str, *rest: str) -> None:
    screen.print(Text(title, style="bold"), *rest)


def _convert(screen: Console, manifest: Path, output: Path) -> Path:
    folder = manifest.parent
    hdf = output / f"{folder.resolve().name}.hdf"
    screen.print()
    _title(screen, "1. Audio to HDF5:", f"{folder} -> {hdf}")
    labels = ["--label", "classes=word", "--label", "language=language"]
    for line in headrace("convert", manifest, hdf, "--features", "log_mel", *labels, "--overwrite").splitlines():
        screen.print(f"  {line.strip()}")
    return hdf


def _print_epoch(screen: Console, epoch: EpochRead) -> None:
    width = min(screen.width, 80)
    line = f"  epoch {epoch.epoch}: {len(epoch.tags)} sequences, {sum(epoch.lengths):,} frames:"
    for tag, length in zip(epoch.tags, epoch.lengths, strict=True):
        word = f" {tag if len(tag) <= _MAX_TAG else tag[: _MAX_TAG - 1] + '…'} ({length}),"
        if len(line) + len(word) + 2 > width:
            line += " …"
            break
        line += word
    screen.print(line.removesuffix(","))
    screen.print(f"    {draw_lengths(epoch.lengths, width - 4)}")


def _check_exactly_once(screen: Console, epochs: list[EpochRead], tags: list[str]) -> None:
    """Check that each full pass over the corpus is the corpus.

    Raises:
        InternalError: It is not.
    """
    for start in range(0, len(epochs) - PARTITION_EPOCH + 1, PARTITION_EPOCH):
        parts = epochs[start : start + PARTITION_EPOCH]
        came = sorted(tag for epoch in parts for tag in epoch.tags)
        name = " + ".join(str(epoch.epoch) for epoch in parts)
        if came != tags:
            wrong = (Counter(came) - Counter(tags)) + (Counter(tags) - Counter(came))
            raise InternalError(
                f"epochs {name} are not the whole corpus: {sorted(wrong)[:5]} came too often or not at all"
            )
        screen.print(f"  epochs {name}: {len(came):,} sequences, the whole corpus, each exactly once")


def _check_same_stream(screen: Console, name: str, first: list[EpochRead], other: list[EpochRead]) -> None:
    expected, digest = stream_digest(first), stream_digest(other)
    if digest != expected:
        raise InternalError(f"the same epochs differ: stream digests {expected}, and {digest} ({name})")
    screen.print(f"  stream digest, {name:<11} {digest}, equal bit for bit")


def _read_in_workers(screen: Console, config: dict[str, Any], numbers: range) -> list[EpochRead]:
    """Read the same epochs through worker processes; where there can be none, say so and return nothing."""
    try:
        with MultiProcDataset(config, NUM_WORKERS, _BUFFER_SIZE) as dataset:
            dataset.initialize()
            return [read_epoch(dataset, number) for number in numbers]
    except InternalError:
        raise
    except (HeadraceError, OSError) as error:  # the data were read just now, so it is the processes that fail
        screen.print(f"  {_WORKERS}: not on this machine, {getattr(error, 'what', error)}")
        return []


def _print_worker_rate(screen: Console, epochs: list[EpochRead]) -> None:
    later = epochs[1:]
    screen.print(f"  {_WORKERS}   {describe_rate(later or epochs)}")
    start = f"after epoch 1, which took {epochs[0].seconds:.1f} s " if later else ""
    screen.print(f"              {start}with their start")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demonstration; return the exit code: 0 all is well, 1 it failed, 2 an option is wrong."""
    parser = argparse.ArgumentParser(prog="demo", description=demo.__doc__.partition("\n")[0])
    parser.add_argument(
        "--corpus", type=Path, default=Path("data/spoken_numbers"), help="folder with manifest.jsonl (%(default)s)"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("demo_out"), help="folder for all that is written (%(default)s)"
    )
    parser.add_argument(
        "--epochs", type=int, default=4, help="how many are read; two are one pass over the corpus (%(default)s)"
    )
    options = parser.parse_args(arguments)
    if options.epochs < 1:
        parser.error("--epochs must be at least 1")
    try:
        demo(options.corpus, options.output, options.epochs)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except HeadraceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
