"""Files over sub-epochs: Headrace's `DistributeFilesDataset` against RETURNN's, the same config and the same loop.

Run `python benchmarks/files.py`. A corpus of HDF5 files is read in sub-epochs of a few files, shuffled within each,
with one sub-epoch preloaded. Each turn is a process of its own: first a full epoch in which every sequence is compared
with what was written, then one that is read as fast as possible, then one whose reader rests before each change of the
sub-epoch, as a training does, so that the next one is there. Memory is what all processes of the turn have for
themselves and their share of the rest (PSS) when the next sub-epoch is there; processes are counted as they are seen at
each change. A last line
compares it with `MultiProcDataset` on the same files as one epoch: the rate once it is under way, and with the opening
of each sub-epoch. RETURNN is left out, with a line that says so, if it is not installed (`pip install
headrace[bench]`).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from headrace.engine.process.proc_tree import descendants_of
from headrace.sources import HDFWriter

NUM_FEATURES = 8
MEAN_FRAMES = 20
CONTENDERS = {"headrace": "headrace.datasets", "RETURNN": "returnn.datasets.distrib_files"}


def make_seq(number: int) -> dict[str, np.ndarray]:
    """Return a sequence that is known by its number: float32 features and int32 labels."""
    frames = MEAN_FRAMES // 2 + number * 7 % (MEAN_FRAMES + 1)
    data = np.full((frames, NUM_FEATURES), number, np.float32)
    data[:, 0] += np.arange(frames, dtype=np.float32) / 64
    return {"data": data, "classes": (np.arange(frames) + number).astype(np.int32) % 1000}


def write_corpus(folder: Path, num_files: int, num_seqs: int) -> list[str]:
    """Write the files; return their names."""
    names = [str(folder / f"{i:03}.hdf") for i in range(num_files)]
    for i, name in enumerate(names):
        with HDFWriter(name, labels={"classes": [str(label) for label in range(1000)]}) as writer:
            for number in range(i * num_seqs, (i + 1) * num_seqs):
                writer.append(f"seq-{number}", make_seq(number))
    return names


def sub_epoch_dataset(files: list[str]) -> dict[str, Any]:
    """Return the config of a sub-epoch."""
    return {"class": "HDFDataset", "files": files, "seq_ordering": "random"}


def open_dataset(contender: str, files: list[str], buffer_size: int, num_sub_epochs: int, more: dict[str, Any]) -> Any:
    """Make and initialize a dataset."""
    if contender == "headrace":
        from headrace.datasets import DistributeFilesDataset
    else:
        from returnn.datasets.distrib_files import DistributeFilesDataset

        more = {}
    dataset = DistributeFilesDataset(
        files=files,
        get_sub_epoch_dataset=sub_epoch_dataset,
        partition_epoch=num_sub_epochs,
        seq_ordering="random",
        preload_next_n_sub_epochs=1,
        buffer_size=buffer_size,
        **more,
    )
    dataset.initialize()
    return dataset


def read_sub_epoch(dataset: Any, epoch: int, seen: list[int] | None) -> tuple[float, float, int]:
    """Read a sub-epoch; return the seconds to the first sequence and to the end, and how many there were.

    Args:
        dataset: What to read.
        epoch: Which sub-epoch.
        seen: Where to note the sequences; then their data are compared with what was written.
    """
    start = time.perf_counter()
    dataset.init_seq_order(epoch=epoch)
    first, place = 0.0, 0
    while dataset.is_less_than_num_seqs(place):
        dataset.load_seqs(place, place + 1)
        data, classes = dataset.get_data(place, "data"), dataset.get_data(place, "classes")
        first = first or time.perf_counter() - start
        if seen is not None:
            number = int(data[0, 1])
            expected = make_seq(number)
            np.testing.assert_array_equal(data, expected["data"], strict=True)
            np.testing.assert_array_equal(classes, expected["classes"], strict=True)
            assert dataset.get_tag(place) == f"seq-{number}"
            seen.append(number)
        elif len(data) != len(classes):
            raise AssertionError(f"sequence {place}: {len(data)} frames and {len(classes)} labels")
        place += 1
    return first, time.perf_counter() - start, place


def pss_of(pids: list[int]) -> int:
    """Return the bytes that processes have, shared ones divided among those who share them."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue  # it has ended
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


