"""`LhotseDataLoader` against the documented loader and torch's `DataLoader`, with the same datasets and samplers.

Run `python benchmarks/lhotse.py` (`--quick` for a minute or two). Contenders take turns, and medians are shown, with
the load of the machine: on a busy one ours, which uses two processors in full, loses more than the others. All have
two workers and a prefetch factor of two:

* ours, and ours with the global generators seeded for each batch (the default, which no other does);
* documented: a process pool by spawn, with at most `workers * prefetch + 1` batches under way, each of which is
  pickled. This is how the loader that lhotse had until 0.12 behaves;
* torch's `DataLoader(batch_size=None)`, by fork and by spawn.

A batch is a dict of two arrays or tensors (three quarters float32, one quarter int32), which the worker fills, and a
list of ids; or speech: log-mel features of recorded words, made on the fly by lhotse from wav files. Each turn is a
process of its own. Also shown: seconds from making the loader to its first batch, and seconds to the first batch after
a resume at 99 % of an epoch.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
_others = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE]
if __name__ == "lhotse":  # this folder is on somebody's path, who asks for the package: give it to them
    _path, sys.path[:] = sys.path[:], _others
    del sys.modules["lhotse"]
    try:
        sys.modules["lhotse"] = importlib.import_module("lhotse")
    finally:
        sys.path[:] = _path
else:
    sys.path[:] = _others

CORPUS = HERE.parent / "data" / "spoken_numbers"
WORKERS, PREFETCH = 2, 2
TURN_SECONDS = 240
ROUNDS = 2
OURS, OURS_SEEDED, DOCUMENTED = "headrace", "headrace, seeded", "documented loader"
CONTENDERS = [OURS, OURS_SEEDED, DOCUMENTED, "torch, fork", "torch, spawn"]
SIZES = {"1 KiB": 1 << 10, "64 KiB": 1 << 16, "1 MiB": 1 << 20, "16 MiB": 1 << 24}
KINDS = [f"{size}, {form}" for form in ("numpy", "torch") for size in SIZES]
SPEECH = "speech"


class Filled:
    """Batches of a given size."""

    def __init__(self, num_bytes: int, form: str) -> None:
        self.num_bytes, self.form = num_bytes, form

    def __getitem__(self, batch: int) -> dict[str, Any]:
        if self.form == "numpy":
            return {
                "x": np.full(self.num_bytes * 3 // 16, batch, np.float32),
                "y": np.full(self.num_bytes // 16, batch, np.int32),
                "ids": ["a", "b"],
            }
        import torch

        return {
            "x": torch.full((self.num_bytes * 3 // 16,), float(batch)),
            "y": torch.full((self.num_bytes // 16,), batch, dtype=torch.int32),
            "ids": ["a", "b"],
        }


class Documented:
    """What the documented loader does, in its own few lines."""

    def __init__(self, dataset: Any, sampler: Any) -> None:
        self.sampler = sampler
        self.pool = ProcessPoolExecutor(WORKERS, get_context("spawn"), _keep, (dataset,))

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.sampler)
        under_way: deque[Future[Any]] = deque(
            self.pool.submit(_make, batch) for batch in itertools.islice(batches, WORKERS * PREFETCH)
        )
        while under_way:
            under_way.extend(self.pool.submit(_make, batch) for batch in itertools.islice(batches, 1))
            yield under_way.popleft().result()


_dataset: Any = None


def _keep(dataset: Any) -> None:
    global _dataset
    _dataset = dataset


def _make(batch: Any) -> Any:
    return _dataset[batch]


def unchanged(batch: Any) -> Any:
    return batch


def open_loader(title: str, dataset: Any, sampler: Any) -> Any:
    if title in (OURS, OURS_SEEDED):
        import headrace

        seed = 0 if title == OURS_SEEDED else None
        return headrace.LhotseDataLoader(dataset, sampler, WORKERS, PREFETCH, seed=seed)
    if title == DOCUMENTED:
        return Documented(dataset, sampler)
    from torch.utils.data import DataLoader

    return DataLoader(
        dataset,
        sampler=sampler,
        batch_size=None,
        num_workers=WORKERS,
        prefetch_factor=PREFETCH,
        collate_fn=unchanged,
        multiprocessing_context=title.split(", ")[1],
        persistent_workers=True,
    )


# --- speech ---


def write_speech(folder: Path) -> Path:
    """Write the corpus as wav files, and a manifest of cuts."""
    import soundfile
    from lhotse import CutSet, MonoCut, Recording, SupervisionSegment

    cuts = []
    for line in (CORPUS / "manifest.jsonl").read_text().splitlines():
        entry = json.loads(line)
        name = entry["tag"].replace("/", "-")
        samples, rate = soundfile.read(CORPUS / entry["audio"], dtype="int16")
        soundfile.write(folder / f"{name}.wav", samples, rate)
        recording = Recording.from_file(folder / f"{name}.wav", recording_id=name)
        words = SupervisionSegment(name, name, 0.0, recording.duration, text=entry["word"])
        cuts.append(MonoCut(name, 0.0, recording.duration, 0, recording=recording, supervisions=[words]))
    path = folder / "cuts.jsonl"
    CutSet.from_cuts(cuts).to_file(path)
    return path


def open_speech(cuts_path: str) -> tuple[Any, Any]:
    from lhotse import CutSet, Fbank, FbankConfig
    from lhotse.dataset import DynamicBucketingSampler, K2SpeechRecognitionDataset, OnTheFlyFeatures

    cuts = CutSet.from_file(cuts_path).repeat(times=8).to_eager()
    features = OnTheFlyFeatures(Fbank(FbankConfig(sampling_rate=8000)))
    sampler = DynamicBucketingSampler(cuts, num_buckets=8, max_duration=20.0, shuffle=True)
    return K2SpeechRecognitionDataset(input_strategy=features), sampler


# --- turns ---


def take_turn(task: dict[str, Any]) -> dict[str, float]:
    warnings.simplefilter("ignore")
    if "resume" in task:
        return measure_resume(task["resume"], task["cuts"])
    if task["kind"] == SPEECH:
        dataset, sampler = open_speech(task["cuts"])
    else:
        size, form = task["kind"].split(", ")
        dataset, sampler = Filled(SIZES[size], form), range(1 << 20)
    start = time.perf_counter()
    loader = open_loader(task["title"], dataset, sampler)
    batches = endless(loader)
    check(task["kind"], next(batches), 0)
    first = time.perf_counter() - start
    number = 1
    rates = []
    for seconds in (task["seconds"] / 2, *[task["seconds"] / task["repeats"]] * task["repeats"]):
        start, count = time.perf_counter(), 0
        while (spent := time.perf_counter() - start) < seconds or count == 0:
            batch = next(batches)
            if number % 16 == 0:
                check(task["kind"], batch, number)
            number, count = number + 1, count + 1
        rates.append(count / spent)
    return {"first": first, "rate": statistics.median(rates[1:])}


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def check(kind: str, batch: Any, number: int) -> None:
    if kind == SPEECH:
        assert len(batch["inputs"]) == len(batch["supervisions"]["text"])
        return
    expected = number % (1 << 20)
    assert batch["x"][0] == batch["x"][-1] == batch["y"][-1] == expected, (batch["x"][0], expected)


def measure_resume(title: str, num_cuts: int) -> dict[str, float]:
    """Measure from a state at 99 % of an epoch to the batch behind it, without a worker."""
    from lhotse import CutSet, MonoCut
    from lhotse.dataset import DynamicBucketingSampler

    import headrace
    from headrace.adapters.lhotse import PlannedCutSampler

    lengths = np.random.RandomState(0).lognormal(1.5, 0.6, num_cuts).round(3).tolist()
    cuts = CutSet.from_cuts(MonoCut(f"cut-{number}", 0.0, seconds, 0) for number, seconds in enumerate(lengths))

    def make() -> Any:
        if title == "PlannedCutSampler":
            return PlannedCutSampler(cuts, max_duration=300.0)
        return DynamicBucketingSampler(cuts, num_buckets=30, max_duration=300.0, shuffle=True)

    if title.endswith(", its own state"):
        sampler = make()
        batches = list(sampler)
        stop = len(batches) * 99 // 100
        iter(sampler)
        for _ in range(stop):
            next(sampler)
        state, sampler = sampler.state_dict(), make()
        start = time.perf_counter()
        sampler.load_state_dict(state)
        found = next(iter(sampler))
        seconds = time.perf_counter() - start
        assert list(found.ids) == list(batches[stop].ids)
        return {"seconds": seconds}
    with headrace.LhotseDataLoader(Ids(), make(), num_workers=0) as loader:
        num = sum(1 for _ in loader)
        for _ in itertools.islice(loader, num * 99 // 100):
            pass
        state = loader.state_dict()
        expected = next(loader)
    with headrace.LhotseDataLoader(Ids(), make(), num_workers=0) as loader:
        start = time.perf_counter()
        loader.load_state_dict(state)
        found = next(loader)
        seconds = time.perf_counter() - start
    assert found == expected
    return {"seconds": seconds}


class Ids:
    """The ids of the cuts."""

    def __getitem__(self, batch: Any) -> list[str]:
        return list(batch.ids)


def run_turn(task: dict[str, Any]) -> dict[str, float] | None:
    """Run one turn in a process of its own; None, after a line that says why, if it fails."""
    turn = subprocess.Popen(
        [sys.executable, __file__, "--turn", json.dumps(task)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = turn.communicate(timeout=TURN_SECONDS)
        return json.loads(out.splitlines()[-1])  # type: ignore[no-any-return]
    except (subprocess.TimeoutExpired, IndexError, ValueError) as error:
        why = "too slow" if isinstance(error, subprocess.TimeoutExpired) else (err.splitlines() or ["no output"])[-1]
        print(f"{task}: {why}", flush=True)
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(turn.pid, signal.SIGKILL)
        turn.wait()


def take_turns(task: dict[str, Any], titles: list[str], rounds: int) -> dict[str, dict[str, float]]:
    """Run all contenders in turn, several times; return the median of what each needed."""
    found: dict[str, list[dict[str, float]]] = {title: [] for title in titles}
    for _ in range(rounds):
        for title in titles:
            figures = run_turn({"title": title, **task})
            if figures is not None:
                found[title].append(figures)
                load = os.getloadavg()[0]
                print(f"  {task['kind']:14} {title:18} {figures['rate']:12,.1f} batches/s, load {load:.1f}", flush=True)
    return {
        title: {name: statistics.median(one[name] for one in turns) for name in turns[0]}
        for title, turns in found.items()
        if turns
    }


def is_quick(kind: str, title: str) -> bool:
    """Tell whether a contender takes part with `--quick`: torch only where it is loaded anyway."""
    return title in (OURS, DOCUMENTED) or (title == "torch, spawn" and not kind.endswith("numpy"))


# --- the report ---


def table(results: dict[str, dict[str, dict[str, float]]], field: str, digits: str) -> list[str]:
    lines = ["| | " + " | ".join(CONTENDERS) + " | ours / documented | ours / best other |"]
    lines.append("|---" * (len(CONTENDERS) + 3) + "|")
    for kind, figures in results.items():
        values = {title: figures[title][field] for title in CONTENDERS if title in figures}
        cells = [format(values[title], digits) if title in values else "" for title in CONTENDERS]
        for others in ([DOCUMENTED], [title for title in CONTENDERS if title not in (OURS, OURS_SEEDED)]):
            known = [values[title] for title in others if title in values]
            if not known or OURS not in values:
                cells.append("")
            elif field == "rate":
                cells.append(f"{values[OURS] / max(known):.1f} x")
            else:
                cells.append(f"{min(known) / values[OURS]:.1f} x sooner")
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="a minute or two: fewer kinds and contenders, and fewer cuts"
    )
    parser.add_argument("--seconds", type=float, help="of each measurement")
    parser.add_argument("--cuts", type=int, help="for the resume")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the figures to this file")
    parser.add_argument("--turn", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.turn:
        print(json.dumps(take_turn(json.loads(options.turn))))
        return
    seconds = options.seconds or (0.8 if options.quick else 2.0)
    kinds = ["1 KiB, numpy", "64 KiB, numpy", "1 MiB, numpy", "1 MiB, torch"] if options.quick else KINDS
    num_cuts = options.cuts or (20_000 if options.quick else 1_000_000)
    results: dict[str, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        cuts = None
        try:
            cuts = str(write_speech(Path(folder)))
        except (ImportError, OSError) as error:
            print(f"no speech: {error}")
        for kind in [*kinds, *([SPEECH] if cuts else [])]:
            titles = [title for title in CONTENDERS if not options.quick or is_quick(kind, title)]
            task = {"kind": kind, "seconds": seconds, "repeats": 3, "cuts": cuts}
            results[kind] = take_turns(task, titles, 1 if options.quick and not kind.endswith("numpy") else ROUNDS)
    if options.json:
        options.json.write_text(json.dumps({"loader": results}, indent=1))
    print(f"\nload average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    print("\nbatches/s\n", *table(results, "rate", ",.1f"), sep="\n")
    print("\nseconds to the first batch\n", *table(results, "first", ".2f"), sep="\n")
    print(f"\nseconds to the first batch after a resume at 99 % of {num_cuts:,} cuts\n")
    name = "DynamicBucketingSampler"
    for title in ("PlannedCutSampler", f"{name}, replayed", f"{name}, its own state"):
        figures = run_turn({"resume": title, "cuts": num_cuts})
        if figures is not None:
            print(f"  {title:42} {figures['seconds']:.4f}", flush=True)


if __name__ == "__main__":
    main()
