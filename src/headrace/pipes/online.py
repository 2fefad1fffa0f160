"""Files behind URLs, and datasets of the Hugging Face hub."""

from __future__ import annotations

import http.client
import importlib
import urllib.parse
import urllib.request
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from headrace.errors import ConfigError

from .base import IterPipe, State, read
from .registry import functional_pipe, register_function
from .streams import StreamWrapper

_GOOGLE_DRIVE = ("drive.google.com", "docs.google.com")


@functional_pipe("read_from_http")
class HttpReader(IterPipe[Any]):
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

    def state(self) -> State:
        return {}

    def __len__(self) -> int:
        return len(self.source_datapipe)


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
