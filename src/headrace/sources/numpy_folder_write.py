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
from headrace.files.pending_folder import PendingFolder, folder_error
from headrace.specs import DataSpec

from .npy_header import make_npy_header
from .numpy_folder_scan import ABOUT_FILE, KEY_OF_NPY, LAYOUTS, TAGS_FILE
from .writer import Writer
from .written_layout import WrittenLayout, check_file_tag

# Too long a name, or one where a part of the path is the file of another tag, or the file itself is their folder.
_NAME_ERRORS = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EEXIST, errno.EISDIR)


class NumpyFolderWriter(Writer):
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
        self.path = os.path.abspath(path)
        self._layout_name = layout
        self._layout = WrittenLayout(specs, labels, self.path)
        self._check_keys(specs or {}, ConfigError)
        self._num_seqs = 0
        self._folders: set[str] = set()
        self._folder = PendingFolder(self.path, overwrite=overwrite, marker=ABOUT_FILE)
        try:
            with open(os.path.join(self._folder.temporary, ABOUT_FILE), "xb"):  # from now on no tag can have this name
                self._tags: IO[bytes] | None = open(os.path.join(self._folder.temporary, TAGS_FILE), "xb")  # noqa: SIM115
        except OSError as error:
            self._folder.abort()
            raise folder_error(self.path, error) from error

    @property
    def num_seqs(self) -> int:
        """Number of sequences appended so far."""
        return self._num_seqs

    def append(self, tag: str, data: Mapping[str, NDArray[Any]]) -> None:
        """Append one sequence. If it is refused, nothing of it is stored, and the next one may be appended.

        Raises:
            SourceError: It does not fit the layout, or its tag is no path or was there before. If the disk is full the
                writer is aborted, too.
            ConfigError: The writer is closed.
        """
        if self._tags is None:
            raise ConfigError("the writer is closed", where=self.path, fix="append before close()")
        specs, arrays = self._layout.checked(tag, data)
        check_file_tag(tag, self.path)
        self._check_keys(specs, SourceError)
        files = self._files_of(tag, arrays)
        if os.path.lexists(next(iter(files))):
            raise SourceError(f"the tag {tag!r} was there before", where=self.path, fix="give each sequence its own")
        if self._layout.specs is None:
            self._layout.adopt(specs)
        try:
            for name, content in files.items():
                self._write(name, content)
            self._tags.write(msgspec.json.encode(tag) + b"\n")
        except BaseException as error:  # an interrupt, too, may have come between two files
            if isinstance(error, RecursionError) or (isinstance(error, OSError) and error.errno in _NAME_ERRORS):
                self._take_back(files)
                raise SourceError(
                    f"the tag {tag!r} cannot be the name of a file here: {error}",
                    where=self.path,
                    fix="rename it, or write another format",
                ) from error
            self.abort()
            if isinstance(error, OSError):
                raise folder_error(self.path, error) from error
            raise
        self._num_seqs += 1

    def _check_keys(self, specs: Mapping[str, DataSpec], error: type[HeadraceError]) -> None:
        """Refuse data keys that cannot be part of a name."""
        for key in specs:
            forbidden = "/\0" + "." * (self._layout_name == "suffix")
            if not key or key.startswith(".") or any(sign in key for sign in forbidden):
                raise error(f"the data key {key!r} cannot be part of a file name", where=self.path, fix="rename it")

    def _files_of(self, tag: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Mapping[str, NDArray[Any]]]:
        """Return path -> the arrays in that file, by data key."""
        root = self._folder.temporary
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

    def close(self) -> None:
        """Give the folder its name. Does nothing after `close` or `abort`.

        Raises:
            SourceError: The disk is full or refuses; nothing is left.
            ConfigError: A folder of this name has come into being meanwhile; nothing is left of ours.
        """
        if self._tags is None:
            return
        try:
            tags, self._tags = self._tags, None
            tags.close()
            about = {"layout": self._layout_name, **self._layout.about()}
            with open(os.path.join(self._folder.temporary, ABOUT_FILE), "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(about)) + b"\n")
            self._folder.commit()
        except OSError as error:
            raise folder_error(self.path, error) from error
        finally:
            self.abort()

    def abort(self) -> None:
        """Give up and leave nothing. Does nothing after `close` or `abort`."""
        if self._tags is not None:
            tags, self._tags = self._tags, None
            with contextlib.suppress(OSError):  # a full disk; nobody wants it any more
                tags.close()
        self._folder.abort()


def _write_array(file: IO[bytes], array: NDArray[Any]) -> None:
    """Write an array in NumPy's format; NumPy's own functions do not say what the system refused."""
    file.write(make_npy_header(array.dtype, array.shape))
    file.write(array.reshape(-1).view(np.uint8).data)
