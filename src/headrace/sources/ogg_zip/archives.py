"""Finds the archives of an OggZip corpus, their names, and the text of each.

The text of an archive is a file `<name>.txt` in it, or a `.txt.gz` beside it: a Python list of dicts, read as data,
entry by entry, once, for the index.
"""

from __future__ import annotations

import ast
import gzip
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.errors import ConfigError, SourceError
from headrace.files import FileStamp, open_regular

from ..shared.plain_files import PlainFiles
from ..shared.zip_members import Member, read_member

_STRING = rb"(?:'[^'\\\n]*(?:\\.[^'\\\n]*)*'|\"[^\"\\\n]*(?:\\.[^\"\\\n]*)*\")"
_GAP = re.compile(rb"(?:\s+|#[^\n]*)*")
_TOKEN = re.compile(rb"%s|([\[{(])|([\]})])|#[^\n]*|[^'\"\[\]{}()#]+|." % _STRING, re.S)
_FLAT = re.compile(rb"\{(?:[^'\"\[\]{}()#]+|%s)*\}" % _STRING, re.S)  # a dict of no other, as nearly all are
_BOM = b"\xef\xbb\xbf"
_MAX_SHOWN = 60
_MAX_SECONDS = 1e12  # so that counts of samples fit into 64 bits
_FIX = "the text is a Python list of dicts with 'text', 'duration' and 'file', of literals only"


class TextEntry(NamedTuple):
    """One sequence's entry in the text; a tuple, as millions of them are made.

    Attributes:
        tag: `seq_name`, else `file`.
        text: What is said.
        duration: In seconds.
        file: Path of the recording below the folder of the archive, if there is one.
    """

    tag: str
    text: str
    duration: float
    file: str | None


def scan_entries(text: bytes, where: str) -> Iterator[TextEntry]:
    """Read a text; about 15 us an entry.

    Raises:
        SourceError: It is no list of such dicts; the line is named.
    """
    position = _skip(text, len(_BOM) if text.startswith(_BOM) else 0)
    if text[position : position + 1] != b"[":
        raise _broken(text, position, "a list begins with [", where)
    position = _skip(text, position + 1)
    while text[position : position + 1] == b"{":
        end = _end_of_dict(text, position, where)
        yield _checked(text, position, end, where)
        position = _skip(text, end)
        if text[position : position + 1] != b",":
            break
        position = _skip(text, position + 1)
    if text[position : position + 1] != b"]":
        raise _broken(text, position, "a dict, a comma or the end of the list is expected", where)
    position = _skip(text, position + 1)
    if position < len(text):
        raise _broken(text, position, "there is more after the list", where)


def _skip(text: bytes, position: int) -> int:
    gap = _GAP.match(text, position)
    return gap.end() if gap else position


def _end_of_dict(text: bytes, start: int, where: str) -> int:
    """Return where the dict that begins at a position ends."""
    flat = _FLAT.match(text, start)
    if flat is not None:
        return flat.end()
    depth, position = 0, start
    while (token := _TOKEN.match(text, position)) is not None:
        position = token.end()
        depth += (token[1] is not None) - (token[2] is not None)
        if depth == 0:
            return position
    raise _broken(text, start, "this dict does not end", where)


def _checked(text: bytes, position: int, end: int, where: str) -> TextEntry:
    try:
        values = ast.literal_eval(text[position:end].decode())
        for value in values.values() if isinstance(values, dict) else ():
            if isinstance(value, str):
                value.encode()  # half a surrogate pair, which may be written as an escape, is no text
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise _broken(text, position, f"this is no literal ({error})", where) from error
    if not isinstance(values, dict):
        raise _broken(text, position, f"this is a {type(values).__name__}, not a dict", where)
    said, duration, file = values.get("text"), values.get("duration"), values.get("file")
    tag = values.get("seq_name", file)
    is_number = isinstance(duration, int | float) and not isinstance(duration, bool)
    seconds: Any = duration if is_number else -1
    is_text = isinstance(said, str) and isinstance(tag, str) and isinstance(file, str | None)
    if not is_text or not 0 <= seconds < _MAX_SECONDS:
        what = f"no text {said!r}, duration {duration!r}, file {file!r} and tag {tag!r} that can be used"
        raise _broken(text, position, what, where)
    return TextEntry(str(tag), str(said), float(seconds), file)


