"""Files elsewhere: behind URLs, at whatever fsspec reaches, and datasets of the Hugging Face hub."""

from __future__ import annotations

import http.client
import importlib
import posixpath
import urllib.parse
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import fsspec

from headrace.errors import ConfigError

from ...core.base import IterPipe, read
from ...core.registry import functional_pipe, register_function
from ...core.skeletons import OneForOne
from ...core.streams import StreamWrapper, open_remote
from .listing import FolderLister, fits_masks, pipe_of_roots
from .local import SavingPipe, put

_GOOGLE_DRIVE = ("drive.google.com", "docs.google.com")


@functional_pipe("read_from_http")
class HttpReader(OneForOne[Any]):
    """Give (URL, open file) of files behind http and https URLs, in bytes.

    For many files, retries or other protocols use `open_files_by_fsspec`.

    Args:
        source_datapipe: The source; its items are URLs.
        timeout: Seconds that the server may be silent; `None`: as long as it likes.
        skip_on_error: Warn of a URL that cannot be read, and leave it out, instead of raising.
        headers: Of the request.

    Raises:
        ConfigError: A URL is of another protocol, or Google Drive's (while iterating).
        OSError: A URL cannot be read (while iterating).
    """

    def __init__(
        self,
        source_datapipe: IterPipe[str],
        timeout: float | None = None,
        skip_on_error: bool = False,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.source_datapipe = source_datapipe
        self.timeout = timeout
        self.skip_on_error = skip_on_error
        self.headers = dict(headers or {})

    def __iter__(self) -> Iterator[Any]:
        for url in read(self.source_datapipe):
            try:
                stream = self._open(url)
            except (OSError, http.client.HTTPException) as error:
                if not self.skip_on_error:
                    raise
                warnings.warn(f"{url} is left out: {error}", stacklevel=2)
            else:
                yield url, StreamWrapper(stream, name=url)

    def _open(self, url: str) -> Any:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https"):
            raise ConfigError(f"{url!r} is no http URL", fix="use open_files_by_fsspec, which knows other protocols")
        if parts.hostname in _GOOGLE_DRIVE:
            raise ConfigError(f"{url!r} is a page about a file", fix="fetch it with the package gdown, then open it")
        request = urllib.request.Request(url, headers=self.headers)  # noqa: S310 - http only, see above
        if self.timeout is None:
            return urllib.request.urlopen(request)  # noqa: S310
        return urllib.request.urlopen(request, timeout=self.timeout)  # noqa: S310


# torchdata told URLs of Google Drive from others here, and followed the pages that Google shows.
register_function(IterPipe, "read_from_remote", HttpReader)


class HuggingFaceHubReader(IterPipe[dict[str, Any]]):
    """Give the rows of a dataset that `datasets.load_dataset` loads, as it streams them.

    `headrace.HuggingFaceSource` reads them at random, in shards, and from a state.

    Args:
        dataset: Name on the hub, or what else `load_dataset` takes.
        config_kwargs: The rest of its arguments: `split`, `revision`, ... `streaming` is True unless it is given.

    Raises:
        ModuleNotFoundError: The package `datasets` is not installed (while iterating).
        ConfigError: It has several splits, and none was named (while iterating).
    """

    def __init__(self, dataset: str, **config_kwargs: Any) -> None:
        self.dataset = dataset
        self.config_kwargs = config_kwargs

    def __iter__(self) -> Iterator[dict[str, Any]]:
        library = importlib.import_module("datasets")
        rows = library.load_dataset(self.dataset, **{"streaming": True, **self.config_kwargs})
        if isinstance(rows, dict):
            raise ConfigError(
                f"{self.dataset!r} has the splits {', '.join(rows)}, and none was named", fix="give one as split=..."
            )
        yield from rows


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

    def _search(self, folder: str) -> Iterator[str]:
        file_system, inner = fsspec.core.url_to_fs(folder, **self.kwargs)
        if file_system.isfile(inner):
            yield folder
            return
        for path in sorted(file_system.ls(inner, detail=False)):
            if fits_masks(posixpath.basename(path.rstrip("/")), self.masks):
                yield file_system.unstrip_protocol(path) if "://" in folder else path


@functional_pipe("open_files_by_fsspec")
class FSSpecFileOpener(OneForOne[Any]):
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


@functional_pipe("save_by_fsspec")
class FSSpecSaver(SavingPipe):
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
        super().__init__(source_datapipe, mode, filepath_fn)
        self.kwargs_for_open = kwargs_for_open or {}
        self.kwargs = kwargs

    def _save(self, path: str, data: Any) -> None:
        file_system, inner = fsspec.core.url_to_fs(path, **self.kwargs)
        with file_system.open(inner, self.mode, **self.kwargs_for_open) as file:
            put(data, file)