def take_turn(contender: str, options: argparse.Namespace) -> dict[str, float]:
    """Run one turn in this process."""
    files = json.loads(Path(options.list).read_text())
    more = {"num_workers": options.num_workers}
    start = time.perf_counter()
    dataset = open_dataset(contender, files, options.buffer_size, options.num_sub_epochs, more)
    opened = time.perf_counter() - start
    seen: list[int] = []
    first = read_sub_epoch(dataset, 1, seen)[0]
    for epoch in range(2, options.num_sub_epochs + 1):
        read_sub_epoch(dataset, epoch, seen)
    assert sorted(seen) == list(range(len(files) * options.num_seqs)), "not every sequence once"
    epochs = iter(range(options.num_sub_epochs + 1, 10**6))
    seconds, num_seqs = 0.0, 0
    for _ in range(options.num_sub_epochs):
        _, took, num = read_sub_epoch(dataset, next(epochs), None)
        seconds, num_seqs = seconds + took, num_seqs + num
    switches, pids, memory = [], set(), []
    for _ in range(options.num_sub_epochs):
        time.sleep(options.rest_seconds)
        pids |= set(descendants_of(os.getpid()))
        memory.append(pss_of([os.getpid(), *descendants_of(os.getpid())]))
        switches.append(read_sub_epoch(dataset, next(epochs), None)[0])
    return {
        "first_seconds": opened + first,
        "rate": num_seqs / seconds,
        "switch_seconds": statistics.median(switches),
        "longest_switch_seconds": max(switches),
        "memory_bytes": statistics.median(memory),
        "num_processes": len(pids),
    }


