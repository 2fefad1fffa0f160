"""Build and open the index of a large corpus: times, and the memory that opening takes.

    python benchmarks/index.py [--num-seqs 10000000] [--quick] [--json PATH]

Building is measured in this process. Opening is measured in a fresh one, so that its memory is its own; the file is in
the page cache by then, as for every process of a machine after the first.
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

from headrace.index import CorpusIndex

NUM_LOOKUPS = 100_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-seqs", type=int, default=10_000_000)
    parser.add_argument("--quick", action="store_true", help="a hundred thousand sequences")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the numbers to this file")
    parser.add_argument("--open", metavar="FILE", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.open:
        print(json.dumps(measure_open(args.open)))
        return
    with tempfile.TemporaryDirectory() as folder:
        results = measure_build(100_000 if args.quick else args.num_seqs, Path(folder) / "corpus.hrindex")
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
