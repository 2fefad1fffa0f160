"""Items from two remote workers to one trainer over loopback, against one plain TCP connection for each worker.

Run `python benchmarks/remote.py` (`--quick` for a short look, `--json PATH` for the figures). An item is a float32
array that a worker fills, in place where it can, and of which the consumer reads two elements. The plain connections do
the same: a process fills an array and sends its bytes, over and over, and the trainer receives them into the same
memory again and again. That is the least that any transport over TCP has to do; nobody could keep such arrays, or tell
whose they are. Turns are interleaved, with new processes each, and the median is shown. "processor us" is what the
trainer's process used for an item, of both.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from headrace.engine import Engine, EngineOptions, Job, WorkerInfo, empty
from headrace.engine.remote import LocalLauncher, RemoteExecutor

NUM_WORKERS = 2
KIB, MIB = 1 << 10, 1 << 20
SIZES = {"1KiB": KIB, "64KiB": 64 * KIB, "1MiB": MIB, "16MiB": 16 * MIB}
AHEAD_BYTES = 64 * MIB
NUM_VALUES = 1000
WARM_PART = 0.3  # of the time of a turn: what it takes until all is at full speed


def filling(num_bytes: int) -> Job:
    """Return a job whose tickets are items of this size."""

    def setup(_info: WorkerInfo) -> Callable[[int], np.ndarray]:
        def work(number: int) -> np.ndarray:
            array = empty(num_bytes // 4, np.float32)
            array.fill(number % NUM_VALUES)
            return array

        return work

    return Job(setup)


def measure(next_item: Callable[[], None], seconds: float) -> tuple[float, float]:
    """Return items a second, and seconds of the trainer's processor for each."""
    until = time.perf_counter() + WARM_PART * seconds
    while time.perf_counter() < until:
        next_item()
    num_items, start, cpu = 0, time.perf_counter(), time.process_time()
    while (now := time.perf_counter()) < start + seconds:
        for _ in range(8):
            next_item()
        num_items += 8
    return num_items / (now - start), (time.process_time() - cpu) / num_items


def run_remote(num_bytes: int, seconds: float) -> tuple[float, float]:
    """Let the remote executor have a turn."""
    ahead = max(2, min(32, AHEAD_BYTES // num_bytes // NUM_WORKERS))
    options = EngineOptions(tickets_per_worker=None if num_bytes <= 64 * KIB else ahead)
    executor = RemoteExecutor(LocalLauncher(), dead_seconds=30.0)
    with Engine(filling(num_bytes), num_workers=NUM_WORKERS, executor=executor, options=options) as engine:
        run = engine.run(range(1 << 40))
        number = 0

        def next_item() -> None:
            nonlocal number
            array = next(run).value
            if array.item(0) != number % NUM_VALUES or array.item(-1) != number % NUM_VALUES:
                raise AssertionError(f"item {number} begins with {array.item(0)}")
            number += 1

        return measure(next_item, seconds)


def send_for_ever(port: int, num_bytes: int) -> None:
    """Fill an array and send it, until nobody takes it any more."""
    array = np.empty(num_bytes // 4, np.float32)
    with socket.create_connection(("localhost", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        number = 0
        try:
            while True:
                array.fill(number % NUM_VALUES)
                sock.sendall(array.data)
                number += 1
        except OSError:
            return


def run_plain(num_bytes: int, seconds: float) -> tuple[float, float]:
    """Let plain connections have a turn: each is read as far as it goes, items come from whichever is ready."""
    with socket.create_server(("localhost", 0)) as listening:
        port = listening.getsockname()[1]
        pids = []
        for _ in range(NUM_WORKERS):
            pid = os.fork()
            if pid == 0:
                listening.close()
                send_for_ever(port, num_bytes)
                os._exit(0)
            pids.append(pid)
        sockets = [listening.accept()[0] for _ in range(NUM_WORKERS)]
    poll = select.epoll()
    arrays = {sock.fileno(): np.empty(num_bytes, np.uint8) for sock in sockets}
    by_fd = {sock.fileno(): sock for sock in sockets}
    filled = dict.fromkeys(by_fd, 0)
    for sock in sockets:
        sock.setblocking(False)
        poll.register(sock, select.EPOLLIN)
    ready: list[int] = []

    def next_item() -> None:
        while True:
            while not ready:
                ready.extend(fd for fd, _ in poll.poll())
            fd = ready.pop()
            array = arrays[fd]
            try:
                filled[fd] += by_fd[fd].recv_into(array.data[filled[fd] :])
            except BlockingIOError:
                continue
            if filled[fd] == num_bytes:
                filled[fd] = 0
                ready.append(fd)
                view = array.view(np.float32)
                if view.item(0) != view.item(-1):
                    raise AssertionError("an item is mixed up")
                return

    try:
        return measure(next_item, seconds)
    finally:
        for sock in sockets:
            sock.close()
        poll.close()
        for pid in pids:
            os.waitpid(pid, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES), help="default: all")
    parser.add_argument("--repeats", type=int, help="of each measurement")
    parser.add_argument("--seconds", type=float, help="length of one measurement")
    parser.add_argument("--quick", action="store_true", help="one short measurement each")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args()
    repeats = options.repeats or (1 if options.quick else 5)
    seconds = options.seconds or (0.5 if options.quick else 1.5)
    results: dict[str, dict[str, float]] = {}
    print("| item | remote executor | GB/s | plain TCP | part of it | trainer's processor us | plain |")
    print("|---|---|---|---|---|---|---|")
    for size in options.sizes:
        turns: dict[str, list[tuple[float, float]]] = {"remote": [], "plain": []}
        for _ in range(repeats):
            turns["plain"].append(run_plain(SIZES[size], seconds))
            turns["remote"].append(run_remote(SIZES[size], seconds))
        figures = results[size] = {}
        for name, measured in turns.items():
            figures[f"{name}_items_per_second"] = statistics.median(rate for rate, _ in measured)
            figures[f"{name}_trainer_seconds"] = statistics.median(cpu for _, cpu in measured)
        remote, plain = figures["remote_items_per_second"], figures["plain_items_per_second"]
        cpu = [f"{1e6 * figures[f'{name}_trainer_seconds']:,.1f}" for name in ("remote", "plain")]
        print(
            f"| {size} | {remote:,.0f}/s | {remote * SIZES[size] / 1e9:.2f} | {plain:,.0f}/s | {remote / plain:.0%} | "
            f"{cpu[0]} | {cpu[1]} |"
        )
        sys.stdout.flush()
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
