"""The trainer's side of the zygote: have workers started and ended, hear of their ends.

Invariants: all executors of a trainer whose workers start alike share one zygote, each by a channel of its own; nothing
here blocks for longer than the times named below, even if the zygote hangs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from headrace.errors import ConfigError

from .job import Job
from .messages import Finish, FromWarden, Kill, Spawn, Spawned, ToWarden, decode_from_warden
from .process_handle import wait_readable
from .start_method import StartMethod, command_of_worker, environment_of_threads
from .worker_main import Links
from .zygote_process import MAX_END_SECONDS, join_zygote, send_to_zygote

# Idle workers end in some 20 ms. One that is busy, or whose exit handlers take longer, is killed after this.
_GRACE_SECONDS = 1.0


class Warden:
    """One executor's channel to a zygote. Not thread-safe.

    Args:
        method: Where workers come from.
        job: Given to a zygote that is forked off the trainer.
        num_threads: How many threads numerical libraries may use in a worker.
        modules: Modules of ours that workers will import.

    Raises:
        ConfigError: This system cannot do it.
    """

    def __init__(self, method: StartMethod, job: Job, num_threads: int, modules: Sequence[str] = ()) -> None:
        self._is_fresh = method is StartMethod.SPAWN or (num_threads != 1 and method is not StartMethod.FORK)
        self._executable = command_of_worker() if self._is_fresh else []
        self._environment = dict(environment_of_threads(num_threads)) if self._is_fresh else {}
        self._modules = [] if self._is_fresh else [*sorted(modules), *job.preload]
        preload = () if self._is_fresh else job.preload
        self._zygote, self._channel = join_zygote(job if method is StartMethod.FORK else None, preload)

    @property
    def pid(self) -> int:
        """The zygote's."""
        return self._zygote.pid

    def fileno(self) -> int:
        """Return the descriptor that is readable when there is something to `receive`."""
        return self._channel.fileno()

    def spawn(self, life: int, worker_idx: int, links: Links, handed: Sequence[int] = ()) -> None:
        """Have a worker started, with more descriptors if wanted. The caller closes its descriptors."""
        self._send(Spawn(life, worker_idx, self._executable, self._environment, self._modules), (*links, *handed))

    def kill(self, life: int, grace_seconds: float = 0.0) -> None:
        """Have a worker and all of its descendants ended, after a grace."""
        self._send(Kill(life, grace_seconds))

    def receive(self) -> tuple[Sequence[FromWarden], int | None] | None:
        """Return what the zygote has told, and the descriptor that came with a `Spawned`, which the caller owns.

        Never blocks. No messages at all means that the zygote is gone.

        Returns:
            None if there is nothing.

        Raises:
            ConfigError: The trainer may not open any more files.
        """
        received = self._channel.receive(block=False)
        if received is None:
            return None
        packet, fds = received
        messages = decode_from_warden(packet) if packet else ()
        assert len(fds) == sum(isinstance(message, Spawned) for message in messages)
        return messages, fds[0] if fds else None

    def close(self) -> str:
        """End all of its workers, and a zygote that has no other executor, within 2 s; return how the zygote ended.

        To be called once.
        """
        try:
            if self._send(Finish(_GRACE_SECONDS)):
                self._wait_for_end(_GRACE_SECONDS + MAX_END_SECONDS / 2)
        finally:
            self._channel.close()  # ends its workers at once, if they still live
            ending = self._zygote.leave()
        return ending

    def disown(self) -> None:
        """In a process that was forked off the trainer: close our copies, and nothing else."""
        self._channel.close()
        self._zygote.disown()

    def _wait_for_end(self, seconds: float) -> None:
        """Wait until the zygote has ended our workers and closes the channel."""
        deadline = time.monotonic() + seconds
        while wait_readable(self._channel.fileno(), deadline - time.monotonic()):
            try:
                heard = self.receive()
            except ConfigError:  # a descriptor was lost, of a worker that ends
                continue
            if heard is not None:
                messages, end = heard
                if end is not None:
                    os.close(end)
                if not messages:
                    return

    def _send(self, message: ToWarden, fds: Sequence[int] = ()) -> bool:
        """Send a request; False if the zygote is gone. One that does not read is ended: its workers end with it."""
        return send_to_zygote(self._channel, self._zygote, message, fds)
