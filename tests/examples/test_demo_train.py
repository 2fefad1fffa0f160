"""The training of the demo: it learns, a kill changes nothing whenever it comes, and nothing outlives it."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import random
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from demo.model import WordModel
from demo.processes import RunLog, Trainer, check_resumed, run_until_killed
from demo.trainer import (
    SAVE_STEPS,
    EpochDone,
    StepDone,
    Training,
    TrainingDone,
    load_checkpoint,
    save_checkpoint,
)
from demo.training import EPOCHS, choose_kill, plan_training
from headrace.engine.process.proc_tree import descendants_of
from headrace.errors import HeadraceError, InternalError, SourceError
from headrace.sources import AudioSource, HDFWriter

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "data" / "spoken_numbers"
NUM_WORDS, LANGUAGES = 12, ["en", "es", "fr", "it"]
_DEADLINE_SECONDS = 120.0


@pytest.fixture(scope="module")
def hdf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 words that are random numbers."""
    path = tmp_path_factory.mktemp("corpus") / "words.hdf"
    rng = np.random.default_rng(1)
    with HDFWriter(path, labels={"classes": [str(w) for w in range(NUM_WORDS)], "language": LANGUAGES}) as writer:
        for number, language in enumerate(LANGUAGES):
            for word in range(NUM_WORDS):
                data = rng.normal(size=(int(rng.integers(10, 40)), 8)).astype(np.float32)
                targets = {"classes": np.array([word], np.int32), "language": np.array([number], np.int32)}
                writer.append(f"{language}/{word}", {"data": data, **targets})
    return path


