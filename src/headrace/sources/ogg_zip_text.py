"""The text of an OggZip archive: a Python list of dicts, read as data, entry by entry.

`ast.literal_eval` of the whole text would take minutes and gigabytes for a million entries: it makes a syntax tree of
all of it first. Here the usual entry (strings, numbers, `None`, `True`, `False`) is taken apart by one pattern; another
is cut out by its brackets and given to `ast.literal_eval` alone. Where each entry is stays known, so that one can be
read again without the others.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from headrace.errors import SourceError

_STRING = rb"[uU]?(?:'[^'\\\n]*(?:\\.[^'\\\n]*)*'|\"[^\"\\\n]*(?:\\.[^\"\\\n]*)*\")"
_PAIR = re.compile(rb"\s*(%s)\s*:\s*(?:(%s)|([-+.0-9][-+.0-9eE]*|None|True|False))\s*([,}])" % (_STRING, _STRING), re.S)
_GAP = re.compile(rb"(?:\s+|#[^\n]*)*")
_TOKEN = re.compile(rb"(%s)|([\[{(])|([\]})])|#[^\n]*|[^'\"\[\]{}()#]+|." % _STRING, re.S)
_BOM = b"\xef\xbb\xbf"
_CONSTANTS = {b"None": None, b"True": True, b"False": False}
_MAX_SHOWN = 60
_MAX_SECONDS = 1e12  # so that counts of samples fit into 64 bits
_FIX = "the text is a Python list of dicts with 'text', 'duration' and 'file', of literals only"


class TextEntry(NamedTuple):
    """What the text says of one sequence; a tuple, as a million of them are made.

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


def scan_entries(text: bytes, where: str) -> Iterator[tuple[int, int, TextEntry]]:
    """Read a text; about 5 us an entry.

    Yields:
        First byte of the entry, its number of bytes, and the entry.

    Raises:
        SourceError: It is no list of such dicts; the line is named.
    """
    position = _skip(text, len(_BOM) if text.startswith(_BOM) else 0)
    if text[position : position + 1] != b"[":
        raise _broken(text, position, "a list begins with [", where)
    position = _skip(text, position + 1)
    while text[position : position + 1] == b"{":
        values, end = _read_dict(text, position, where)
        yield position, end - position, _checked(values, text, position, where)
        position = _skip(text, end)
        if text[position : position + 1] != b",":
            break
        position = _skip(text, position + 1)
    if text[position : position + 1] != b"]":
        raise _broken(text, position, "a dict, a comma or the end of the list is expected", where)
    position = _skip(text, position + 1)
    if position < len(text):
        raise _broken(text, position, "there is more after the list", where)


def parse_entry(text: bytes, where: str) -> TextEntry:
    """Read one entry again.

    Raises:
        SourceError: It is not what it was when the text was scanned.
    """
    values, end = _read_dict(text, 0, where)
    if end != len(text):
        raise SourceError("the text changed since it was indexed", where=where, fix="open the corpus again")
    return _checked(values, text, 0, where)


def _skip(text: bytes, position: int) -> int:
    gap = _GAP.match(text, position)
    return gap.end() if gap else position


def _read_dict(text: bytes, start: int, where: str) -> tuple[dict[str, Any], int]:
    """Return the dict that begins at a place, and where it ends."""
    values: dict[str, Any] = {}
    position, last = start + 1, b","
    while last == b",":
        pair = _PAIR.match(text, position)
        if pair is None:
            return _read_unusual_dict(text, start, where)
        key, string, other, last = pair.groups()
        try:
            values[_text_of(key)] = _text_of(string) if string is not None else _value_of(other)
        except (ValueError, SyntaxError) as error:
            raise _broken(text, position, f"this is no literal ({error})", where) from error
        position = pair.end()
    return values, position


def _text_of(literal: bytes) -> str:
    if b"\\" in literal or literal[0] in b"uU":
        text: str = ast.literal_eval(literal.decode())
        text.encode()  # half a surrogate pair, which may be written as an escape, is no text
        return text
    return literal[1:-1].decode()


def _value_of(literal: bytes) -> Any:
    if literal in _CONSTANTS:
        return _CONSTANTS[literal]
    try:
        return int(literal)
    except ValueError:
        return float(literal)


def _read_unusual_dict(text: bytes, start: int, where: str) -> tuple[dict[str, Any], int]:
    depth, position = 0, start
    while True:
        token = _TOKEN.match(text, position)
        if token is None:
            raise _broken(text, start, "this dict does not end", where)
        position = token.end()
        depth += (token[2] is not None) - (token[3] is not None)
        if depth == 0:
            break
    try:
        values = ast.literal_eval(text[start:position].decode())
        for value in values.values() if isinstance(values, dict) else ():
            if isinstance(value, str):
                value.encode()  # as above
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise _broken(text, start, f"this is no literal ({error})", where) from error
    if not isinstance(values, dict):
        raise _broken(text, start, f"this is a {type(values).__name__}, not a dict", where)
    return values, position


def _checked(values: dict[str, Any], text: bytes, position: int, where: str) -> TextEntry:
    said, duration, file = values.get("text"), values.get("duration"), values.get("file")
    tag = values.get("seq_name", file)
    if not isinstance(said, str):
        raise _broken(text, position, f"'text' is {said!r}, not a str", where)
    if isinstance(duration, bool) or not isinstance(duration, int | float) or not 0 <= duration < _MAX_SECONDS:
        raise _broken(text, position, f"'duration' is {duration!r}, not a number of seconds", where)
    if file is not None and not isinstance(file, str):
        raise _broken(text, position, f"'file' is {file!r}, not a str", where)
    if not isinstance(tag, str):
        raise _broken(text, position, f"neither 'seq_name' nor 'file' is a str: {tag!r}", where)
    return TextEntry(tag, said, float(duration), file)


def _broken(text: bytes, position: int, what: str, where: str) -> SourceError:
    line = text.count(b"\n", 0, position) + 1
    shown = text[position : position + _MAX_SHOWN].decode(errors="replace")
    return SourceError(f"{what}: {shown!r}", where=f"{where}, line {line}", fix=_FIX)
