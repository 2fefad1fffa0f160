"""Reading the formats of corpora: Headrace, and what people use, on the same files, on this machine.

Run `python benchmarks/sources.py [--format tar]`. Each measurement is a process of its own, the contenders take turns,
and medians are shown. Files are in the page cache: the cost of the software shows, not that of the disk. A digest over
all that was delivered is compared. What is not installed is left out, with a line that says so.

A format is a `Format` in `FORMATS`: how its corpus is written, and by whom it is opened and read.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from headrace.datasets import CachedDataset
from headrace.loading import DataLoader
from headrace.sources import TarSource, TarWriter

SEED = 1
BATCH_SIZE = 16
NUM_WORKERS = 2
Arrays = Iterator[np.ndarray]


@dataclass(frozen=True)
class Contender:
    """One way to do what is measured.

    Attributes:
        run: (path, order) -> arrays, in the order; an opener gives one array of lengths.
        needs: Modules that must be installed.
        in_order: Whether it cannot read at random: its arrays come in the order of the file.
    """

    run: Callable[[str, Sequence[int]], Arrays]
    needs: tuple[str, ...] = ()
    in_order: bool = False


@dataclass(frozen=True)
class Format:
    """What is measured of one format.

    Attributes:
        write: (path, arrays) -> writes a corpus.
        measures: What is measured -> by whom; the first one is the measure of the others.
    """

    write: Callable[[str, Iterator[np.ndarray]], None]
    measures: dict[str, dict[str, Contender]]


def corpus(num_seqs: int, num_frames: int, num_features: int) -> Arrays:
    """Yield arrays of about `num_frames` frames of float32 features."""
    rng = np.random.default_rng(SEED)
    for _ in range(num_seqs):
        frames = int(rng.integers(num_frames // 2, num_frames * 3 // 2 + 1))
        yield rng.random((frames, num_features), dtype=np.float32)


# --- tar ---


def write_tar(path: str, arrays: Arrays) -> None:
    with TarWriter(path) as writer:
        for idx, array in enumerate(arrays):
            writer.append(f"corpus/recording-{idx // 10}/segment-{idx:07d}", {"data": array})
    TarSource(path, index=None).index.save(f"{path}.index")


def load_npy(data: bytes) -> np.ndarray:
    return np.load(io.BytesIO(data), allow_pickle=False)


def open_source(index: str | None) -> Callable[[str, Sequence[int]], Arrays]:
    """Open, and have the lengths of all sequences."""

    def run(path: str, _: Sequence[int]) -> Arrays:
        source = TarSource(path, index=index and f"{path}.index")
        yield source.index.lengths("data").astype(np.int64)

    return run


def open_tarfile(path: str, _: Sequence[int]) -> Arrays:
    """List the members; for lengths, the header of each array has to be read."""
    lengths = []
    with tarfile.open(path, "r:") as archive:
        for member in archive:
            if member.name.endswith(".npy"):
                file = archive.extractfile(member)
                np.lib.format.read_magic(file)
                lengths.append(np.lib.format.read_array_header_1_0(file)[0][0])
    yield np.array(lengths, np.int64)


def read_source(path: str, order: Sequence[int]) -> Arrays:
    source = TarSource(path, index=f"{path}.index")
    for corpus_idx in order:
        yield source.read(corpus_idx, "data")


def read_tarfile(path: str, order: Sequence[int]) -> Arrays:
    """Read at random, from a list of members that was made before."""
    with tarfile.open(path, "r:") as archive:
        members = [member for member in archive if member.name.endswith(".npy")]
        yield np.zeros(0)  # what comes before is opening
        for corpus_idx in order:
            yield load_npy(archive.extractfile(members[corpus_idx]).read())


def read_tarfile_in_order(path: str, _: Sequence[int]) -> Arrays:
    with tarfile.open(path, "r|") as archive:
        for member in archive:
            if member.name.endswith(".npy"):
                yield load_npy(archive.extractfile(member).read())


def webdataset_of(path: str) -> Any:
    import webdataset

    return webdataset.WebDataset(path, shardshuffle=False).decode()


def read_webdataset(path: str, _: Sequence[int]) -> Arrays:
    for seq in webdataset_of(path):
        yield seq["data.npy"]


def load_source(path: str, order: Sequence[int]) -> Arrays:
    """Deliver padded batches from two workers; the arrays are cut out of them."""
    source = TarSource(path, index=f"{path}.index")
    dataset = CachedDataset(source=source, seq_ordering="default")
    dataset.init_seq_order(epoch=1, seq_order=list(order))
    with DataLoader(dataset, batch_size=BATCH_SIZE, num_workers=NUM_WORKERS, drop_last=False) as loader:
        for batch in loader:
            yield from (row[:length] for row, length in zip(batch["data"], batch.lengths["data"], strict=True))


def pad_seqs(seqs: list[dict[str, Any]]) -> tuple[Any, list[int]]:
    import torch

    arrays = [torch.from_numpy(seq["data.npy"]) for seq in seqs]
    return torch.nn.utils.rnn.pad_sequence(arrays, batch_first=True), [len(array) for array in arrays]


def load_webdataset(path: str, _: Sequence[int]) -> Arrays:
    """Deliver padded batches from a worker of torch's loader: one archive cannot be shared by two."""
    from torch.utils.data import DataLoader as TorchLoader

    loader = TorchLoader(webdataset_of(path), batch_size=BATCH_SIZE, num_workers=1, collate_fn=pad_seqs)
    for data, lengths in loader:
        yield from (row[:length] for row, length in zip(data.numpy(), lengths, strict=True))