@pytest.fixture(scope="module")
def whole(hdf: Path, tmp_path_factory: pytest.TempPathFactory) -> RunLog:
    """The training without interruption."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as environment:  # the fixture for each test comes later
        environment.setenv("HEADRACE_CACHE", str(folder / "cache"))
        return run(make_training(hdf, folder))


def make_training(hdf: Path, folder: Path, **options: object) -> Training:
    return msgspec.structs.replace(plan_training(hdf, folder), **{"epochs": 3, **options})


def run(training: Training) -> RunLog:
    log = RunLog()
    with Trainer(training) as trainer:
        for event in trainer.events():
            log.add(event)
    return log


def children() -> set[int]:
    gc.collect()
    return set(descendants_of(os.getpid()))


@contextlib.contextmanager
def ends_with_its_processes(pids: set[int]) -> Iterator[None]:
    """Fail unless all these processes have ended a while after the block."""
    descriptors = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            descriptors.append(os.pidfd_open(pid))
    try:
        yield
        for descriptor in descriptors:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            assert poll.poll(1000 * _DEADLINE_SECONDS), "a process lives on"
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


# --- it learns ---


@pytest.mark.long
def test_the_recogniser_is_far_better_than_chance_on_words_it_never_heard(tmp_path: Path) -> None:
    pytest.importorskip("soundfile")
    targets = {"classes": "word", "language": "language"}
    source = AudioSource(CORPUS / "manifest.jsonl", features="log_mel", targets=targets)
    with HDFWriter(tmp_path / "words.hdf", specs=source.specs, labels=source.labels) as writer:
        for corpus_idx in range(len(source)):
            writer.append(source.tag(corpus_idx), source.read_seq(corpus_idx))
    training = plan_training(tmp_path / "words.hdf", tmp_path)
    with Trainer(training) as trainer:
        epochs = [event for event in trainer.events() if isinstance(event, EpochDone)]
    assert [event.epoch for event in epochs] == list(range(1, EPOCHS + 1))
    assert (training.heads, epochs[-1].heard.keys()) == ({"classes": 53, "language": 5}, {"classes", "language"})
    assert epochs[-1].heard["classes"] > 0.8  # chance is 0.02
    assert epochs[-1].heldout["language"] > 0.75  # chance is 0.2
    assert epochs[-1].heldout["classes"] > 0.05  # chance is 0.02: some words are much the same in two languages


def test_one_recording_of_each_word_is_kept_out_of_the_training(hdf: Path, tmp_path: Path) -> None:
    training = plan_training(hdf, tmp_path)
    learnt, kept_out = (Path(tags).read_text().splitlines() for tags in (training.train_tags, training.heldout_tags))
    assert sorted(tag.split("/")[1] for tag in kept_out) == sorted(map(str, range(NUM_WORDS)))
    assert {tag.split("/")[0] for tag in kept_out} == set(LANGUAGES)
    assert len(learnt) == NUM_WORDS * (len(LANGUAGES) - 1)
    assert not set(learnt) & set(kept_out)


# --- killed and resumed ---


@pytest.mark.long
@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_training_is_the_same_with_any_number_of_workers_and_in_any_job(
    hdf: Path, tmp_path: Path, whole: RunLog, num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    log = run(make_training(hdf, tmp_path, num_workers=num_workers))
    assert len(log.losses) > 2 * SAVE_STEPS
    check_resumed(whole, RunLog(), log)


@pytest.mark.parametrize(
    ("kill_after", "num_workers"),
    [
        (1, 1),  # there is no checkpoint yet
        (SAVE_STEPS, 0),  # while it writes the first one, or not
        pytest.param(2 * SAVE_STEPS, 3, marks=pytest.mark.long),
        *(pytest.param(None, num_workers, marks=pytest.mark.long) for num_workers in (0, 2)),  # anywhere
    ],
)
def test_a_killed_training_goes_on_with_the_same_losses(
    hdf: Path, tmp_path: Path, whole: RunLog, kill_after: int | None, num_workers: int
) -> None:
    if kill_after is None:
        kill_after = random.Random(f"{num_workers}").randrange(1, len(whole.losses))
    training = make_training(hdf, tmp_path)
    killed = run_until_killed(training, kill_after)
    assert len(killed.losses) == kill_after
    assert killed.end is None
    resumed = run(msgspec.structs.replace(training, num_workers=num_workers))
    check_resumed(whole, killed, resumed)
    # The checkpoint of the last step that was heard is there, or was being written.
    assert len(whole.losses) - len(resumed.losses) in {k - k % SAVE_STEPS for k in (kill_after - 1, kill_after)}
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".headrace")]


def test_the_demo_kills_in_mid_epoch_between_two_checkpoints() -> None:
    log = RunLog({(epoch, step): 0.0 for epoch in range(1, EPOCHS + 1) for step in range(14 + epoch % 2)})
    epoch, step = list(log.losses)[choose_kill(log) - 1]
    assert epoch == EPOCHS // 2 + 1
    assert 5 <= step <= 10
    assert choose_kill(log) % SAVE_STEPS == SAVE_STEPS // 2
    assert choose_kill(RunLog({(1, 0): 0.0})) == 1


def test_a_training_that_differs_in_one_bit_is_told_apart(whole: RunLog) -> None:
    killed, resumed = RunLog(dict(list(whole.losses.items())[:5])), RunLog(dict(list(whole.losses.items())[3:]))
    resumed.end = whole.end
    check_resumed(whole, killed, resumed)
    last = list(whole.losses)[-1]
    assert whole.end is not None
    others = [
        RunLog({**resumed.losses, last: math.nextafter(whole.losses[last], math.inf)}, whole.end),
        RunLog(resumed.losses, TrainingDone(whole.end.num_parameters, "0" * 32)),
        RunLog(resumed.losses),
        RunLog({key: loss for key, loss in resumed.losses.items() if key != last}, whole.end),
        RunLog({**resumed.losses, (99, 0): 1.0}, whole.end),
    ]
    for other in others:
        with pytest.raises(InternalError):
            check_resumed(whole, killed, other)
    with pytest.raises(InternalError):
        check_resumed(whole, RunLog(dict(list(whole.losses.items())[:2])), resumed)


# --- when something goes wrong ---


def test_a_checkpoint_that_does_not_fit_on_the_disk_leaves_the_last_one(tmp_path: Path) -> None:
    model, path = WordModel({"classes": 3}, 5, seed=1), tmp_path / "checkpoint.npz"
    save_checkpoint(path, model, {"position": 1})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(SourceError, match="File too large"):
            save_checkpoint(path, model, {"position": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert load_checkpoint(path, model) == {"position": 1}
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


def test_an_error_of_the_training_comes_as_it_is(hdf: Path, tmp_path: Path) -> None:
    before = children()
    with pytest.raises(HeadraceError, match="cannot write the file") as info:
        run(make_training(hdf, tmp_path, checkpoint=str(tmp_path / "missing" / "checkpoint.npz")))
    assert info.value.where == str(tmp_path / "missing" / "checkpoint.npz")
    assert "make the folder" in (info.value.fix or "")
    assert children() <= before


def test_a_training_that_dies_unasked_is_an_error(hdf: Path, tmp_path: Path) -> None:
    with Trainer(make_training(hdf, tmp_path)) as trainer:
        events = trainer.events()
        next(events)
        os.kill(trainer.pid, signal.SIGKILL)
        with pytest.raises(HeadraceError, match="exit status -9"):
            list(events)


@pytest.mark.parametrize("how", ["given up", "killed"])
def test_a_training_ends_with_its_workers(hdf: Path, tmp_path: Path, how: str) -> None:
    with contextlib.ExitStack() as stack:
        trainer = Trainer(make_training(hdf, tmp_path))
        with trainer:
            assert isinstance(next(trainer.events()), StepDone)
            pids = set(descendants_of(trainer.pid))
            assert len(pids) >= 2  # the warden, and a worker or two
            stack.enter_context(ends_with_its_processes({trainer.pid, *pids}))
            if how == "killed":
                trainer.kill()


_PROGRAM = """
import sys
import msgspec
from demo.processes import Trainer
from demo.trainer import Training

