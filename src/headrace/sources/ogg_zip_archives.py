"""Which archives an OggZip corpus has, under which names, and the text of each.

The text of an archive is a file `<name>.txt` in it, or a `.txt.gz` beside it. It is read again for each sequence, at
the place of its entry; a large one from a plain copy in the cache folder, which all processes share.
"""

from __future__ import annotations

import gzip
import logging
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

from headrace.errors import ConfigError, SourceError
from headrace.files import FileStamp, open_regular

from .decompressed import plain_copy
from .plain_files import PlainFiles, check_stamp
from .zip_members import Member, list_members, read_member

MAX_TEXT_IN_MEMORY = 4 << 20
_LOGGER = logging.getLogger("headrace.sources")
_COPY_KIND = "ogg-zip-text"


@dataclass(frozen=True, slots=True)
class Archive:
    """One archive, or a folder in place of one.

    Attributes:
        path: Absolute path of the zip file, or of the folder.
        name: What the text and the folder of the recordings are called in it.
        text_path: The `.txt.gz` that replaces its text; of a folder the `.txt` beside it.
        is_folder: Whether it is a folder.
    """

    path: str
    name: str
    text_path: str | None
    is_folder: bool

    @property
    def files(self) -> list[str]:
        """The files that the index is compared with."""
        return [*([] if self.is_folder else [self.path]), *([self.text_path] if self.text_path else [])]

    @property
    def text_place(self) -> str:
        """What errors in the text name."""
        return self.text_path or f"{self.path}, {self.name}.txt"

    def recording(self, file: str, has_prefix: bool) -> str:
        """Return the path of a recording in the archive."""
        return f"{self.name}/{file}" if has_prefix else file


def find_archives(path: Any, content_name: Any, resolve_symlink: bool) -> list[Archive]:
    """Return the archives that the documented options mean.

    Args:
        path: A zip file, a folder with a `.txt` of the same name beside it, or a list of zip files and of `.txt.gz`
            that replace the text of the zip file of the same name.
        content_name: The name in the archives, if it is not that of the file; one for all or one for each path.
        resolve_symlink: Whether the name is that of the file behind a link.

    Raises:
        ConfigError: Something else was given.
    """
    paths = [path] if isinstance(path, str | os.PathLike) else list(path) if isinstance(path, list | tuple) else [None]
    for one in paths:
        if not isinstance(one, str | os.PathLike):
            raise ConfigError(f"path is a zip file or a list of them, not {path!r}", where="OggZip")
    paths = [os.path.abspath(os.fsdecode(one)) for one in paths if one is not None]
    if len(paths) == 1 and not paths[0].endswith(".zip") and os.path.isdir(paths[0]):
        if content_name is not None or resolve_symlink:
            raise ConfigError("content_name and resolve_symlink_for_name are for zip files", where=paths[0])
        return [Archive(paths[0], os.path.basename(paths[0]), f"{paths[0]}.txt", is_folder=True)]
    names = list(content_name) if isinstance(content_name, list | tuple) else [content_name] * len(paths)
    if len(names) != len(paths) or not all(name is None or isinstance(name, str) for name in names):
        raise ConfigError(f"content_name {content_name!r} for {len(paths)} paths", where="OggZip", fix="one name each")
    zips: list[tuple[str, str]] = []
    texts: dict[str, str] = {}
    for one, given in zip(paths, names, strict=True):
        file_name = os.path.basename(os.path.realpath(one) if resolve_symlink else one)
        if file_name.endswith(".zip"):
            zips.append((one, given or file_name.removesuffix(".zip")))
        elif file_name.endswith(".txt.gz"):
            texts[given or file_name.removesuffix(".txt.gz")] = one
        else:
            raise ConfigError(
                "an archive ends in .zip, a text in .txt.gz", where=one, fix="rename it, or check the path"
            )
    unused = sorted(set(texts) - {name for _, name in zips})
    if unused:
        raise ConfigError(
            f"there is no archive {unused[0]}.zip for this text",
            where=texts[unused[0]],
            fix="name the text like its archive, or give content_name",
        )
    return [Archive(one, name, texts.get(name), is_folder=False) for one, name in zips]


