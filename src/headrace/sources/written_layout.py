"""What a writer of files takes for a sequence: the layouts, which the first sequence says if nobody did, and tags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.specs import DataSpec

from .array_table import with_labels
from .data_types import checked_seq, learn_specs


class WrittenLayout:
    """Checks sequences before anything of them is written.

    Args:
        specs: Data key -> layout; `None`: the first sequence says it.
        labels: Data key -> class labels.
        path: The target, for errors.

    Attributes:
        specs: Data key -> layout; `None` before the first sequence if nobody said.
        labels: Data key -> class labels.
    """

    def __init__(
        self, specs: Mapping[str, DataSpec] | None, labels: Mapping[str, Sequence[str]] | None, path: str
    ) -> None:
        self.specs: dict[str, DataSpec] | None = None
        self.labels = {key: [str(name) for name in names] for key, names in (labels or {}).items()}
        self._path = path
        if specs is not None:
            self.adopt(dict(specs))

    def adopt(self, specs: dict[str, DataSpec]) -> None:
        """Make these the layouts, from now on unchangeable.

        Raises:
            ConfigError: There are labels for another key, or not so many as there are classes.
        """
        try:
            with_labels(specs, self.labels)  # as the readers do
        except ConfigError as error:
            raise ConfigError(error.what, where=self._path, fix=error.fix) from error
        self.specs = specs

    def checked(
        self, tag: Any, data: Mapping[str, Any], where: str
    ) -> tuple[dict[str, DataSpec], dict[str, NDArray[Any]]]:
        """Return the layouts and the arrays of a sequence as they will be stored; changes nothing, see `adopt`.

        Raises:
            SourceError: The tag is no text, a key is missing or new, or an array has another layout.
        """
        if not isinstance(tag, str):
            raise SourceError(f"the tag {tag!r} is a {type(tag).__name__}, not a str", where=self._path)
        try:
            tag.encode()
        except UnicodeEncodeError as error:  # half of a surrogate pair
            raise SourceError(f"the tag {tag!r} is not valid Unicode", where=self._path, fix="correct it") from error
        if not isinstance(data, Mapping) or not data:
            raise SourceError("a sequence has at least one array", where=where, fix="give data key -> array")
        data = {key: _native(value) for key, value in data.items()}
        specs = self.specs if self.specs is not None else learn_specs(data, where)
        arrays = checked_seq(data, specs, exact=True, where=where)
        for key, array in arrays.items():
            spec = specs[key]
            dim = spec.dim if spec.dim is not None else len(self.labels.get(key, ())) or None
            if spec.sparse and dim is not None and array.size and not 0 <= int(array.min()) <= int(array.max()) < dim:
                raise SourceError(
                    f"the class indices of {key!r} are in {array.min()}..{array.max()}, not below its dim {dim}",
                    where=where,
                    fix="correct the data, or the dim in specs, or the labels",
                )
            arrays[key] = np.asarray(array, order="C")
        return specs, arrays

    def about(self) -> dict[str, Any]:
        """Return layouts and labels as JSON data; nothing, if there was no sequence and nobody said the layouts."""
        if self.specs is None:
            return {"specs": {}, "labels": {}}
        return {"specs": {key: spec.to_json() for key, spec in self.specs.items()}, "labels": self.labels}


def _native(value: Any) -> Any:
    """Return an array in the byte order of this machine, anything else as it is."""
    is_foreign = isinstance(value, np.ndarray) and not value.dtype.isnative
    return value.astype(value.dtype.newbyteorder("=")) if is_foreign else value


def check_file_tag(tag: str, where: str) -> None:
    """Refuse a tag that is no path of a file below a folder, or one that readers would not see.

    Raises:
        SourceError: It is empty, absolute or hidden, or has an empty part, a NUL, or what is no Unicode.
    """
    parts = tag.split("/")
    if any(not part or part.startswith(".") or "\0" in part for part in parts) or not tag.isprintable():
        raise SourceError(
            f"the tag {tag!r} cannot be the name of a file below a folder",
            where=where,
            fix="rename it: parts between / are not empty and do not begin with a dot; or write another format",
        )
