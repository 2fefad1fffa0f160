"""A file in the cache: how it is marked to be read through it, what its copy is called, and its record.

A copy belongs to one version of one source: its key is made of digests of both and the size, so that a source that
changed gets another copy beside the old one, which others may still read. No part of a source's name becomes part of a
path except its last component, made harmless: an entry never leaves the folder, and two sources never share one.

The record of a copy is JSON in its lock file, written when the copy is whole. A record that is empty, truncated, of
another format, or that does not describe the file, means that there is no copy.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Self
from urllib.parse import unquote

from headrace.errors import ConfigError

from ..fetch import SourceStat
from ..locations import is_url, local_path

_FORMAT = 2  # of the record; another format is a miss
_MAX_NAME_BYTES = 250  # `.part` is added while the copy is made
_KEY = re.compile(r"([0-9a-f]{32})-[0-9a-f]{16}-(\d{1,19})")


@dataclass(frozen=True, slots=True)
class EntryKey:
    """The name of a copy: which source, which version of it, how many bytes.

    Attributes:
        text: All three, as in file names, so that a listing of the folder tells the sizes.
        source: Digest of the path or URL, 32 hex digits.
        size: Bytes of the copy.
    """

    text: str
    source: str
    size: int

    @classmethod
    def of(cls, source: str, stat: SourceStat) -> EntryKey:
        """Return the key for one version of a source."""
        digest, version = source_digest(source), _digest(f"{stat.size}:{stat.version}", 8)
        return cls(f"{digest}-{version}-{stat.size}", digest, stat.size)

    @classmethod
    def parse(cls, text: str) -> EntryKey | None:
        """Return the key that a text is, or None."""
        match = _KEY.fullmatch(text)
        return None if match is None else cls(text, match[1], int(match[2]))


@dataclass(frozen=True, slots=True)
class EntryRecord:
    """The record of a whole copy.

    Attributes:
        format: Version of this record's format.
        source: The path or URL.
        size: Bytes.
        version: Version of the source, for people: the key holds a digest of it.
        mtime_ns: Modification time of the copy, which changes if it is written to.
        copied_at: When, in seconds since 1970.
    """

    format: int
    source: str
    size: int
    version: str
    mtime_ns: int
    copied_at: float

    @classmethod
    def of(cls, source: str, stat: SourceStat, *, mtime_ns: int) -> EntryRecord:
        """Return the record of a new copy."""
        return cls(_FORMAT, source, stat.size, stat.version, mtime_ns, time.time())

    @classmethod
    def parse(cls, data: bytes) -> Self | None:
        """Return the record, or None if this is not one, or one of another format."""
        try:
            record = cls(**json.loads(data))
        except (TypeError, ValueError, RecursionError):
            return None
        is_ours = record.format == _FORMAT and isinstance(record.source, str)
        return record if is_ours and isinstance(record.version, str) else None

    def encode(self) -> bytes:
        """Return the record as JSON; bytes of a name that are no text are escaped."""
        return json.dumps(dataclasses.asdict(self)).encode()


def source_digest(source: str) -> str:
    """Return 32 hex digits for a path or URL."""
    return _digest(source, 16)


def _digest(text: str, num_bytes: int) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=num_bytes).hexdigest()


def derive_mtime_ns(source: str, stat: SourceStat) -> int:
    """Return the modification time that each copy of this version gets, so that all of them look the same.

    That of a local source, whose version it is; for others a time derived from the version. An index that recorded the
    time of a copy stays valid for the next one.
    """
    if not is_url(source):
        return int(stat.version)
    return int(_digest(f"{source}\0{stat.version}", 4), 16) % 10**9 * 10**9  # seconds from 1970 to 2001


def plain_source(source: str | os.PathLike[str]) -> str:
    """Return a path or URL as the cache knows it: a `file://` URL is the path in it.

    Paths are taken as they are: `..` and links stay, because what they mean can change.

    Raises:
        ConfigError: A relative path, an empty name, a null character, or not a path.
    """
    text = os.fspath(source) if isinstance(source, os.PathLike) else source
    if not isinstance(text, str):
        what = f"{source!r} is not a file name, but of type {type(source).__name__}"
        raise ConfigError(what, where="FileCache", fix="pass an absolute path or a URL, as a string or a path object")
    local = local_path(text)
    plain = text if local is None else local
    if "\0" in plain:
        raise ConfigError(f"the file name {plain!r} holds a null character", where="FileCache")
    if local is not None and not os.path.isabs(local):
        raise ConfigError(
            f"the path {plain!r} is relative: the cache could not tell two files of this name apart",
            where="FileCache",
            fix=f"use os.path.abspath({plain!r}), or a URL such as s3://bucket/name",
        )
    return plain


def name_of(source: str) -> str:
    """Return the last component of a path or URL as a name for the copy: readers look at the suffix.

    Characters that are not allowed are replaced, and of names that are too long the end is kept. Different
    sources may get the same name: they have different folders.
    """
    if is_url(source):
        first = source.split("::")[0] if "://" in source.split("::")[0] else source.rpartition("::")[2]
        path = first.partition("://")[2].split("?")[0].split("#")[0]
        name = unquote(PurePosixPath("/", path.rstrip("/").rpartition("/")[2]).name)
    else:
        name = os.path.basename(source)
    name = re.sub(r"[/\0]", "_", name)
    if name in ("", ".", ".."):
        return "file"
    return os.fsdecode(os.fsencode(name)[-_MAX_NAME_BYTES:])


@dataclass(frozen=True)
class CachedFile:
    """Marks a file in a dataset's dict that is to be read through the file cache.

    It may be used wherever a file name may, in dicts, lists and tuples. It is deliberately not a path: code that opens
    paths would silently read the source and bypass the cache.

    Args:
        filename: Absolute path or URL.

    Raises:
        ConfigError: The path is relative, or not a path.
    """

    filename: str

    def __post_init__(self) -> None:
        """Check the name."""
        object.__setattr__(self, "filename", plain_source(self.filename))


def replace_cached_files(value: Any, get: Callable[[CachedFile], Any]) -> Any:
    """Return a structure of dicts, lists and tuples with `get(file)` instead of each `CachedFile`.

    Parts without any are the same objects; the rest is new, of the same types, and the argument is not changed.
    """
    if isinstance(value, CachedFile):
        return get(value)
    if isinstance(value, dict):
        changed = {key: replace_cached_files(part, get) for key, part in value.items()}
        if all(changed[key] is part for key, part in value.items()):
            return value
        replaced = copy.copy(value)  # of its own type: an OrderedDict stays one
        replaced.update(changed)
        return replaced
    if isinstance(value, (list, tuple)):
        parts = [replace_cached_files(part, get) for part in value]
        if all(new is old for new, old in zip(parts, value, strict=True)):
            return value
        if isinstance(value, list):
            return parts
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value
