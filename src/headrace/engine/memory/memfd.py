"""Anonymous files in memory, and their mapping into this process.

A memfd has no name in any file system, is bound by memory alone (not by the size of `/dev/shm`), and is gone with its
last descriptor and mapping. It is sparse: only pages that were touched take memory. Invariant: a mapping is undone by
nothing but the end of the last array over it, so no view can ever point at unmapped memory. That is why the C calls
are made here: an `mmap.mmap` can be closed by hand, and holds one more descriptor for each mapping.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import weakref
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import CacheError

PAGE_BYTES = mmap.PAGESIZE

# Linux 6.3: these bytes need not be executable, and a hardened system asks us to say so. Not in Python's `os`.
_MFD_NOEXEC_SEAL = 0x0008

_LIBC = ctypes.CDLL(None, use_errno=True)
_MMAP = _LIBC.mmap
_MMAP.restype = ctypes.c_void_p
_MMAP.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
_MUNMAP = _LIBC.munmap
_MUNMAP.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_MADVISE = _LIBC.madvise
_MADVISE.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_MAP_FAILED = ctypes.c_void_p(-1).value
_MAP_FIXED = 0x10  # not in Python's `mmap`


def create_memfd(name: str) -> int:
    """Return the descriptor of a new, empty memfd that can grow but never shrink.

    The seal against shrinking is what lets a reader trust a mapping: a page that was there once cannot vanish under it.
    The descriptor is closed on exec; pass it on by name (`pass_fds`, `SCM_RIGHTS`).

    Args:
        name: Shown in `/proc/<pid>/maps` and `/proc/<pid>/fd`; need not be unique.
    """
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        fd = os.memfd_create(name, flags | _MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        fd = os.memfd_create(name, flags)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return fd


def round_to_pages(num_bytes: int) -> int:
    """Return the size in bytes of the pages that hold `num_bytes`."""
    return -(-num_bytes // PAGE_BYTES) * PAGE_BYTES


def create_memfd_of(name: str, num_bytes: int) -> int:
    """Return the descriptor of a new memfd of `num_bytes` bytes, all zero; see `create_memfd`.

    Raises:
        CacheError: The system refuses a file so long.
    """
    fd = create_memfd(name)
    try:
        extend_memfd(fd, num_bytes)
    except BaseException:
        os.close(fd)
        raise
    return fd


def extend_memfd(fd: int, num_bytes: int) -> None:
    """Make a memfd at least so long. Takes no memory: pages come with the first touch.

    Raises:
        CacheError: The system refuses a file so long.
    """
    if os.fstat(fd).st_size >= num_bytes:
        return
    try:
        os.ftruncate(fd, num_bytes)
    except OSError as error:
        raise CacheError(
            f"shared memory cannot be laid out over {num_bytes} bytes: {error.strerror}",
            fix="lower max_bytes or num_slots, or raise the limit on file sizes (`ulimit -f`)",
        ) from error


class _MappingEnd(weakref.ref["Mapping"]):
    """What the callable gets when a mapping ends, and hands on to C as one argument more than it has use for."""

    __slots__ = ()

    _as_parameter_ = 0


class Mapping:
    """Bytes of a memfd in the memory of this process, shared and writable, until the last array over them is gone.

    `numpy.asarray(mapping)` is `uint8[num_bytes]` and keeps the mapping as its base; so do all views of it. There is no
    `close`: drop the arrays and the mapping.

    Args:
        fd: The memfd. Not kept: the mapping outlives the descriptor.
        offset: Where to begin, in bytes; a multiple of the page size.
        num_bytes: How much, at least 1. Only bytes that lie within the file may be touched.

    Raises:
        CacheError: The address space of the process or its number of mappings is used up.
    """

    __slots__ = ("__array_interface__", "__weakref__", "_end", "address", "num_bytes", "offset")

    def __init__(self, fd: int, offset: int, num_bytes: int) -> None:
        address = _MMAP(None, num_bytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, offset)
        if address == _MAP_FAILED:
            reason = os.strerror(ctypes.get_errno())
            raise CacheError(
                f"{num_bytes} bytes of shared memory cannot be mapped: {reason}",
                fix="lower max_bytes, or raise the limit on address space (`ulimit -v`) or `vm.max_map_count`",
            )
        # NumPy arrays are opaque to the garbage collector, so this end never comes while an array over the mapping
        # lives, not even inside a garbage cycle. C code calls C code then: Python code would run with it what handlers
        # of signals raise, and lose that. The reference is kept by what it refers to, which is enough for that.
        self._end = _MappingEnd(self, partial(_MUNMAP, address, num_bytes))
        self.address: int = address
        self.offset = offset
        self.num_bytes = num_bytes
        self.__array_interface__ = bytes_interface(address, num_bytes)

    def as_array(self) -> NDArray[np.uint8]:
        """Return all the bytes as a writable `uint8[num_bytes]` that keeps the mapping alive."""
        return np.asarray(self)

    def give_back(self, num_bytes: int) -> None:
        """Return the memory of the first `num_bytes` (whole pages) to the system. They read as zero from now on."""
        if _MADVISE(self.address, num_bytes, mmap.MADV_REMOVE) != 0:
            raise OSError(ctypes.get_errno(), "cannot give shared memory back")

    def make_private(self, fd: int) -> None:
        """Have what this process writes from now on stay its own; what others write is still seen where it has not.

        Arrays stay valid. If the system refuses, everything stays shared.

        Args:
            fd: The memfd.
        """
        flags = mmap.MAP_PRIVATE | _MAP_FIXED
        _MMAP(self.address, self.num_bytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, self.offset)


def bytes_interface(address: int, num_bytes: int) -> dict[str, Any]:
    """Return the `__array_interface__` of writable `uint8[num_bytes]` at an address.

    The pair in "data" makes NumPy keep the object that has this attribute as the base of the array; with a buffer in
    its place, NumPy would keep the buffer instead.
    """
    return {"version": 3, "typestr": "|u1", "shape": (num_bytes,), "data": (address, False)}
