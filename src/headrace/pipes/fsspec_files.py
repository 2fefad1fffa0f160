"""Files anywhere, by fsspec."""

from __future__ import annotations

import posixpath
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import fsspec

from .arguments import check_takes
from .base import IterPipe, State, read
from .list_files import FolderLister, fits_masks, pipe_of_roots
from .registry import functional_pipe
from .save import check_write_mode
from .streams import open_remote


@functional_pipe("list_files_by_fsspec")
class FSSpecFileLister(FolderLister):
    """Give the sorted paths of what is in folders of any file system, with the protocol of the folder.

    Args:
        root: A folder, several, or a pipe of them. A file stands for itself, as it is named.
        masks: Patterns as of a shell; a path is given if its last part fits one. Empty: all.
        kwargs: What the file system needs.

    Raises:
        FileNotFoundError: There is no such folder (while iterating).
    """

    def __init__(self, root: str | Sequence[str] | IterPipe[Any], masks: str | list[str] = "", **kwargs: Any) -> None:
        self.datapipe = pipe_of_roots(root)
        self.masks = masks
        self.kwargs = kwargs
        self.reset()

    def _search(self, folder: str) -> Iterator[str]:
        file_system, inner = fsspec.core.url_to_fs(folder, **self.kwargs)
        if file_system.isfile(inner):
            yield folder
            return
        for path in sorted(file_system.ls(inner, detail=False)):
            if fits_masks(posixpath.basename(path.rstrip("/")), self.masks):
                yield file_system.unstrip_protocol(path) if "://" in folder else path


@functional_pipe("open_files_by_fsspec")
class FSSpecFileOpener(IterPipe[Any]):
    """Give (path, open file) of any file system.

    Args:
        source_datapipe: The source; its items are paths, with their protocol.
        mode: As of `open`.
        kwargs_for_open: What opening needs.
        kwargs: What the file system needs.
    """

    def __init__(
        self,
        source_datapipe: IterPipe[Any],
        mode: str = "r",
        *,
        kwargs_for_open: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.source_datapipe = source_datapipe
        self.mode = mode
        self.kwargs_for_open = kwargs_for_open or {}
        self.kwargs = kwargs

    def __iter__(self) -> Iterator[Any]:
        for path in read(self.source_datapipe):
            yield path, open_remote(path, self.mode, self.kwargs_for_open, self.kwargs)

    def state(self) -> State:
        return {}

    def __len__(self) -> int:
        return len(self.source_datapipe)


@functional_pipe("save_by_fsspec")
class FSSpecSaver(IterPipe[str]):
    """Write each item to a file of any file system, and give the path.

    Whether a file appears whole or in parts is the file system's affair: object stores show it when it is closed.

    Args:
        source_datapipe: The source; its items are (name, data): bytes, text or an open file.
        mode: `"w"` for text, `"wb"` for bytes.
        filepath_fn: Makes the path of the name; `None`: the name is the path.
        kwargs_for_open: What opening needs.
        kwargs: What the file system needs.

    Raises:
        ConfigError: There is no such mode.
    """

    def __init__(
        self,
        source_datapipe: IterPipe[Any],
        mode: str = "w",
        filepath_fn: Callable[[Any], str] | None = None,
        *,
        kwargs_for_open: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if filepath_fn is not None:
            check_takes(filepath_fn, 1)
        self.source_datapipe = source_datapipe
        self.mode = check_write_mode(mode)
        self.filepath_fn = filepath_fn
        self.kwargs_for_open = kwargs_for_open or {}
        self.kwargs = kwargs

    def __iter__(self) -> Iterator[str]:
        for name, data in read(self.source_datapipe):
            path = name if self.filepath_fn is None else self.filepath_fn(name)
            file_system, inner = fsspec.core.url_to_fs(path, **self.kwargs)
            with file_system.open(inner, self.mode, **self.kwargs_for_open) as file:
                if hasattr(data, "read"):
                    shutil.copyfileobj(data, file)
                else:
                    file.write(data)
            yield path

    def state(self) -> State:
        return {}

    def __len__(self) -> int:
        return len(self.source_datapipe)
