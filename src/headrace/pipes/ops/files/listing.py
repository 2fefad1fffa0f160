"""Listing files: those in folders, and the shards that a pattern with ranges names."""

from __future__ import annotations

import fnmatch
import os
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from headrace.errors import ConfigError
from headrace.files.lists.braces import expand_braces

from ...core.base import IterPipe, is_iter_pipe
from ...core.registry import functional_pipe
from ...core.skeletons import ExpandingPipe, ToldLength
from ..sources import IterableWrapper


class FolderLister(ExpandingPipe[str]):
    """Yields the paths that a search finds in folders, one folder after the other.

    Attributes:
        datapipe: The pipe of folders. Each is searched only when it is reached.
    """

    _source_name = "datapipe"
    _position_names = ("folder", "num_given")
    _folder: str | None = None
    datapipe: Any

    @abstractmethod
    def _search(self, folder: str) -> Iterator[str]:
        """Yield the paths in one folder, always in the same order."""

    def _open(self, item: Any) -> Iterator[str]:
        self._folder = os.fspath(item)
        return self._search(self._folder)

    def _reopen(self) -> Iterator[str]:
        assert self._folder is not None
        return self._search(self._folder)


def pipe_of_roots(root: str | Sequence[str] | IterPipe[Any]) -> Any:
    """Return a pipe of folders, from such a pipe, a folder, or several."""
    return root if is_iter_pipe(root) else IterableWrapper([root] if isinstance(root, str) else root)


def fits_masks(name: str, masks: str | Sequence[str]) -> bool:
    """Tell whether a name matches a pattern, or one of several; with no pattern, any name does."""
    wanted = [masks] if isinstance(masks, str) else masks
    return not any(wanted) or any(fnmatch.fnmatch(name, mask) for mask in wanted)


@functional_pipe("list_files")
class FileLister(FolderLister, ToldLength[str]):
    """Yield the paths of the files in folders, sorted; files of a folder come before those of its subfolders.

    Args:
        root: A folder, several, or a pipe of them; a file is yielded itself. Each is searched only when it is reached.
        masks: Shell patterns such as `"*.txt"`: files whose name matches one are yielded. Empty: all.
        recursive: Search subfolders too. Links to folders are not followed.
        abspath: Yield absolute paths.
        non_deterministic: Accepted for torchdata's sake: paths are sorted all the same.
        length: What `len` returns; -1: unknown.

    Raises:
        FileNotFoundError: A folder does not exist (while iterating).

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("b.txt", "a.txt", "c.wav"):
        ...         Path(folder, name).touch()
        ...     [Path(path).name for path in IterableWrapper([folder]).list_files(masks="*.txt")]
        ['a.txt', 'b.txt']
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
class ShardExpander(ExpandingPipe[str]):
    """Expand ranges in braces: `a-{000..009}` makes ten names. Several ranges multiply, the last varies fastest.

    Args:
        source_datapipe: The source, whose items are names.

    Raises:
        ConfigError: A range is descending, or has leading zeros and ends of different widths (while iterating).

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> list(IterableWrapper(["train-{000..002}.tar"]).shard_expand())
        ['train-000.tar', 'train-001.tar', 'train-002.tar']
    """

    _position_names = ("pattern", "num_given")
    _pattern = ""

    def __init__(self, source_datapipe: IterPipe[Any]) -> None:
        self.source_datapipe = source_datapipe

    def _open(self, item: str) -> Iterator[str]:
        self._pattern = item
        return expand(item)

    def _reopen(self) -> Iterator[str]:
        return expand(self._pattern)


def expand(pattern: str) -> Iterator[str]:
    """Yield the names that a pattern stands for."""
    try:
        yield from expand_braces(pattern)
    except ConfigError as error:
        raise ConfigError(f"shard_expand: {error.what}", where=error.where) from error
