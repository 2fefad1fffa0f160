"""How much there is to read: the size and shape of the source tree, and the calls behind one batch and one ticket.

Run `python benchmarks/house.py` (some seconds, no peers). What is counted: each call of a Python function of this
package, those of properties, generators that go on and comprehensions included, by a profiler in the thread of the
consumer, whatever they are called by; what C code or other packages do is not. Files are those that the functions are
in. What a call costs is in other benchmarks.

* "dataset and loader": an `HDFDataset` is made, opened and indexed, and a loader over it; "loader": the latter alone.
* "first batch", "further batch": with `num_workers=0`, so that the consumer plans, makes and takes the batch.
* "ticket": of two worker processes, the mean over 200 in mid-run; what is done for several tickets at once is shared
  out. "of each" counts the calls that come at least nine times in ten tickets, and their files alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import headrace
from headrace import DataLoader, DistributeFilesDataset, FrameBudget, HDFDataset, HDFWriter, MultiProcDataset
from headrace.engine import Engine, Job, WorkerInfo
from measuring.structure import SourceTree

_PACKAGE = Path(headrace.__file__).parent
_DATASETS = (HDFDataset, MultiProcDataset, DistributeFilesDataset)
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
    rooms = tree.code_of_rooms()
    return {
        "source files": len(tree.modules),
        "code lines": sum(rooms.values()),
        **{f"code lines of {room or 'the root'}": rooms[room] for room in sorted(rooms)},
        **{f"ancestors of {cls.__name__}": len(cls.__mro__) - 1 for cls in _DATASETS},
        **{
            f"public attributes of {cls.__name__}": sum(not name.startswith("_") for name in dir(cls))
            for cls in _DATASETS
        },
        "class names with several meanings": len(tree.ambiguous_names()),
        "Protocols with one implementation": len(tree.lonely_protocols()),
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
    with counted() as both:
        DataLoader(_open(path), batching=FrameBudget(400), num_workers=0).close()
    dataset = _open(path)
    with counted() as constructor:
        loader = DataLoader(dataset, batching=FrameBudget(400), num_workers=0)
    with loader:
        iterator = iter(loader)
        with counted() as first:
            next(iterator)
        for _ in range(5):
            next(iterator)
        with counted() as further:
            next(iterator)
    return {"dataset and loader": both, "loader": constructor, "first batch": first, "further batch": further}


def _open(path: Path) -> HDFDataset:
    """Return a dataset whose file was read and indexed."""
    dataset = HDFDataset([path], seq_ordering="random")
    dataset.init_seq_order(1)
    return dataset


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
    of_each = {name: number for name, number in Counter(calls.names).items() if number >= 0.9 * count}
    return {
        "calls": round(len(calls.names) / count, 1),
        "files": len(calls.files),
        "calls of each": round(sum(of_each.values()) / count, 1),
        "files of each": len({name.partition(":")[0] for name in of_each}),
    }


def main() -> None:
    """Print the table; `--names` prints the calls of a further batch, too."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", action="store_true", help="print what is called for a loader and for a batch")
    parser.add_argument("--quick", action="store_true", help="the same: it is quick")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the numbers to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "corpus.hdf"
        write_corpus(path)
        of_batches = batches(path)
    result: dict[str, Any] = structure()
    result.update({name: calls.as_dict() for name, calls in of_batches.items()})
    result["ticket of 64 KiB"] = tickets(1 << 14)
    result["ticket of 1 KiB"] = tickets(1 << 8)
    for name, value in result.items():
        text = ", ".join(f"{number} {what}" for what, number in value.items()) if isinstance(value, dict) else value
        print(f"{name:62} {text}")
    if options.names:
        for title in ("loader", "further batch"):
            print(title, *of_batches[title].names, sep="\n  ")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
