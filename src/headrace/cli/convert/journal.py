"""The finished shards of a conversion: a small JSON file beside them, so that it can be resumed however it ended.

Invariants: a shard is recorded after it is whole, on the disk, and verified; the journal is replaced as a whole, never
    overwritten. So after a kill at any moment it names only existing shards. Shards that are not recorded are written
    again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import xxhash

from headrace.errors import ConfigError, SourceError
from headrace.files import FileStamp, atomic_write

_VERSION = 1
_MAX_FILES = 1000  # listed by name: some 200 kB
_START_OVER = "give the same options and files as before, or --overwrite to start over"


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """The record of a shard.

    Attributes:
        name: File name, in the folder of the journal.
        num_seqs: Number of its sequences.
        bytes: The size of the file, or of all files in the folder that it is.
        digest: XXH3-128 over its tags and arrays in order.
        verified: Whether it was read back and compared.
    """

    name: str
    num_seqs: int
    bytes: int
    digest: str
    verified: bool

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Make a record from JSON data of a journal; ValueError if it is not one."""
        types = {"name": str, "num_seqs": int, "bytes": int, "digest": str, "verified": bool}
        if not isinstance(data, dict) or data.keys() != types.keys():
            raise ValueError("not a record of a shard")
        if any(not isinstance(data[name], kind) for name, kind in types.items()):
            raise ValueError("not a record of a shard")
        if data["name"] in ("", ".", "..") or os.path.basename(data["name"]) != data["name"]:
            raise ValueError("a shard in another folder")
        return cls(**data)


class Journal:
    """The journal of one conversion.

    Args:
        path: Its path.
        about: JSON data about what is converted, and how. If they differ, it is another conversion.
        done: The shards that are whole, from the first.
    """

    def __init__(self, path: Path, about: Mapping[str, Any], done: list[ShardRecord]) -> None:
        self.path = path
        self.about = about
        self.done = done

    @classmethod
    def read(cls, path: Path) -> Journal:
        """Read a journal.

        Raises:
            SourceError: It is truncated, or not a journal.
        """
        try:
            content = json.loads(path.read_bytes())
            if content["version"] != _VERSION or not isinstance(content["about"], dict):
                raise ValueError(f"version {content['version']}")  # noqa: TRY301 - reported below with the others
            return cls(path, content["about"], [ShardRecord.from_json(record) for record in content["done"]])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise SourceError(
                f"this is not the journal of a conversion: {error}",
                where=str(path),
                fix="remove it, or pass --overwrite",
            ) from error

    def check(self, about: Mapping[str, Any]) -> None:
        """Refuse to resume another conversion than the one that was started.

        Raises:
            ConfigError: Something differs; it is named.
        """
        difference = _difference(self.about, json.loads(_encode(about)), "")
        if difference is not None:
            raise ConfigError(
                f"another conversion was started here: {difference}", where=str(self.path), fix=_START_OVER
            )

    def note(self, record: ShardRecord) -> None:
        """Add the next shard. Costs O(recorded shards): a journal of 10,000 is a megabyte.

        Raises:
            SourceError: It cannot be written; the one before stays.
        """
        self.done.append(record)
        self.save()

    def save(self) -> None:
        """Write the journal, replacing an older one."""
        content = {"version": _VERSION, "about": self.about, "done": [asdict(record) for record in self.done]}
        with atomic_write(self.path, fsync=True) as file:
            file.write(_encode(content))


def join_digests(records: list[ShardRecord]) -> str:
    """Return one digest over those of all shards in order; of a single one, its own."""
    if len(records) == 1:
        return records[0].digest
    digest = xxhash.xxh3_128()
    for record in records:
        digest.update(f"{record.digest};".encode())
    return digest.hexdigest()


def describe_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as JSON data; other values as text."""
    described = {}
    for name, value in options.items():
        try:
            described[name] = json.loads(json.dumps(value))
        except (TypeError, ValueError):
            described[name] = repr(value)
    return described


def describe_files(stamps: Sequence[FileStamp]) -> dict[str, Any]:
    """Return the stamps of the files of a corpus as JSON data; of very many, only a digest, as it is written often."""
    files = {stamp.path: [stamp.size, stamp.mtime_ns, stamp.digest] for stamp in stamps}
    if len(files) <= _MAX_FILES:
        return files
    return {"number": len(files), "digest": xxhash.xxh3_128_hexdigest(_encode(files))}


def _encode(content: Any) -> bytes:
    return (json.dumps(content, indent=1) + "\n").encode()


def _difference(old: Any, new: Any, name: str) -> str | None:
    """Name the first value in which two pieces of JSON data differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            found = _difference(old.get(key), new.get(key), f"{name} {key}".strip())
            if found is not None:
                return found
        return None
    return None if old == new else f"{name} was {_shown(old)} and is {_shown(new)}"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else f"{text[:119]}…"
