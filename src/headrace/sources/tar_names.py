"""Names of members: which sequence one belongs to, and how `TarWriter` writes any tag as one.

A member is called `<key>.<extension>`: the key ends at the first dot of the last part of the path. That is the rule of
the WebDataset format. Members of one sequence have one key and follow one another. What has no dot there, or nothing
before it, belongs to no sequence, and neither does what lies in a folder called `__..__`, where tools keep notes on a
shard.

Tags may have any characters; `TarWriter` writes what would be read otherwise as `%` and two hexadecimal digits: `%`,
dots, control characters, slashes that are no inner ones. A note in the shard (`NOTE_NAME`) says so. Without the note, a
key is a tag as it is.
"""

from __future__ import annotations

import re

NOTE_NAME = "__headrace__/corpus.json"  # written by `TarWriter`: specs, labels, which member is which data key
_NOTES = re.compile(r"__[^/]*__(/|$)")  # as WebDataset and Energon have it
_ESCAPED = re.compile("[\\x00-\\x1f\\x7f%.]")
_OUTER_SLASH = re.compile("^/|/(?=/)|/$")
_ESCAPE = re.compile("%([0-9A-F]{2})")
_EMPTY = "%"  # for no characters at all: no other name has it, as % is always written as %25


def split_name(name: str) -> tuple[str, str] | None:
    """Return key and extension of a member; `None` if it belongs to no sequence."""
    folder = name.rfind("/") + 1
    dot = name.find(".", folder)
    if dot <= folder or dot == len(name) - 1 or (name.startswith("__") and _NOTES.match(name)):
        return None
    return name[:dot], name[dot + 1 :]


def escape(tag: str) -> str:
    """Return a tag as a key, from which `unescape` makes the tag again; different tags have different keys."""
    if not tag:
        return _EMPTY
    key = _ESCAPED.sub(_escaped, tag)
    if "/" in key:
        key = _OUTER_SLASH.sub("%2F", key)
    return "%5F" + key[1:] if key.startswith("__") else key


def escape_data_key(data_key: str) -> str:
    """Return a data key as a part of an extension; different ones have different parts."""
    return escape(data_key).replace("/", "%2F").replace(":", "%3A")


def unescape(key: str) -> str:
    """Return the tag of a key that `escape` made."""
    if "%" not in key:
        return key
    return "" if key == _EMPTY else _ESCAPE.sub(lambda match: chr(int(match[1], 16)), key)


def _escaped(match: re.Match[str]) -> str:
    return f"%{ord(match[0]):02X}"
