"""Small files that users write: lists of tags, and lengths by tag. Data only: nothing in them is executed."""

from __future__ import annotations

import ast
import codecs
import gzip
import json
import os
import zlib
from pathlib import Path
from typing import Any

from headrace.errors import SourceError

from ..locations import open_regular
from ..utf8 import decode_utf8

_MAX_LENGTHS = {int: 2**63 - 1, float: 2**53}  # neither infinite nor a NaN


def read_tag_list(path: str | os.PathLike[str]) -> list[str]:
    r"""Read one tag per line (UTF-8, `.gz` is unpacked); empty lines are skipped, duplicates are kept.

    Only the newline (`\n` or `\r\n`) is taken off a line: other white space belongs to the tag. A byte order mark at
    the start of the file is not part of the first tag.

    Raises:
        SourceError: The file is missing, truncated, not UTF-8, or a pickle.
    """
    lines = read_text(path).split("\n")
    return [tag for tag in (line.removesuffix("\r") for line in lines) if tag]


def read_seq_lens(path: str | os.PathLike[str]) -> dict[str, int | float]:
    """Read a dict tag -> length, written as JSON or as a Python literal (UTF-8, `.gz` is unpacked).

    Raises:
        SourceError: The file is missing, truncated or not such a dict, or a length is not a number >= 0.
    """
    lengths = _parse_dict(read_text(path), path)
    for tag, length in lengths.items():
        if not isinstance(tag, str):
            raise SourceError(f"a tag is {_brief(tag)}, not a string", where=str(path))
        if type(length) not in _MAX_LENGTHS or not 0 <= length <= _MAX_LENGTHS[type(length)]:
            what = f"the length of tag {tag!r} is {_brief(length)}"
            raise SourceError(what, where=str(path), fix="give each tag a number, 0 or more")
        if type(length) is float and length.is_integer():
            lengths[tag] = int(length)
    return lengths


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _parse_dict(text: str, path: str | os.PathLike[str]) -> dict[Any, Any]:
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as json_error:
        try:
            value = ast.literal_eval(text.strip())
        except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError) as error:
            fix = 'write {"tag": 123, ...}: only plain data is read, expressions are not evaluated'
            what = f"this is neither JSON ({json_error}) nor a Python literal ({error})"
            raise SourceError(what, where=str(path), fix=fix) from error
    if not isinstance(value, dict):
        what = f"the file holds a {type(value).__name__}, not a dict tag -> length"
        raise SourceError(what, where=str(path), fix='write {"tag": 123, ...}')
    return value


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a file, as in `unpack_text`.

    Args:
        path: The file; packed if its name ends in `.gz`.

    Raises:
        SourceError: The file is missing, truncated, not UTF-8, or a pickle.
    """
    path = Path(path)
    refuse_pickle(path)
    try:
        with open_regular(path) as file:
            data = file.read()
    except FileNotFoundError as error:
        raise SourceError("the file does not exist", where=str(path), fix="check the path") from error
    except OSError as error:
        raise SourceError(f"cannot read the file: {error.strerror}", where=str(path)) from error
    return unpack_text(data, str(path), is_packed=path.suffix == ".gz")


def unpack_text(data: bytes, where: str, *, is_packed: bool) -> str:
    """Return the text (UTF-8) that was read from a file.

    A byte order mark, which some editors put before UTF-8, is not part of the text.

    Raises:
        SourceError: The data are truncated, or not UTF-8.
    """
    if is_packed:
        try:
            data = gzip.decompress(data)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            fix = "write the file again, or take off .gz if it is not packed"
            raise SourceError(f"the gzip data are truncated or wrong: {error}", where=where, fix=fix) from error
    text = data.removeprefix(codecs.BOM_UTF8)
    return decode_utf8(text, where, first_byte=len(data) - len(text))


def refuse_pickle(path: Path) -> None:
    """Refuse a pickle by its name, before anything of it is read.

    Raises:
        SourceError: The name is that of a pickle.
    """
    if path.name.removesuffix(".gz").endswith((".pkl", ".pickle")):
        what = "pickle files are refused: reading one can run any code that it contains"
        raise SourceError(what, where=str(path), fix="if you trust the file, load it once and write JSON or text")
