"""Fetching a file: Headrace against `cp`, and against a single stream from a web server and from S3, on this machine.

Run `python benchmarks/fetch.py`. The servers are processes of their own on the loopback, so the cost of the software
shows, not that of a network; one is slowed down to what an object store gives a connection. The contenders take turns,
medians are shown, and what each wrote is compared with the source. S3 is moto's server, which is slow itself; it is
left out, with a line that says so, if moto or s3fs is not installed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from headrace.files.fetch import fetch_to, stat_source

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # for the servers

from servers import has_s3

MIB = 1 << 20
STORE_BYTES_PER_SECOND = 60 * MIB  # what one connection to a large object store gives, about
Copy = Callable[[str, Path], object]  # source, target

SERVE = """
import json, sys
sys.path[:0] = json.loads(sys.argv[1])
from pathlib import Path
from servers import FileServer, S3Server
kind, path, rate = sys.argv[2:]
content = Path(path).read_bytes()
server = S3Server() if kind == "s3" else FileServer({"file": content})
with server:
    if kind == "s3":
        url = server.put("bucket", "file", content)
        print(json.dumps({"url": url, "environment": server.environment}), flush=True)
    else:
        server.bytes_per_second = float(rate) or None
        server.version_header("file")
        print(json.dumps({"url": server.url("file"), "environment": {}}), flush=True)
    sys.stdin.readline()
"""


def headrace(source: str, target: Path) -> None:
    fetch_to(source, target, stat_source(source))


def cp(source: str, target: Path) -> None:
    subprocess.run(["cp", source, target], check=True)


def shutil_copy(source: str, target: Path) -> None:
    shutil.copyfile(source, target)


def single_stream(source: str, target: Path) -> None:
    with urllib.request.urlopen(source) as answer, open(target, "wb") as file:
        shutil.copyfileobj(answer, file, MIB)


def boto_single_stream(source: str, target: Path) -> None:
    import boto3

    bucket, _, key = source.removeprefix("s3://").partition("/")
    client = boto3.client("s3")
    with open(target, "wb") as file:
        shutil.copyfileobj(client.get_object(Bucket=bucket, Key=key)["Body"], file, MIB)
    client.close()


def fsspec_get(source: str, target: Path) -> None:
    import fsspec

    file_system, path = fsspec.core.url_to_fs(source)
    file_system.get_file(path, str(target))


LOCAL: dict[str, Copy] = {
    "headrace": headrace,
    "cp": cp,
    "shutil.copyfile": shutil_copy,
}
HTTP: dict[str, Copy] = {
    "headrace": headrace,
    "urllib, one stream": single_stream,
    "fsspec get_file": fsspec_get,
}
S3: dict[str, Copy] = {
    "headrace": headrace,
    "boto3, one stream": boto_single_stream,
    "fsspec get_file": fsspec_get,
}


@contextlib.contextmanager
def serving(kind: str, path: Path, rate: float = 0.0) -> Iterator[str]:
    """Serve a file from a process of its own; give its URL."""
    command = [sys.executable, "-c", SERVE, json.dumps(sys.path), kind, str(path), str(rate)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            ready = json.loads(process.stdout.readline())
            os.environ.update(ready["environment"])
            yield ready["url"]
        finally:
            process.stdin.close()
            process.wait()


def measure(what: str, source: str, path: Path, contenders: dict[str, Copy], repeats: int) -> list[dict[str, object]]:
    """Let each contender bring the file to a new name, in turns; return the median of each."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    target = path.with_name("target")
    for turn in range(repeats + 1):  # the first one warms up imports, connections and caches
        for name, copy in contenders.items():
            target.unlink(missing_ok=True)
            start = time.perf_counter()
            copy(source, target)
            if turn or not repeats:
                seconds[name].append(time.perf_counter() - start)
            if turn == 0:
                subprocess.run(["cmp", path, target], check=True)
    num_bytes = path.stat().st_size
    return [
        {"what": what, "contender": name, "seconds": statistics.median(times), "num_bytes": num_bytes}
        for name, times in seconds.items()
    ]


def measure_local(path: Path, repeats: int) -> list[dict[str, object]]:
    """A local file to the same disk."""
    return measure("local file", str(path), path, LOCAL, repeats)


def measure_http(path: Path, repeats: int, rate: float = 0.0) -> list[dict[str, object]]:
    """A file of a web server; each connection gives `rate` bytes per second, 0: what it can."""
    what = f"HTTP, {rate / MIB:.0f} MiB/s a connection" if rate else "HTTP"
    with serving("http", path, rate) as url:
        return measure(what, url, path, HTTP, repeats)


def measure_s3(path: Path, repeats: int) -> list[dict[str, object]]:
    """An object of S3 (moto)."""
    with serving("s3", path) as url:
        return measure("S3 (moto)", url, path, S3, repeats)


def measure_fetch(*, quick: bool = False, repeats: int = 5, folder: str | None = None) -> list[dict[str, object]]:
    """Run all of it; a row has `what`, `contender`, `seconds`, `num_bytes`."""
    num_mib, repeats = (16, 1) if quick else (256, repeats)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=folder) as own:
        path, small = Path(own) / "file", Path(own) / "small"
        path.write_bytes(os.urandom(num_mib * MIB))
        small.write_bytes(os.urandom(num_mib * MIB // 4))
        rows = measure_local(path, repeats) + measure_http(path, repeats)
        rows += measure_http(path, repeats, STORE_BYTES_PER_SECOND)
        if has_s3():
            rows += measure_s3(small, repeats)
        else:
            print("moto[server] or s3fs is not installed: S3 is left out")
    return rows


def table(rows: list[dict[str, object]]) -> str:
    lines = ["| what | contender | MiB | seconds | MiB/s |", "|---|---|---|---|---|"]
    for row in rows:
        mib = row["num_bytes"] / MIB
        what, contender, seconds = row["what"], row["contender"], row["seconds"]
        lines.append(f"| {what} | {contender} | {mib:.0f} | {seconds:.3f} | {mib / seconds:,.0f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="turns of each contender")
    parser.add_argument("--folder", help="a folder on the disk to measure")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--quick", action="store_true", help="small files, one repeat: shows that it works, no more")
    options = parser.parse_args()
    rows = measure_fetch(quick=options.quick, repeats=options.repeats, folder=options.folder)
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
