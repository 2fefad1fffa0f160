"""Files that describe a vocabulary: one label a line, or a dict from label to class as a literal of Python or JSON.

Nothing in a file is evaluated, and no pickle is read. `.gz` is decompressed.
"""

from __future__ import annotations

import ast
import gzip
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import xxhash

from headrace.errors import SourceError
from headrace.files import open_regular
from headrace.files.cache.local_copies import local_copy
from headrace.files.utf8 import decode_utf8

_MAX_BYTES = 1 << 30  # a vocabulary is held in memory several times; the largest known ones have some 100 MiB
_BAD_LITERAL = (ValueError, SyntaxError, TypeError, RecursionError, MemoryError)  # what the parsers raise


def read_vocabulary_file(path: str | os.PathLike[str]) -> bytes:
    """Return the bytes of a file, decompressed if its name ends with `.gz`. A URL is read by a copy, see `local_copy`.

    Raises:
        SourceError: It is missing, damaged, larger than 1 GiB, or a pickle.
    """
    name = local_copy(path)
    if name.removesuffix(".gz").endswith((".pkl", ".pickle")):
        raise SourceError(
            "a vocabulary is not read from a pickle, which could run any code",
            where=name,
            fix="write it as text: json.dump(vocab, open('vocab.json', 'w'))",
        )
    try:
        with open_regular(name) as stored, gzip.open(stored) if name.endswith(".gz") else stored as file:
            data = file.read(_MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise SourceError("the vocabulary file does not exist", where=name, fix="check the path") from error
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(f"the vocabulary file cannot be read: {error}", where=name) from error
    if len(data) > _MAX_BYTES:
        raise SourceError(
            f"a vocabulary file of more than {_MAX_BYTES >> 20} MiB",
            where=name,
            fix="check the path: this may be the corpus",
        )
    return bytes(data)


def read_labels(path: str | os.PathLike[str]) -> tuple[list[str], dict[str, int]]:
    """Read labels and the class of each.

    A file that starts with "{" is a dict label -> class; several labels may share a class, which then has the text of
    the last one in alphabetical order. A `.json` file may also be a list. In any other, each line is a label, with its
    spaces, and of equal lines the last one counts.

    Raises:
        SourceError: It cannot be read, has no labels, or its classes are not 0..n - 1.
    """
    where = local_copy(path)
    text = decode_utf8(read_vocabulary_file(where), where).removeprefix("\ufeff")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if text.startswith("{"):
        return labels_of_mapping(parse_literal(text, where), where)
    if where.endswith(".json"):
        return labels_of_list(parse_literal(text, where), where)
    return labels_of_list(text.removesuffix("\n").split("\n") if text else [], where)


def labels_of_list(labels: Any, where: str) -> tuple[list[str], dict[str, int]]:
    """Check a list of labels; return it with the class of each.

    Raises:
        SourceError: It is no list of strings, or empty.
    """
    if isinstance(labels, str | Mapping) or not isinstance(labels, Sequence):
        raise SourceError(f"labels are a {type(labels).__name__}, not a list", where=where, fix="give a list of str")
    for class_idx, label in enumerate(labels):
        if not isinstance(label, str):
            raise SourceError(f"label {class_idx} is {label!r}, not a str", where=where)
    if not labels:
        raise SourceError("the vocabulary has no labels", where=where)
    return list(labels), {label: class_idx for class_idx, label in enumerate(labels)}


def labels_of_mapping(classes: Any, where: str) -> tuple[list[str], dict[str, int]]:
    """Check a dict label -> class; return the label of each class, and the dict.

    Raises:
        SourceError: It is no such dict, or the classes are not 0..n - 1.
    """
    if not isinstance(classes, Mapping) or not classes:
        raise SourceError("the vocabulary is not a dict label -> class, or it is empty", where=where)
    for label, class_idx in classes.items():
        if not isinstance(label, str) or type(class_idx) is not int or class_idx < 0:
            raise SourceError(f"the label {label!r} has the class {class_idx!r}: need str -> int >= 0", where=where)
    label_of = {class_idx: label for label, class_idx in sorted(classes.items())}
    missing = next(class_idx for class_idx in range(len(label_of) + 1) if class_idx not in label_of)
    if missing < len(label_of):
        raise SourceError(
            f"no label has the class {missing}, but there are classes up to {max(label_of)}",
            where=where,
            fix="number the classes from 0 without gaps",
        )
    return [label_of[class_idx] for class_idx in range(len(label_of))], dict(classes)


def parse_literal(text: str, where: str) -> Any:
    """Return the value of a text that is JSON or a Python literal.

    Raises:
        SourceError: It is neither.
    """
    try:
        return json.loads(text)
    except _BAD_LITERAL as error:
        if where.endswith(".json"):
            raise SourceError(f"this is not JSON: {error}", where=where) from error
    try:
        return ast.literal_eval(text.strip())
    except _BAD_LITERAL as error:
        raise SourceError(f"this is neither JSON nor a Python literal: {error}", where=where) from error


def digest_of(*parts: Any) -> str:
    """Return a digest of JSON data, for `Vocabulary.identity`."""
    return xxhash.xxh3_128_hexdigest(json.dumps(parts, sort_keys=False).encode("utf-8", "surrogatepass"))
