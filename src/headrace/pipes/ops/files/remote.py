"""Remote files: by HTTP, in any file system of fsspec, and datasets of the Hugging Face hub."""

from __future__ import annotations

import http.client
import importlib
import posixpath
import urllib.error
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
    """Yield (URL, open binary file) for http and https URLs.

    For many files, retries or other protocols use `open_files_by_fsspec`.

    Args:
        source_datapipe: The source, whose items are URLs.
        timeout: Seconds to wait for the server; `None`: the default of Python's sockets, which is no limit.
        skip_on_error: Warn about URLs that cannot be read and skip them, instead of raising.
        headers: The headers of the request.

    Raises:
        ConfigError: A URL has another protocol, or is Google Drive's (while iterating).
        OSError: A URL cannot be read (while iterating).

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> pages = IterableWrapper(["https://example.com/index.html"]).read_from_http(timeout=10)  # (URL, open file)
    """

    maps_each = False  # it may skip some

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
                warnings.warn(f"{url} is skipped: {error}", stacklevel=2)
                if isinstance(error, urllib.error.HTTPError):
                    error.close()
            else:
                yield url, StreamWrapper(stream, name=url)

    def _open(self, url: str) -> Any:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https"):
            raise ConfigError(f"{url!r} is not an http URL", fix="use open_files_by_fsspec for other protocols")
        if parts.hostname in _GOOGLE_DRIVE:
            raise ConfigError(
                f"{url!r} is a web page of Google Drive, not the file", fix="download it with the package gdown first"
            )
        request = urllib.request.Request(url, headers=self.headers)  # noqa: S310 - http only, see above
        if self.timeout is None:
            return urllib.request.urlopen(request)  # noqa: S310
        return urllib.request.urlopen(request, timeout=self.timeout)  # noqa: S310


# In torchdata, `read_from_remote` could also download from Google Drive; here it is the same as `read_from_http`.
register_function(IterPipe, "read_from_remote", HttpReader)


class HuggingFaceHubReader(IterPipe[dict[str, Any]]):
    """Stream the rows of a dataset of the Hugging Face hub, as `datasets.load_dataset` loads it.

    `headrace.HuggingFaceSource` reads rows at random, in shards, and resumes.

    Args:
        dataset: The name on the hub, or another first argument of `load_dataset`.
        config_kwargs: Its other arguments: `split`, `revision`, ... `streaming` is True unless it is given.

    Raises:
        ModuleNotFoundError: The package `datasets` is not installed (while iterating).
        ConfigError: The dataset has several splits, and none was chosen (while iterating).

    Examples:
        >>> from headrace.pipes.iter import HuggingFaceHubReader
        >>> rows = HuggingFaceHubReader("org/name", split="train", streaming=True)  # needs headrace[hf]
    """

    def __init__(self, dataset: str, **config_kwargs: Any) -> None:
        self.dataset = dataset
        self.config_kwargs = config_kwargs

    def __iter__(self) -> Iterator[dict[str, Any]]:
        library = importlib.import_module("datasets")
        rows = library.load_dataset(self.dataset, **{"streaming": True, **self.config_kwargs})
        if isinstance(rows, dict):
            raise ConfigError(
                f"{self.dataset!r} has the splits {', '.join(rows)}, and none was chosen", fix="give one as split=..."
            )
        yield from rows


@functional_pipe("list_files_by_fsspec")
class FSSpecFileLister(FolderLister):
    """Yield the sorted paths of the entries of folders in any file system of fsspec, with the folder's protocol.

    Args:
        root: A folder, several, or a pipe of them; a file is yielded itself.
        masks: Shell patterns such as `"*.txt"`: paths whose last part matches one are yielded. Empty: all.
        kwargs: Keyword arguments of the file system.

    Raises:
        FileNotFoundError: A folder does not exist (while iterating).

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> import fsspec
        >>> with fsspec.open("memory://listed/a.txt", "wb") as file:
        ...     count = file.write(b"hello")
        >>> list(IterableWrapper(["memory://listed"]).list_files_by_fsspec())
        ['memory:///listed/a.txt']
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
    """Yield (path, open file) for paths in any file system of fsspec.

    Args:
        source_datapipe: The source, whose items are paths with their protocol.
        mode: As for `open`.
        kwargs_for_open: Keyword arguments of the file system's `open`.
        kwargs: Keyword arguments of the file system.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> import fsspec
        >>> with fsspec.open("memory://opened/a.txt", "wb") as file:
        ...     count = file.write(b"hello")
        >>> [file.read() for path, file in IterableWrapper(["memory://opened/a.txt"]).open_files_by_fsspec(mode="rb")]
        [b'hello']
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
    """Write each item to a file in any file system of fsspec, and yield its path.

    Whether others can see a file before it is complete depends on the file system; object stores show complete ones.

    Args:
        source_datapipe: The source, whose items are (name, data): bytes, text or an open file.
        mode: `"w"` for text, `"wb"` for bytes.
        filepath_fn: Returns the path for a name; `None`: the name is the path.
        kwargs_for_open: Keyword arguments of the file system's `open`.
        kwargs: Keyword arguments of the file system.

    Raises:
        ConfigError: The mode is unknown.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> items = IterableWrapper([("memory://saved/a.txt", b"hello")])
        >>> list(items.save_by_fsspec(mode="wb"))
        ['memory://saved/a.txt']
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