def run_turn(contender: str, buffer_size: int, options: argparse.Namespace) -> dict[str, Any] | None:
    """Run one turn in a process of its own."""
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in vars(options).items() if value is not None]
    arguments = [text for text in arguments if not text.startswith(("--quick", "--json", "--turn", "--buffer-size"))]
    command = [sys.executable, __file__, *arguments, f"--buffer-size={buffer_size}", f"--turn={contender}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        print(f"{contender}, buffer_size {buffer_size}: failed: {done.stderr.strip().splitlines()[-1]}")
        return None
    return {"contender": contender, "buffer_size": buffer_size, **json.loads(done.stdout.splitlines()[-1])}


def compare_with_multi_proc(files: list[str], num_seqs: int, num_epochs: int) -> str:
    """Return one line: the rate of `DistributeFilesDataset` in parts of that of `MultiProcDataset`, in turns."""
    from headrace.datasets import DistributeFilesDataset, MultiProcDataset

    options: dict[str, Any] = {"num_workers": 2, "buffer_size": 4096}
    datasets = (
        DistributeFilesDataset(
            files=files, get_sub_epoch_dataset=sub_epoch_dataset, partition_epoch=1, seq_ordering="random", **options
        ),
        MultiProcDataset(dataset=sub_epoch_dataset(files), **options),
    )
    steady, whole = [], []
    try:
        for dataset in datasets:
            dataset.initialize()
            read_sub_epoch(dataset, 1, None)
        for epoch in range(2, num_epochs + 2):
            ours, theirs = (seconds_of_epoch(dataset, epoch, num_seqs // 2) for dataset in datasets)
            steady.append(theirs[0] / ours[0])
            whole.append(theirs[1] / ours[1])
    finally:
        for dataset in datasets:
            dataset.close()
    return (
        f"DistributeFilesDataset has {statistics.median(steady):.2f} of the speed of MultiProcDataset under way, and "
        f"{statistics.median(whole):.2f} with the opening of sub-epochs of {num_seqs:,} sequences"
    )


def seconds_of_epoch(dataset: Any, epoch: int, start: int) -> tuple[float, float]:
    """Return the seconds from a sequence to the end of an epoch, and those of the whole epoch."""
    begun = under_way = time.perf_counter()
    dataset.init_seq_order(epoch=epoch)
    seq_idx = 0
    while dataset.is_less_than_num_seqs(seq_idx):
        if seq_idx == start:
            under_way = time.perf_counter()
        dataset.load_seqs(seq_idx, seq_idx + 1)
        dataset.get_data(seq_idx, "data")
        dataset.get_data(seq_idx, "classes")
        seq_idx += 1
    end = time.perf_counter()
    return end - under_way, end - begun


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as Markdown."""
    head = [
        "| | buffer_size | ms from start to first sequence | ms to first sequence of a later sub-epoch: median, worst "
        "| sequences/s | MB, all processes | processes in a full epoch |",
        "|---|---|---|---|---|---|---|",
    ]
    body = [
        f"| {row['contender']} | {row['buffer_size']} | {row['first_seconds'] * 1000:,.0f} | "
        f"{row['switch_seconds'] * 1000:,.1f}, {row['longest_switch_seconds'] * 1000:,.1f} | {row['rate']:,.0f} | "
        f"{row['memory_bytes'] / 1e6:,.0f} | {row['num_processes']} |"
        for row in rows
    ]
    return "\n".join(head + body)


def compare(rows: list[dict[str, Any]], buffer_size: int) -> str | None:
    """Return one line about both, at one buffer size."""
    ours, theirs = (
        next((row for row in rows if (row["contender"], row["buffer_size"]) == (name, buffer_size)), None)
        for name in CONTENDERS
    )
    if ours is None or theirs is None:
        return None
    return (
        f"buffer_size {buffer_size}: {ours['rate'] / theirs['rate']:.1f} x the sequences/s, the next sub-epoch "
        f"{theirs['switch_seconds'] / ours['switch_seconds']:.0f} x as soon, "
        f"{theirs['memory_bytes'] / ours['memory_bytes']:.1f} x less memory"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-files", type=int, default=20)
    parser.add_argument("--num-seqs", type=int, default=1000, help="in each file")
    parser.add_argument("--num-sub-epochs", type=int, default=10)
    parser.add_argument("--num-workers", type=int, default=1, help="of Headrace; RETURNN has one for a sub-epoch")
    parser.add_argument("--rest-seconds", type=float, default=1.5, help="of the reader, before each sub-epoch")
    parser.add_argument("--buffer-size", type=int, help="only this one; default 1, 100 and 1000")
    parser.add_argument("--quick", action="store_true", help="fewer files and sequences")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--list", help=argparse.SUPPRESS)
    parser.add_argument("--turn", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.turn:
        row = take_turn(options.turn, options)
        print(json.dumps(row), flush=True)
        os._exit(0)  # RETURNN's workers see to themselves
    if options.quick:
        options.num_files, options.num_seqs, options.num_sub_epochs = 8, 300, 4
    contenders = [name for name, module in CONTENDERS.items() if importlib.util.find_spec(module.split(".")[0])]
    for name in CONTENDERS.keys() - set(contenders):
        print(f"{name} is not installed: left out (pip install headrace[bench])")
    buffer_sizes = (100,) if options.quick else (1, 100, 1000)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        options.list = str(Path(folder, "files.json"))
        Path(options.list).write_text(json.dumps(write_corpus(Path(folder), options.num_files, options.num_seqs)))
        files = json.loads(Path(options.list).read_text())
        against = compare_with_multi_proc(files, options.num_files * options.num_seqs, 3 if options.quick else 9)
        for buffer_size in [options.buffer_size] if options.buffer_size else buffer_sizes:
            for contender in contenders:
                row = run_turn(contender, buffer_size, options)
                if row is not None:
                    rows.append(row)
    print(table(rows))
    for buffer_size in sorted({row["buffer_size"] for row in rows}):
        line = compare(rows, buffer_size)
        if line:
            print(f"\n{line}")
    print(f"\n{against}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
