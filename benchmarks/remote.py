"""Items from two remote workers to one trainer over loopback, against one plain TCP connection for each worker.

Run `python benchmarks/remote.py` (`--quick` for a short look, `--json PATH` for the figures). An item is a float32
array that a worker fills, in place where it can, and of which the consumer reads two elements. The plain connections do
the same: a process fills an array and sends its bytes, over and over, and the trainer receives them into the same
memory again and again. That is the least that any transport over TCP has to do; nobody could keep such arrays, or tell
whose they are. "several arrays" are plain connections that use as many arrays in turn, at each end, as the remote
workers have items under way: the least for a transport whose arrays may be kept. Turns are interleaved, with new
processes each, and the median is shown. "processor us" is what all processes, and the trainer's, used for an item:
where other programs have the processors as well, compare these, and not the items a second.
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
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np

from headrace.engine import Engine, EngineOptions, Job, WorkerInfo, empty
from headrace.engine.remote import LocalLauncher, RemoteExecutor
from measuring.processes import running_seconds

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


def measure(next_item: Callable[[], None], seconds: float) -> tuple[float, float, float]:
    """Return items a second, and seconds of the trainer's processor and of all processors for each."""
    until = time.perf_counter() + WARM_PART * seconds
    while time.perf_counter() < until:
        next_item()
    num_items, all_before, start, cpu = 0, running_seconds(), time.perf_counter(), time.process_time()
    while (now := time.perf_counter()) < start + seconds:
        for _ in range(8):
            next_item()
        num_items += 8
    trainer_seconds = (time.process_time() - cpu) / num_items
    return num_items / (now - start), trainer_seconds, (running_seconds() - all_before) / num_items


def num_ahead(num_bytes: int) -> int:
    """Return how many items of this size a worker has under way."""
    return max(2, min(32, AHEAD_BYTES // num_bytes // NUM_WORKERS))


def run_remote(num_bytes: int, seconds: float) -> tuple[float, float, float]:
    """Let the remote executor have a turn."""
    ahead = num_ahead(num_bytes)
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


def send_for_ever(port: int, num_bytes: int, num_arrays: int) -> None:
    """Fill an array, one of several in turn, and send it, until nobody takes it any more."""
    arrays = [np.empty(num_bytes // 4, np.float32) for _ in range(num_arrays)]
    with socket.create_connection(("localhost", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        number = 0
        try:
            while True:
                array = arrays[number % num_arrays]
                array.fill(number % NUM_VALUES)
                sock.sendall(array.data)
                number += 1
        except OSError:
            return


def run_plain(num_bytes: int, seconds: float, num_arrays: int = 1) -> tuple[float, float, float]:
    """Let plain connections have a turn: each is read as far as it goes, items come from whichever is ready.

    Args:
        num_bytes: Of an item.
        seconds: Length of the turn.
        num_arrays: How many of them each end of a connection uses in turn.
    """
    with socket.create_server(("localhost", 0)) as listening:
        port = listening.getsockname()[1]
        pids = []
        for _ in range(NUM_WORKERS):
            pid = os.fork()
            if pid == 0:
                listening.close()
                send_for_ever(port, num_bytes, num_arrays)
                os._exit(0)
            pids.append(pid)
        sockets = [listening.accept()[0] for _ in range(NUM_WORKERS)]
    poll = select.epoll()
    arrays = {sock.fileno(): deque(np.empty(num_bytes, np.uint8) for _ in range(num_arrays)) for sock in sockets}
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
            array = arrays[fd][0]
            try:
                filled[fd] += by_fd[fd].recv_into(array.data[filled[fd] :])
            except BlockingIOError:
                continue
            if filled[fd] == num_bytes:
                filled[fd] = 0
                arrays[fd].rotate()
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
    ways: dict[str, Callable[[int], tuple[float, float, float]]] = {
        "remote": lambda num_bytes: run_remote(num_bytes, seconds),
        "plain": lambda num_bytes: run_plain(num_bytes, seconds),
        "several": lambda num_bytes: run_plain(num_bytes, seconds, num_ahead(num_bytes)),
    }
    results: dict[str, dict[str, float]] = {}
    print("| item | remote workers | GB/s | plain TCP | part of it | several arrays | part | CPU us: all | trainer |")
    print("|---|---|---|---|---|---|---|---|---|")
    for size in options.sizes:
        turns: dict[str, list[tuple[float, float, float]]] = {way: [] for way in ways}
        for _ in range(repeats):
            for way, run in ways.items():
                turns[way].append(run(SIZES[size]))
        figures = results[size] = {}
        for way, measured in turns.items():
            rates, of_trainer, of_all = zip(*measured, strict=True)
            figures[f"{way}_items_per_second"] = statistics.median(rates)
            figures[f"{way}_trainer_seconds"] = statistics.median(of_trainer)
            figures[f"{way}_all_seconds"] = statistics.median(of_all)
        rates = [figures[f"{way}_items_per_second"] for way in ways]
        used = [
            ", ".join(f"{1e6 * figures[f'{way}_{whose}_seconds']:,.1f}" for way in ways) for whose in ("all", "trainer")
        ]
        print(
            f"| {size} | {rates[0]:,.0f}/s | {rates[0] * SIZES[size] / 1e9:.2f} | {rates[1]:,.0f}/s | "
            f"{rates[0] / rates[1]:.0%} | {rates[2]:,.0f}/s | {rates[0] / rates[2]:.0%} | {used[0]} | {used[1]} |"
        )
        sys.stdout.flush()
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
