"""Reads the list of files of a corpus, in any form that a user gives.

A list file holds lines, JSON, or a Python literal: data only, nothing in it is executed. An entry of a list is a tree
(see `tree.py`): a file name or URL, or several that belong together. An entry that is a single name may be a pattern,
and then stands for all files that it matches, sorted.

Relative names of a list and of a list file are left as they are: they are relative to the working directory, as in
RETURNN. Those in a list that was read from a URL are relative to the folder of that URL, its root, and must not leave
it by `..`. Such a list may name other full URLs, but no files of this machine.
"""

from __future__ import annotations

import ast
import json
import os
import posixpath
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError, HeadraceError, SourceError, takes_note

from ..fetch import read_source
from ..locations import is_url, local_path, shown_url
from .patterns import is_pattern, list_matches
from .tag_list import read_text, refuse_pickle, unpack_text
from .tree import FileTree, map_leaves, tree_leaves

_ONE_LIST = "let the file hold one list, such as ['a.hdf', 'b.hdf']: no assignment, no expression"


def parse_file_list(text: str, kind: str, where: str) -> list[tuple[int, Any]]:
    """Return (number, entry) for each entry of a list: the number of its line or, from 1, of the entry itself.

    A `.txt` has one name a line: white space around it is taken off, empty lines and lines that begin with `#` are
    skipped. A `.json` or `.py` is one list, whose entries may be nested.

    Args:
        text: The content.
        kind: `".txt"`, `".json"` or `".py"`.
        where: The file, for errors.

    Raises:
        SourceError: It is not such a list.
    """
    if kind == ".txt":
        numbered = ((number, line.strip()) for number, line in enumerate(text.split("\n"), 1))
        return [(number, name) for number, name in numbered if name and not name.startswith("#")]
    try:
        entries = json.loads(text) if kind == ".json" else ast.literal_eval(text.lstrip())
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError) as error:
        name = "JSON list" if kind == ".json" else "list of plain data"
        raise SourceError(f"this is not a {name}: {error}", where=where, fix=_ONE_LIST) from error
    if not isinstance(entries, list):
        raise SourceError(f"the file holds a {type(entries).__name__}, not a list", where=where, fix=_ONE_LIST)
    return list(enumerate(entries, 1))


Files = str | os.PathLike[str] | list[Any] | Callable[[], list[Any]]
InFolder = Callable[[str], list[str]]

_KINDS = (".txt", ".json", ".py")
_LOCAL_STARTS = ("file://", "local://")


def read_file_list(files: Files, in_folder: InFolder | None = None) -> list[FileTree]:
    """Return the entries of a file list, given in any form.

    Args:
        files: One of

            - a list of file names, path objects, URLs that fsspec knows, patterns (`*`, `?`, `[...]`, `**`,
              `{a,b}`, `{00..99}`), and tuples, lists or dicts of names for files that belong together, nested as you
              like;
            - the path or URL of a list file: `.txt` (a name a line; empty lines and lines that begin with `#` are
              skipped), `.json` (one list) or `.py` (one list, as a literal), each also packed as `.gz`;
            - a pattern, such as `"data/*.hdf"` or `"s3://bucket/data/**/*.hdf"`;
            - a folder, where `in_folder` is given; the URL of one ends in `/`;
            - a function without arguments that returns a list.
        in_folder: Returns the files that a local folder stands for. In a list, a name is looked at for this if it ends
            in `/` or has no suffix: a look at each of a million files takes long on a network disk.

    Returns:
        The entries in order, patterns replaced by what they match. Entries may come more than once, also because two
        patterns match the same file. Names inside of trees are not patterns, nor is a name with `*`, `?`, `[` or braces
        if there is a file of exactly that name; in URLs only `*` and braces make a pattern. Whether the files exist is
        checked when they are measured, see `FileTable`.

    Raises:
        ConfigError: The argument has another form, or the list has a wrong entry or none.
        SourceError: The list file is missing, truncated, of another format than its suffix, has a wrong entry or none,
            or a relative name in one that was read from a URL leaves its folder; or a pattern matches nothing.
    """
    if in_folder is not None and isinstance(files, str | os.PathLike) and _is_folder(os.fspath(files)):
        files = [os.path.join(os.fspath(files), "")]
    origin, entries = _entries_of(files)
    found = [tree for number, entry in entries for tree in _expanded(entry, origin, number, in_folder)]
    if not found:
        raise origin.error("the file list is empty", None, "name one file at least")
    return found


