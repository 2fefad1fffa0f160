"""`SafetensorsWriter`: many sequences in one `.safetensors` file.

The header, which comes first, is known last. So numbers go to unnamed temporary files beside the target, one for each
size of a number, and `close` joins them, the largest first: then all of them are aligned, as the format wants it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, HeadraceError, SourceError
from headrace.specs import DataSpec

from .hdf_spool import Spool
from .safetensors_files import ABOUT
from .safetensors_format import DTYPES, MAX_HEADER_BYTES, make_safetensors_header
from .writer import FileWriter
from .written_layout import WrittenLayout

_CODE_OF = {np.dtype(descr): code for code, descr in DTYPES.items() if code != "BF16"}
_ITEM_SIZES = (8, 4, 2, 1)


class SafetensorsWriter(FileWriter):
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
        super().__init__(path, overwrite=overwrite)
        self._layout = WrittenLayout(specs, labels, self.path)
        self._check_specs(specs or {}, ConfigError)
        self._tensors: dict[str, tuple[str, tuple[int, ...], int, int]] = {}  # name -> code, shape, item size, start
        self._tags: set[str] = set()
        self._header_bytes = 0  # about
        self._spools: dict[int, Spool] = {}
        self._open()

    def _begin(self) -> None:
        self._target = self._pend().temporary
        for size in _ITEM_SIZES:
            spool = Spool(os.path.dirname(self.path), np.dtype(np.uint8))
            self._spools[size] = self._opened.enter_context(contextlib.closing(spool))

    def _checked(self, tag: str, data: Mapping[str, NDArray[Any]], where: str) -> tuple[str, dict[str, NDArray[Any]]]:
        specs, arrays = self._layout.checked(tag, data, where)
        self._check_specs(specs, SourceError)
        if tag in self._tags:
            raise SourceError(f"the tag {tag!r} was there before", where=self.path, fix="give each sequence its own")
        if self._header_bytes + _header_bytes_of(tag, arrays) > MAX_HEADER_BYTES:
            fix = "write several files, which SafetensorsSource reads as one corpus"
            raise SourceError(f"the header is full with {self.num_seqs} sequences", where=self.path, fix=fix)
        if self._layout.specs is None:
            self._layout.adopt(specs)
        return tag, arrays

    def _put(self, checked: tuple[str, dict[str, NDArray[Any]]]) -> None:
        tag, arrays = checked
        for key, array in arrays.items():
            size = array.dtype.itemsize
            self._tensors[f"{tag}/{key}"] = _CODE_OF[array.dtype], array.shape, size, self._spools[size].num_items
            self._spools[size].append(array.reshape(-1).view(np.uint8))
        self._tags.add(tag)
        self._header_bytes += _header_bytes_of(tag, arrays)

    def _check_specs(self, specs: Mapping[str, DataSpec], error: type[HeadraceError]) -> None:
        """Refuse what the format cannot hold."""
        for key, spec in specs.items():
            if np.dtype(spec.dtype) not in _CODE_OF:
                dtypes = ", ".join(dtype.name for dtype in _CODE_OF)
                raise error(f"{key!r} has the dtype {spec.dtype}", where=self.path, fix=f"use one of {dtypes}")
            if not key or "/" in key:
                raise error(f"the data key {key!r} cannot end a name", where=self.path, fix="rename it")

    def _finish(self) -> None:
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
        with open(self._target, "wb") as file:
            file.write(make_safetensors_header(tensors, about))
            for size in _ITEM_SIZES:
                for block in self._spools[size].blocks(()):
                    file.write(block)


def _header_bytes_of(tag: str, keys: Iterable[str]) -> int:
    """Return about how many bytes of the header a sequence takes."""
    return sum(len(msgspec.json.encode(f"{tag}/{key}")) + 100 for key in keys)
