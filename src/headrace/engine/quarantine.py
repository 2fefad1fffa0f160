"""A list of what was left out, for a person to look at.

Invariant: one line of JSON for each skip, in the order of the stream, so that it is the same for any number of workers;
lines are appended whole, and never rewritten.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from .failure import Failure


class Quarantine:
    """A file of skips.

    Args:
        path: Created when the first line is written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, ticket: int, failure: Failure) -> None:
        """Write one line: `tag`, `epoch`, `ticket`, `error` (type and text), `traceback`.

        Raises:
            OSError: If the file cannot be written.
        """
        line = {
            "tag": failure.place.tag if failure.place else None,
            "epoch": failure.place.epoch if failure.place else None,
            "ticket": ticket,
            "error": f"{failure.type_name}: {failure.text}",
            "traceback": failure.traceback,
        }
        data = json.dumps(line).encode() + b"\n"
        # One write to a descriptor in append mode, not a buffered file: lines of several trainers do not mix.
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            while data:  # a short write happens on a full disk: go on, so that the error is raised
                data = data[os.write(fd, data) :]
        finally:
            os.close(fd)
