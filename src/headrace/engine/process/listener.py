"""Listens to all workers of an executor at once, and to their warden: by the rings of the workers, and by sockets.

Invariant: the rings come first and the sockets second, because what a worker says by its socket is sent before the next
record.
"""

from __future__ import annotations

import select
from collections.abc import Iterator, Mapping

from .link import WorkerConnection
from .warden_client import WardenClient


class Listener:
    """Waits for what is said.

    Args:
        lives: The workers by their numbers, those of now at any time: the executor changes it.
    """

    def __init__(self, lives: Mapping[int, WorkerConnection]) -> None:
        self._lives = lives
        self._epoll: select.epoll | None = None
        self._by_fd: dict[int, WorkerConnection] = {}
        self._warden_fd = -1

    def open(self) -> None:
        """Get ready to listen; `close` undoes it."""
        self._epoll = select.epoll()

    def close(self) -> None:
        """Forget all that was listened to; harmless when closed."""
        if self._epoll is not None:
            self._epoll.close()
        self._epoll, self._warden_fd = None, -1
        self._by_fd.clear()

    def add(self, life: WorkerConnection) -> None:
        """Listen to a worker."""
        assert self._epoll is not None
        self._by_fd[life.channel.fileno()] = life
        self._epoll.register(life.channel, select.EPOLLIN)

    def drop(self, life: WorkerConnection) -> None:
        """Listen to a worker no more."""
        assert self._epoll is not None
        del self._by_fd[life.channel.fileno()]
        self._epoll.unregister(life.channel)

    def add_warden(self, warden: WardenClient) -> None:
        """Listen to the warden."""
        assert self._epoll is not None
        self._epoll.register(warden, select.EPOLLIN)
        self._warden_fd = warden.fileno()

    def drop_warden(self, warden: WardenClient) -> None:
        """Listen to the warden no more."""
        assert self._epoll is not None
        self._epoll.unregister(warden)
        self._warden_fd = -1

    def flush(self, awaited_worker_idx: int | None, seconds_waited: float) -> bool:
        """Send what gathered for the workers; return whether one waits for a slot.

        Args:
            awaited_worker_idx: Whom the consumer waits for.
            seconds_waited: The clock of waiting.
        """
        is_starved = False
        for life in self._lives.values():
            life.flush()
            if not life.is_open:
                continue
            if (life.backlog is not None) != life.waits_for_room:
                assert self._epoll is not None
                life.waits_for_room = life.backlog is not None
                self._epoll.modify(life.channel, select.EPOLLIN | (select.EPOLLOUT if life.waits_for_room else 0))
            if life.starved_since is not None and life.worker_idx == awaited_worker_idx:
                life.fail_starved_worker(seconds_waited)
            is_starved = is_starved or life.starved_since is not None
        return is_starved

    def listen(self, timeout_seconds: float) -> Iterator[WorkerConnection | None]:
        """Take in the records of all workers, and yield whose sockets have something: None stands for the warden's.

        Waits if there is nothing. A worker that is dropped meanwhile is not yielded any more.
        """
        assert self._epoll is not None
        lives = self._lives.values()
        has_messages = True in [life.gather() for life in lives]  # of all
        sleeps = not has_messages and timeout_seconds != 0.0
        if sleeps:
            for life in lives:
                life.rings.say_asleep()
            has_messages = True in [life.gather() for life in lives]  # of all
        ready = self._epoll.poll(0.0 if has_messages else timeout_seconds)
        if sleeps:
            for life in lives:
                life.rings.say_awake()
        for fd, _ in ready:
            spoken = self._by_fd.get(fd)
            if spoken is not None:
                yield spoken
            elif fd == self._warden_fd:
                yield None
