"""The archives of an OggZip corpus: which there are, the text of each, and where its recordings are.

The text of an archive is a file `<name>.txt` in it, or a `.txt.gz` beside it: a Python list of dicts, read as data,
entry by entry, once, for the index. `zipfile` reads the directory once; from then on a recording is read at its
position, and compared with the checksum.
"""

from __future__ import annotations

import ast
import gzip
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from headrace.errors import ConfigError, SourceError
from headrace.files import open_regular, resolve_inside

_STRING = rb"'(?:[^'\\\n]|\\.)*+'|\"(?:[^\"\\\n]|\\.)*+\""
_GAP = rb"(?:\s|#[^\n]*+)*+"
_DICT = rb"(?!)"
for _ in range(3):  # dicts in dicts
    _DICT = rb"\{(?:[^'\"{}#]++|%s|#[^\n]*+|%s)*+\}" % (_STRING, _DICT)
_START = re.compile(rb"(?:\xef\xbb\xbf)?%s\[%s" % (_GAP, _GAP))
_ENTRY = re.compile(rb"(%s)%s(,?)%s" % (_DICT, _GAP, _GAP), re.DOTALL)
_END = re.compile(rb"\]%s" % _GAP)
_MAX_SHOWN = 60
_MAX_SECONDS = 1e12  # so that counts of samples fit into 64 bits
_HEADER = struct.Struct("<4s5H3L2H")  # of a member, before its name; see APPNOTE.TXT 4.3.7
_ZIP_ERRORS = (OSError, EOFError, RuntimeError, NotImplementedError, ValueError, struct.error, zlib.error)


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
    start = _START.match(text)
    position, comma = (start.end(), b",") if start else (0, b"")
    while comma and (found := _ENTRY.match(text, position)):
        yield _checked(text, position, found[1], where)
        position, comma = found.end(), found[2]
    if start is None or not _END.fullmatch(text, position):
        raise _broken(text, position, "this is not a list of dicts, or it does not go on as one", where)


def _checked(text: bytes, position: int, entry: bytes, where: str) -> TextEntry:
    try:
        values = ast.literal_eval(entry.decode())
        said, duration, file = values.get("text"), values.get("duration"), values.get("file")
        tag = values.get("seq_name", file)
        if type(duration) in (int, float) and 0 <= duration < _MAX_SECONDS and isinstance(file, str | None):
            (said + tag).encode()  # half a surrogate pair, which may be written as an escape, is no text
            return TextEntry(tag, said, float(duration), file)
    except (ValueError, SyntaxError, TypeError, AttributeError, RecursionError, MemoryError) as error:
        raise _broken(text, position, f"this is no dict of literals, with texts ({error})", where) from error
    what = f"no text {said!r}, duration {duration!r}, file {file!r} and tag {tag!r} that can be used"
    raise _broken(text, position, what, where)


def _broken(text: bytes, position: int, what: str, where: str) -> SourceError:
    line = text.count(b"\n", 0, position) + 1
    shown = text[position : position + _MAX_SHOWN].decode(errors="replace")
    fix = "the text is a Python list of dicts with 'text', 'duration' and 'file', of literals only"
    return SourceError(f"{what}: {shown!r}", where=f"{where}, line {line}", fix=fix)


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

    def path_of(self, recording: str) -> str:
        """Return the path of a recording that is in the folder."""
        return str(resolve_inside(os.path.dirname(self.path), recording))


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
    given = [path] if isinstance(path, str | os.PathLike) else path
    if not isinstance(given, list | tuple) or not all(isinstance(one, str | os.PathLike) for one in given):
        raise ConfigError(f"path is a zip file or a list of them, not {path!r}", where="OggZip")
    paths = [file for one in given for file in _files_for(os.path.abspath(os.fsdecode(one)))]
    if len(paths) == 1 and not paths[0].endswith(".zip") and os.path.isdir(paths[0]):
        if content_name is not None or resolve_symlink:
            raise ConfigError("content_name and resolve_symlink_for_name are for zip files", where=paths[0])
        return [Archive(paths[0], os.path.basename(paths[0]), f"{paths[0]}.txt", is_folder=True)]
    names = list(content_name) if isinstance(content_name, list | tuple) else [content_name] * len(paths)
    if len(names) != len(paths) or not all(name is None or isinstance(name, str) for name in names):
        raise ConfigError(f"content_name {content_name!r} for {len(paths)} paths", where="OggZip", fix="one name each")
    found: dict[str, list[tuple[str, str]]] = {".zip": [], ".txt.gz": []}
    for one, said in zip(paths, names, strict=True):
        file_name = os.path.basename(os.path.realpath(one) if resolve_symlink else one)
        end = next((end for end in found if file_name.endswith(end)), None)
        if end is None:
            fix = "rename it, or check the path"
            raise ConfigError("an archive ends in .zip, a text in .txt.gz", where=one, fix=fix)
        found[end].append((said or file_name.removesuffix(end), one))
    texts = dict(found[".txt.gz"])
    for unused in texts.keys() - dict(found[".zip"]).keys():
        fix = "name the text like its archive, or give content_name"
        raise ConfigError(f"there is no archive {unused}.zip for this text", where=texts[unused], fix=fix)
    return [Archive(one, name, texts.get(name), is_folder=False) for name, one in found[".zip"]]


