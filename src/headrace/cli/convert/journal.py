"""What of a conversion is done: a small JSON file beside the shards, so that it goes on after whatever ended it.

Invariants: a shard is noted after it is whole, on the disk, and verified; the journal is replaced whole, never written
over. So after a kill at any moment it names shards that are there. Shards that are there and not noted are written
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
_MAX_FILES = 1000  # that are listed by name: some 200 kB
_BEGIN_ANEW = "give the same options and files as before, or --overwrite to begin anew"


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """What is noted of a shard.

    Attributes:
        name: Of the file, in the folder of the journal.
        num_seqs: How many sequences it holds.
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
        """Make a record from what is in a journal; ValueError if it is something else."""
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
        path: Where it is.
        about: JSON data that say what is converted, and how. Two runs with other ones are two conversions.
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
            SourceError: It is truncated, or of something else.
        """
        try:
            content = json.loads(path.read_bytes())
            if content["version"] != _VERSION or not isinstance(content["about"], dict):
                raise ValueError(f"version {content['version']}")  # noqa: TRY301 - told below with the others
            return cls(path, content["about"], [ShardRecord.from_json(record) for record in content["done"]])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise SourceError(
                f"this is no journal of a conversion: {error}", where=str(path), fix="remove it, or pass --overwrite"
            ) from error

    def check(self, about: Mapping[str, Any]) -> None:
        """Refuse to go on with another conversion than the one that was begun.

        Raises:
            ConfigError: Something differs; it is named.
        """
        difference = _difference(self.about, json.loads(_encode(about)), "")
        if difference is not None:
            raise ConfigError(f"another conversion was begun here: {difference}", where=str(self.path), fix=_BEGIN_ANEW)

    def note(self, record: ShardRecord) -> None:
        """Add the next shard. Costs O(shards noted): a journal of 10,000 is a megabyte.

        Raises:
            SourceError: It cannot be written; the one before stays.
        """
        self.done.append(record)
        self.save()

    def save(self) -> None:
        """Write the journal, in the place of an older one."""
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
    """Return options as JSON data; what JSON does not know, as text."""
    described = {}
    for name, value in options.items():
        try:
            described[name] = json.loads(json.dumps(value))
        except (TypeError, ValueError):
            described[name] = repr(value)
    return described


def describe_files(stamps: Sequence[FileStamp]) -> dict[str, Any]:
    """Return what the files of a corpus are, as JSON data; of very many, only a digest, since it is written often."""
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
