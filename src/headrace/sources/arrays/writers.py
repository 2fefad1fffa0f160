"""Writers of plain arrays, `NumpyFolderWriter` and `SafetensorsWriter`.

The first writes files of arrays for each sequence, in a folder that appears when it is whole. The second writes many
sequences to one file. Its header, which comes first, is known last; so numbers go to unnamed temporary files beside the
target, one for each size of a number, and `close` joins them, the largest first: then all of them are aligned, as the
format wants it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.files.atomic.pending import PendingFolder
from headrace.specs import DataSpec

from ..shared.npy import make_npy_header
from ..shared.spool import Spool
from ..shared.writer import FileWriter
from .numpy_folder import ABOUT_FILE, KEY_OF_NPY, LAYOUTS, TAGS_FILE
from .safetensors import ABOUT, DTYPES, MAX_HEADER_BYTES, make_safetensors_header


def _check_file_tag(tag: str, where: str) -> None:
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


# Too long a name, or one where a part of the path is the file of another tag, or the file itself is their folder.
_NAME_ERRORS = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EEXIST, errno.EISDIR)


class NumpyFolderWriter(FileWriter):
    """Writes a folder that `NumpyFolderSource` reads: sequences in their order, layouts and labels included.

    A tag is the path of a file below the folder, so tags must differ and be such paths. `numpy.load` reads each file.

    Args:
        path: The folder to make; the one above it must exist.
        specs: Data key -> layout. Without it, the first sequence says what the keys, dtypes and shapes are.
        labels: Data key -> class labels.
        overwrite: Whether an existing folder may be replaced, if a writer like this one made it.
        layout: `"file"`: `<tag>.npy` if "data" is the only key, else `<tag>.npz`, not compressed; `"suffix"`:
            `<tag>.<key>.npy`; `"folder"`: `<key>/<tag>.npy`.

    Raises:
        ConfigError: An option is wrong, or the folder exists.
        SourceError: The folder above is missing or cannot be written to.
    """

    _max_number_bytes = 16  # NumPy's format knows what a machine has

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        specs: Mapping[str, DataSpec] | None = None,
        labels: Mapping[str, Sequence[str]] | None = None,
        overwrite: bool = False,
        layout: Literal["file", "suffix", "folder"] = "file",
    ) -> None:
        if layout not in LAYOUTS:
            raise ConfigError(f"unknown layout {layout!r}", where="NumpyFolderWriter", fix=f"one of {LAYOUTS}")
        self._layout = layout
        super().__init__(path, specs=specs, labels=labels, overwrite=overwrite)
        self._folders: set[str] = set()
        self._open()

    def _begin(self) -> None:
        self._pending = folder = PendingFolder(self.path, overwrite=self._overwrite, marker=ABOUT_FILE, fsync=True)
        self._root = folder.temporary
        with open(os.path.join(self._root, ABOUT_FILE), "xb"):  # from now on no tag can have this name
            tags = open(os.path.join(self._root, TAGS_FILE), "xb")  # noqa: SIM115
        self._tag_lines: IO[bytes] = self._opened.enter_context(tags)

    def _accept(self, specs: dict[str, DataSpec]) -> dict[str, DataSpec]:
        for key in specs:
            forbidden = "/\0" + "." * (self._layout == "suffix")
            if not key or key.startswith(".") or any(sign in key for sign in forbidden):
                raise ConfigError(
                    f"the data key {key!r} cannot be part of a file name", where=self.path, fix="rename it"
                )
        return specs

    def _put(self, tag: str, arrays: dict[str, NDArray[Any]], where: str) -> None:  # noqa: ARG002 - the tag says it
        _check_file_tag(tag, self.path)
        files = self._files_of(tag, arrays)
        if os.path.lexists(next(iter(files))):
            raise SourceError(f"the tag {tag!r} was there before", where=self.path, fix="give each sequence its own")
        try:
            for name, content in files.items():
                self._write(name, content)
        except (OSError, RecursionError) as error:
            if isinstance(error, OSError) and error.errno not in _NAME_ERRORS:
                raise
            self._take_back(files)
            raise SourceError(
                f"the tag {tag!r} cannot be the name of a file here: {error}",
                where=self.path,
                fix="rename it, or write another format",
            ) from error
        self._tag_lines.write(msgspec.json.encode(tag) + b"\n")

    def _files_of(self, tag: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Mapping[str, NDArray[Any]]]:
        """Return path -> the arrays in that file, by data key."""
        root = self._root
        if self._layout == "suffix":
            return {os.path.join(root, f"{tag}.{key}.npy"): {key: array} for key, array in arrays.items()}
        if self._layout == "folder":
            return {os.path.join(root, key, f"{tag}.npy"): {key: array} for key, array in arrays.items()}
        return {os.path.join(root, f"{tag}.npy" if set(arrays) == {KEY_OF_NPY} else f"{tag}.npz"): arrays}

    def _take_back(self, names: Iterable[str]) -> None:
        """Remove the files of a sequence whose next file could not be made: these names are used by nothing else."""
        for name in names:
            with contextlib.suppress(OSError):
                os.unlink(name)

    def _write(self, path: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        folder = os.path.dirname(path)
        if folder not in self._folders:
            os.makedirs(folder, exist_ok=True)
            self._folders.add(folder)
        with open(path, "xb") as file:
            if path.endswith(".npy"):
                _write_array(file, next(iter(arrays.values())))
                return
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                for key, array in arrays.items():
                    with archive.open(zipfile.ZipInfo(f"{key}.npy"), "w", force_zip64=True) as member:
                        _write_array(member, array)

    def _finish(self) -> None:
        self._tag_lines.close()
        about = {"layout": self._layout, **self._about()}
        with open(os.path.join(self._root, ABOUT_FILE), "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(about)) + b"\n")


def _write_array(file: IO[bytes], array: NDArray[Any]) -> None:
    """Write an array in NumPy's format; NumPy's own functions do not say what the system refused."""
    file.write(make_npy_header(array.dtype, array.shape))
    file.write(array.reshape(-1).view(np.uint8).data)


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

    _has_unique_tags = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        specs: Mapping[str, DataSpec] | None = None,
        labels: Mapping[str, Sequence[str]] | None = None,
        overwrite: bool = False,
    ) -> None:
        super().__init__(path, specs=specs, labels=labels, overwrite=overwrite)
        self._tensors: dict[str, tuple[str, tuple[int, ...], int, int]] = {}  # name -> code, shape, item size, start
        self._header_bytes = 0  # about
        self._spools: dict[int, Spool] = {}
        self._open()

    def _begin(self) -> None:
        self._target = self._pend().temporary
        for size in _ITEM_SIZES:
            spool = Spool(os.path.dirname(self.path), np.dtype(np.uint8))
            self._spools[size] = self._opened.enter_context(contextlib.closing(spool))

    def _accept(self, specs: dict[str, DataSpec]) -> dict[str, DataSpec]:
        for key, spec in specs.items():
            if np.dtype(spec.dtype) not in _CODE_OF:
                dtypes = ", ".join(dtype.name for dtype in _CODE_OF)
                raise ConfigError(f"{key!r} has the dtype {spec.dtype}", where=self.path, fix=f"use one of {dtypes}")
            if not key or "/" in key:
                raise ConfigError(f"the data key {key!r} cannot end a name", where=self.path, fix="rename it")
        return specs

    def _put(self, tag: str, arrays: dict[str, NDArray[Any]], where: str) -> None:  # noqa: ARG002 - the file is full
        num_bytes = sum(len(msgspec.json.encode(f"{tag}/{key}")) + 100 for key in arrays)  # about
        if self._header_bytes + num_bytes > MAX_HEADER_BYTES:
            fix = "write several files, which SafetensorsSource reads as one corpus"
            raise SourceError(f"the header is full with {self.num_seqs} sequences", where=self.path, fix=fix)
        for key, array in arrays.items():
            size = array.dtype.itemsize
            self._tensors[f"{tag}/{key}"] = _CODE_OF[array.dtype], array.shape, size, self._spools[size].num_items
            self._spools[size].append(array.reshape(-1).view(np.uint8))
        self._header_bytes += num_bytes

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
        about = {ABOUT: msgspec.json.encode(self._about()).decode()}
        with open(self._target, "wb") as file:
            file.write(make_safetensors_header(tensors, about))
            for size in _ITEM_SIZES:
                for block in self._spools[size].blocks(()):
                    file.write(block.data)
