"""Tables in files: at most a fixed number of them is open, and each is compared with its stamp when it is read.

A descriptor is kept beside what Arrow has open, since Arrow shows none: by it a file that was rewritten in place is
told from one that was replaced by another of the same name, which does no harm.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Generic, Literal, TypeVar

from headrace.errors import ConfigError, SourceError
from headrace.files import TOO_MANY_OPEN, TOO_MANY_OPEN_FIX, FileStamp
from headrace.index import CorpusIndex, open_or_build

from .plain_files import MAX_OPEN_FILES, check_open_file, check_stamp, older_half
from .table_gather import TableOptions, Tables, choose_options, gather_tables
from .table_layout import Schema, import_arrow, read_schema
from .table_source import TableSource

PathLike = str | os.PathLike[str]
Files = PathLike | Sequence[PathLike]

_Handle = TypeVar("_Handle")


class TableFiles(Tables, Generic[_Handle]):
    """Tables in files, one in each.

    Args:
        stamps: The files as they were indexed.
    """

    def __init__(self, stamps: Sequence[FileStamp]) -> None:
        self._stamps = stamps
        self.num_tables = len(stamps)
        self._handles: dict[int, _Handle] = {}
        self._descriptors: dict[int, int] = {}

    @abstractmethod
    def _open(self, path: str, descriptor: int) -> _Handle:
        """Open a file, which `descriptor` has open, too. What Arrow raises becomes a `SourceError`."""

    @abstractmethod
    def _schema_of(self, handle: _Handle) -> Any:
        """Return the Arrow schema of an open file."""

    @abstractmethod
    def _column_of(self, handle: _Handle, piece: int, name: str) -> Any:
        """Return a column of a piece, as Arrow array. What Arrow raises becomes a `SourceError`."""

    @abstractmethod
    def _release(self, handle: _Handle) -> None:
        """Close a file."""

    def name(self, table_idx: int) -> str:
        """Return the path of a file."""
        return self._stamps[table_idx].path

    def schema(self, table_idx: int) -> Schema:
        """Return the schema of a file."""
        return read_schema(self._schema_of(self.handle(table_idx)), self.name(table_idx))

    def array(self, table_idx: int, piece: int, path: Sequence[str]) -> Any:
        """Return a column of a piece, or a field of it.

        Raises:
            SourceError: It cannot be read.
        """
        pa = import_arrow()
        self.confirm(table_idx)
        try:
            array = descend(self._column_of(self.handle(table_idx), piece, path[0]), path[1:])
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            raise SourceError(
                f"the column {path[0]!r} cannot be read: {error}",
                where=f"{self.name(table_idx)}, piece {piece}",
                fix="is the file torn? write or download it again",
            ) from error
        self.confirm(table_idx)
        return array

    def confirm(self, table_idx: int) -> None:
        """Refuse an open file that is not what it was when it was indexed.

        Raises:
            SourceError: It changed.
        """
        descriptor = self._descriptors.get(table_idx)
        if descriptor is not None:
            now, stamp = os.fstat(descriptor), self._stamps[table_idx]
            if now.st_mtime_ns != stamp.mtime_ns or now.st_size != stamp.size:
                check_open_file(stamp, descriptor)

    def handle(self, table_idx: int) -> _Handle:
        """Return an open file.

        Raises:
            SourceError: It is gone, changed, or cannot be read.
        """
        handle = self._handles.get(table_idx)
        if handle is None:
            stamp = self._stamps[table_idx]
            check_stamp(stamp)
            while len(self._handles) >= MAX_OPEN_FILES:
                self._drop(next(iter(self._handles)))
            self._descriptors[table_idx], handle = self._opened(stamp.path)
            self._handles[table_idx] = handle
        return handle

    def _opened(self, path: str) -> tuple[int, _Handle]:
        """Open a file; where the system allows no more open files, close half of the others."""
        pa = import_arrow()
        while True:
            try:
                with ExitStack() as stack:
                    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                    stack.callback(os.close, descriptor)
                    handle = self._open(path, descriptor)
                    stack.pop_all()
                    return descriptor, handle
            except (pa.ArrowException, OSError, ValueError) as error:
                too_many = isinstance(error, OSError) and error.errno in TOO_MANY_OPEN
                if not (too_many and self._handles):
                    fix = "is it torn, or of another format? write or download it again"
                    fix = TOO_MANY_OPEN_FIX if too_many else fix
                    raise SourceError(f"this cannot be read: {error}", where=path, fix=fix) from error
            for table_idx in older_half(self._handles):
                self._drop(table_idx)

    def _drop(self, table_idx: int) -> None:
        os.close(self._descriptors.pop(table_idx))
        self._release(self._handles.pop(table_idx))

    def close(self) -> None:
        """Close all files; they are opened again when needed."""
        while self._handles:
            self._drop(next(iter(self._handles)))

    def __del__(self) -> None:
        # Not `close`: what Arrow has open ends by itself.
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handles": {}, "_descriptors": {}}


class FileTableSource(TableSource):
    """Sequences of tables in files. Sub-classes say how a file is opened."""

    _kind: str
    _tables_class: type[TableFiles[Any]]

    def _open_files(
        self,
        files: Files,
        *,
        fields: Mapping[str, Any] | None,
        tag_field: str | None,
        nulls: str,
        audio_root: PathLike | None,
        cache_bytes: int,
        index: PathLike | Literal["auto"] | None,
    ) -> None:
        """Do what constructors have to do."""
        paths = list_paths(files, type(self).__name__)
        tables = self._tables_class([FileStamp.of(path) for path in paths])
        try:
            options = choose_options(
                tables.schema(0), paths[0], fields=fields, tag_field=tag_field, nulls=nulls, audio_root=audio_root
            )
            kind = f"{self._kind} {options.identity_text}"
            corpus = open_or_build(paths, lambda: gather_tables(tables, options), index=index, kind=kind)
        finally:
            tables.close()
        self._attach(self._tables_class(corpus.files), options, corpus, cache_bytes)

    @property
    def files(self) -> tuple[str, ...]:
        """Absolute paths of the files, in corpus order."""
        return tuple(stamp.path for stamp in self._index.files)

    def __getstate__(self) -> tuple[TableOptions, CorpusIndex, int]:
        return self._options, self._index, self._cache_bytes

    def __setstate__(self, state: tuple[TableOptions, CorpusIndex, int]) -> None:
        options, index, cache_bytes = state
        self._attach(self._tables_class(index.files), options, index, cache_bytes)


def list_paths(files: Files, name: str) -> list[str]:
    """Return absolute paths.

    Raises:
        ConfigError: Something is no path, or there is none.
    """
    is_one = isinstance(files, str | bytes | os.PathLike) or not isinstance(files, Iterable)
    given: list[Any] = [files] if is_one else list(files)  # type: ignore[arg-type]
    for path in given:
        if not isinstance(path, str | os.PathLike):
            raise ConfigError(f"{path!r} is not a path", where=f"{name}(files=...)", fix="give a str or a pathlib.Path")
    if not given:
        raise ConfigError("files is an empty list", where=f"{name}(files=...)", fix="name at least one file")
    return [os.path.abspath(path) for path in given]


def descend(array: Any, path: Sequence[str]) -> Any:
    """Return a field of an Arrow array of structures; null where the structure is."""
    for name in path:
        array = array.flatten()[array.type.get_field_index(name)]
    return array


def one_array(chunked: Any) -> Any:
    """Return the one array of a column that came in chunks."""
    if chunked.num_chunks == 1:
        return chunked.chunk(0)
    pa = import_arrow()
    return pa.concat_arrays(chunked.chunks) if chunked.num_chunks else pa.array([], chunked.type)