def read_text(archive: Archive, members: dict[str, Member]) -> bytes:
    """Return the whole text of an archive.

    Args:
        archive: The archive.
        members: Its files, by name; empty for a folder.

    Raises:
        SourceError: It is not there, or damaged.
    """
    if archive.text_path is None:
        member = members.get(f"{archive.name}.txt")
        if member is None:
            found = sorted(name for name in members if name.endswith(".txt"))[:5]
            raise SourceError(
                f"the archive has no {archive.name}.txt, which lists its sequences; it has {found}",
                where=archive.path,
                fix="give content_name=, the name without .txt, if the archive was renamed",
            )
        with _opened(archive.path) as file:
            return read_member(Descriptors([file.fileno()]), 0, member, archive.text_place)
    with _opened(archive.text_path) as file:
        try:
            return gzip.decompress(file.read()) if archive.text_path.endswith(".gz") else file.read()
        except (OSError, EOFError, zlib.error) as error:
            raise SourceError(f"the text cannot be read: {error}", where=archive.text_path) from error


def _opened(path: str) -> IO[bytes]:
    try:
        return open_regular(path)
    except OSError as error:
        raise SourceError(f"the file cannot be opened: {error.strerror}", where=path, fix="check the path") from error


class Descriptors:
    """Reads bytes of open files; for many threads at once."""

    def __init__(self, descriptors: Sequence[int]) -> None:
        self._descriptors = descriptors

    def read(self, file_idx: int, position: int, num_bytes: int) -> bytes:
        """Return the bytes position..position + num_bytes, or fewer at the end of the file."""
        parts = []
        while num_bytes:
            part = os.pread(self._descriptors[file_idx], num_bytes, position)
            if not part:
                break
            parts.append(part)
            position, num_bytes = position + len(part), num_bytes - len(part)
        return b"".join(parts)


class EntryTexts:
    """Bytes of the texts of archives, at any place. Opened when it first reads; may be pickled; not thread-safe.

    Args:
        archives: The archives.
        sizes: Bytes of each text.
        stamps: What the file that holds each text was when it was indexed.
    """

    def __init__(self, archives: Sequence[Archive], sizes: Sequence[int], stamps: Sequence[FileStamp]) -> None:
        self._archives, self._sizes, self._stamps = archives, sizes, stamps
        self._held: dict[int, bytes] = {}
        self._plain: dict[int, PlainFiles] = {}

    def read(self, number: int, position: int, num_bytes: int) -> bytes:
        """Return bytes of the text of an archive.

        Raises:
            SourceError: The text is not there any more, or shorter than it was.
        """
        if number not in self._held and number not in self._plain:
            self._open(number)
        if number in self._plain:
            return self._plain[number].read(0, position, num_bytes)
        return self._held[number][position : position + num_bytes]

    def _open(self, number: int) -> None:
        check_stamp(self._stamps[number])
        if self._sizes[number] > MAX_TEXT_IN_MEMORY:
            try:
                self._plain[number] = PlainFiles([FileStamp.of(self._plain_file(number))])
            except SourceError as error:  # no cache folder, or no room: dearer, but it works; other faults come again
                _LOGGER.warning("a text is held in memory by each process: %s", error)
            else:
                return
        archive = self._archives[number]
        self._held[number] = read_text(archive, list_members(archive.path) if archive.text_path is None else {})

    def _plain_file(self, number: int) -> str:
        archive = self._archives[number]
        if archive.text_path is not None:
            return plain_copy(archive.text_path)

        def extract(_: IO[bytes], target: IO[bytes]) -> None:
            target.write(read_text(archive, list_members(archive.path)))

        return plain_copy(archive.path, extract, kind=f"{_COPY_KIND}-{archive.name}")

    def close(self) -> None:
        """Close files, and forget texts."""
        self._held.clear()
        while self._plain:
            self._plain.popitem()[1].close()

    def __reduce__(self) -> tuple[Any, ...]:
        return EntryTexts, (self._archives, self._sizes, self._stamps)
