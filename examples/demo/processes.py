"""The trainings as processes: what they tell, how one is killed, and whether two are the same.

Invariant: a training, and its workers, never outlive the `with` block of its `Trainer`, or the process that made it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self

import msgspec
import numpy as np

from headrace.errors import HeadraceError, InternalError

from .trainer import Event, Failed, StepDone, Training, TrainingDone

_END_SECONDS = 2.0  # in which a training that is given up should end, in the middle of no file; else it is killed
# The same sums in the same order each time: with several threads, BLAS may share them out differently.
_ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
# With the module path of this process, wherever it found the package.
_PROGRAM = "import sys; sys.path[:] = {path!r}; from demo.trainer import main; main()"


@dataclass
class RunLog:
    """What a training told.

    Attributes:
        losses: (epoch, step) -> loss, in order.
        end: Its last word, if it came to its end.
    """

    losses: dict[tuple[int, int], float] = field(default_factory=dict)
    end: TrainingDone | None = None

    def add(self, event: Event) -> None:
        """Take note of an event."""
        if isinstance(event, StepDone):
            self.losses[event.epoch, event.step] = event.loss
        elif isinstance(event, TrainingDone):
            self.end = event

    def num_steps(self, epoch: int) -> int:
        """Return how many steps of an epoch were done."""
        return sum(1 for of, _ in self.losses if of == epoch)

    def mean_loss(self, epoch: int) -> float:
        """Return the mean loss of the steps of an epoch."""
        return float(np.mean([loss for (of, _), loss in self.losses.items() if of == epoch]))


class Trainer:
    """A training in a process of its own, which begins its next step when the next event is asked for.

    A context manager: at the end the process is gone, with its workers.

    Args:
        training: What is trained.
    """

    def __init__(self, training: Training) -> None:
        program = _PROGRAM.format(path=sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", program, msgspec.json.encode(training).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **_ONE_THREAD},
            process_group=0,  # Ctrl-C is for this process, which then ends that one
        )

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def events(self) -> Iterator[Event]:
        """Yield what it tells, to the end.

        Raises:
            HeadraceError: It failed.
        """
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event: Event = msgspec.json.decode(line, type=Event)
            if isinstance(event, Failed):
                raise HeadraceError(event.what, where=event.where, fix=event.fix)
            yield event
            if isinstance(event, TrainingDone):
                return
            if isinstance(event, StepDone):
                self._let_go_on()
        raise HeadraceError(f"the training ended before its time, with exit status {self._process.wait()}")

    def kill(self) -> None:
        """Send it SIGKILL while it is at its next step; return when its workers have ended as well."""
        assert self._process.stdout is not None
        self._let_go_on()
        self._process.kill()
        self._process.stdout.read()  # to the end, which comes when the last of its processes has ended

    def _let_go_on(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died: it will tell nothing more
            self._process.stdin.write(b".")
            self._process.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()  # which ends it
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
        finally:
            process.kill()
            process.wait()
            with process.stdout:
                process.stdout.read()  # what was not heard, to the end of the last worker


def run_until_killed(training: Training, kill_after: int) -> RunLog:
    """Train in a process that is killed when it has told so many steps and begun with the next."""
    log = RunLog()
    with Trainer(training) as trainer:
        for event in trainer.events():
            log.add(event)
            if len(log.losses) == kill_after:
                trainer.kill()
                break
    return log


def check_resumed(whole: RunLog, killed: RunLog, resumed: RunLog) -> None:
    """Compare a training that was killed and resumed with an uninterrupted one.

    Raises:
        InternalError: They are not the same, bit for bit.
    """
    if not killed.losses.keys() | resumed.losses.keys() == whole.losses.keys():
        raise InternalError("the killed and the resumed training do not have the steps of the uninterrupted one")
    for log, name in ((killed, "killed"), (resumed, "resumed")):
        for (epoch, step), loss in log.losses.items():
            expected = whole.losses[epoch, step]
            if loss.hex() != expected.hex():
                raise InternalError(
                    f"the {name} training has the loss {loss!r}, and the uninterrupted one {expected!r}",
                    where=f"epoch {epoch}, step {step}",
                )
    if whole.end is None or whole.end != resumed.end:
        raise InternalError(f"the parameters differ at the end: {resumed.end}, and {whole.end} without interruption")
