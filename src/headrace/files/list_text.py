"""What a list of files on disk holds: lines, JSON, or a Python literal. Data only: nothing in it is executed."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from typing import Any

from headrace.errors import SourceError

# Below the blank, and DEL: no name of a file that people write has one, but a torn block on disk is full of them.
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_ONE_LIST = "let the file hold one list, such as ['a.hdf', 'b.hdf']: no assignment, no expression"


def parse_file_list(text: str, kind: str, where: str) -> list[tuple[int, Any]]:
    """Return (number, entry) for each entry of a list: the number of its line or, from 1, of the entry itself.

    A `.txt` has one name a line: white space around it is taken off, empty lines and lines that begin with `#` are
    skipped. A `.json` or `.py` is one list, whose entries may be nested.

    Args:
        text: The content.
        kind: `".txt"`, `".json"` or `".py"`.
        where: The file, for error texts.

    Raises:
        SourceError: It is no such list, or a line holds control characters.
    """
    if kind == ".txt":
        return _parse_lines(text, where)
    entries = _PARSERS[kind](text, where)
    if not isinstance(entries, list):
        raise SourceError(f"the file holds a {type(entries).__name__}, not a list", where=where, fix=_ONE_LIST)
    return list(enumerate(entries, 1))


def _parse_lines(text: str, where: str) -> list[tuple[int, Any]]:
    numbered = ((number, line.strip()) for number, line in enumerate(text.split("\n"), 1))
    found = [(number, name) for number, name in numbered if name and not name.startswith("#")]
    for number, name in found:
        wrong = _CONTROL.search(name)
        if wrong is not None:
            what = f"line {number} holds the character 0x{ord(wrong[0]):02x}: it is torn, or this is not a list"
            raise SourceError(what, where=f"{where}, line {number}", fix="write the list again, one file name a line")
    return found


def _parse_json(text: str, where: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_dict_without_repeats)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"this is not a JSON list: {error}", where=where, fix="write the list again") from error


def _parse_literal(text: str, where: str) -> Any:
    try:
        tree = ast.parse(text.lstrip(), mode="eval")
        for node in ast.walk(tree) if "{" in text else ():
            if isinstance(node, ast.Dict):
                _dict_without_repeats([(ast.unparse(key), None) for key in node.keys if key is not None])
        return ast.literal_eval(tree)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError) as error:
        raise SourceError(f"this is not a list of plain data: {error}", where=where, fix=_ONE_LIST) from error


def _dict_without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a dict; a key that comes twice would drop a file without a word."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {repeated} comes twice in one dict")
    return found


_PARSERS: dict[str, Callable[[str, str], Any]] = {".json": _parse_json, ".py": _parse_literal}
