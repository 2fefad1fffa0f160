"""`Format` describes a storage format for reading, writing, detection, configs, CLI and docs."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from headrace.files import open_regular
from headrace.files.packed import damaged, is_damage, is_packed, open_packed

HEAD_BYTES = 512  # a block of a tar, whose mark stands at its end
_MAX_LINE_BYTES = 1 << 20  # of a first line; of a longer one, that it is long
_PART_BYTES = 1 << 16  # of a compressed file at a time
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Head:
    """First bytes of a file, for detecting its format.

    Attributes:
        path: Path of the file.
        data: Its first bytes, at most `HEAD_BYTES`.
    """

    path: str
    data: bytes

    @cached_property
    def num_bytes(self) -> int:
        """Size of the file."""
        return os.path.getsize(self.path)

    @cached_property
    def first_line(self) -> bytes:
        """The first line, also in a compressed file, as far as it counts."""
        if self.data.startswith(_GZIP) or is_packed(self.path):
            return _first_line_of_packed(self.path, gzip.open if self.data.startswith(_GZIP) else open_packed)
        with open_regular(self.path) as stored:
            return stored.readline(_MAX_LINE_BYTES)

    @property
    def begins_with_long_object(self) -> bool:
        """Whether the first line is an object of more than a megabyte: a document, and no row of a manifest."""
        return len(self.first_line) >= _MAX_LINE_BYTES and self.first_line.lstrip().startswith(b"{")

    @cached_property
    def first_object(self) -> dict[str, Any] | None:
        """The JSON object that the first line is; `None` if it is none."""
        try:
            first = json.loads(self.first_line.decode("utf-8-sig"))
        except (ValueError, RecursionError):
            return None  # the source says what is wrong
        return first if isinstance(first, dict) else None

    @property
    def first_fields(self) -> list[str]:
        """The fields of the first line, between commas or tabs."""
        text = self.first_line.decode("utf-8-sig", errors="replace")
        return [field.strip().strip('"') for field in text.replace("\t", ",").split(",")]


def _first_line_of_packed(path: str, open_file: Callable[[str], Any]) -> bytes:
    start = b""
    try:
        with open_file(path) as file:  # pyarrow's files know no lines
            while b"\n" not in start and len(start) < _MAX_LINE_BYTES and (part := file.read(_PART_BYTES)):
                start += part
    except Exception as error:
        if not is_damage(error):
            raise
        raise damaged(path, error) from error
    return start.partition(b"\n")[0]


@dataclass(frozen=True)
class Format:
    """One storage format.

    Attributes:
        name: As in `--to`.
        title: For people.
        source: The class that reads it, "package.module:Class". Its first argument takes the files. Its module is
            imported when it is needed.
        writer: The class that writes it, if there is one.
        suffixes: Endings of its files, in lower case. The first one is that of what is written.
        magic: First bytes that no other files have, each with its position.
        recognizes: Tells by the first bytes, or the first line, whether a file is of this format, where neither magic
            nor the name alone says it.
        member: Name of a file by which a folder is known as one of this format.
        is_last: Whether it counts last in a folder: such files lie beside others.
        takes_many: Whether several files are one corpus.
        takes_folder: Whether the source takes a folder as it is; of another format a folder is the files in it.
        in_list: Whether even one file has to come in a list, since a path alone is taken for a folder.
        unique_tags: Whether a tag may come only once in a file.
        defaults: Default options for the source: the whole of each file, in its natural form.
        unless: An option that says something else in the place of all of these.
        key_option: Option of the source for the name of the only data key, where the file does not say it.
        beside: Endings of the files that may lie beside a written one, in the place of the suffix.
        docs: What a table of formats calls it, in Markdown; the title, if it is empty.
        suits: What it is good for, for the same table.
        named_by_paths: Whether sequences are named by the paths of their files. The copy of a URL has another path, so
            URLs are refused, before anything is fetched.
    """

    name: str
    title: str
    source: str
    writer: str | None = None
    suffixes: tuple[str, ...] = ()
    magic: tuple[tuple[int, bytes], ...] = ()
    recognizes: Callable[[Head], bool] | None = None
    member: str | None = None
    is_last: bool = False
    takes_many: bool = True
    takes_folder: bool = False
    in_list: bool = False
    unique_tags: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    unless: str | None = None
    key_option: str | None = None
    beside: tuple[str, ...] = ()
    docs: str = ""
    suits: str = ""
    named_by_paths: bool = False

    @property
    def suffix(self) -> str:
        """Ending of what is written; "" if there is none."""
        return self.suffixes[0] if self.suffixes else ""

    @property
    def source_name(self) -> str:
        """The name of the class that reads it."""
        return self.source.rpartition(":")[2]

    @property
    def writer_name(self) -> str | None:
        """The name of the class that writes it."""
        return None if self.writer is None else self.writer.rpartition(":")[2]

    def has_mark(self, head: Head) -> bool:
        """Tell whether a file begins as those of this format do."""
        return any(head.data[at : at + len(mark)] == mark for at, mark in self.magic)

    def completed(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return options for the source, with the defaults that they leave room for."""
        return dict(options) if self.unless in options else {**self.defaults, **options}

    def files_beside(self, path: str) -> list[str]:
        """Return the names that files beside a written one may have."""
        return [path.removesuffix(self.suffix) + ending for ending in self.beside]
