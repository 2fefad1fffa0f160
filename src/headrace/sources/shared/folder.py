"""The files of a folder as a corpus: which there are, in which order, and whether they are still the same.

An index of a folder cannot be compared with stamps of all its files: a million files would be opened each time. It is
compared with a digest of the listing (names, sizes, times), which costs one look at each name; the size and time of a
file are compared again when it is opened. A link that leads out of the folder is refused.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import xxhash

from headrace.errors import ConfigError, SourceError
from headrace.files import resolve_inside
from headrace.files.locations import is_remote

from .parts import count_workers, map_parts
from .paths import Files, expand_path, named_by_path_error

_NUM_THREADS = 16  # they wait for the disk, not for each other
_PART_ITEMS = 4096  # that a process takes at a time: some 0.4 s of work, and fewer are done before it has started
_MIN_SHARED_ITEMS = 20_000  # two seconds of work
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Listing:
    """Files below one folder, in the order of the corpus.

    Attributes:
        root: Absolute path of the folder.
        names: Paths relative to it, with `/`.
        sizes: Bytes.
        times: Modification times in nanoseconds.
        digest: Digest of names, sizes and times.
    """

    root: str
    names: list[str]
    sizes: list[int]
    times: list[int]
    digest: str

    @classmethod
    def of(cls, root: str, names: Iterable[str], found: dict[str, os.stat_result]) -> Listing:
        """Make a listing of what was found, in the order of the names."""
        names = list(names)
        sizes, times = [found[name].st_size for name in names], [found[name].st_mtime_ns for name in names]
        digest = xxhash.xxh3_128()
        for name, size, time in zip(names, sizes, times, strict=True):
            digest.update(f"{len(name)} {name} {size} {time}\n".encode())
        return cls(root, names, sizes, times, digest.hexdigest())

    def path(self, number: int) -> str:
        """Return the absolute path of a file."""
        return os.path.join(self.root, self.names[number])

    def tags(self) -> list[str]:
        """Return the names without their suffixes.

        Raises:
            SourceError: Two files have the same tag.
        """
        tags = [os.path.splitext(name)[0] for name in self.names]
        if len(set(tags)) < len(tags):
            tag = next(tag for tag, count in Counter(tags).items() if count > 1)
            where = ", ".join(self.path(number) for number, one in enumerate(tags) if one == tag)
            raise SourceError(f"two files have the tag {tag!r}", where=where, fix="choose by suffixes=, or remove one")
        return tags


def list_corpus_files(files: Files, suffixes: Sequence[str], owner: str) -> Listing:
    """List the files of a folder and its sub-folders, by name; or the files that were named, in their order.

    Hidden files and folders are left out, and so is what has another suffix.

    Args:
        files: One folder; or paths of files, or a pattern, which are then named relative to the folder that they have
            in common.
        suffixes: With the dot, in either case.
        owner: The class, for errors.

    Raises:
        ConfigError: It is neither; or what is given are no suffixes.
        SourceError: The folder or a file is missing, is no regular file, has a name that is not Unicode, or a link
            leads out of the folder or around in a circle.
    """
    if isinstance(suffixes, str) or not all(isinstance(one, str) and one.startswith(".") for one in suffixes):
        raise ConfigError(f"suffixes={suffixes!r}", where=owner, fix='a list such as [".flac"]')
    forms = tuple(form for suffix in suffixes for form in (suffix, suffix.lower(), suffix.upper()))
    is_one = isinstance(files, str | bytes | os.PathLike) or not isinstance(files, Iterable)
    given: Iterable[Any] = [files] if is_one else files  # type: ignore[assignment] # what is wrong is refused below
    paths = [name for path in given for name in expand_path(path, owner)]
    if is_one and len(paths) == 1 and not is_remote(paths[0]) and not os.path.isfile(paths[0]):
        found: dict[str, os.stat_result] = {}
        _walk(paths[0], forms, "", (os.path.realpath(paths[0]),), found)
        return Listing.of(paths[0], sorted(found), found)
    for path in paths:
        if is_remote(path):
            raise named_by_path_error(owner, path)
        if not path.endswith(forms):
            fix = f"it must end in {', '.join(suffixes)}"
            raise SourceError("the name of the file has another ending", where=path, fix=fix)
    root = os.path.commonpath([os.path.dirname(path) for path in paths]) if paths else os.getcwd()
    names = [os.path.relpath(path, root) for path in paths]
    if len(set(paths)) < len(paths):
        raise SourceError("a file is named twice, and tags must differ", where=root, fix="name each once")
    return Listing.of(root, names, {name: _status(path) for name, path in zip(names, paths, strict=True)})


def _walk(
    root: str, suffixes: tuple[str, ...], folder: str, above: tuple[str, ...], found: dict[str, os.stat_result]
) -> None:
    """Find name -> status of every file with one of the suffixes in a folder, which is in those above."""
    try:
        with os.scandir(os.path.join(root, folder)) as entries:
            listed = [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        where = os.path.join(root, folder)
        raise SourceError(f"the folder cannot be read: {error.strerror}", where=where, fix="check the path") from error
    for entry in listed:
        name, inner = f"{folder}{entry.name}", above
        if entry.is_symlink() and (entry.is_dir() or name.endswith(suffixes)):
            inner = (*above, str(resolve_inside(root, name)))
            if inner[-1] in above:
                what = "a symbolic link leads back to a folder that contains it"
                raise SourceError(what, where=entry.path, fix="remove it")
        if entry.is_dir():
            _walk(root, suffixes, f"{name}/", inner, found)
        elif name.endswith(suffixes):
            found[name] = _status(entry.path)


def _status(path: str) -> os.stat_result:
    try:
        path.encode()
        status = os.stat(path)
    except UnicodeEncodeError as error:
        raise SourceError("the name of the file is not UTF-8", where=repr(path), fix="rename it") from error
    except OSError as error:
        raise SourceError(
            f"the file cannot be looked at: {error.strerror}", where=path, fix="check the path"
        ) from error
    if not stat.S_ISREG(status.st_mode):
        raise SourceError("this is not a regular file", where=path, fix="remove it")
    return status


def for_each(look: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """Call a function for each item, several at a time; return the results in order, or raise the first error.

    Items are looked at in threads, and many of them in worker processes, see `count_workers`.

    Args:
        look: It keeps nothing from one item to the next. It may be carried to a process.
        items: Files, mostly. Small: each may be carried to a process.
    """
    parts = [items[start : start + _PART_ITEMS] for start in range(0, len(items), _PART_ITEMS)]
    num_workers = count_workers(len(parts), pays=len(items) >= _MIN_SHARED_ITEMS)
    found = map_parts(partial(_in_threads, look), parts, num_workers=num_workers)
    return [result for part in found for result in part]


def _in_threads(look: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """Call a function for each item in threads, which take blocks of items: a future for each takes a kilobyte."""
    size = max(len(items) // (4 * _NUM_THREADS), 1)
    blocks = [items[start : start + size] for start in range(0, len(items), size)]
    with ThreadPoolExecutor(min(_NUM_THREADS, len(blocks))) as pool:
        try:
            return [result for found in pool.map(lambda block: [*map(look, block)], blocks) for result in found]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # or all other files would be looked at first
            raise
