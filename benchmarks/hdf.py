"""Reading HDF5: Headrace, h5py by hand and RETURNN's HDFDataset, on the same files, on this machine.

Run `python benchmarks/hdf.py`. Each measurement is a process of its own, the contenders take turns, and medians are
shown. The files are in the page cache: the cost of the software shows, not that of the disk. A digest over
all that each contender delivered is compared. RETURNN is left out, with a line that says so, if it is not installed
(`pip install headrace[bench]`).
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
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
import xxhash

from headrace.datasets import HDFDataset
from headrace.index import CorpusIndex
from headrace.sources import HDFSource, HDFWriter

SEED = 1
KEYS = ("data", "classes")
Read = Callable[[int], tuple[np.ndarray, np.ndarray]]


def write_corpus(path: Path, num_seqs: int, num_frames: int, num_features: int) -> None:
    """Write sequences of about `num_frames` frames of float32 features, and as many int32 labels."""
    rng = np.random.default_rng(SEED)
    with HDFWriter(path) as writer:
        for idx in range(num_seqs):
            frames = int(rng.integers(num_frames // 2, num_frames * 3 // 2 + 1))
            data = rng.random((frames, num_features), dtype=np.float32)
            classes = rng.integers(0, 1000, frames, dtype=np.int32)
            writer.append(f"corpus/recording-{idx // 10}/segment-{idx}", {"data": data, "classes": classes})


def write_as_returnn(path: Path, num_seqs: int, num_frames: int, num_features: int) -> None:
    """Write the same by RETURNN's writer, which cuts the data into HDF5 chunks."""
    from returnn.datasets.hdf import SimpleHDFWriter

    own = path.with_suffix(".own")
    write_corpus(own, num_seqs, num_frames, num_features)
    source = HDFSource(own, index=None)
    writer = SimpleHDFWriter(str(path), dim=num_features, ndim=2, extra_type={"classes": (1000, 1, "int32")})
    for idx in range(num_seqs):
        data, classes = source.read(idx, "data"), source.read(idx, "classes")
        writer.insert_batch(data[None], [len(data)], [source.tag(idx)], extra={"classes": classes[None]})
    writer.close()
    own.unlink()


def order_of(num_seqs: int, order: str) -> list[int]:
    """Return the same order for all contenders."""
    return np.random.default_rng(SEED).permutation(num_seqs).tolist() if order == "random" else list(range(num_seqs))


# Each contender gives a function that reads the sequence at one position of the order.


def headrace_source(path: str, order: list[int]) -> Read:
    source = HDFSource(path, index=None)

    def read(position: int) -> tuple[np.ndarray, np.ndarray]:
        seq = source.read_seq(order[position])
        return seq["data"], seq["classes"]

    return read


def headrace_dataset(path: str, order: list[int]) -> Read:
    dataset = HDFDataset([path], index=None)
    dataset.init_seq_order(epoch=1, seq_order=order)

    def read(position: int) -> tuple[np.ndarray, np.ndarray]:
        dataset.load_seqs(position, position + 1)
        return dataset.get_data(position, "data"), dataset.get_data(position, "classes")

    return read


def h5py_by_hand(path: str, order: list[int]) -> Read:
    file = h5py.File(path, "r")
    ends = np.cumsum(file["seqLengths"][:], axis=0, dtype=np.int64)
    bounds = np.concatenate([np.zeros((1, 2), np.int64), ends]).tolist()
    data, classes = file["inputs"], file["targets/data/classes"]

    def read(position: int) -> tuple[np.ndarray, np.ndarray]:
        (data_start, classes_start), (data_end, classes_end) = bounds[order[position]], bounds[order[position] + 1]
        return data[data_start:data_end], classes[classes_start:classes_end]

    return read


def returnn_dataset(path: str, order: list[int]) -> Read:
    from returnn.datasets.hdf import HDFDataset as ReturnnHDFDataset

    dataset = ReturnnHDFDataset(files=[path], cache_byte_size=0)
    dataset.initialize()
    dataset.init_seq_order(epoch=1, seq_order=order)

    def read(position: int) -> tuple[np.ndarray, np.ndarray]:
        dataset.load_seqs(position, position + 1)
        return dataset.get_data(position, "data"), dataset.get_data(position, "classes")

    return read


READERS = {
    "headrace source": headrace_source,
    "headrace HDFDataset": headrace_dataset,
    "h5py by hand": h5py_by_hand,
    "RETURNN HDFDataset": returnn_dataset,
}


# Each opener opens the corpus (lengths included) and gives all tags; each finder opens it and looks one tag up.


def index_of(path: str) -> CorpusIndex:
    """Open the corpus as a job does that has run before."""
    return HDFSource(path, index=f"{path}.index").index


def returnn_of(path: str, **options: object) -> object:
    from returnn.datasets.hdf import HDFDataset as ReturnnHDFDataset

    dataset = ReturnnHDFDataset(files=[path], cache_byte_size=0)
    dataset.initialize()
    dataset.init_seq_order(epoch=1, **options)
    return dataset


def tags_by_hand(path: str) -> list[str]:
    with h5py.File(path, "r") as file:
        np.cumsum(file["seqLengths"][:], axis=0, dtype=np.int64)
        return [tag.decode() for tag in file["seqTags"][:]]


