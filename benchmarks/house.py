"""How much there is to read: the size and shape of the source tree, and the calls behind one batch and one ticket.

Run `python benchmarks/house.py` (some seconds, no peers). Calls are Python calls of functions of this package, counted
by a profiler in the thread of the consumer; files are those that they are in. What a call costs is in other benchmarks.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import headrace
from headrace import DataLoader, FrameBudget, HDFDataset, HDFWriter
from headrace.engine import Engine, Job, WorkerInfo
from measuring.structure import SourceTree

_PACKAGE = Path(headrace.__file__).parent
_ROOMS_WITHOUT_CLASSES = ("headrace.loading", "headrace.cli", "headrace.adapters")


class Calls:
    """What was called while it was counted."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.files: set[str] = set()

    def take(self, frame: FrameType, event: str, _: Any) -> None:
        """Count a call of the package's own; a profiler's function."""
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(str(_PACKAGE)):
            self.names.append(f"{Path(name).relative_to(_PACKAGE)}:{frame.f_code.co_qualname}")
            self.files.add(name)

    def as_dict(self) -> dict[str, int]:
        """Return the counts."""
        return {"calls": len(self.names), "files": len(self.files)}


@contextmanager
def counted() -> Iterator[Calls]:
    """Count what is called inside."""
    calls = Calls()
    sys.setprofile(calls.take)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def structure() -> dict[str, Any]:
    """Measure the source tree."""
    tree = SourceTree(_PACKAGE)
    entries, folder = tree.max_entries()
    return {
        "source files": len(tree.modules),
        "code lines": sum(module.num_code_lines() for module in tree.modules.values()),
        "entries of the largest folder": entries,
        "largest folder": str(folder.relative_to(_PACKAGE.parent)),
        "circles of imports": len(tree.circles()),
        "isinstance against dataset classes in loading, cli, adapters": len(
            tree.class_checks(_ROOMS_WITHOUT_CLASSES, "Dataset")
        ),
        "imports of private names": len(tree.private_imports()),
        "reads of private names across files": len(tree.private_reads()),
    }


def write_corpus(path: Path) -> None:
    """Write 400 sequences of 10 to 50 frames."""
    rng = np.random.default_rng(1)
    with HDFWriter(path) as writer:
        for number in range(400):
            writer.append(f"seq-{number}", {"data": rng.random((int(rng.integers(10, 50)), 8), np.float32)})


def batches(path: Path) -> dict[str, Calls]:
    """Count the calls of the constructor, of the first batch and of one in the middle; consumer and worker are one."""
    with counted() as constructor:
        loader = DataLoader(HDFDataset([path], seq_ordering="random"), batching=FrameBudget(400), num_workers=0)
    with loader:
        iterator = iter(loader)
        with counted() as first:
            next(iterator)
        for _ in range(5):
            next(iterator)
        with counted() as further:
            next(iterator)
    return {"constructor": constructor, "first batch": first, "further batch": further}


def make_setup(size: int) -> Callable[[WorkerInfo], Callable[[int], np.ndarray]]:
    """Return a job's `setup` whose items are arrays of so many numbers."""
    return lambda _: lambda number: np.full(size, number, np.float32)


def tickets(size: int, count: int = 200) -> dict[str, float]:
    """Count the consumer's calls for each ticket of two worker processes, in the middle of a run."""
    with Engine(Job(make_setup(size)), num_workers=2) as engine:
        run = engine.run(range(count + 100))
        for _ in range(50):
            next(run)
        with counted() as calls:
            for _ in range(count):
                next(run)
        for _ in run:
            pass
    return {"calls": round(len(calls.names) / count, 1), "files": len(calls.files)}


def main() -> None:
    """Print the table; `--names` prints the calls of a further batch, too."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", action="store_true", help="print which functions are called for a batch")
    parser.add_argument("--quick", action="store_true", help="the same: it is quick")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "corpus.hdf"
        write_corpus(path)
        of_batches = batches(path)
    result: dict[str, Any] = structure()
    result.update({name: calls.as_dict() for name, calls in of_batches.items()})
    result["ticket of 64 KiB"] = tickets(1 << 14)
    result["ticket of 1 KiB"] = tickets(1 << 8)
    if options.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        text = ", ".join(f"{number} {what}" for what, number in value.items()) if isinstance(value, dict) else value
        print(f"{name:62} {text}")
    if options.names:
        for name in of_batches["further batch"].names:
            print(f"  {name}")


if __name__ == "__main__":
    main()