def _broken(text: bytes, position: int, what: str, where: str) -> SourceError:
    line = text.count(b"\n", 0, position) + 1
    shown = text[position : position + _MAX_SHOWN].decode(errors="replace")
    return SourceError(f"{what}: {shown!r}", where=f"{where}, line {line}", fix=_FIX)


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
    def text_name(self) -> str:
        """Location of the text, for errors."""
        return self.text_path or f"{self.path}, {self.name}.txt"

    def recording(self, file: str, has_prefix: bool) -> str:
        """Return the path of a recording in the archive."""
        return f"{self.name}/{file}" if has_prefix else file


def find_archives(path: Any, content_name: Any, resolve_symlink: bool) -> list[Archive]:
    """Return the archives that RETURNN's options stand for.

    Args:
        path: A zip file, a folder with a `.txt` of the same name beside it, or a list of zip files and of `.txt.gz`
            that replace the text of the zip file of the same name. Any other folder stands for those in it.
        content_name: The name in the archives, if it is not that of the file; one for all or one for each path.
        resolve_symlink: Whether the name is that of the file that a link points to.

    Raises:
        ConfigError: Something else was given.
    """
    paths = [path] if isinstance(path, str | os.PathLike) else list(path) if isinstance(path, list | tuple) else [None]
    for one in paths:
        if not isinstance(one, str | os.PathLike):
            raise ConfigError(f"path is a zip file or a list of them, not {path!r}", where="OggZip")
    given = [os.path.abspath(os.fsdecode(one)) for one in paths if one is not None]
    paths = [file for one in given for file in _files_for(one)]
    if len(paths) == 1 and not paths[0].endswith(".zip") and os.path.isdir(paths[0]):
        if content_name is not None or resolve_symlink:
            raise ConfigError("content_name and resolve_symlink_for_name are for zip files", where=paths[0])
        return [Archive(paths[0], os.path.basename(paths[0]), f"{paths[0]}.txt", is_folder=True)]
    names = list(content_name) if isinstance(content_name, list | tuple) else [content_name] * len(paths)
    if len(names) != len(paths) or not all(name is None or isinstance(name, str) for name in names):
        raise ConfigError(f"content_name {content_name!r} for {len(paths)} paths", where="OggZip", fix="one name each")
    zips: list[tuple[str, str]] = []
    texts: dict[str, str] = {}
    for one, said in zip(paths, names, strict=True):
        file_name = os.path.basename(os.path.realpath(one) if resolve_symlink else one)
        if file_name.endswith(".zip"):
            zips.append((one, said or file_name.removesuffix(".zip")))
        elif file_name.endswith(".txt.gz"):
            texts[said or file_name.removesuffix(".txt.gz")] = one
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


def _files_for(path: str) -> list[str]:
    """Return the archives and texts in a folder that holds some; anything else is returned as it is.

    Raises:
        SourceError: A folder is neither this nor a corpus with its text beside it, or cannot be read.
    """
    if path.endswith(".zip") or not os.path.isdir(path) or os.path.lexists(f"{path}.txt"):
        return [path]
    try:
        names = sorted(name for name in os.listdir(path) if name[0] != "." and name.endswith((".zip", ".txt.gz")))
    except OSError as error:
        raise SourceError(f"cannot read the folder: {error.strerror}", where=path, fix="check the path") from error
    if not any(name.endswith(".zip") for name in names):
        raise SourceError(
            f"the folder has no .zip files, and there is no {os.path.basename(path)}.txt beside it",
            where=path,
            fix="give a folder of OggZip archives, or name them: ['a.zip', 'b.zip']",
        )
    return [os.path.join(path, name) for name in names]


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
        return read_member(PlainFiles([FileStamp.of(archive.path)]).read, 0, member, archive.text_name)
    return read_whole(archive.text_path)


def read_whole(path: str) -> bytes:
    """Return what is in a file, decompressed if its name ends in `.gz`; `SourceError` if it cannot be read."""
    try:
        with open_regular(path) as stored, gzip.open(stored) if path.endswith(".gz") else stored as file:
            return bytes(file.read())
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(f"the file cannot be read: {error}", where=path, fix="check the path") from error