@dataclass(frozen=True)
class _Origin:
    """Where a list comes from.

    Attributes:
        name: For errors.
        numbering: Format of an entry's location in errors, for example `"{}, line {}"`.
        is_file: Whether it is a list file.
        root: Of one that was read from a URL: the URL of its folder, with a slash, the base of relative names.
    """

    name: str
    numbering: str
    is_file: bool = False
    root: str | None = None

    def error(self, what: str, number: int | None, fix: str | None) -> HeadraceError:
        kind = SourceError if self.is_file else ConfigError
        return kind(what, where=self.where(number), fix=fix)

    def where(self, number: int | None) -> str:
        return self.name if number is None else self.numbering.format(self.name, number)

    def checked(self, name: str, number: int) -> str:
        """Return a checked name, normalized if it is relative to the root."""
        if self.root is None:
            return name
        if _is_of_this_machine(name):
            what = f"a list that was read from a URL names a file of this machine: {shown_url(name)!r}"
            raise self.error(what, number, "write full URLs, or copy the list to this machine")
        if is_url(name):
            return name
        inside = posixpath.normpath(name)
        if inside == ".." or inside.startswith("../"):
            what = f"the relative name {name!r} leads out of the folder of its list, {shown_url(self.root)}"
            raise self.error(what, number, "name files elsewhere by full URLs")
        return inside

    def resolved(self, name: str) -> str:
        """Return the full path or URL of a checked name."""
        return name if self.root is None or is_url(name) else self.root + name


def _is_of_this_machine(name: str) -> bool:
    parts = name.lower().split("::")
    is_chain_to_path = len(parts) > 1 and "://" not in parts[-1]
    return os.path.isabs(name) or is_chain_to_path or any(part.startswith(_LOCAL_STARTS) for part in parts)


def _entries_of(files: Files) -> tuple[_Origin, Iterable[tuple[int, Any]]]:
    if isinstance(files, (str, os.PathLike)):
        return _entries_of_path(os.fspath(files))
    if isinstance(files, list):
        return _Origin("files", "{}[{}]"), enumerate(files)
    if not callable(files):
        fix = "pass a list, the path of a list file, a pattern, or a function; [(...)] is one entry of several files"
        raise ConfigError(f"unsupported file list: files is of type {type(files).__name__}", fix=fix)
    try:
        entries: Any = files()
    except Exception as error:
        takes_note(error, "raised by the function given as files")
        raise
    if not isinstance(entries, list):
        what = f"the function given as files returned a {type(entries).__name__}, not a list"
        raise ConfigError(what, fix="return a list of file names")
    return _Origin("files()", "{}[{}]"), enumerate(entries)


def _entries_of_path(path: str) -> tuple[_Origin, Iterable[tuple[int, Any]]]:
    path = local_path(path) or path
    if is_pattern(path, path):
        return _Origin("files", "{}"), [(0, path)]
    is_remote, shown = is_url(path), shown_url(path)
    name = path.partition("?")[0].partition("#")[0] if is_remote else path
    is_packed = name.endswith(".gz")
    kind = os.path.splitext(name.removesuffix(".gz"))[1]
    refuse_pickle(Path(name))
    if kind not in _KINDS:
        fix = f"for one file write files=[{shown!r}]; a list file ends in {', '.join(_KINDS)}, or one of them and .gz"
        raise ConfigError(f"files={shown!r} is neither a list file nor a pattern", fix=fix)
    numbering = "{}, line {}" if kind == ".txt" else "{}, entry {}"
    text = unpack_text(read_source(path), shown, is_packed=is_packed) if is_remote else read_text(path)
    origin = _Origin(shown, numbering, is_file=True, root=f"{name.rpartition('/')[0]}/" if is_remote else None)
    return origin, parse_file_list(text, kind, shown)


def _expanded(entry: Any, origin: _Origin, number: int, in_folder: InFolder | None) -> Iterable[FileTree]:
    """Return the trees of an entry, with patterns and folders expanded."""
    try:
        leaves = tree_leaves(entry)
    except ConfigError as error:
        raise origin.error(error.what, number, error.fix) from error
    if not leaves:
        raise origin.error("an entry names no file", number, "remove it from the list")
    if not isinstance(entry, (str, os.PathLike)):
        if origin.root is None:
            return [entry]
        return [map_leaves(entry, lambda leaf: origin.resolved(origin.checked(leaf, number)))]
    name = origin.checked(leaves[0], number)
    full_name = origin.resolved(name)
    may_be_folder = name.endswith("/") or not os.path.splitext(name)[1]
    if in_folder is not None and may_be_folder and _is_folder(full_name):
        if not is_url(full_name):
            return list(in_folder(full_name.rstrip("/") or "/"))
        name, full_name = f"{name}*", f"{full_name}*"
    if not is_pattern(name, full_name):
        return [entry if full_name == leaves[0] else full_name]
    return list_matches(name, full_name.removesuffix(name), origin.where(number))


def _is_folder(name: str) -> bool:
    """Tell whether a name is that of a local folder, or a URL that ends as that of one does."""
    return name.endswith("/") if is_url(name) else os.path.isdir(name)
