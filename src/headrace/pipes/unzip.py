"""Each column for a reader of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .base import IterPipe
from .registry import register_function
from .split import Splitter, children_of


class UnZipper(Splitter):
    """Gives each reader a column, see `unzip`."""

    def _deal(self, item: Any, reader: int) -> None:
        self._check_ahead(reader)
        columns = self._open
        for column, value in zip(columns, [item[column] for column in columns], strict=True):
            self._buffers[column].append(value)

    def child_length(self, reader: int) -> int:  # noqa: ARG002 - all get as many
        return len(self.datapipe)


def unzip(
    source_datapipe: IterPipe[Any],
    sequence_length: int,
    buffer_size: int = 1000,
    columns_to_skip: Sequence[int] | None = None,
) -> list[IterPipe[Any]]:
    """Give each column of the items to a reader of its own.

    Args:
        source_datapipe: The source; its items are sequences.
        sequence_length: How many columns they have.
        buffer_size: How many items the foremost reader may be ahead of the last; -1: as many as it likes.
        columns_to_skip: Columns that nobody wants.

    Returns:
        A reader for each column that is not skipped.

    Raises:
        ConfigError: A number is wrong.
        RuntimeError: All columns are skipped.
        BufferError: A reader is too far ahead (while iterating).
    """
    wanted = [column for column in range(sequence_length) if column not in (columns_to_skip or ())]
    if not wanted:
        raise RuntimeError("All instances are being filtered out: check `sequence_length` and `columns_to_skip`.")
    return children_of(UnZipper(source_datapipe, sequence_length, buffer_size), wanted)


register_function(IterPipe, "unzip", unzip)
