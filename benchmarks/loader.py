"""Padded batches from HDF5 through two workers: Headrace, torch, RETURNN, Lhotse and Grain, side by side.

Run `python benchmarks/loader.py` (`--quick` for a minute instead of ten). Two corpora, features of 40 numbers a frame
in one HDF5 file that is in the page cache: "speech" with made-up lengths as of read speech, and "words", recordings of
spoken numbers (`--manifest`; made up if they cannot be read), over and over. Two settings: "cheap", where sequences
are only read and padded, and "expensive", where each also costs 2 ms of NumPy work. Everybody has two workers and the
same budget of padded frames, and all but RETURNN read with the same code; `measuring/loader_*.py` say how each is set
up.

Each turn of a contender is a process of its own; its first batches are compared with the corpus. Contenders take
turns, as often as `--repeats` says; medians are shown, and ratios are medians of the ratios of each round, because
other work on the machine comes and goes. What fails is shown as failed, with the reason below the table, and what is
not installed is left out (`pip install headrace[bench]`). On a machine that is busy with other things, compare the
processor seconds: how much of the processors a contender gets there depends on how many sessions its processes are in.

Also shown, over lengths without data: padding, and how uneven the batches of a step are between eight ranks; the
time to the first batch of a large corpus; the time to resume at 0, 50 and 99 % of an epoch; and memory (PSS).
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.sources import HDFSource
from measuring.loader_contender import (
    CONTENDERS,
    DEAR_VARIABLE,
    OURS,
    QUICK,
    count_pieces,
    missing_packages,
)
from measuring.loader_corpora import Corpus, draw_lengths, write_lengths, write_synthetic, write_words
from measuring.loader_plot import write_plot
from measuring.loader_report import Results, report
from measuring.loader_turn import Task

TURN_SECONDS = 150  # a turn that takes longer is ended, and what it did not do is shown as failed
DEAR_SECONDS = 0.002
HERE = str(Path(__file__).resolve().parent)
MANIFEST = Path(HERE).parent / "data/spoken_numbers/manifest.jsonl"
HUGE = (OURS, "torch, tensors", "Grain, equal counts")  # those that start with 10^7 sequences in less than a minute


# Second arrangements of a library: where sequences are expensive, what differs between them matters little
NOT_DEAR = ("torch, NumPy", "Grain, equal counts")
SAME_BATCHES = ("torch, NumPy", "RETURNN, MultiProcDataset")  # as those of the other arrangement of their library


@dataclass(frozen=True)
class Scale:
    """How much is measured.

    Attributes:
        num_speech: Sequences of the first corpus.
        num_words: Of the second.
        num_lengths: Of those without data.
        large: Numbers of sequences for the time to the first batch; the first one is for every round.
        max_for_all: Up to how many of these all contenders have a turn.
        num_resume: Sequences of the corpus in which all resume.
        repeats: Rounds.
        seconds: Length of one measurement of a rate; twice as long where sequences are expensive.
        rates: Corpora and settings of the rates.
    """

    num_speech: int = 8000
    num_words: int = 10_600
    num_lengths: int = 20_000
    large: tuple[int, ...] = (10**4, 10**6, 10**7)
    max_for_all: int = 10**6
    num_resume: int = 10**5
    repeats: int = 3
    seconds: float = 1.0
    rates: tuple[tuple[str, str], ...] = tuple(itertools.product(("speech", "words"), ("cheap", "expensive")))


QUICK_RATES = (("speech", "cheap"), ("words", "cheap"), ("speech", "expensive"))
QUICK_SCALE = Scale(600, 2650, 2000, (10**4, 10**6), 10**4, 2000, 1, 0.3, QUICK_RATES)


class Corpora:
    """Makes the corpora in a folder.

    Args:
        folder: Where.
        scale: How large.
        manifest: Of the recordings.
    """

    def __init__(self, folder: str, scale: Scale, manifest: Path) -> None:
        self.folder = folder
        self.speech, self.words = Corpus(folder, "speech", 16_000), Corpus(folder, "words", 4000)
        write_synthetic(self.speech, scale.num_speech)
        self.about_words = write_words(self.words, manifest, scale.num_words)
        self.words_lengths = Corpus(folder, "words-lengths", self.words.budget)
        lengths = self.words.lengths()
        write_lengths(self.words_lengths, lengths[[idx % len(lengths) for idx in range(scale.num_lengths)]])
        self.speech_lengths = self.made_up(scale.num_lengths)

    def made_up(self, num_seqs: int) -> Corpus:
        """Return a corpus of lengths; builds its index too, as a job does that has run before."""
        corpus = Corpus(self.folder, f"{num_seqs}", self.speech.budget)
        if not Path(corpus.file("hdf")).exists():
            write_lengths(corpus, draw_lengths(num_seqs), manifest=num_seqs <= 10**6)
            HDFSource(corpus.file("hdf")).close()
        return corpus


def run_turn(title: str, tasks: Sequence[Task], folder: str) -> list[dict[str, Any]]:
    """Run one turn in a process of its own; return the figures of each task, or why there are none."""
    turn = json.dumps({"title": title, "tasks": [task.to_json() for task in tasks]})
    lines, reason = Path(folder, "turn.jsonl"), "the process ended"
    with open(lines, "w") as out, open(Path(folder, "turn.log"), "w+") as log:  # a pipe stays open as long as a worker
        process = subprocess.Popen(
            [sys.executable, "-m", "measuring.loader_turn", turn],
            cwd=folder,  # some leave files there
            env={**os.environ, "PYTHONPATH": os.pathsep.join([HERE, os.environ.get("PYTHONPATH", HERE)])},
            stdout=out,
            stderr=log,
            start_new_session=True,
        )
        try:
            process.wait(TURN_SECONDS)
            log.seek(0)
            reason = (log.read().splitlines() or [reason])[-1]
        except subprocess.TimeoutExpired:
            reason = f"not done after {TURN_SECONDS} s"
        finally:  # the group is killed, so that no worker of one contender is left in the turn of the next
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    figures: list[dict[str, Any]] = [json.loads(line) for line in lines.read_text().splitlines()]
    return figures + [{"error": reason[:200]}] * (len(tasks) - len(figures))


def run_all(titles: Sequence[str], corpora: Corpora, scale: Scale) -> Results:
    """Let all contenders have their turns."""
    results: Results = {title: {} for title in titles}

    def take(title: str, tasks: dict[str, Task]) -> None:
        start = time.perf_counter()
        for key, figures in zip(tasks, run_turn(title, list(tasks.values()), corpora.folder), strict=True):
            results[title].setdefault(key, []).append(figures)
            if "error" in figures:
                print(f"  {title}: {key}: failed: {figures['error']}", flush=True)
        print(f"  {title:26s} {', '.join(tasks)} ({time.perf_counter() - start:.0f} s)", flush=True)

    first, *larger = scale.large
    every_round = {f"first {first}": Task("first", corpora.made_up(first))}
    for corpus, setting in scale.rates:
        seconds = scale.seconds * (2 if setting == "expensive" else 1)
        every_round[f"{corpus} {setting}"] = Task("rate", getattr(corpora, corpus), setting == "expensive", seconds)
    once = {
        "costs speech": Task("costs", corpora.speech_lengths),
        "costs words": Task("costs", corpora.words_lengths),
    }
    resumed = corpora.made_up(scale.num_resume)
    for round_number in range(scale.repeats):
        for title in titles if round_number % 2 == 0 else titles[::-1]:
            tasks = {key: task for key, task in every_round.items() if not (task.is_dear and title in NOT_DEAR)}
            if round_number == 0 and title not in SAME_BATCHES:
                repeats = 2 * scale.repeats + 1 if title == OURS else 1  # some have to read on to where they resume
                tasks |= once | {f"resume {scale.num_resume}": Task("resume", resumed, amount=repeats)}
            take(title, tasks)
    for num_seqs in larger:
        corpus = corpora.made_up(num_seqs)
        for title in [title for title in titles if num_seqs <= scale.max_for_all or title in HUGE]:
            tasks = {f"first {num_seqs}": Task("first", corpus)}
            if title == OURS and num_seqs == larger[-1]:
                tasks[f"resume {num_seqs}"] = Task("resume", corpus, amount=2 * scale.repeats + 1)
            take(title, tasks)
    return results


def choose(wanted: list[str] | None, *, quick: bool) -> list[str]:
    """Return the contenders that take part, after naming what is not installed."""
    titles = [title for title in CONTENDERS if wanted is None or any(word.lower() in title.lower() for word in wanted)]
    if quick and wanted is None:
        titles = [title for title in titles if title in QUICK]
    missing = {title: missing_packages(title) for title in titles}
    for package in sorted({package for packages in missing.values() for package in packages}):
        print(f"{package} is not installed: left out (pip install headrace[bench])")
    return [title for title in titles if not missing[title]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--manifest", type=Path, default=MANIFEST, help="of the recordings")
    parser.add_argument(
        "--peers", nargs="+", metavar="WORD", help="only contenders with one of these words in the name"
    )
    parser.add_argument("--repeats", type=int, help="rounds")
    parser.add_argument("--seconds", type=float, help="length of one measurement")
    parser.add_argument("--quick", action="store_true", help="small corpora, one round, fewer contenders")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--plot", type=Path, help="write a plot (SVG) to this file")
    options = parser.parse_args()
    scale = QUICK_SCALE if options.quick else Scale()
    given = {name: getattr(options, name) for name in ("repeats", "seconds") if getattr(options, name) is not None}
    scale = Scale(**{**vars(scale), **given})
    titles = choose(options.peers, quick=options.quick)
    start, load = time.perf_counter(), [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        os.environ["HEADRACE_CACHE"] = os.path.join(folder, "cache")
        os.environ[DEAR_VARIABLE] = str(count_pieces(DEAR_SECONDS))
        corpora = Corpora(folder, scale, options.manifest)
        print(f"words: {corpora.about_words}", flush=True)
        results = run_all(titles, corpora, scale)
    load.append(os.getloadavg()[0])
    about = {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load before and after": load,
        "seconds": time.perf_counter() - start,
        "words": corpora.about_words,
        "rounds": scale.repeats,
    }
    print("\n" + report(results, about))
    if options.json:
        options.json.write_text(json.dumps({"about": about, "results": results}, indent=1))
    if options.plot:
        write_plot(results, options.plot)


if __name__ == "__main__":
    main()
