"""Open files that travel through pipes as items, and are closed when no longer needed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import fsspec

_PLAIN = frozenset({int, float, complex, bool, str, bytes, bytearray, type(None)})


class StreamWrapper:
    """An open file that closes itself: when its last reference is gone, at its end after `autoclose`, or by `close`.

    All other attributes are those of the file.

    Args:
        file_obj: The open file.
        parent_stream: The file that it is read from, such as an archive, which must stay open as long.
        name: Its name in messages.
        origin: The data with which `reopen` can open it again; `None`: it cannot be opened again.

    Examples:
        >>> import io
        >>> from headrace.pipes.utils import StreamWrapper
        >>> file = StreamWrapper(io.BytesIO(b"hello"), name="a.txt")
        >>> file.read(), file.name
        (b'hello', 'a.txt')
    """

    def __init__(
        self,
        file_obj: Any,
        parent_stream: Any = None,
        name: str | None = None,
        *,
        origin: dict[str, Any] | None = None,
    ) -> None:
        self.file_obj = file_obj
        self.parent_stream = parent_stream
        self.origin = origin
        self.name = name if name is not None else getattr(file_obj, "name", None)
        self.closed = False
        self._closes_at_end = False

    @staticmethod
    def close_streams(item: Any) -> None:
        """Close all streams in an item."""
        close_streams(item)

    def autoclose(self) -> None:
        """Close the file as soon as all of it was read."""
        self._closes_at_end = True

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        if not self.closed:
            self.closed = True
            with contextlib.suppress(AttributeError):
                self.file_obj.close()
            self.parent_stream = None

    def read(self, *args: Any, **kwargs: Any) -> Any:
        """Read as the file does."""
        data = self.file_obj.read(*args, **kwargs)
        if self._closes_at_end and (not args or args[0] is None or args[0] < 0 or not data):
            self.close()
        return data

    def __getattr__(self, name: str) -> Any:
        if name == "file_obj":  # not set yet: asked for by copy and pickle
            raise AttributeError(name)
        return getattr(self.file_obj, name)

    def __enter__(self) -> StreamWrapper:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.file_obj)

    def __next__(self) -> Any:
        return next(self.file_obj)

    def __del__(self) -> None:
        if "file_obj" in self.__dict__:
            with contextlib.suppress(Exception):  # at the end of the interpreter the modules may be gone
                self.close()

    def __repr__(self) -> str:
        return (
            f"StreamWrapper<{self.file_obj!r}>"
            if self.name is None
            else f"StreamWrapper<{self.name},{self.file_obj!r}>"
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle the wrapped file, if it can be pickled, such as `io.BytesIO`."""
        try:
            self.file_obj.__reduce_ex__(protocol)
        except TypeError as error:
            raise TypeError(f"an open file cannot be sent to another process: {self!r}. Read it first.") from error
        return _wrap, (self.file_obj, self.name, self.origin)


def _wrap(file_obj: Any, name: str | None, origin: dict[str, Any] | None) -> StreamWrapper:
    return StreamWrapper(file_obj, None, name, origin=origin)


def close_streams(item: Any) -> None:
    """Close all streams in an item that is dropped. O(size of its containers).

    Examples:
        >>> import io
        >>> from headrace.pipes.utils import StreamWrapper, janitor
        >>> file = io.BytesIO(b"hello")
        >>> janitor({"file": StreamWrapper(file)})
        >>> file.closed
        True
    """
    if type(item) in _PLAIN:
        return
    if isinstance(item, StreamWrapper):
        item.close()
    elif isinstance(item, dict):
        for value in item.values():
            close_streams(value)
    elif isinstance(item, (list, tuple)):
        for value in item:
            close_streams(value)


def open_local(path: str, mode: str, encoding: str | None = None) -> StreamWrapper:
    """Open a local file."""
    origin = {"opener": "local", "path": path, "mode": mode, "encoding": encoding}
    return StreamWrapper(open(path, mode, encoding=encoding), name=path, origin=origin)


def open_remote(path: str, mode: str, options: dict[str, Any], storage_options: dict[str, Any]) -> StreamWrapper:
    """Open a file with fsspec.

    Args:
        path: With its protocol, if it is not local.
        mode: As for `open`.
        options: Keyword arguments of the file system's `open`.
        storage_options: Keyword arguments of the file system.
    """
    file_system, inner_path = fsspec.core.url_to_fs(path, **storage_options)
    origin = {"opener": "fsspec", "path": path, "mode": mode, "options": options, "storage_options": storage_options}
    return StreamWrapper(file_system.open(inner_path, mode, **options), name=path, origin=origin)


def reopen(origin: dict[str, Any]) -> StreamWrapper:
    """Open a file again, at its start, from a `StreamWrapper.origin`."""
    if origin["opener"] == "local":
        return open_local(origin["path"], origin["mode"], origin["encoding"])
    return open_remote(origin["path"], origin["mode"], origin["options"], origin["storage_options"])


def unwrap(stream: Any) -> Any:
    """Return the wrapped file, for libraries that check its type."""
    while isinstance(stream, StreamWrapper):
        stream = stream.file_obj
    return stream