TAR = Format(
    write_tar,
    {
        "open, with lengths": {
            "headrace, known": Contender(open_source("known")),
            "headrace, first time": Contender(open_source(None)),
            "tarfile": Contender(open_tarfile),
        },
        "read": {
            "headrace, at random": Contender(read_source),
            "tarfile, at random": Contender(read_tarfile),
            "tarfile, in order": Contender(read_tarfile_in_order, in_order=True),
            "webdataset, in order": Contender(read_webdataset, ("webdataset",), in_order=True),
        },
        "padded batches from workers": {
            "headrace": Contender(load_source, in_order=True),
            "torch and webdataset": Contender(load_webdataset, ("webdataset", "torch"), in_order=True),
        },
    },
)
FORMATS = {"tar": TAR}


# --- measuring ---


def measure(format_name: str, what: str, contender: str, path: str, num_seqs: int) -> dict[str, Any]:
    """Time one pass in this process; a second one gives the digest of what came, in the order of the file."""
    chosen = FORMATS[format_name].measures[what][contender]
    for module in chosen.needs:
        importlib.import_module(module)  # imports are nobody's time
    order = list(range(num_seqs))
    if not chosen.in_order:
        order = np.random.default_rng(SEED).permutation(num_seqs).tolist()
    is_opening = what.startswith("open")
    arrays = chosen.run(path, order)
    num_bytes = 0
    start = time.perf_counter()
    for number, array in enumerate(arrays):
        if number == 0 and not is_opening:  # a loader and a reader have started when the first one comes
            start = time.perf_counter()
        num_bytes += array.nbytes
    seconds = time.perf_counter() - start
    digests = [xxhash.xxh3_64_intdigest(np.ascontiguousarray(array)) for array in chosen.run(path, order) if array.size]
    return {
        "seconds": seconds,
        "num_bytes": 0 if is_opening else num_bytes,
        "digest": xxhash.xxh3_128_hexdigest(json.dumps(sorted(digests)).encode()),
    }


def in_own_process(args: dict[str, Any]) -> dict[str, Any]:
    command = [sys.executable, __file__, "--worker", json.dumps(args)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{args} failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure_all(names: list[str], args: dict[str, Any], repeats: int) -> Iterator[dict[str, Any]]:
    """Yield one result for each contender: the median time of those that delivered the same."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for _ in range(repeats):
        for name in names:
            runs[name].append(in_own_process({"contender": name, **args}))
    digests = {name: {run["digest"] for run in results} for name, results in runs.items()}
    if len(set().union(*digests.values())) != 1:
        raise SystemExit(f"the contenders delivered different data: {digests}")
    for name, results in runs.items():
        seconds = statistics.median(run["seconds"] for run in results)
        yield {"contender": name, "seconds": seconds, "num_bytes": results[0]["num_bytes"]}


def measure_format(name: str, folder: str, scale: int, repeats: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of one format: short sequences, and long ones."""
    for size, num_seqs, num_frames in (("short", 20_000, 30), ("long", 1_000, 1000)):
        path = str(Path(folder) / f"{size}.{name}")
        num_seqs //= scale
        FORMATS[name].write(path, corpus(num_seqs, num_frames, 40))
        for what, contenders in FORMATS[name].measures.items():
            there = []
            for contender, chosen in contenders.items():
                missing = [module for module in chosen.needs if importlib.util.find_spec(module) is None]
                if missing:
                    print(f"{name}, {size}, {what}, {contender}: left out, {', '.join(missing)} is not installed")
                else:
                    there.append(contender)
            args = {"format_name": name, "what": what, "path": path, "num_seqs": num_seqs}
            results = list(measure_all(there, args, repeats))
            for row in results:
                ratio = row["seconds"] / results[0]["seconds"]
                yield {"what": f"{name}, {size}: {what}", "num_seqs": num_seqs, "ratio": ratio, **row}


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| what | contender | seconds | us/sequence | sequences/s | MB/s | time, first row = 1 |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        seconds, num_seqs = row["seconds"], row["num_seqs"]
        megabytes = f"{row['num_bytes'] / seconds / 1e6:,.0f}" if row["num_bytes"] else ""
        lines.append(
            f"| {row['what']} | {row['contender']} | {seconds:.4f} | {seconds / num_seqs * 1e6:.2f} "
            f"| {num_seqs / seconds:,.0f} | {megabytes} | {row['ratio']:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--format", choices=sorted(FORMATS), action="append", help="all if not given")
    parser.add_argument("--repeats", type=int, default=5, help="processes per measurement")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--quick", action="store_true", help="small files, one repeat: shows that it works, no more")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        with contextlib.redirect_stdout(io.StringIO()):  # what a contender prints is kept from our one line of JSON
            result = measure(**json.loads(options.worker))
        print(json.dumps(result))
        return
    scale, repeats = (20, 1) if options.quick else (1, options.repeats)
    rows: list[dict[str, Any]] = []
    for name in options.format or FORMATS:
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
            rows += measure_format(name, folder, scale, repeats)
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
