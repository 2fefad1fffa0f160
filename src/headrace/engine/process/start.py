"""How a Python process of ours is started: the command, the environment, and which start methods there are.

Invariant: whatever the trainer did to `sys.path` before is in the command, so what it can import a worker can.
"""

from __future__ import annotations

import enum
import errno
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Mapping

from headrace.errors import ConfigError

from ..memory.memfd import create_memfd

# Each of these libraries reads one of them when it is loaded, and starts as many threads.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
# No module is run as `__main__`, so nothing that a worker starts later can mistake our code for the user's program.
# Nothing but `sys`, which is no file, is imported before the path is the trainer's.
_BOOT = "import sys;sys.path[:]={0};from {1} import {2};{2}({3})"
_WARDEN_SERVER = "headrace.engine.process.warden_server"


class StartMethod(enum.Enum):
    """Where a worker process comes from.

    `EXEC`: forked off our warden, which was executed anew. `SPAWN`: as that, and then a fresh interpreter each.
    `FORKSERVER`: as `EXEC`, which is what the name promises.
    """

    EXEC = "exec"
    SPAWN = "spawn"
    FORKSERVER = "forkserver"

    @classmethod
    def parse(cls, name: str | None) -> StartMethod:
        """Return the start method of this name; None means the default.

        Raises:
            ConfigError: There is none of this name.
        """
        if name == "fork":
            raise ConfigError(
                "worker processes are no longer forked off the training process",
                fix="omit 'fork', and open what cannot be pickled on first use in the worker; or use executor='thread'",
            )
        try:
            return cls.EXEC if name is None else cls(name)
        except ValueError:
            valid = ", ".join(repr(method.value) for method in cls)
            raise ConfigError(f"there is no start method {name!r}", fix=f"use None or one of {valid}") from None

    def is_fresh(self, num_threads: int) -> bool:
        """Tell whether each worker executes an interpreter of its own, if only to set its number of threads."""
        return self is StartMethod.SPAWN or num_threads != 1


@functools.cache
def check_system() -> None:
    """Refuse a system that cannot have worker processes.

    Raises:
        ConfigError: It has no memfds, or no pidfds that can be waited for and take signals.
    """
    try:
        os.close(create_memfd("headrace-probe"))
        fd = os.pidfd_open(os.getpid())
        try:
            signal.pidfd_send_signal(fd, 0)
        finally:
            os.close(fd)
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            return  # starting the workers reports it
        raise ConfigError(
            "worker processes need Linux 5.4 or later, with memfds and pidfds",
            where=f"{sys.platform}: {error}",
            fix="use executor='thread'",
        ) from error


def command_of_warden(*fds: int) -> list[str]:
    """Return the command that makes a new process a warden with these inherited descriptors, see `be_warden`."""
    return python_command(_WARDEN_SERVER, "be_warden", ",".join(map(str, fds)))


def command_of_worker() -> list[str]:
    """Return the command that makes a new process a worker; its numbers follow as one more argument."""
    return python_command(_WARDEN_SERVER, "main_of_worker", "sys.argv[1]")


_MALLOC = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(1 << 30)}  # bytes; others ignore it


def environment_of_warden() -> dict[str, str]:
    """Return the trainer's environment with one thread for each numerical library, and freed memory kept by malloc.

    glibc gives large blocks back to the system when they are freed, and faults them in again at the next array: a
    worker that makes arrays of 64 KiB and more in turn spends half of its time there.
    """
    return {**_MALLOC, **os.environ, **environment_of_threads(1)}


def environment_of_threads(num_threads: int) -> Mapping[str, str]:
    """Return the variables that bound the threads of numerical libraries."""
    return dict.fromkeys(THREAD_VARIABLES, str(num_threads))


def python_command(module: str, function: str, arguments: str) -> list[str]:
    """Return the command that calls a function of ours in a new process, with arguments that are Python.

    Raises:
        ConfigError: This process does not know its own interpreter.
    """
    if not sys.executable:
        raise ConfigError(
            "this Python does not know its own executable (sys.executable is empty), so it cannot start workers",
            fix="set sys.executable, or use executor='thread' or 'inline'",
        )
    # What multiprocessing uses too: -W, -X, -O, -I, ... as given to this interpreter.
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    path = ascii([entry for entry in sys.path if isinstance(entry, str)])
    # -P: else Python would look for modules of its own, such as `linecache`, in the current folder first.
    return [sys.executable, *flags, "-P", "-c", _BOOT.format(path, module, function, arguments)]
