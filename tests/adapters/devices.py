"""A device for tests: it locks memory, does its copies late, and checks what is promised to a real one."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np

from headrace.adapters.ahead import Sent, map_leaves
from headrace.adapters.torch.pinning import PinnedMemory

_LIBC = ctypes.CDLL(None, use_errno=True)


class _Vector(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("num_bytes", ctypes.c_size_t))


class HeldPages:
    """The pages behind some memory as they are now, and not what will be mapped there: as a device holds them.

    A pipe refers to them, from `vmsplice`.

    Args:
        address: Where they are mapped.
        num_bytes: At most 16 pages.
    """

    def __init__(self, address: int, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        self._pipe = os.pipe()
        vector = _Vector(address, num_bytes)
        if _LIBC.vmsplice(self._pipe[1], ctypes.byref(vector), ctypes.c_size_t(1), 0) != num_bytes:
            self.close()
            raise OSError(ctypes.get_errno(), "vmsplice")

    def read(self) -> bytes:
        """Return what the pages hold now."""
        out, into = os.pipe()
        try:
            done = _LIBC.tee(self._pipe[0], into, ctypes.c_size_t(self._num_bytes), 0)
            assert done == self._num_bytes, os.strerror(ctypes.get_errno())
            return os.read(out, self._num_bytes)
        finally:
            os.close(out)
            os.close(into)

    def close(self) -> None:
        for end in self._pipe:
            os.close(end)


class FakeHost:
    """What a device does for memory of the host."""

    def __init__(self, device: FakeDevice) -> None:
        self.locked: dict[int, int] = {}
        self.calls: list[tuple[str, int]] = []
        self.most_bytes = 0
        self.refuses = self.keeps = False
        self._device = device

    def register(self, address: int, num_bytes: int) -> None:
        if self.refuses:
            raise RuntimeError("not enough of something")
        assert address % 4096 == num_bytes % 4096 == 0
        assert all(address >= start + size or start >= address + num_bytes for start, size in self.locked.items()), (
            "locked twice"
        )
        self.calls.append(("register", address))
        self.locked[address] = num_bytes
        self.most_bytes = max(self.most_bytes, sum(self.locked.values()))

    def unregister(self, address: int) -> None:
        assert not self._device.work, "unlocked while copies are under way"
        assert is_mapped(address, self.locked[address]), "unlocked after it was unmapped"
        if self.keeps:
            raise RuntimeError("the device is gone")
        self.calls.append(("unregister", address))
        del self.locked[address]

    def wait(self) -> None:
        self._device.run_until(None)

    def num_calls(self, name: str) -> int:
        return sum(call == name for call, _ in self.calls)


def is_mapped(address: int, num_bytes: int) -> bool:
    with open("/proc/self/maps") as file:
        for line in file:
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            if start <= address < end:
                return address + num_bytes <= end
    return False


class FakeEvent:
    def __init__(self, device: FakeDevice) -> None:
        self._device, self.place = device, device.num_done + len(device.work)

    def query(self) -> bool:
        return self._device.num_done >= self.place

    def synchronize(self) -> None:
        self._device.run_until(self.place)


class FakeDevice:
    """Sends batches of NumPy arrays; its stream reads the sources as late as it may, by their addresses.

    Args:
        lag: How many copies are still to be done when a batch is handed over, its own among them.
    """

    def __init__(self, lag: int = 0) -> None:
        self._lag = lag
        self.host = FakeHost(self)
        self.memory = PinnedMemory(self.host)
        self.work: list[tuple[np.ndarray[Any, Any], int, int]] = []
        self.num_done = 0
        self.num_in_place = self.num_staged = 0

    def send(self, batch: Any) -> Sent:
        """Begin to copy."""
        parts: list[Any] = []
        sources: list[Any] = []

        def copy(leaf: Any) -> Any:
            if not isinstance(leaf, np.ndarray):
                return leaf
            if self.memory.covers(leaf.ctypes.data, leaf.nbytes):
                self.num_in_place += 1
            else:
                self.num_staged += 1
                leaf = leaf.copy()
            copied = np.full_like(leaf, 77)
            self.work.append((copied, leaf.ctypes.data, leaf.nbytes))
            parts.append(copied)
            sources.append(leaf)
            return copied

        value = map_leaves(batch, copy)
        return Sent(value, parts, sources, FakeEvent(self))

    def hand_over(self, sent: Sent) -> None:
        self.run_until(self.num_done + len(self.work) - self._lag if self._lag else sent.event.place)

    def run_until(self, place: int | None) -> None:
        while self.work and (place is None or self.num_done < place):
            copied, address, num_bytes = self.work.pop(0)
            ctypes.memmove(copied.ctypes.data, address, num_bytes)
            self.num_done += 1
