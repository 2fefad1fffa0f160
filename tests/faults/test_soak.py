"""A long run under random SIGKILL of workers: the stream is the inline one, and memory stays flat.

`make soak` runs it for 20 minutes; otherwise HEADRACE_SOAK_SECONDS says how long, 25 s if unset.
"""

import os
import random
import signal
import threading
import time

import numpy as np
import pytest
import xxhash

from headrace.datasets import MultiProcDataset, StaticDataset
from headrace.engine import EngineOptions, Restarting

SECONDS = float(os.environ.get("HEADRACE_SOAK_SECONDS", "25"))
NUM_WORKERS = 3
MAX_GROWTH_BYTES = (
    48 << 20
)  # of the trainer between the first and the last epoch: far less than one epoch's data leaked


def children_of(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return []


def workers_of_this_process():
    """Return the processes that the wardens of this process have started."""
    return [worker for warden in children_of(os.getpid()) for worker in children_of(warden)]


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def add_noise(features, rng):
    return {**features, "data": features["data"] + rng.random(features["data"].shape, dtype=np.float32)}


def digest(dataset, epoch):
    state = xxhash.xxh3_128()
    for seq in dataset.epoch(epoch):
        state.update(seq.tag.encode())
        state.update(seq["data"].tobytes())
    return state.hexdigest()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(SECONDS * 2 + 240)
def test_the_stream_survives_random_kills_of_workers_and_memory_stays_flat():
    rng = random.Random(3)
    data = [{"data": np.full((rng.randint(1, 60), 20), i, np.float32)} for i in range(3000)]
    options = {"seq_ordering": "random", "partition_epoch": 2, "transform": add_noise}
    plain = StaticDataset(data, **options)
    expected = {epoch: digest(plain, epoch) for epoch in range(1, 5)}
    dataset = MultiProcDataset(
        {"class": "StaticDataset", "data": data, **options},
        num_workers=NUM_WORKERS,
        buffer_size=200,
        engine_options=EngineOptions(on_death=Restarting(budget=1_000_000)),
    )
    stop, killed = threading.Event(), []

    def kill_now_and_then():
        while not stop.wait(rng.uniform(0.05, 0.6)):
            workers = workers_of_this_process()
            if workers:
                victim = rng.choice(workers)
                try:
                    os.kill(victim, signal.SIGKILL)
                except ProcessLookupError:
                    continue
                killed.append(victim)

    killer = threading.Thread(target=kill_now_and_then)
    killer.start()
    sizes, deadline, rounds = [], time.monotonic() + SECONDS, 0
    try:
        while time.monotonic() < deadline or rounds < 3:
            for epoch, wanted in expected.items():
                assert digest(dataset, epoch) == wanted, f"epoch {epoch} of round {rounds}, after {len(killed)} kills"
            rounds += 1
            sizes.append(resident_bytes())
    finally:
        stop.set()
        killer.join()
        dataset.close()
    assert len(killed) >= 3
    assert sizes[-1] - sizes[0] < MAX_GROWTH_BYTES, f"resident bytes by round: {sizes}"
    print(f"{rounds} rounds, {len(killed)} kills, {sizes[0] >> 20} MB then, {sizes[-1] >> 20} MB now")  # noqa: T201