OPENERS = {
    "headrace, fresh index": lambda path: index_of(path).tags[:],
    "headrace, no index": lambda path: HDFSource(path, index=None).index.tags[:],
    "h5py by hand": tags_by_hand,
    "RETURNN HDFDataset": lambda path: list(returnn_of(path).get_all_tags()),
}
TAG = "corpus/recording-371/segment-3712"
FINDERS = {
    "headrace, fresh index": lambda path: index_of(path).find_tags([TAG]).tolist(),
    "headrace, no index": lambda path: HDFSource(path, index=None).index.find_tags([TAG]).tolist(),
    "h5py by hand": lambda path: [tags_by_hand(path).index(TAG)],
    "RETURNN HDFDataset": lambda path: [int(returnn_of(path, seq_list=[TAG]).get_corpus_seq_idx(0))],
}


def measure_reading(contender: str, path: str, order_name: str, num_seqs: int) -> dict[str, object]:
    """Time one pass in this process; then digest a second pass, so that the digest costs no time of the first."""
    read = READERS[contender](path, order_of(num_seqs, order_name))
    for position in range(min(200, num_seqs)):  # opens files, warms up caches of the interpreter
        read(position)
    read = READERS[contender](path, order_of(num_seqs, order_name))  # again: a dataset's window only moves forward
    num_bytes = 0
    start = time.perf_counter()
    for position in range(num_seqs):
        data, classes = read(position)
        num_bytes += data.nbytes + classes.nbytes
    seconds = time.perf_counter() - start
    digest = xxhash.xxh3_128()
    read = READERS[contender](path, order_of(num_seqs, order_name))
    for position in range(num_seqs):
        for array in read(position):
            digest.update(np.ascontiguousarray(array).data)
    return {"seconds": seconds, "num_bytes": num_bytes, "digest": digest.hexdigest()}


def measure_opening(contender: str, path: str, what: str) -> dict[str, object]:
    measured = (OPENERS if what == "tags" else FINDERS)[contender]
    if contender.startswith("RETURNN"):
        import returnn.datasets.hdf  # noqa: F401 - imports are nobody's time to open
    start = time.perf_counter()
    result = measured(path)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "num_bytes": 0, "digest": xxhash.xxh3_128_hexdigest(json.dumps(result).encode())}


def run_worker(args: dict[str, object]) -> None:
    """Measure in this process; what a contender prints is kept from our one line of JSON."""
    with contextlib.redirect_stdout(io.StringIO()):
        result = measure_opening(**args) if "order_name" not in args else measure_reading(**args)
    print(json.dumps(result))


def in_own_process(args: dict[str, object]) -> dict[str, object]:
    command = [sys.executable, __file__, "--worker", json.dumps(args)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{args} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def measure_all(names: list[str], args: dict[str, object], repeats: int) -> Iterator[dict[str, object]]:
    """Yield one result for each contender: the median time of those that delivered the same."""
    runs: dict[str, list[dict[str, object]]] = {name: [] for name in names}
    for _ in range(repeats):
        for name in names:
            runs[name].append(in_own_process({"contender": name, **args}))
    digests = {name: {run["digest"] for run in results} for name, results in runs.items()}
    if len(set().union(*digests.values())) != 1:
        raise SystemExit(f"the contenders delivered different data: {digests}")
    for name, results in runs.items():
        seconds = statistics.median(run["seconds"] for run in results)
        yield {"contender": name, "seconds": seconds, "num_bytes": results[0]["num_bytes"]}


def table(rows: list[dict[str, object]]) -> str:
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
    parser.add_argument("--repeats", type=int, default=5, help="processes per measurement")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--quick", action="store_true", help="small files, one repeat: shows that it works, no more")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        run_worker(json.loads(options.worker))
        return
    has_peer = importlib.util.find_spec("returnn") is not None
    if not has_peer:
        print("RETURNN is not installed: left out")
    scale, repeats = (20, 1) if options.quick else (1, options.repeats)
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        jobs = []
        corpora = [("small", 20_000, 30, 40, write_corpus), ("large", 1_000, 1000, 80, write_corpus)]
        if has_peer:
            corpora.append(("by RETURNN's writer", 4_000, 150, 40, write_as_returnn))
        for name, num_seqs, num_frames, num_features, write in corpora:
            path, num_seqs = Path(folder) / f"{name}.hdf", num_seqs // scale
            write(path, num_seqs, num_frames, num_features)
            for order in ("random", "file"):
                args = {"path": str(path), "order_name": order, "num_seqs": num_seqs}
                jobs.append((f"{name}, {order} order", READERS, num_seqs, args))
        path, num_seqs = Path(folder) / "many.hdf", 100_000 // scale
        write_corpus(path, num_seqs, 2, 1)
        HDFSource(path, index=None).index.save(f"{path}.index")
        jobs.append(("open, all tags", OPENERS, num_seqs, {"path": str(path), "what": "tags"}))
        jobs.append(("open, find a tag", FINDERS, num_seqs, {"path": str(path), "what": "find"}))
        for what, contenders, num_seqs, args in jobs:
            names = [name for name in contenders if has_peer or not name.startswith("RETURNN")]
            results = list(measure_all(names, args, repeats))
            first = results[0]["seconds"]
            rows += [{"what": what, "num_seqs": num_seqs, "ratio": row["seconds"] / first, **row} for row in results]
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
