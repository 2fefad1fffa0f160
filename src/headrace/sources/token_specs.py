"""What a file of tokens does not say, in a small JSON file beside it: the name of the data key, the classes.

It is optional: other programs read the tokens without it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import SourceError
from headrace.files import open_regular

from .token_cuts import specs_path
from .token_files import TokenFile


def make_specs(num_tokens: int, dim: int | None, labels: Sequence[str] | None) -> str:
    """Return the text of the file."""
    said: dict[str, Any] = {"num_tokens": num_tokens, "dim": dim}
    if labels is not None:
        said["labels"] = list(labels)
    return json.dumps(said, ensure_ascii=False) + "\n"


def read_specs(
    files: Sequence[TokenFile], data_key: str, targets: str | None
) -> tuple[int | None, dict[str, Sequence[str]]]:
    """Return number of classes and labels, as far as they are noted beside every file and are the same.

    Raises:
        SourceError: What is noted belongs to another file.
    """
    found = [_read(file) for file in files]
    first = found[0]
    if first is None or any(other is None or other[1:] != first[1:] for other in found):
        return None, {}
    _, dim, labels = first
    keys = [data_key] if targets is None else [data_key, targets]
    return dim, {} if labels is None else dict.fromkeys(keys, labels)


def _read(file: TokenFile) -> tuple[int, int | None, list[str] | None] | None:
    path = specs_path(file.path)
    if file.idx_path is None or not os.path.exists(path):
        return None
    try:
        with open_regular(path) as stream:
            said = json.load(stream)
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(
            f"this cannot be read: {error}", where=path, fix="remove it, or write the tokens again"
        ) from error
    dim, labels = (said.get("dim"), said.get("labels")) if isinstance(said, Mapping) else (0, None)
    if not isinstance(said, Mapping) or not (dim is None or (type(dim) is int and dim > 0)):
        raise SourceError("this says nothing of tokens", where=path, fix="remove it, or write the tokens again")
    if said.get("num_tokens") != file.num_tokens:
        raise SourceError(
            f"this was written for {said.get('num_tokens')} tokens, but there are {file.num_tokens}",
            where=f"{path}, {file.path}",
            fix="it belongs to another file: remove it",
        )
    if labels is not None and not (isinstance(labels, list) and all(isinstance(label, str) for label in labels)):
        raise SourceError("the labels are no list of strings", where=path, fix="remove it, or write the tokens again")
    return file.num_tokens, dim, labels
