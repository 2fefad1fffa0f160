"""`JsonlWriter`: sequences as JSON lines, which every program reads, and their layouts beside them."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import IO, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.specs import DataSpec

from ..shared.writer import FileWriter
from .jsonl import DEFAULT_TAG_FIELD, jsonl_specs_path, make_jsonl_specs


class JsonlWriter(FileWriter):
    """Writes a sequence as a line of JSON; a context manager, which aborts if its block fails.

    What JSON cannot say goes to `x.jsonl.specs.json`, beside `x.jsonl`.
    Keys without a time axis are numbers, keys with time are lists, and texts are texts. `JsonlSource` reads the very
    same arrays again: dtypes, shapes, and every bit of float64 and smaller floats. The `.jsonl` gets its name last; if
    the process is killed while the files get their names, `JsonlSource` or the next writer finishes it.

    Args:
        path: The file to make. Its folder must exist.
        specs: Data key -> layout. Without it, the first sequence says it.
        labels: Data key -> class labels.
        text_keys: Keys of UTF-8 bytes (uint8) that are written as texts; `None`: those with 256 classes and no labels.
        overwrite: Whether an existing file may be replaced.

    Raises:
        ConfigError: An option is wrong, JSON cannot hold the layout, or the file exists.
        SourceError: The folder is missing or cannot be written to.

    Examples:
        >>> import tempfile
        >>> import headrace as hr
        >>> import numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with hr.JsonlWriter(f"{folder}/x.jsonl") as writer:
        ...         writer.append("a", {"data": np.array([0.5, 1.0], np.float32)})
        ...     print(hr.JsonlSource(f"{folder}/x.jsonl").read(0, "data").tolist())
        [0.5, 1.0]
    """

    _number_kinds = "biuf"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        specs: Mapping[str, DataSpec] | None = None,
        labels: Mapping[str, Sequence[str]] | None = None,
        text_keys: Collection[str] | None = None,
        overwrite: bool = False,
    ) -> None:
        specs_path = jsonl_specs_path(os.path.abspath(path))
        super().__init__(path, specs=specs, labels=labels, overwrite=overwrite, beside=[specs_path])
        self._specs_path = specs_path
        self._text_keys = None if text_keys is None else frozenset(text_keys)
        self._encoder = msgspec.json.Encoder()
        self._open()

    def _begin(self) -> None:
        self._files = self._pend_together()
        self._file: IO[bytes] = self._opened.enter_context(open(self._files.temporary(self.path), "wb"))  # noqa: SIM115

    def _accept(self, specs: dict[str, DataSpec]) -> dict[str, DataSpec]:
        for key, spec in specs.items():
            if key == DEFAULT_TAG_FIELD:
                raise ConfigError(f"a data key named {key!r} would hide the tag", where=self.path, fix="rename it")
            if None in spec.shape:
                raise ConfigError(
                    f"the frames of {key!r} have the shape {spec.shape}, with a free axis",
                    where=self.path,
                    fix="write it to HDF5",
                )
            if 0 in spec.shape:  # a list without numbers says neither their kind nor the axes below it
                raise ConfigError(
                    f"the frames of {key!r} have the shape {spec.shape}, with no numbers in them",
                    where=self.path,
                    fix="leave the key out, or write it to HDF5",
                )
        for key in sorted(self._text_keys or ()):
            if key not in specs or not _is_bytes(specs[key]):
                raise ConfigError(f"text_keys has {key!r}, which is not a key of bytes (uint8[T])", where=self.path)
        return specs

    def _put(self, tag: str, arrays: dict[str, NDArray[Any]], where: str) -> None:
        row: dict[str, Any] = {DEFAULT_TAG_FIELD: tag}
        for key, array in arrays.items():
            row[key] = self._value(key, self.specs[key], array, where)
        self._file.write(self._encoder.encode(row) + b"\n")

    def _is_text(self, data_key: str, spec: DataSpec) -> bool:
        if self._text_keys is not None:
            return data_key in self._text_keys
        return _is_bytes(spec) and spec.dim == 256 and data_key not in self.labels

    def _value(self, data_key: str, spec: DataSpec, array: NDArray[Any], where: str) -> Any:
        if spec.dtype == "uint8" and self._is_text(data_key, spec):
            try:
                return array.tobytes().decode()
            except UnicodeDecodeError as error:
                raise SourceError(
                    f"{data_key!r} is not UTF-8: {error}",
                    where=where,
                    fix="give text_keys=[], so that it is written as numbers",
                ) from error
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise SourceError(
                f"{data_key!r} has a NaN or an infinite number, which JSON has not", where=where, fix="write it to HDF5"
            )
        return array.tolist()

    def _finish(self) -> None:
        num_bytes = self._file.tell()
        self._file.close()
        with open(self._files.temporary(self._specs_path), "w", encoding="utf-8") as file:
            file.write(make_jsonl_specs(num_bytes, self.specs, self.labels))


def _is_bytes(spec: DataSpec) -> bool:
    return spec.dtype == "uint8" and spec.has_time and not spec.shape
