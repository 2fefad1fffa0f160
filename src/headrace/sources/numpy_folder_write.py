"""`NumpyFolderWriter`: a file of arrays for each sequence, in a folder that appears when it is whole."""

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

from headrace.errors import ConfigError, HeadraceError, SourceError
from headrace.files.pending_folder import PendingFolder
from headrace.specs import DataSpec

from .npy_header import make_npy_header
from .numpy_folder_scan import ABOUT_FILE, KEY_OF_NPY, LAYOUTS, TAGS_FILE
from .writer import FileWriter
from .written_layout import WrittenLayout, check_file_tag

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
        self._layout_name = layout
        self._layout = WrittenLayout(specs, labels, os.path.abspath(path))
        super().__init__(path, overwrite=overwrite)
        self._check_keys(specs or {}, ConfigError)
        self._folders: set[str] = set()
        self._open()

    def _begin(self) -> None:
        self._pending = folder = PendingFolder(self.path, overwrite=self._overwrite, marker=ABOUT_FILE, fsync=True)
        self._root = folder.temporary
        with open(os.path.join(self._root, ABOUT_FILE), "xb"):  # from now on no tag can have this name
            tags = open(os.path.join(self._root, TAGS_FILE), "xb")  # noqa: SIM115
        self._tags: IO[bytes] = self._opened.enter_context(tags)

    def _checked(
        self, tag: str, data: Mapping[str, NDArray[Any]], where: str
    ) -> tuple[str, dict[str, Mapping[str, NDArray[Any]]]]:
        specs, arrays = self._layout.checked(tag, data, where)
        check_file_tag(tag, self.path)
        self._check_keys(specs, SourceError)
        files = self._files_of(tag, arrays)
        if os.path.lexists(next(iter(files))):
            raise SourceError(f"the tag {tag!r} was there before", where=self.path, fix="give each sequence its own")
        if self._layout.specs is None:
            self._layout.adopt(specs)
        return tag, files

    def _put(self, checked: tuple[str, dict[str, Mapping[str, NDArray[Any]]]]) -> None:
        tag, files = checked
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
        self._tags.write(msgspec.json.encode(tag) + b"\n")

    def _check_keys(self, specs: Mapping[str, DataSpec], error: type[HeadraceError]) -> None:
        """Refuse data keys that cannot be part of a name."""
        for key in specs:
            forbidden = "/\0" + "." * (self._layout_name == "suffix")
            if not key or key.startswith(".") or any(sign in key for sign in forbidden):
                raise error(f"the data key {key!r} cannot be part of a file name", where=self.path, fix="rename it")

    def _files_of(self, tag: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Mapping[str, NDArray[Any]]]:
        """Return path -> the arrays in that file, by data key."""
        root = self._root
        if self._layout_name == "suffix":
            return {os.path.join(root, f"{tag}.{key}.npy"): {key: array} for key, array in arrays.items()}
        if self._layout_name == "folder":
            return {os.path.join(root, key, f"{tag}.npy"): {key: array} for key, array in arrays.items()}
        return {os.path.join(root, f"{tag}.npy" if set(arrays) == {KEY_OF_NPY} else f"{tag}.npz"): arrays}

    def _take_back(self, names: Iterable[str]) -> None:
        """Remove the files of a sequence whose next one could not be made: nobody else has files of these names."""
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
        self._tags.close()
        about = {"layout": self._layout_name, **self._layout.about()}
        with open(os.path.join(self._root, ABOUT_FILE), "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(about)) + b"\n")


def _write_array(file: IO[bytes], array: NDArray[Any]) -> None:
    """Write an array in NumPy's format; NumPy's own functions do not say what the system refused."""
    file.write(make_npy_header(array.dtype, array.shape))
    file.write(array.reshape(-1).view(np.uint8).data)
