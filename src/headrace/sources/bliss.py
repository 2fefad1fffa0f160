"""The transcriptions of a Bliss corpus (XML), as lines of text."""

from __future__ import annotations

import gzip
import os
from typing import IO, Any
from xml.etree.ElementTree import ParseError, XMLPullParser

from headrace.errors import SourceError
from headrace.files import open_regular

_BLOCK_BYTES = 1 << 20
_HEADS = (b"<?xml", b"<corpus")


def is_bliss(path: str) -> bool:
    """Tell by the first bytes whether a file, which may be compressed with gzip, is XML."""
    try:
        with open_regular(path) as stored, gzip.open(stored) if path.endswith(".gz") else stored as file:
            return bytes(file.read(64)).removeprefix(b"\xef\xbb\xbf").startswith(_HEADS)
    except (OSError, EOFError) as error:
        raise SourceError(f"the corpus cannot be read: {error}", where=os.path.abspath(path)) from error


def write_transcriptions(source: IO[bytes], target: IO[bytes]) -> None:
    """Write the text of each segment as a line, white space in it as one space; memory does not grow with the file.

    Raises:
        SourceError: It is not XML, declares entities, or a segment has no `orth`.
    """
    parser: Any = XMLPullParser(events=("start", "end"))
    where = str(getattr(source, "name", "Bliss corpus"))
    path: list[str] = []
    tail = b""
    while block := source.read(_BLOCK_BYTES):
        # Nested entities can make gigabytes of a small file; a corpus needs none of its own.
        if b"<!ENTITY" in tail + block:
            raise SourceError("the XML declares entities", where=where, fix="write the characters as they are")
        tail = block[-8:]
        try:
            parser.feed(block)
            for event, element in parser.read_events():
                if event == "start":
                    path.append(element.tag)
                    continue
                path.pop()
                if element.tag != "segment":
                    if element.tag == "recording":
                        element.clear()
                    continue
                orth = element.find("orth")
                if orth is None:
                    name = element.get("name")
                    raise SourceError(f"segment {name!r} has no orth", where=where, fix="remove it, or add its text")
                target.write(" ".join((orth.text or "").split()).encode() + b"\n")
                element.clear()
        except ParseError as error:
            raise SourceError(f"this is not XML: {error}", where=where, fix="get the file again") from error
    if path:
        raise SourceError(f"the XML ends inside of <{path[-1]}>", where=where, fix="the file is torn: get it again")