with Trainer(msgspec.json.decode(sys.argv[1], type=Training)) as trainer:
    next(trainer.events())
    print("begun", flush=True)
    sys.stdin.read()
"""


def test_a_training_ends_when_the_demo_is_killed(hdf: Path, tmp_path: Path) -> None:
    training = msgspec.json.encode(make_training(hdf, tmp_path)).decode()
    command = [sys.executable, "-c", _PROGRAM, training]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as demo:
        assert demo.stdout is not None
        assert demo.stdout.readline() == b"begun\n"
        pids = set(descendants_of(demo.pid))
        assert len(pids) >= 3  # the training, its warden, a worker or two
        with ends_with_its_processes(pids):
            demo.kill()


@pytest.mark.long
@pytest.mark.parametrize("line", ["5. Training", "      3 ", "A new process"])
def test_ctrl_c_in_the_training_ends_the_demo_with_one_line_and_nothing_left(tmp_path: Path, line: str) -> None:
    pytest.importorskip("soundfile")
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "demo", "--corpus", str(CORPUS), "--output", str(tmp_path / "demo")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        # A shell that started the tests in the background may have told its children to ignore SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as demo:
        assert demo.stdout is not None
        in_training = False
        for text in demo.stdout:
            in_training |= text.startswith("5. Training")
            if in_training and line in text:
                break
        with ends_with_its_processes(set(descendants_of(demo.pid))):
            os.killpg(demo.pid, signal.SIGINT)
            _, errors = demo.communicate(timeout=_DEADLINE_SECONDS)
    assert (demo.returncode, errors) == (130, "interrupted\n")
    assert not [path for path in (tmp_path / "demo").rglob("*") if path.name.startswith(".headrace")]


# --- the example ---


def start_example(hdf: Path, checkpoint: Path, num_epochs: int, num_workers: int) -> subprocess.Popen[str]:
    options = {"--checkpoint": checkpoint, "--epochs": num_epochs, "--num-workers": num_workers, "--max-frames": 200}
    command = [
        sys.executable,
        ROOT / "examples" / "train_numpy.py",
        hdf,
        *(x for pair in options.items() for x in pair),
    ]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True, env=environment)


@pytest.mark.long
def test_the_example_is_the_training_of_the_demo_and_goes_on_after_a_kill(hdf: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "example.npz"
    with start_example(hdf, checkpoint, num_epochs=10_000, num_workers=2) as example:
        assert example.stdout is not None
        lines = [next(example.stdout) for _ in range(13)]
        with ends_with_its_processes(set(descendants_of(example.pid))):
            example.kill()
            lines += [line for line in example.stdout if line.endswith("\n")]
    num_epochs = int(lines[-1].split(",")[0].removeprefix("epoch ")) + 1
    (tmp_path / "all.txt").write_text("".join(f"{lang}/{word}\n" for lang in LANGUAGES for word in range(NUM_WORDS)))
    options = {"train_tags": str(tmp_path / "all.txt"), "max_frames": 200, "epochs": num_epochs}
    log = run(make_training(hdf, tmp_path, **options))
    expected = [f"epoch {epoch}, step {step}: loss {loss:.9f}\n" for (epoch, step), loss in log.losses.items()]
    assert lines == expected[: len(lines)]
    with start_example(hdf, checkpoint, num_epochs, num_workers=0) as example:
        assert example.stdout is not None
        rest = list(example.stdout)
    assert example.returncode == 0
    assert len(expected) - len(lines) <= len(rest) < len(expected)
    assert rest == expected[-len(rest) :]
