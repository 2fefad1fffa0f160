"""A sandbox for tests: system calls that this process, and all that it starts, may not use, as in a container."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import platform
import struct

# x86_64 and aarch64 have the same numbers for the newer ones.
_NUMBERS = {
    "pidfd_open": 434,
    "pidfd_send_signal": 424,
    "memfd_create": {"x86_64": 319, "aarch64": 279},
    "fcntl": {"x86_64": 72, "aarch64": 25},
}
_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_SET, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2
MFD_NOEXEC_SEAL = 8


def is_possible() -> bool:
    """Whether there are such sandboxes here."""
    return platform.machine() in ("x86_64", "aarch64")


def forbid(*names: str, code: int = errno.ENOSYS) -> None:
    """Have system calls fail from now on, with this error."""
    program = [_step(_LOAD, 0)]
    for name in names:
        program += [_step(_JUMP_IF_EQUAL, _number(name), 0, 1), _step(_RETURN, _ERRNO | code)]
    _install([*program, _step(_RETURN, _ALLOW)])


def forbid_executable_memfds() -> None:
    """Do as a system with `vm.memfd_noexec=2`: no memfd without the flag that says so."""
    _install(
        [
            _step(_LOAD, 0),
            _step(_JUMP_IF_EQUAL, _number("memfd_create"), 0, 3),
            _step(_LOAD, 16 + 8),  # the low half of the second argument
            _step(_JUMP_IF_SET, MFD_NOEXEC_SEAL, 1, 0),
            _step(_RETURN, _ERRNO | errno.EACCES),
            _step(_RETURN, _ALLOW),
        ]
    )


def forbid_signals_of_descriptors() -> None:
    """Let nobody be told of events of a descriptor by a signal."""
    _install(
        [
            _step(_LOAD, 0),
            _step(_JUMP_IF_EQUAL, _number("fcntl"), 0, 4),
            _step(_LOAD, 16 + 8),  # the low half of the second argument
            _step(_JUMP_IF_EQUAL, fcntl.F_SETOWN, 1, 0),
            _step(_JUMP_IF_EQUAL, fcntl.F_SETSIG, 0, 1),
            _step(_RETURN, _ERRNO | errno.EPERM),
            _step(_RETURN, _ALLOW),
        ]
    )


def _number(name: str) -> int:
    number = _NUMBERS[name]
    return number[platform.machine()] if isinstance(number, dict) else number


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def _install(program: list[bytes]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    code = b"".join(program)
    steps = ctypes.create_string_buffer(code, len(code))
    described = ctypes.create_string_buffer(struct.pack("HP", len(program), ctypes.addressof(steps)))
    assert libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    if libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, described, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")
