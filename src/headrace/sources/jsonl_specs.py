"""The file beside a file of JSON lines that says what JSON cannot: dtypes, shapes, numbers of classes, labels.

It is optional: the lines can be read without it, by any program.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import ConfigError, SourceError
from headrace.files import open_regular
from headrace.specs import DataSpec


def jsonl_specs_path(path: str) -> str:
    """Return the name of the file that belongs to a file of JSON lines."""
    return f"{path}.specs.json"


def make_jsonl_specs(num_bytes: int, specs: Mapping[str, DataSpec], labels: Mapping[str, Sequence[str]]) -> str:
    """Return the text of the file; `num_bytes` is the size of the file that it belongs to."""
    said = {
        "num_bytes": num_bytes,
        "specs": {key: spec.to_json() for key, spec in specs.items()},
        "labels": {key: list(names) for key, names in labels.items()},
    }
    return json.dumps(said, ensure_ascii=False) + "\n"


def read_jsonl_specs(
    names: Sequence[str], paths: Sequence[str]
) -> tuple[dict[str, DataSpec], dict[str, Sequence[str]]]:
    """Return layouts and labels by data key, if they are beside every file; {} if not.

    Args:
        names: The files as the user called them.
        paths: The same, decompressed.

    Raises:
        SourceError: Such a file is damaged, belongs to other lines, or contradicts that of another file.
    """
    found = [_read(name, path) for name, path in zip(names, paths, strict=True)]
    present = [about for about in found if about is not None]
    if len(present) < len(found):
        return {}, {}
    for name, about in zip(names, present, strict=True):
        if about != present[0]:
            raise SourceError(
                "the layouts are not those of the first file",
                where=f"{jsonl_specs_path(name)}, {jsonl_specs_path(names[0])}",
                fix="write the files with the same layouts, or remove these descriptions",
            )
    return present[0]


def _read(name: str, path: str) -> tuple[dict[str, DataSpec], dict[str, Sequence[str]]] | None:
    where = jsonl_specs_path(name)
    if not os.path.exists(where):
        return None
    try:
        with open_regular(where) as file:
            said: Any = json.load(file)
        specs = {str(key): DataSpec.from_json(spec) for key, spec in said["specs"].items()}
        labels = {str(key): [str(label) for label in names] for key, names in said["labels"].items()}
        num_bytes = said["num_bytes"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, ConfigError) as error:
        raise SourceError(
            f"the description of layouts cannot be read: {error}", where=where, fix="remove it, or write both again"
        ) from error
    if num_bytes != os.path.getsize(path):
        raise SourceError(
            f"this was written for {num_bytes} bytes of lines, but there are {os.path.getsize(path)}",
            where=where,
            fix="remove it if the lines were changed on purpose",
        )
    return specs, dict(labels)
