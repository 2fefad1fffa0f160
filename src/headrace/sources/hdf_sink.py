"""A file for HDF5 to write to that never fails, and says afterwards what went wrong.

HDF5 does not survive a full disk: it keeps what it could not write, tries again while the file is being closed, and may
end the whole process there with a segmentation fault. So its writes go through this object. After the first error it
swallows what follows, HDF5 closes in peace, and the caller, who has to ask `check` before it believes in the file,
throws it away.
"""

from __future__ import annotations

import io
import os
from typing import Any


class ForgivingFile(io.FileIO):
    """A new or emptied raw file that remembers its first error instead of raising it, for h5py's Python file driver.

    Args:
        path: Where.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path, "w+b")
        self._error: OSError | None = None

    def check(self) -> None:
        """Raise the first OSError that was swallowed, if there is one."""
        if self._error is not None:
            raise self._error

    def write(self, data: Any) -> int:
        """Write all of a buffer, or remember why not."""
        view = memoryview(data).cast("B")
        size = len(view)
        try:
            while view and self._error is None:
                view = view[super().write(view) or 0 :]
        except OSError as error:
            self._error = error
        return size

    def truncate(self, size: int | None = None) -> int:
        """Set the size of the file, or remember why not."""
        try:
            if self._error is None:
                return super().truncate(size)
        except OSError as error:
            self._error = error
        return size or 0

    def close(self) -> None:
        """Close the file; some file systems report only here that they could not write."""
        try:
            super().close()
        except OSError as error:
            self._error = self._error or error
