"""The files of a folder as a corpus: which there are, in which order, and whether they are still the same.

An index of a folder cannot be compared with stamps of all its files: a million files would be opened each time. It is
compared with a digest of the listing (names, sizes, times), which costs one look at each name; the size and time of a
file are compared again when it is opened. A link that leads out of the folder is refused.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import xxhash

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.files import resolve_inside
from headrace.files.locations import is_remote

from .fields import Field, parse_field
from .parts import Tell, count_workers, map_parts, told_progress
from .paths import Files, expand_path, named_by_path_error

_LOGGER = logging.getLogger("headrace.sources")
_NUM_THREADS = 16  # they wait for the disk, not for each other
_MAX_BLOCK = 256  # items that a thread takes at a time
_PART_ITEMS = 4096  # that a process takes at a time: some 0.4 s of work, and fewer are done before it has started
_MIN_SHARED_ITEMS = 20_000  # two seconds of work
FOLDER_FIELD, TAG_FIELD = "folder", "tag"  # what the name of a file says of a sequence
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
            first: dict[str, int] = {}
            for number, tag in enumerate(tags):
                if first.setdefault(tag, number) != number:
                    raise SourceError(
                        f"two files have the tag {tag!r}",
                        where=f"{self.path(first[tag])}, {self.path(number)}",
                        fix="choose by suffixes=, or remove one",
                    )
        return tags


def all_cases(suffixes: Sequence[str], owner: str) -> tuple[str, ...]:
    """Return suffixes in lower and in upper case.

    Raises:
        ConfigError: They are no suffixes; `owner` is the class that was given them.
    """
    if isinstance(suffixes, str) or not all(isinstance(one, str) and one.startswith(".") for one in suffixes):
        raise ConfigError(f"suffixes={suffixes!r}", where=owner, fix='a list such as [".flac"]')
    return tuple(dict.fromkeys(form for suffix in suffixes for form in (suffix, suffix.lower(), suffix.upper())))


def parse_targets(
    targets: Mapping[str, Any] | None, names: Sequence[str] | None = (FOLDER_FIELD, TAG_FIELD)
) -> dict[str, Field]:
    """Return the fields that targets of files name; `names` are those that there are, if that is known.

    Raises:
        ConfigError: A target cannot be read, or is named "data", or its field is none of the names.
    """
    fields = {key: parse_field(key, target) for key, target in (targets or {}).items()}
    for key, field in fields.items():
        if key == "data":
            raise ConfigError('a target cannot be named "data": that is what the file holds')
        if names is not None and field.name not in names:
            fix = did_you_mean(field.name, names)
            raise ConfigError(f"a folder has no field {field.name!r}", where=f"target {key!r}", fix=fix)
    return fields


def folder_values(tag: str, names: Collection[str], where: str) -> dict[str, str]:
    """Return what the name of a file says: its tag and, if it is among the names, its folder.

    Raises:
        SourceError: The file is in no folder, but at the top.
    """
    if FOLDER_FIELD not in names:
        return {TAG_FIELD: tag}
    folders = tag.split("/")[:-1]
    if not folders:
        raise SourceError("the file is in no sub-folder that would be its label", where=where)
    return {TAG_FIELD: tag, FOLDER_FIELD: folders[-1]}


def list_corpus_files(files: Files, suffixes: Sequence[str], owner: str) -> Listing:
    """List the files of a folder and its sub-folders, by name; or the files that were named, in their order.

    Hidden files and folders are left out, and so is what has another suffix.

    Args:
        files: One folder; or paths of files, or a pattern, which are then named relative to the folder that they have
            in common.
        suffixes: With the dot; the case counts.
        owner: The class, for errors.

    Raises:
        ConfigError: It is neither.
        SourceError: The folder or a file is missing, is no regular file, has a name that is not Unicode, or a link
            leads out of the folder or around in a circle.
    """
    if isinstance(files, str | os.PathLike):
        named = expand_path(files, owner)
        files = named[0] if len(named) == 1 and not os.path.isfile(named[0]) else named
    if isinstance(files, str) and not is_remote(files):
        root = files
        found = _Walk(root, tuple(suffixes)).result()
        return Listing.of(root, sorted(found), found)
    if not isinstance(files, Iterable) or isinstance(files, bytes):
        raise ConfigError(f"{files!r} is neither a folder nor a list of files", where=owner, fix="give a path")
    paths = [name for path in ([files] if isinstance(files, str) else files) for name in expand_path(path, owner)]
    for path in paths:
        if is_remote(path):
            raise named_by_path_error(owner, path)
        if not path.endswith(tuple(suffixes)):
            raise SourceError(
                "the name of the file has another ending", where=path, fix=f"it must end in {', '.join(suffixes)}"
            )
    root = os.path.commonpath([os.path.dirname(path) for path in paths]) if paths else os.getcwd()
    names = [os.path.relpath(path, root) for path in paths]
    seen: set[str] = set()
    for path in paths:
        if path in seen:
            raise SourceError("the file is named twice, and tags must differ", where=path, fix="name it once")
        seen.add(path)
    return Listing.of(root, names, {name: _status(path) for name, path in zip(names, paths, strict=True)})


class _Walk:
    """Looks through a folder and its sub-folders."""

    def __init__(self, root: str, suffixes: tuple[str, ...]) -> None:
        self._root, self._suffixes = root, suffixes
        self._found: dict[str, os.stat_result] = {}

    def result(self) -> dict[str, os.stat_result]:
        """Return name -> status of every file with one of the suffixes."""
        if not os.path.isdir(self._root):
            raise SourceError("the folder does not exist", where=self._root, fix="give the path of a folder")
        self._look_into("", (os.path.realpath(self._root),))
        return self._found

    def _look_into(self, folder: str, above: tuple[str, ...]) -> None:
        try:
            with os.scandir(os.path.join(self._root, folder)) as entries:
                for entry in entries:
                    if not entry.name.startswith("."):
                        self._take(entry, f"{folder}{entry.name}", above)
        except OSError as error:
            where = os.path.join(self._root, folder)
            raise SourceError(f"the folder cannot be read: {error.strerror}", where=where) from error

    def _take(self, entry: os.DirEntry[str], name: str, above: tuple[str, ...]) -> None:
        is_wanted = name.endswith(self._suffixes)
        if entry.is_symlink() and (is_wanted or entry.is_dir()):
            real = str(resolve_inside(self._root, name))
            if entry.is_dir() and real in above:
                raise SourceError(
                    "a symbolic link leads back to a folder that contains it", where=entry.path, fix="remove it"
                )
            above = (*above, real)
        if entry.is_dir():
            self._look_into(f"{name}/", above)
        elif is_wanted:
            self._found[name] = _status(entry.path)


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

    Items are looked at in threads, and many of them in worker processes, see `count_workers`. If these cannot do it, or
    something is wrong with an item, this process goes on from there: an error is its own.

    Args:
        look: It keeps nothing from one item to the next.
        items: Files, mostly. Small: each may be carried to a process.
    """
    num_parts = -(-len(items) // _PART_ITEMS)
    num_workers = count_workers(num_parts, pays=len(items) >= _MIN_SHARED_ITEMS)
    results: list[_Result] = []
    if num_workers:
        parts = [items[number * _PART_ITEMS : (number + 1) * _PART_ITEMS] for number in range(num_parts)]
        try:
            for found in map_parts(partial(_in_threads, look), parts, num_workers=num_workers):
                results += found
        except Exception as error:  # noqa: BLE001 - the first item with which something is wrong says so here
            _LOGGER.debug("no more workers look at files: %s", error)
    if len(results) < len(items):
        with told_progress("file") as tell:
            results += _in_threads(look, items[len(results) :], tell)
    return results


def _in_threads(look: Callable[[_Item], _Result], items: Sequence[_Item], tell: Tell | None = None) -> list[_Result]:
    """Call a function for each item, several at a time; return the results in order, or raise the first error.

    Items go to threads in blocks: a future for each takes a kilobyte, and there may be millions of files.
    """
    if len(items) < 2:
        return [look(item) for item in items]
    num_threads = min(_NUM_THREADS, len(items))
    size = min(max(len(items) // (4 * num_threads), 1), _MAX_BLOCK)
    blocks = range(0, len(items), size)
    results: list[_Result] = []
    with ThreadPoolExecutor(num_threads) as pool:
        try:
            for found in pool.map(lambda start: [look(item) for item in items[start : start + size]], blocks):
                results += found
                if tell is not None:
                    tell(len(results), len(items))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # or all other files would be looked at first
            raise
    return results


def read_part(path: str, size: int, time: int, num_bytes: int, *, start: int = 0) -> bytes:
    """Return some bytes of a listed file, which must be as it was listed.

    Raises:
        SourceError: It changed since, or cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            part = os.pread(descriptor, num_bytes, start)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise SourceError(f"the file cannot be read: {error.strerror}", where=path) from error
    if (status.st_size, status.st_mtime_ns) != (size, time):
        raise SourceError("the file changed since it was indexed", where=path, fix="open the corpus again")
    return part
