"""Files anywhere, by fsspec."""

from __future__ import annotations

import fnmatch
import posixpath
import shutil
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import fsspec

from .arguments import check_takes
from .base import IterPipe, State, is_iter_pipe, read
from .iterable_wrapper import IterableWrapper
from .registry import functional_pipe
from .save import check_write_mode
from .streams import open_remote


@functional_pipe("list_files_by_fsspec")
class FSSpecFileLister(IterPipe[str]):
    """Give the sorted paths of what is in folders of any file system, with the protocol of the folder.

    Args:
        root: A folder, several, or a pipe of them. A file stands for itself.
        masks: Patterns as of a shell; a path is given if its last part fits one. Empty: all.
        kwargs: What the file system needs.

    Raises:
        FileNotFoundError: There is no such folder (while iterating).
    """

    def __init__(self, root: str | Sequence[str] | IterPipe[Any], masks: str | list[str] = "", **kwargs: Any) -> None:
        self.datapipe: Any = root if is_iter_pipe(root) else IterableWrapper([root] if isinstance(root, str) else root)
        self.masks = masks
        self.kwargs = kwargs
        self.reset()

    def reset(self) -> None:
        self._folder: str | None = None
        self._num_given = 0

    def __iter__(self) -> Iterator[str]:
        if self._folder is not None:
            paths = islice(self._search(self._folder), self._num_given, None)
            for self._num_given, path in enumerate(paths, self._num_given + 1):
                yield path
        for self._folder in read(self.datapipe):
            for self._num_given, path in enumerate(self._search(str(self._folder)), 1):
                yield path
        self._folder = None

    def _search(self, folder: str) -> Iterator[str]:
        file_system, inner = fsspec.core.url_to_fs(folder, **self.kwargs)
        masks = [self.masks] if isinstance(self.masks, str) else self.masks
        for path in [inner] if file_system.isfile(inner) else sorted(file_system.ls(inner, detail=False)):
            name = posixpath.basename(path.rstrip("/"))
            if not any(masks) or any(fnmatch.fnmatch(name, mask) for mask in masks):
                yield file_system.unstrip_protocol(path) if "://" in folder else path

    def state(self) -> State:
        return {"folder": self._folder, "num_given": self._num_given}

    def restore(self, state: State) -> None:
        self._folder, self._num_given = state["folder"], state["num_given"]


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
