"""What to say when this process may open no more files."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator

from headrace.errors import ConfigError

_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


@contextlib.contextmanager
def needs_descriptors(what: str) -> Iterator[None]:
    """Say clearly, for the length of a block, that no more files can be opened.

    Args:
        what: Needs them.

    Raises:
        ConfigError: In place of the `OSError` that says so.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _OUT_OF_DESCRIPTORS:
            raise
        text = f"{what}, and no more files can be opened"
        raise _error(f"{text} on this machine" if error.errno == errno.ENFILE else f"{text}{_limit()}") from error


def lost_descriptors() -> ConfigError:
    """Return the error for descriptors that another process sent, and that could not be opened here."""
    return _error("descriptors sent between processes were lost: no more files can be opened" + _limit())


def _limit() -> str:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return "" if limit == resource.RLIM_INFINITY else f" in this process, whose limit is {limit}"


def _error(what: str) -> ConfigError:
    return ConfigError(
        what,
        where=f"process {os.getpid()}",
        fix="raise the limit on open files (ulimit -n), or keep fewer files open",
    )
