"""Build, gather and open the index of a large corpus, and read chunks by it: times, memory, and bytes that are read.

    python benchmarks/index.py [--num-seqs 10000000] [--quick] [--json PATH]

Building is measured in this process. Opening is measured in a fresh one, so that its memory is its own; the file is in
the page cache by then, as for every process of a machine after the first.

Gathering is that of lines of text with a vocabulary, by one process and by two: wall-clock time, and the processor time
of this process alone. Chunks are those of one long sequence, one in a batch: bytes that an epoch reads for each byte
that there is, as this process counts them, and the same where whole sequences are read.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import headrace as hr
from headrace.batching import Chunks
from headrace.datasets import gathering
from headrace.datasets.reading.reader import Reader
from headrace.datasets.reading.source import SourceReader
from headrace.index import CorpusIndex
from headrace.sources import TextSource

NUM_LOOKUPS = 100_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-seqs", type=int, default=10_000_000)
    parser.add_argument("--quick", action="store_true", help="a hundred thousand sequences, and short lines and chunks")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the numbers to this file")
    parser.add_argument("--open", metavar="FILE", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.open:
        print(json.dumps(measure_open(args.open)))
        return
    with tempfile.TemporaryDirectory() as folder:
        results = measure_build(100_000 if args.quick else args.num_seqs, Path(folder) / "corpus.hrindex")
        results |= measure_gathering(Path(folder), 100_000 if args.quick else 2_000_000)
        results |= measure_chunks(Path(folder), 1_000_000 if args.quick else 100_000_000)
        command = [sys.executable, __file__, "--open", f"{folder}/corpus.hrindex"]
        results |= json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    for name, value in results.items():
        print(f"{name:34} {value:>16,.6f}" if isinstance(value, float) else f"{name:34} {value:>16,}")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


def measure_build(num_seqs: int, path: Path) -> dict[str, Any]:
    tags = [f"corpus-{idx % 977}/recording-{idx}/{idx % 31}" for idx in range(num_seqs)]
    lengths = np.random.default_rng(1).integers(1, 3000, size=num_seqs)
    locators = {"file": np.arange(num_seqs, dtype=np.int32) // 100_000, "frame": np.cumsum(lengths)}

    def build(column: Any) -> CorpusIndex:
        return CorpusIndex.from_columns(tags=column, lengths={"data": lengths}, locators=locators)

    from_list, index = timed(lambda: build(tags))
    digest, _ = timed(lambda: index.digest)
    save, _ = timed(lambda: index.save(path))
    array = np.array(tags, dtype="S")
    from_array, _ = timed(lambda: build(array))
    return {
        "num_seqs": num_seqs,
        "index_bytes": path.stat().st_size,
        "build_from_list_seconds": from_list,
        "build_from_bytes_array_seconds": from_array,
        "digest_seconds": digest,
        "table_and_save_seconds": save,
    }


def measure_gathering(folder: Path, num_lines: int) -> dict[str, Any]:
    words = [f"word{number}" for number in range(5000)]
    rng = np.random.default_rng(3)
    with (folder / "lines.txt").open("w") as file:
        for start in range(0, num_lines, 10_000):
            drawn = rng.integers(0, len(words), (min(10_000, num_lines - start), 12)).tolist()
            file.writelines(" ".join(words[word] for word in line) + "\n" for line in drawn)
    fields = {"data": {"field": "text", "vocab": {"class": "Vocabulary", "labels": words, "unknown_label": None}}}
    results: dict[str, Any] = {"gathered_lines": num_lines}
    digests = set()
    for num_workers in (1, 2):
        begun = time.process_time()
        with gathering(num_workers=num_workers):
            seconds, source = timed(lambda: TextSource(folder / "lines.txt", fields=fields, index=None))
        digests.add(source.index.digest)
        results[f"gather_{num_workers}_processes_seconds"] = seconds
        results[f"gather_{num_workers}_processes_own_cpu"] = time.process_time() - begun
    assert len(digests) == 1
    return results


def measure_chunks(folder: Path, num_frames: int) -> dict[str, Any]:
    with hr.HDFWriter(folder / "long.hdf") as writer:
        writer.append("long", {"data": np.zeros(num_frames, np.float32)})
    results: dict[str, Any] = {}
    slices = SourceReader.sliced_frames
    for name, sliced_frames in (("slices", slices), ("whole_sequences", Reader.sliced_frames)):
        SourceReader.sliced_frames = sliced_frames  # type: ignore[method-assign]
        with (
            hr.HDFDataset(str(folder / "long.hdf")) as dataset,
            hr.DataLoader(dataset, batching=Chunks(hr.FixedCount(1), num_frames // 100)) as loader,
        ):
            loader.count(1)
            before = bytes_read()
            seconds, num_batches = timed(lambda loader=loader: sum(1 for _ in loader))
        assert num_batches == 100
        results[f"chunks_by_{name}_bytes_a_byte"] = round((bytes_read() - before) / (4 * num_frames), 3)
        results[f"chunks_by_{name}_seconds"] = seconds
    SourceReader.sliced_frames = slices  # type: ignore[method-assign]
    return results


def bytes_read() -> int:
    """Return how many bytes this process has read by system calls."""
    return int(Path("/proc/self/io").read_text().split()[1])


def measure_open(path: str) -> dict[str, Any]:
    before = rss_bytes()
    open_seconds, index = timed(lambda: CorpusIndex.open(path))
    after = rss_bytes()
    wanted = np.random.default_rng(2).integers(0, index.num_seqs, size=NUM_LOOKUPS)
    first_tag, _ = timed(lambda: index.tags[index.num_seqs // 2])
    first_length, _ = timed(lambda: index.lengths("data")[index.num_seqs // 2])
    take, tags = timed(lambda: index.tags.take(wanted))
    find, found = timed(lambda: index.find_tags(tags))
    assert np.array_equal(found, wanted)
    verify, _ = timed(index.verify)
    return {
        "open_seconds": open_seconds,
        "open_rss_growth_bytes": after - before,
        "first_tag_seconds": first_tag,
        "first_length_seconds": first_length,
        f"take_{NUM_LOOKUPS}_tags_seconds": take,
        f"find_{NUM_LOOKUPS}_tags_seconds": find,
        "verify_seconds": verify,
    }


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
