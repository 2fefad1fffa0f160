"""Names of files: those below folders, and those of shards from a pattern."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from headrace.errors import ConfigError
from headrace.files.lists.ranges import expand_ranges

from ...core.base import IterPipe, is_iter_pipe, read
from ...core.registry import functional_pipe
from ...core.skeletons import Positioned, ToldLength
from ..sources import IterableWrapper


class FolderLister(Positioned[str]):
    """Give what a search finds in folders, one folder after the other.

    Attributes:
        datapipe: Gives the folders. They are searched when their turn comes.
    """

    _position_names = ("folder", "num_given")
    _folder: str | None = None
    _num_given = 0
    datapipe: Any

    def _search(self, folder: str) -> Iterator[str]:
        """Return the paths of one folder, always in the same order."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[str]:
        if self._folder is not None:
            paths = islice(self._search(self._folder), self._num_given, None)
            for self._num_given, path in enumerate(paths, self._num_given + 1):
                yield path
        for folder in read(self.datapipe):
            self._folder = os.fspath(folder)
            for self._num_given, path in enumerate(self._search(self._folder), 1):
                yield path
        self._folder = None


def pipe_of_roots(root: str | Sequence[str] | IterPipe[Any]) -> Any:
    """Return a pipe of folders: the one that is given, or one of one folder or several."""
    return root if is_iter_pipe(root) else IterableWrapper([root] if isinstance(root, str) else root)


def fits_masks(name: str, masks: str | Sequence[str]) -> bool:
    """Tell whether a name fits a pattern, or one of several; none at all: any name does."""
    wanted = [masks] if isinstance(masks, str) else masks
    return not any(wanted) or any(fnmatch.fnmatch(name, mask) for mask in wanted)


@functional_pipe("list_files")
class FileLister(FolderLister, ToldLength[str]):
    """Give the paths of the files in folders, sorted: those of a folder before those of the folders in it.

    Args:
        root: A folder, several, or a pipe of them. A file stands for itself. They are searched when their turn comes.
        masks: Patterns as of a shell; a file is given if its name fits one. Empty: all.
        recursive: Also search the folders in it. Links to folders are not followed.
        abspath: Give absolute paths.
        non_deterministic: Any order will do. It is sorted all the same.
        length: What `len` is; -1: unknown.

    Raises:
        FileNotFoundError: There is no such folder (while iterating).
    """

    def __init__(
        self,
        root: str | Sequence[str] | IterPipe[Any] = ".",
        masks: str | list[str] = "",
        *,
        recursive: bool = False,
        abspath: bool = False,
        non_deterministic: bool = False,
        length: int = -1,
    ) -> None:
        self.datapipe = pipe_of_roots(root)
        self.masks = masks
        self.recursive = recursive
        self.abspath = abspath
        self.non_deterministic = non_deterministic
        self.length = length

    def _search(self, folder: str) -> Iterator[str]:
        folder = os.path.abspath(folder) if self.abspath else folder
        if os.path.isfile(folder):
            yield from (path for path in [folder] if fits_masks(os.path.basename(path), self.masks))
            return
        for parent, folders, names in os.walk(folder, onerror=_raise):
            folders[:] = sorted(folders) if self.recursive else []
            for name in sorted(names):
                if fits_masks(name, self.masks):
                    yield os.path.join(parent, name)


def _raise(error: OSError) -> None:
    raise error


@functional_pipe("shard_expand")
class ShardExpander(Positioned[str]):
    """Expand ranges in braces: `a-{000..009}` is ten names. Several ranges multiply, the last varies fastest.

    Args:
        source_datapipe: The source; its items are names.

    Raises:
        ConfigError: A range goes down, or has leading zeros and ends of different widths (while iterating).
    """

    _position_names = ("pattern", "num_given")
    _pattern: str | None = None
    _num_given = 0

    def __init__(self, source_datapipe: IterPipe[Any]) -> None:
        self.source_datapipe = source_datapipe

    def __iter__(self) -> Iterator[str]:
        if self._pattern is not None:
            names = islice(expand(self._pattern), self._num_given, None)
            for self._num_given, name in enumerate(names, self._num_given + 1):
                yield name
        for self._pattern in read(self.source_datapipe):
            for self._num_given, name in enumerate(expand(self._pattern), 1):
                yield name
        self._pattern = None


def expand(pattern: str) -> Iterator[str]:
    """Yield the names that a pattern stands for."""
    try:
        yield from expand_ranges(pattern)
    except ConfigError as error:
        raise ConfigError(f"shard_expand: {error.what}", where=error.where) from error
