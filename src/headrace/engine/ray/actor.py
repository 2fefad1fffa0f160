"""The worker: an actor of Ray, in a process of its own.

Its methods are called in two of Ray's concurrency groups, each of which is one thread: what the worker does, one call
after another in the order in which they were sent; and `CONTROL`, which answers while user code runs. User code runs in
the thread of the first group only.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import traceback
import types
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..codec.codec import encode
from ..events import Answer, Failed, StreamEnded
from ..group_size import GroupSize
from ..memory.arena import ArenaWriter
from ..memory.memfd import create_memfd
from ..memory.slot import SlotWriter, open_slot
from ..user.failure import Failure
from ..user.job import Job
from ..user.ship import unship
from ..user.worker_info import set_process_scope
from ..worker import ShippedWorker
from .calls import CALL_BYTES, CALL_SECONDS, MAX_CALL_TICKETS, Place, RayRun, Reply, Role, Status, Versions

_MAX_BYTES = 1 << 40  # of one result: the memory of the machine is the limit


class WorkerActor:
    """One worker. See `engine/worker.py` for what it does with a ticket."""

    def __init__(self) -> None:
        self._worker: ShippedWorker | None = None
        self._thread = 0
        self._tickets: deque[tuple[int, bytes | None]] = deque()
        self._cancelled = -1  # this run and all before
        fd = create_memfd("headrace-ray")
        self._arena = ArenaWriter(fd, slot_bytes=CALL_BYTES, num_slots=1, max_bytes=_MAX_BYTES)
        os.close(fd)
        self._slot: SlotWriter | None = None  # with the values of the last call
        self._size = GroupSize()

    # --- one after another ---

    def set_up(
        self,
        versions: Versions,
        role: Role,
        job: tuple[bytes, list[NDArray[np.uint8]]],
    ) -> bytes | None:
        """Make the user's functions; return what went wrong.

        Args:
            versions: Those of the trainer.
            role: Which worker it is.
            job: A parcel with the `Job`, and its large arrays.
        """
        self._thread = threading.get_ident()
        self._size = GroupSize(max_seconds=CALL_SECONDS, max_bytes=role.call_bytes, max_items=MAX_CALL_TICKETS)
        worker_idx, sys.argv[:] = role.worker_idx, role.argv
        sys.path += [folder for folder in role.path if folder not in sys.path]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            Versions.here().check(versions, f"worker {worker_idx} on {socket.gethostname()}")
            parcel, arrays = job
            # Copies: arrays in the object store cannot be written to, those of the user's objects may be.
            made = unship(parcel, [memoryview(bytearray(array)) for array in arrays])
        except Exception as error:  # noqa: BLE001 - importing runs user code: it goes on as a Failure
            return Failure.of(error).to_bytes()
        assert isinstance(made, Job)
        info = made.info_of(worker_idx, max(role.num_workers, worker_idx + 1), "ray", runs_in="process")
        worker = ShippedWorker(made, info)
        set_process_scope(worker.scope)
        failure = worker.set_up()
        if failure is not None:
            return failure.to_bytes()
        self._worker = worker
        return None

    def begin(self, begin: RayRun) -> None:
        """Begin a run."""
        self._tickets.clear()
        if self._worker is not None:
            self._worker.begin_run(begin.mode, begin.payload, begin.first_item)

    def end_run(self) -> None:
        """Close the streams of a run that was cancelled."""
        self._tickets.clear()
        if self._worker is not None:
            self._worker.end_run()

    def work(self, run_id: int, tickets: list[int], payloads: list[bytes | None]) -> Reply:
        """Take tickets, and do the next ones of all that are here; at least one, if there is any."""
        reply = Reply(run_id)
        self._tickets += zip(tickets, payloads, strict=True)
        if self._worker is None:
            return reply
        worker, answers = self._worker, list[Answer]()
        slot = self._take_slot()
        open_slot(slot)
        start, most = time.perf_counter(), self._size.choose()
        try:
            while self._tickets and len(answers) < most and run_id > self._cancelled:
                event = worker.perform(run_id, *self._tickets.popleft())
                if isinstance(event, StreamEnded):
                    reply.num_items = event.num_items
                    self._tickets.clear()
                elif event is not None:
                    answers.append(event)
                if time.perf_counter() - start > CALL_SECONDS:
                    break
        except BaseException as error:  # noqa: BLE001 - the end of this worker: what it did before is told with it
            reply.cause = f"ended by {type(error).__name__}: {error}"
            self._worker = None
        open_slot(None)
        self._pack(answers, slot, reply)
        if reply.tickets and reply.data is not None:
            num = len(reply.tickets)
            self._size.note(num, time.perf_counter() - start, reply.data.nbytes / num)
        return reply

    def _take_slot(self) -> SlotWriter:
        """Return memory for values: that of the call before, whose reply Ray has copied by now."""
        if self._slot is not None:
            self._arena.release(self._slot.slot_idx)
        slot = self._slot = self._arena.acquire()
        assert slot is not None
        return slot

    def _pack(self, answers: list[Answer], slot: SlotWriter, reply: Reply) -> None:
        """Write answers into the reply, values all together."""
        start = time.perf_counter()
        values: list[Any] = []
        for position, answer in enumerate(answers):
            reply.tickets.append(answer.ticket)
            if isinstance(answer, Failed):
                values.append(None)
                reply.failures[position] = answer.failure.to_bytes()
                continue
            assert answer.result is not None
            values.append(answer.result.value)
            reply.seconds += answer.seconds
            if answer.skipped:
                reply.skipped[position] = [failure.to_bytes() for failure in answer.skipped]
        try:
            reply.header = encode(values, slot)
        except Exception:  # noqa: BLE001 - pickling runs user code: those that cannot be carried go on as a Failure
            for position, value in enumerate(values):
                try:
                    encode(value, slot)
                except Exception as error:  # noqa: BLE001 - as above
                    reply.failures[position] = Failure.of(error).to_bytes()
                    values[position] = None
            reply.header = encode(values, slot)
        reply.data = slot.view_used()
        reply.pack_seconds = time.perf_counter() - start

    # --- meanwhile, in the group CONTROL ---

    def place(self) -> Place:
        """Return where it runs: which shows that Ray has found a place for it."""
        import ray

        return Place(ray.get_runtime_context().get_node_id(), socket.gethostname(), os.getpid())

    def status(self) -> Status:
        """Return how far it is."""
        scope = None if self._worker is None else self._worker.scope
        return Status(0, None) if scope is None else Status(scope.num_items, scope.item)

    def stack(self) -> str:
        """Return the stack of the thread in which user code runs."""
        frame = sys._current_frames().get(self._thread)
        return "" if frame is None else "".join(traceback.format_stack(frame))

    def cancel(self, run_id: int) -> None:
        """Have a run end at its next ticket."""
        self._cancelled = run_id
