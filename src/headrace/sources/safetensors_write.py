"""`SafetensorsWriter`: many sequences in one `.safetensors` file.

The header, which comes first, is known last. So numbers go to unnamed temporary files beside the target, one for each
size of a number, and `close` joins them, the largest first: then all of them are aligned, as the format wants it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, HeadraceError, SourceError
from headrace.files import atomic_write
from headrace.specs import DataSpec

from .hdf_spool import Spool
from .safetensors_files import ABOUT
from .safetensors_format import DTYPES, MAX_HEADER_BYTES, make_safetensors_header
from .writer import Writer
from .written_layout import WrittenLayout

_CODE_OF = {np.dtype(descr): code for code, descr in DTYPES.items() if code != "BF16"}
_ITEM_SIZES = (8, 4, 2, 1)


class SafetensorsWriter(Writer):
    """Writes one file that `SafetensorsSource` reads, layouts and labels included, and so does `safetensors.numpy`.

    Tensors are called `<tag>/<key>`; tags must differ. The header holds all names: some hundred thousand sequences fit
    into the 100 MB that it may have.

    Args:
        path: The file to make. Its folder must exist.
        specs: Data key -> layout. Without it, the first sequence says what the keys, dtypes and shapes are.
        labels: Data key -> class labels.
        overwrite: Whether an existing file may be replaced.

    Raises:
        ConfigError: An option is wrong, or the file exists.
        SourceError: The folder is missing or cannot be written to.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        specs: Mapping[str, DataSpec] | None = None,
        labels: Mapping[str, Sequence[str]] | None = None,
        overwrite: bool = False,
    ) -> None:
        self.path = os.path.abspath(path)
        self._overwrite = overwrite
        self._check_target()
        self._layout = WrittenLayout(specs, labels, self.path)
        self._check_specs(specs or {}, ConfigError)
        self._tensors: dict[str, tuple[str, tuple[int, ...], int, int]] = {}  # name -> code, shape, item size, start
        self._tags: set[str] = set()
        self._header_bytes = 0  # about
        self._spools: dict[int, Spool] = {}
        self._is_open = True
        try:
            for size in _ITEM_SIZES:
                self._spools[size] = Spool(os.path.dirname(self.path), np.dtype(np.uint8))
        except OSError as error:
            self.abort()
            raise self._write_error(error) from error

    @property
    def num_seqs(self) -> int:
        """Number of sequences appended so far."""
        return len(self._tags)

    def append(self, tag: str, data: Mapping[str, NDArray[Any]]) -> None:
        """Append one sequence. If it is refused, nothing of it is stored, and the next one may be appended.

        Raises:
            SourceError: It does not fit the layout, or its tag was there before, or the header is full. If the disk is
                full the writer is aborted, too.
            ConfigError: The writer is closed.
        """
        if not self._is_open:
            raise ConfigError("the writer is closed", where=self.path, fix="append before close()")
        specs, arrays = self._layout.checked(tag, data)
        self._check_specs(specs, SourceError)
        names = {key: f"{tag}/{key}" for key in arrays}
        if tag in self._tags:
            raise SourceError(f"the tag {tag!r} was there before", where=self.path, fix="give each sequence its own")
        header_bytes = sum(len(msgspec.json.encode(name)) + 100 for name in names.values())
        if self._header_bytes + header_bytes > MAX_HEADER_BYTES:
            fix = "write several files, which SafetensorsSource reads as one corpus"
            raise SourceError(f"the header is full with {self.num_seqs} sequences", where=self.path, fix=fix)
        if self._layout.specs is None:
            self._layout.adopt(specs)
        try:
            for key, array in arrays.items():
                size = array.dtype.itemsize
                self._tensors[names[key]] = _CODE_OF[array.dtype], array.shape, size, self._spools[size].num_items
                self._spools[size].append(array.reshape(-1).view(np.uint8))
        except BaseException as error:  # an interrupt, too, may have come between two keys of one sequence
            self.abort()
            if isinstance(error, OSError):
                raise self._write_error(error) from error
            raise
        self._tags.add(tag)
        self._header_bytes += header_bytes

    def _check_specs(self, specs: Mapping[str, DataSpec], error: type[HeadraceError]) -> None:
        """Refuse what the format cannot hold."""
        for key, spec in specs.items():
            if np.dtype(spec.dtype) not in _CODE_OF:
                dtypes = ", ".join(dtype.name for dtype in _CODE_OF)
                raise error(f"{key!r} has the dtype {spec.dtype}", where=self.path, fix=f"use one of {dtypes}")
            if not key or "/" in key:
                raise error(f"the data key {key!r} cannot end a name", where=self.path, fix="rename it")

    def close(self) -> None:
        """Write the file and give it its name. Does nothing after `close` or `abort`.

        Raises:
            SourceError: The disk is full or refuses; nothing is left.
            ConfigError: The file has come into being meanwhile; nothing is left of ours.
        """
        if not self._is_open:
            return
        starts, total = {}, 0
        for size in _ITEM_SIZES:
            starts[size] = total
            total += self._spools[size].num_items
        tensors = {}
        for name, (code, shape, size, start) in self._tensors.items():
            begin = starts[size] + start
            end = begin + int(np.prod(shape, dtype=np.int64)) * np.dtype(DTYPES[code]).itemsize
            tensors[name] = {"dtype": code, "shape": shape, "data_offsets": [begin, end]}
        about = {ABOUT: msgspec.json.encode(self._layout.about()).decode()}
        try:
            self._check_target()
            with atomic_write(self.path) as file:
                file.write(make_safetensors_header(tensors, about))
                for size in _ITEM_SIZES:
                    for block in self._spools[size].blocks(()):
                        file.write(block)
        except OSError as error:
            raise self._write_error(error) from error
        finally:
            self.abort()

    def abort(self) -> None:
        """Give up and leave nothing. Does nothing after `close` or `abort`."""
        self._is_open = False
        for spool in self._spools.values():
            spool.close()

    def _check_target(self) -> None:
        if os.path.lexists(self.path) and not self._overwrite:
            raise ConfigError("the file exists", where=self.path, fix="give another path, or overwrite=True")

    def _write_error(self, error: OSError) -> SourceError:
        return SourceError(
            f"cannot write: {error.strerror or error}", where=self.path, fix="make room, or write to another folder"
        )
