"""`JsonlWriter`: sequences as JSON lines, which every program reads, and their layouts beside them."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import IO, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, HeadraceError, SourceError
from headrace.specs import DataSpec

from ..shared.data_types import check_classes, learn_spec
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
    """

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
        super().__init__(path, overwrite=overwrite, beside=[specs_path])
        self._specs_path = specs_path
        self._labels = {key: list(names) for key, names in (labels or {}).items()}
        self._wanted_texts = None if text_keys is None else frozenset(text_keys)
        self._specs: dict[str, DataSpec] = {}
        self._texts: frozenset[str] = frozenset()
        if specs:
            self._adopt(dict(specs))
        self._encoder = msgspec.json.Encoder()
        self._open()

    def _begin(self) -> None:
        self._files = self._pend_together()
        self._file: IO[bytes] = self._opened.enter_context(open(self._files.temporary(self.path), "wb"))  # noqa: SIM115

    def _adopt(self, specs: dict[str, DataSpec]) -> None:
        """Make these the layouts of the file, if JSON can hold them."""
        for key, spec in specs.items():
            if key == DEFAULT_TAG_FIELD:
                raise ConfigError(f"a data key named {key!r} would hide the tag", where=self.path, fix="rename it")
            if np.dtype(spec.dtype).kind not in "biuf" or np.dtype(spec.dtype).itemsize > 8:
                raise ConfigError(
                    f"JSON cannot hold {spec.dtype} ({key!r})", where=self.path, fix="write it to HDF5 or to .npy files"
                )
            if None in spec.shape:
                raise ConfigError(
                    f"the frames of {key!r} have the shape {spec.shape}, with a free axis",
                    where=self.path,
                    fix="write it to a folder of .npy files",
                )
            if 0 in spec.shape:  # a list without numbers says neither their kind nor the axes below it
                raise ConfigError(
                    f"the frames of {key!r} have the shape {spec.shape}, with no numbers in them",
                    where=self.path,
                    fix="leave the key out, or write it to a folder of .npy files",
                )
        wanted = self._wanted_texts
        if wanted is None:
            wanted = frozenset(
                key for key, spec in specs.items() if _is_bytes(spec) and spec.dim == 256 and key not in self._labels
            )
        for key in sorted(wanted):
            if key not in specs or not _is_bytes(specs[key]):
                raise ConfigError(f"text_keys has {key!r}, which is no key of bytes (uint8[T])", where=self.path)
        unknown = sorted(set(self._labels) - set(specs))
        if unknown:
            raise ConfigError(f"labels for {unknown}, but the keys are {sorted(specs)}", where=self.path)
        self._specs, self._texts = specs, wanted

    def _checked(self, tag: str, data: Mapping[str, NDArray[Any]], where: str) -> bytes:
        arrays = {key: np.asarray(value) for key, value in data.items()}
        is_first = not self._specs
        try:
            return self._line(tag, arrays, where)
        except HeadraceError as error:
            if is_first:
                self._specs = {}  # what a refused one said of the layout does not hold
            raise SourceError(error.what, where=where, fix=error.fix) from error

    def _put(self, checked: bytes) -> None:
        self._file.write(checked)

    def _line(self, tag: str, arrays: Mapping[str, NDArray[Any]], where: str) -> bytes:
        if not self._specs:
            self._adopt({key: _spec_of(array) for key, array in arrays.items()})
        if arrays.keys() != self._specs.keys():
            raise SourceError(
                f"the keys are {sorted(arrays)}; those of this file are {sorted(self._specs)}",
                fix="give every sequence the same keys",
            )
        row = {DEFAULT_TAG_FIELD: tag, **{key: self._value(key, arrays[key], where) for key in self._specs}}
        return self._encoder.encode(row) + b"\n"

    def _value(self, key: str, array: NDArray[Any], where: str) -> Any:
        spec = self._specs[key]
        shape = array.shape[1:] if spec.has_time else array.shape
        if array.dtype != spec.dtype or array.ndim != spec.ndim or shape != spec.shape:
            raise SourceError(
                f"{key!r} is {array.dtype} of the shape {array.shape}, not {spec.dtype} with frames of {spec.shape}",
                where=where,
            )
        if key in self._texts:
            try:
                return array.tobytes().decode()
            except UnicodeDecodeError as error:
                raise SourceError(
                    f"{key!r} is not UTF-8: {error}",
                    where=where,
                    fix="give text_keys=[], so that it is written as numbers",
                ) from error
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise SourceError(
                f"{key!r} has a NaN or an infinite number, which JSON has not", where=where, fix="write it to HDF5"
            )
        check_classes(array, spec, f"{where}, data key {key!r}")
        return array.tolist()

    def _finish(self) -> None:
        num_bytes = self._file.tell()
        self._file.close()
        with open(self._files.temporary(self._specs_path), "w", encoding="utf-8") as file:
            file.write(make_jsonl_specs(num_bytes, self._specs, self._labels))


def _is_bytes(spec: DataSpec) -> bool:
    return spec.dtype == "uint8" and spec.has_time and not spec.shape


def _spec_of(array: NDArray[Any]) -> DataSpec:
    return learn_spec(array.dtype, array.shape[1:], has_time=array.ndim > 0)
