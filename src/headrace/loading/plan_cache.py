"""Disk cache of batch counts per window: an epoch of a large corpus is planned once per machine.

A table is named by a digest of all that it depends on (data, order, batching, seed, epoch), so a table that is found is
never out of date, and all ranks and loaders of a machine share it. It only saves time: a damaged table is computed
again, and where no file can be written, tables stay in memory. Invariant: nothing here decides what a batch holds.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import asdict, dataclass

import msgspec
import numpy as np
import xxhash

from headrace.batching import BatchTable, PlanCounts
from headrace.errors import CacheError, SourceError
from headrace.files import (
    KeepLimit,
    atomic_write,
    kept_folder,
    kept_path,
    note_use,
    open_regular,
    remove_unused,
    warn_once_of_folder,
)

_logger = logging.getLogger("headrace.loading")
_FORMAT = 1
_MIN_KEPT_SEQS = 200_000  # below, planning again takes some 0.2 s at most
_MAX_WINDOWS = 1 << 20  # of a kept table: 4 MiB
_LIMIT = KeepLimit(max_files=512)  # of some KB; an epoch of a recipe is one file
_FOLDER = "plans"  # in the user's cache folder
_MAX_IN_MEMORY = 32  # tables
_CHECKSUM_BYTES = 16

_in_memory: dict[str, PlanTable] = {}  # the last of the dict is the one that was kept last
_NOT_KEPT = "a table of batch counts stays in memory, as it cannot be kept"


@dataclass(frozen=True, slots=True)
class PlanTable:
    """What is known of an epoch once all of its windows have been planned.

    Attributes:
        batches: How many batches each window has.
        counts: What became of the sequences.
    """

    batches: BatchTable
    counts: PlanCounts


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a file, after its checksum: the name, the batches of each window, `<i4`, and the counts."""

    name: str
    windows: bytes
    counts: dict[str, int]


def table_name(text: str) -> str:
    """Return the name of a table from a text of all that it depends on."""
    return xxhash.xxh3_128_hexdigest(f"table {_FORMAT} {text}".encode("utf-8", "surrogatepass"))


def is_worth_keeping(num_seqs: int, window_seqs: int) -> bool:
    """Tell whether the table for `num_seqs` sequences is slow to compute and small to store."""
    return _MIN_KEPT_SEQS <= num_seqs <= _MAX_WINDOWS * window_seqs


def find_table(name: str, num_windows: int) -> PlanTable | None:
    """Return a kept table, `None` if there is none or it is damaged; some 0.1 ms."""
    table = _in_memory.get(name)
    if table is None:
        table = _read(name)
        if table is not None:
            _remember(name, table)
    return table if table is not None and table.batches.num_windows == num_windows else None


def keep_table(name: str, table: PlanTable) -> None:
    """Keep a table, in memory and in the cache folder; a folder that cannot be used is logged, once.

    Several processes may do so at once: the tables are the same, and the last one's stays.
    """
    _remember(name, table)
    try:
        folder = kept_folder(_FOLDER)
    except CacheError as error:
        warn_once_of_folder(_logger, "", _NOT_KEPT, error)
        return
    windows = table.batches.batches_of_windows.astype("<i4").tobytes()
    content = msgspec.msgpack.encode(_File(name, windows, asdict(table.counts)))
    try:
        with atomic_write(folder / _file_name(name), follow_links=False) as file:
            file.write(xxhash.xxh3_128_digest(content) + content)
        remove_unused(folder, "*.hrplan", limit=_LIMIT)
    except (OSError, SourceError) as error:
        warn_once_of_folder(_logger, str(folder), _NOT_KEPT, error)


def forget_table(name: str) -> None:
    """Drop a table that does not fit the plan."""
    _in_memory.pop(name, None)
    with contextlib.suppress(OSError, CacheError):
        (kept_path(_FOLDER) / _file_name(name)).unlink(missing_ok=True)


def _read(name: str) -> PlanTable | None:
    try:
        path = kept_path(_FOLDER) / _file_name(name)
        with open_regular(path) as file:
            data = file.read(_CHECKSUM_BYTES + 5 * _MAX_WINDOWS + 1)
    except (CacheError, OSError, SourceError):
        return None
    content = data[_CHECKSUM_BYTES:]
    if xxhash.xxh3_128_digest(content) != data[:_CHECKSUM_BYTES]:
        _logger.debug("a table of batch counts is damaged, and will be made again: %s", path)
        return None
    try:
        file_content = msgspec.msgpack.decode(content, type=_File)
        batches = BatchTable(np.frombuffer(file_content.windows, "<i4"))
        table = PlanTable(batches, PlanCounts(**file_content.counts))
    except (msgspec.MsgspecError, ValueError, TypeError) as error:  # of another version, or not one of ours
        _logger.debug("a table of batch counts is not readable, and will be made again: %s: %s", path, error)
        return None
    if file_content.name != name:
        return None
    note_use(path)
    return table


def _file_name(name: str) -> str:
    return f"{name}.hrplan"


def _remember(name: str, table: PlanTable) -> None:
    _in_memory.pop(name, None)  # so that it comes last; another thread may do the same at any moment
    _in_memory[name] = table
    while len(_in_memory) > _MAX_IN_MEMORY:
        _in_memory.pop(next(iter(_in_memory)), None)