def _files_for(path: str) -> list[str]:
    """Return the archives and texts in a folder that holds some; anything else is returned as it is.

    Raises:
        SourceError: A folder is neither this nor a corpus with its text beside it, or cannot be read.
    """
    if path.endswith(".zip") or not os.path.isdir(path) or os.path.lexists(f"{path}.txt"):
        return [path]
    found = sorted(str(one) for end in (".zip", ".txt.gz") for one in Path(path).glob(f"[!.]*{end}"))
    if not any(one.endswith(".zip") for one in found):
        what = f"the folder has no .zip files, and there is no {os.path.basename(path)}.txt beside it"
        fix = "give a folder of OggZip archives, or name them: ['a.zip', 'b.zip']"
        raise SourceError(what, where=path, fix=fix)
    return found


class ZipMember(NamedTuple):
    """Where a file of an archive is: start of its header, stored bytes, bytes, CRC-32, and whether it is deflated."""

    start: int
    packed: int
    size: int
    crc: int
    deflated: int


def open_archive(archive: Archive) -> tuple[bytes, dict[str, ZipMember]]:
    """Return the text of an archive, and its files by name; none of a folder. About 10 us a file.

    Raises:
        SourceError: It is none, is truncated or damaged, has no text, or has a member that is there twice or whose
            name leads out of it: which of them is meant cannot be known.
    """
    members: dict[str, ZipMember] = {}
    if archive.is_folder:
        return read_whole(archive.text_name), members
    path = archive.path
    try:
        with zipfile.ZipFile(path) as opened:
            for info in opened.infolist():
                name = info.filename
                parts = name.replace("\\", "/").split("/")
                if not parts[0] or ".." in parts or parts[0].endswith(":") or name in members:
                    what = (
                        f"the archive has {name!r} twice" if name in members else f"{name!r} leads out of the archive"
                    )
                    raise SourceError(what, where=path, fix="write it again with relative names, each once")
                if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    what = f"{name!r} is encrypted, or compressed by method {info.compress_type}"
                    raise SourceError(what, where=path, fix="store or deflate it")
                if not info.is_dir():
                    is_deflated = info.compress_type == zipfile.ZIP_DEFLATED
                    members[name] = ZipMember(
                        info.header_offset, info.compress_size, info.file_size, info.CRC, int(is_deflated)
                    )
            if archive.text_path is not None:
                return read_whole(archive.text_path), members
            if f"{archive.name}.txt" in members:
                return opened.read(f"{archive.name}.txt"), members
    except (*_ZIP_ERRORS, zipfile.BadZipFile) as error:
        raise SourceError(f"the archive cannot be read: {error}", where=path, fix="restore it") from error
    raise SourceError(
        f"the archive has no {archive.name}.txt, which lists its sequences; it has "
        f"{sorted(name for name in members if name.endswith('.txt'))[:5]}",
        where=path,
        fix="give content_name=, the name without .txt, if the archive was renamed",
    )


def read_member(read: Callable[[int, int], bytes], member: ZipMember, where: str) -> bytes:
    """Return the bytes of a member; `read` returns bytes of the archive, by position and number.

    Raises:
        SourceError: The archive is not what its directory says, or the member is damaged.
    """
    head = read(member.start, _HEADER.size)
    try:
        mark, *_, name_bytes, extra_bytes = _HEADER.unpack(head)
        content = read(member.start + _HEADER.size + name_bytes + extra_bytes, member.packed)
        if member.deflated:  # not more than its size, whatever a damaged one would swell to
            content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(content, max(member.size, 0) + 1)
        is_whole = mark == b"PK\x03\x04" and len(content) == member.size and zlib.crc32(content) == member.crc
    except (struct.error, zlib.error, OverflowError):
        is_whole = False
    if not is_whole:
        fix = "restore the archive; open the corpus again if it was changed"
        raise SourceError("the member is damaged: its header or its checksum differs", where=where, fix=fix)
    return content


def read_whole(path: str) -> bytes:
    """Return what is in a file, decompressed if its name ends in `.gz`; `SourceError` if it cannot be read."""
    try:
        with open_regular(path) as stored, gzip.open(stored) if path.endswith(".gz") else stored as file:
            return bytes(file.read())
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(f"the file cannot be read: {error}", where=path, fix="check the path") from error
