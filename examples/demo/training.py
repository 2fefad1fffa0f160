"""A recogniser is trained, killed in mid-epoch, and resumed, with the same losses.

One training runs to its end, a second is killed by SIGKILL, a third goes on from the checkpoint of the second with
another number of workers. Each is a process of its own, see `processes.py`.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from headrace.files import atomic_write
from headrace.sources import HDFSource

from .processes import RunLog, Trainer, check_resumed, run_until_killed
from .trainer import SAVE_STEPS, EpochDone, Training

EPOCHS = 10
NUM_WORKERS, NUM_WORKERS_RESUMED = 2, 1
WORDS, LANGUAGES = "classes", "language"
FOLDER = "training"
_MAX_FRAMES, _MIN_STEPS = 1600, 12  # of a batch; about so many of an epoch, where the corpus is small
_NUM_LATER_ROWS = 2  # of the table, after the step at which the training was killed


def show_training(screen: Console, hdf: Path, executor: str) -> None:
    """Train on an HDF5 file, once without interruption and once with a SIGKILL in the middle, and compare.

    Args:
        screen: Where to tell.
        hdf: The corpus, with the keys "data", "classes" and "language". All that is written goes into its folder.
        executor: Of the loader.

    Raises:
        InternalError: The two trainings differ.
        HeadraceError: A training failed.
    """
    folder = hdf.parent / FOLDER
    folder.mkdir(exist_ok=True)
    training = plan_training(hdf, folder, executor)
    heads = f"{training.heads[WORDS]} words in {training.heads[LANGUAGES]} languages"
    screen.print()
    screen.print(Text("5. Training:", style="bold"), f"a recogniser in NumPy learns {heads}, and is killed")
    whole = _train_whole(screen, training)
    kill_after = choose_kill(whole)
    epoch, step = list(whole.losses)[kill_after - 1]
    screen.print(f"  The same again, with SIGKILL after step {step + 1} of {whole.num_steps(epoch)} in epoch {epoch}.")
    screen.print(f"  A new process goes on from the last checkpoint (one every {SAVE_STEPS} steps), with")
    screen.print(f"  {NUM_WORKERS_RESUMED} worker in place of {NUM_WORKERS}. The losses:")
    training = _at_checkpoint(training, "killed.npz")
    killed, resumed = run_until_killed(training, kill_after), RunLog()
    with Trainer(msgspec.structs.replace(training, num_workers=NUM_WORKERS_RESUMED)) as trainer:
        for event in trainer.events():
            resumed.add(event)
    _print_losses(screen, whole, killed, resumed)
    check_resumed(whole, killed, resumed)
    assert whole.end is not None
    num_losses, num_parameters = (f"{num:,}" for num in (len(resumed.losses), whole.end.num_parameters))
    screen.print(f"  {num_losses} losses after the resume, and {num_parameters} parameters at the end: equal to those")
    screen.print("  of the uninterrupted training, bit for bit")


def plan_training(hdf: Path, folder: Path, executor: str = "process") -> Training:
    """Keep out one recording of each word that was recorded more than once; write both lists of tags.

    Args:
        hdf: The corpus.
        folder: Where to write.
        executor: Of the loader.
    """
    with contextlib.closing(HDFSource(hdf)) as source:
        takes: dict[int, list[int]] = {}
        for corpus_idx in range(len(source)):
            takes.setdefault(int(source.read(corpus_idx, WORDS)[0]), []).append(corpus_idx)
        kept_out = {some[word % len(some)] for word, some in takes.items() if len(some) > 1}
        lists = {"train": sorted(set(range(len(source))) - kept_out), "kept_out": sorted(kept_out)}
        for name, indices in lists.items():
            with atomic_write(folder / f"{name}.txt", "w") as file:
                file.writelines(f"{source.tag(corpus_idx)}\n" for corpus_idx in indices)
        lengths = source.index.lengths("data")[lists["train"]]
        max_frames = max(min(_MAX_FRAMES, int(lengths.sum()) // _MIN_STEPS), int(lengths.max(initial=1)))
        training = Training(
            hdf=str(hdf),
            train_tags=str(folder / "train.txt"),
            heldout_tags=str(folder / "kept_out.txt"),
            heads={key: source.specs[key].dim or 1 for key in (WORDS, LANGUAGES)},
            num_features=source.specs["data"].dim or 1,
            max_frames=max_frames,
            epochs=EPOCHS,
            checkpoint="",
            num_workers=NUM_WORKERS,
            executor=executor,
        )
    return _at_checkpoint(training, "uninterrupted.npz")


def _at_checkpoint(training: Training, name: str) -> Training:
    """Return the same with a checkpoint of this name, which is not there yet."""
    path = Path(training.train_tags).parent / name
    path.unlink(missing_ok=True)
    return msgspec.structs.replace(training, checkpoint=str(path))


def choose_kill(whole: RunLog) -> int:
    """Return after how many steps to kill: in the middle of an epoch, half-way between two checkpoints."""
    middle = EPOCHS // 2
    kill_after = sum(whole.num_steps(epoch) for epoch in range(1, middle + 1)) + whole.num_steps(middle + 1) // 2
    kill_after += (SAVE_STEPS // 2 - kill_after) % SAVE_STEPS
    return min(kill_after, len(whole.losses))


def _train_whole(screen: Console, training: Training) -> RunLog:
    """Train without interruption, and print what each epoch brought."""
    counts = [len(Path(tags).read_text().splitlines()) for tags in (training.train_tags, training.heldout_tags)]
    screen.print(f"  {counts[0]} recordings, in new noise in each epoch, and {counts[1]} that are kept out of it:")
    screen.print(f"{'heard':>31}{'kept out':>13}")
    screen.print("  epoch  steps   loss      word   language    word")
    log = RunLog()
    with Trainer(training) as trainer:
        for event in trainer.events():
            log.add(event)
            if isinstance(event, EpochDone):
                numbers = f"{event.epoch:7}  {log.num_steps(event.epoch):5}  {log.mean_loss(event.epoch):5.3f}"
                screen.print(numbers + _show_shares(event.heard, event.heldout))
    chance = {key: 1 / num_classes for key, num_classes in training.heads.items()}
    screen.print(f"{'  by chance':21}" + _show_shares(chance, chance if counts[1] else {}))
    screen.print("  heard: the words that it learns from, in noise that is new to it")
    screen.print("  kept out: words that it never heard in that language, only in others")
    return log


def _show_shares(heard: dict[str, float], heldout: dict[str, float]) -> str:
    def show(share: float | None) -> str:
        return "-" if share is None else f"{100 * share:.1f} %"

    return f"{show(heard.get(WORDS)):>10}{show(heldout.get(LANGUAGES)):>11}{show(heldout.get(WORDS)):>8}"


def _print_losses(screen: Console, *logs: RunLog) -> None:
    """Print the losses around the kill, and the last ones; the logs are the uninterrupted, the killed, the resumed."""
    whole, killed, resumed = logs
    steps = list(whole.losses)
    start = min((row for row, key in enumerate(steps) if key in resumed.losses), default=1)
    stop = min(len(killed.losses) + _NUM_LATER_ROWS, len(steps))
    screen.print(f"  epoch  step{'uninterrupted':>17}{'killed':>15}{'resumed':>15}")
    for key in steps[max(0, start - 1) : stop]:
        _print_loss(screen, key, logs)
    if stop < len(steps) - 1:
        screen.print("    ...")
    for key in steps[max(stop, len(steps) - 1) :]:
        _print_loss(screen, key, logs)


def _print_loss(screen: Console, key: tuple[int, int], logs: tuple[RunLog, ...]) -> None:
    losses = [f"{log.losses[key]:.9f}" if key in log.losses else "" for log in logs]
    screen.print(f"{key[0]:7}  {key[1] + 1:4}{losses[0]:>17}{losses[1]:>15}{losses[2]:>15}".rstrip())
