"""The corpus in many files, read by sub-epochs, through a file cache."""

from __future__ import annotations

import contextlib
import runpy
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from headrace import init_dataset
from headrace.errors import InternalError
from headrace.files import atomic_write
from headrace.sources import HDFSource, HDFWriter

from .command import headrace
from .stream import EpochRead, read_epoch, stream_digest

NUM_FILES, NUM_SUB_EPOCHS, NUM_PASSES = 20, 5, 2
_STEP_SECONDS = 0.004  # what a training would take for a sequence: the time in which the next files are fetched
CACHE_FOLDER = "file_cache"
_PROGRAM = '''"""Written by the demonstration: a config for `headrace run` and `headrace plan`."""

from pathlib import Path

from headrace import CachedFile

FOLDER = Path(__file__).parent.resolve()


def sub_epoch(files):
    """Say what dataset some files make; each is read from a copy in the file cache."""
    return {{"class": "HDFDataset", "files": [CachedFile(file) for file in files], "seq_ordering": "random"}}


dataset = {{
    "class": "DistributeFilesDataset",
    "files": [str(FOLDER / "files" / f"{name}.{{part:02d}}.hdf") for part in range({num_files})],
    "get_sub_epoch_dataset": sub_epoch,
    "partition_epoch": {num_sub_epochs},
    "seq_ordering": "random",
    "file_cache": {{"cache_directory": str(FOLDER / "{cache}"), "max_bytes": "8 MB"}},
}}
epochs = {num_epochs}
'''


@dataclass(frozen=True)
class _Reading:
    """One sub-epoch as it came.

    Attributes:
        epoch: What came.
        num_files: How many files it has.
        num_there: How many of them were in the cache when it was asked for.
    """

    epoch: EpochRead
    num_files: int
    num_there: int


def show_files(screen: Console, hdf: Path, tags: list[str], executor: str) -> Path:
    """Split an HDF5 file, and read the parts by sub-epochs; return the config that describes that.

    Args:
        screen: Where to tell.
        hdf: The corpus. All that is written goes into its folder.
        tags: Its tags, sorted.
        executor: How sub-epochs are read, see `DistributeFilesDataset`.

    Raises:
        InternalError: A sequence did not come exactly once, or the stream depends on who reads it.
    """
    num_files = min(NUM_FILES, len(tags))
    num_sub_epochs = min(NUM_SUB_EPOCHS, num_files)
    screen.print()
    screen.print(
        Text(f"4. {num_files} files:", style="bold"),
        f"a pass is {num_sub_epochs} sub-epochs, files come through a cache",
    )
    config = _write_parts(hdf, num_files, num_sub_epochs)
    _show_plan(screen, config)
    options: Any = runpy.run_path(str(config))["dataset"]
    cache = hdf.parent / CACHE_FOLDER
    shutil.rmtree(cache, ignore_errors=True)  # what an earlier demonstration left
    epochs = range(1, NUM_PASSES * num_sub_epochs + 1)
    with init_dataset(options, {"executor": executor}) as dataset:
        readings = [_read(dataset, epoch, cache, _STEP_SECONDS) for epoch in epochs]
    first, second = readings[:num_sub_epochs], readings[num_sub_epochs:]
    screen.print(
        f"  Read at the pace of a training, {1000 * _STEP_SECONDS:.0f} ms a sequence. It waits for the first one:"
    )
    for reading in first:
        screen.print(f"  sub-epoch {reading.epoch.epoch}  {_describe(reading)}")
    screen.print(f"  second pass  {_describe(*second)}")
    for part in (first, second):
        if sorted(tag for reading in part for tag in reading.epoch.tags) != tags:
            raise InternalError("a pass over the files is not the corpus, each sequence exactly once")
    screen.print(f"  both passes: {len(tags)} sequences, the whole corpus, each exactly once")
    with init_dataset(options, {"executor": "inline"}) as dataset:
        again = [_read(dataset, epoch, cache) for epoch in epochs]
    digests = [stream_digest([reading.epoch for reading in some]) for some in (readings, again)]
    if digests[0] != digests[1]:
        raise InternalError(f"the same sub-epochs differ: stream digests {digests[0]}, and {digests[1]} (no worker)")
    screen.print(f"  stream digest {digests[0]}, the same without a worker")
    return config


def _show_plan(screen: Console, config: Path) -> None:
    """Print the bins that `headrace plan` shows of a config: how many files each sub-epoch has."""
    _facts, bins, _balance = headrace("plan", config, "--ranks", 1, "--count", "--quiet").split("\n\n")
    screen.print(bins)


def _write_parts(hdf: Path, num_files: int, num_sub_epochs: int) -> Path:
    """Write the corpus in parts of neighbouring sequences, and a config of them."""
    folder = hdf.parent / "files"
    folder.mkdir(exist_ok=True)
    with contextlib.closing(HDFSource(hdf, index=None)) as source:
        for part in range(num_files):
            start, stop = (part * len(source) // num_files, (part + 1) * len(source) // num_files)
            path = folder / f"{hdf.stem}.{part:02d}.hdf"
            with HDFWriter(path, specs=source.specs, labels=source.labels, overwrite=True) as writer:
                for corpus_idx in range(start, stop):
                    writer.append(source.tag(corpus_idx), source.read_seq(corpus_idx))
    config = hdf.parent / "sub_epochs.py"
    with atomic_write(config, "w") as file:
        file.write(
            _PROGRAM.format(
                name=hdf.stem,
                num_files=num_files,
                num_sub_epochs=num_sub_epochs,
                cache=CACHE_FOLDER,
                num_epochs=NUM_PASSES * num_sub_epochs,
            )
        )
    return config


def _read(dataset: Any, epoch: int, cache: Path, step_seconds: float = 0.0) -> _Reading:
    """Read a sub-epoch, taking some time for each sequence."""
    files = dataset.get_files(epoch)
    copies = {path.name for path in (cache / "data").rglob("*.hdf")}
    num_there = sum(Path(file).name in copies for file in files)
    return _Reading(read_epoch(dataset, epoch, step_seconds), len(files), num_there)


def _describe(*readings: _Reading) -> str:
    """Return how long the first sequences took, and whether their files were there."""
    waits = sorted(1000 * reading.epoch.first_seconds for reading in readings)
    wait = f"{waits[0]:6.1f}" if len(waits) == 1 else f"{waits[0]:.1f} to {waits[-1]:.1f}"
    num_files, num_there = (sum(getattr(reading, name) for reading in readings) for name in ("num_files", "num_there"))
    start = "; a worker starts" if readings[0].epoch.epoch == 1 else ""
    return f"{wait} ms; {num_there} of {num_files} files were in the cache already{start}"
