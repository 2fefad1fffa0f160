"""The contract of a writer: it takes the sequences of a corpus, one by one, and makes a file that a source reads.

The target appears under its name when it is whole, or not at all; an existing one is replaced only if that was asked
for. What a format cannot hold is refused, when the layout is known or with the sequence, and never changed in silence.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self

from numpy.typing import NDArray


class Writer(ABC):
    """Writes one file (or folder), sequence by sequence; a context manager, which aborts if its block fails.

    The constructor takes the path, `specs` (data key -> layout; without them the first sequence says it), `labels`
    (data key -> class labels), `overwrite`, and what the format needs.

    Attributes:
        path: The target, absolute.
    """

    path: str

    @property
    @abstractmethod
    def num_seqs(self) -> int:
        """Number of sequences appended so far."""

    @abstractmethod
    def append(self, tag: str, data: Mapping[str, NDArray[Any]]) -> None:
        """Append one sequence. If it is refused, nothing of it is stored, and the next one may be appended.

        Args:
            tag: Its name.
            data: Data key -> `dtype[T, ...]`, or a scalar for a key without time.

        Raises:
            SourceError: The sequence does not fit the layout or the format, or the disk is full.
            ConfigError: The writer is closed.
        """

    @abstractmethod
    def close(self) -> None:
        """Finish the target and give it its name. Does nothing after `close` or `abort`.

        Raises:
            SourceError: It cannot be written; nothing is left.
        """

    @abstractmethod
    def abort(self) -> None:
        """Give up and leave nothing. Does nothing after `close` or `abort`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if error is None:
            self.close()
        else:
            self.abort()
