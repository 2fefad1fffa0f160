"""`JsonlWriter`: sequences as JSON lines, which every program reads, and their layouts beside them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, HeadraceError, SourceError
from headrace.files import PendingFile
from headrace.specs import DataSpec

from .jsonl_gather import DEFAULT_TAG_FIELD
from .jsonl_specs import jsonl_specs_path, make_jsonl_specs
from .pending import open_pending
from .writer import Writer


class JsonlWriter(Writer):
    """Writes a sequence as a line of JSON; a context manager, which aborts if its block fails.

    What JSON cannot say goes to `x.jsonl.specs.json`, beside `x.jsonl`.
    Keys without time are numbers, keys with time are lists, and texts are texts. `JsonlSource` reads the very same
    arrays again: dtypes, shapes, and every bit of float64 and smaller floats. The `.jsonl` gets its name last.

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
        self.path = os.path.abspath(path)
        self._overwrite = overwrite
        self._labels = {key: list(names) for key, names in (labels or {}).items()}
        self._wanted_texts = None if text_keys is None else frozenset(text_keys)
        self._specs: dict[str, DataSpec] = {}
        self._texts: frozenset[str] = frozenset()
        self._check_target()
        if specs:
            self._adopt(dict(specs))
        self._encoder = msgspec.json.Encoder()
        self._num_seqs = 0
        self._pending, self._file = open_pending(self.path)
        self._is_open = True

    def _check_target(self) -> None:
        if os.path.lexists(self.path) and not self._overwrite:
            raise ConfigError("the file exists", where=self.path, fix="give another path, or overwrite=True")

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

    @property
    def num_seqs(self) -> int:
        """Number of sequences appended so far."""
        return self._num_seqs

    def append(self, tag: str, data: Mapping[str, NDArray[Any]]) -> None:
        """Append one sequence. If it is refused, nothing of it is stored, and the next one may be appended.

        Raises:
            SourceError: A key is missing or new, an array has another layout, a number is NaN or infinite, or a text is
                not UTF-8; or the disk is full, which aborts the writer.
            ConfigError: The writer is closed.
        """
        if not self._is_open:
            raise ConfigError("the writer is closed", where=self.path, fix="append before close()")
        if not isinstance(tag, str):
            raise SourceError(f"the tag {tag!r} is not a str", where=self.path, fix="give a str")
        where = f"{self.path}, sequence {tag!r}"
        arrays = {key: np.asarray(value) for key, value in data.items()}
        is_first = not self._specs
        try:
            line = self._line(tag, arrays, where)
        except HeadraceError as error:
            if is_first:
                self._specs = {}  # what a refused one said of the layout does not hold
            raise SourceError(error.what, where=where, fix=error.fix) from error
        try:
            self._file.write(line)
            self._num_seqs += 1
        except OSError as error:
            self.abort()
            raise SourceError(f"cannot write: {error.strerror}", where=self.path, fix="make room") from error
        except BaseException:
            self.abort()
            raise

    def _line(self, tag: str, arrays: Mapping[str, NDArray[Any]], where: str) -> bytes:
        if not self._specs:
            self._adopt({key: _spec_of(array) for key, array in arrays.items()})
        if arrays.keys() != self._specs.keys():
            raise SourceError(
                f"the keys are {sorted(arrays)}; those of this file are {sorted(self._specs)}",
                fix="give every sequence the same keys",
            )
        row = {DEFAULT_TAG_FIELD: tag, **{key: self._value(key, arrays[key], where) for key in self._specs}}
        try:
            return self._encoder.encode(row) + b"\n"
        except (UnicodeEncodeError, msgspec.MsgspecError) as error:
            raise SourceError(f"the tag {tag!r} is not valid Unicode", fix="correct it") from error

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
        if spec.sparse and spec.dim is not None and array.size and (array.min() < 0 or array.max() >= spec.dim):
            raise SourceError(f"{key!r} has a class that is none of the {spec.dim}", where=where)
        return array.tolist()

    def close(self) -> None:
        """Finish the files and give them their names. Does nothing after `close` or `abort`.

        Raises:
            SourceError: The disk is full or refuses; the `.jsonl` does not appear.
            ConfigError: The file has come into being meanwhile; nothing is left of ours.
        """
        if not self._is_open:
            return
        try:
            self._check_target()
            num_bytes = self._file.tell()
            self._file.close()
            with PendingFile(jsonl_specs_path(self.path)) as pending:
                pending.temporary.write_text(make_jsonl_specs(num_bytes, self._specs, self._labels), encoding="utf-8")
            self._pending.commit()
        except OSError as error:
            raise SourceError(f"cannot write: {error.strerror}", where=self.path, fix="make room") from error
        finally:
            self.abort()

    def abort(self) -> None:
        """Give up and leave nothing. Does nothing after `close` or `abort`."""
        if self._is_open:
            self._is_open = False
            with contextlib.suppress(OSError):  # it tries to write what it still holds, which nobody wants any more
                self._file.close()
            self._pending.abort()


def _is_bytes(spec: DataSpec) -> bool:
    return spec.dtype == "uint8" and spec.has_time and not spec.shape


def _spec_of(array: NDArray[Any]) -> DataSpec:
    spec = DataSpec.of_array(array, dim=None if array.ndim > 1 or array.dtype.kind not in "iu" else 1)
    return DataSpec(spec.dtype, spec.shape, spec.sparse, dim=None if spec.sparse else spec.dim, has_time=spec.has_time)
