"""File trees: the files that belong together in one entry of a file list.

A tree is the name of a file, or a tuple, list or dict of trees: a corpus in several modalities keeps the files of one
part in one tree. The leaves come in the order of the tree, those of a dict in the order of its sorted keys, so that
nothing depends on how a dict was built.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any

from headrace.errors import ConfigError

FileTree = str | os.PathLike[str] | tuple[Any, ...] | list[Any] | dict[str, Any]

_MAX_DEPTH = 32  # far more than is ever nested; a list that contains itself ends here


def tree_leaves(tree: FileTree) -> list[str]:
    """Return the file names of a tree, in its order.

    Raises:
        ConfigError: Something in the tree is neither a file name nor a tuple, list or dict.
    """
    if isinstance(tree, str):  # nearly all are: no generator for them
        return [_name(tree)]
    return list(_leaves(tree, 0))


def tree_key(tree: FileTree) -> str:
    r"""Return a text that two trees share only if they are equal: same structure, same names.

    Each name is quoted as in JSON, so that no character of it can be taken for structure: the key of `("a", "b")` is
    `("a","b")`, that of the one file `a","b` is `"a\",\"b"`. A path object counts as its text.

    Raises:
        ConfigError: As in `tree_leaves`.
    """
    return _key(tree, 0)


def map_leaves(tree: FileTree, function: Callable[[str], Any]) -> Any:
    """Return a tree of the same structure with `function(name)` for each file name.

    Tuples with names stay what they are, dicts keep the order of their keys; any other dict becomes a plain one. The
    function is called in the order of `tree_leaves`.

    Raises:
        ConfigError: As in `tree_leaves`.
    """
    return _mapped(tree, function, 0)


def _leaves(tree: FileTree, depth: int) -> Iterator[str]:
    children = _children(tree, depth)
    if children is None:
        yield _name(tree)
    else:
        for _, child in children:
            yield from _leaves(child, depth + 1)


def _key(tree: FileTree, depth: int) -> str:
    children = _children(tree, depth)
    if children is None:
        return _quoted(_name(tree))
    if isinstance(tree, dict):
        return "{" + ",".join(f"{_quoted(key)}:{_key(child, depth + 1)}" for key, child in children) + "}"
    inner = ",".join(_key(child, depth + 1) for _, child in children)
    return f"({inner})" if isinstance(tree, tuple) else f"[{inner}]"


def _mapped(tree: FileTree, function: Callable[[str], Any], depth: int) -> Any:
    children = _children(tree, depth)
    if children is None:
        return function(_name(tree))
    mapped = {key: _mapped(child, function, depth + 1) for key, child in children}
    if isinstance(tree, dict):
        return {key: mapped[key] for key in tree}
    if isinstance(tree, list):
        return list(mapped.values())
    if hasattr(tree, "_fields"):  # a named tuple takes its fields one by one
        return type(tree)(*mapped.values())
    return tuple(mapped.values())


def _children(tree: Any, depth: int) -> list[tuple[Any, Any]] | None:
    """Return (key or index, child) of an inner node in order; None for a leaf."""
    if isinstance(tree, dict):
        wrong = next((key for key in tree if not isinstance(key, str)), None)
        if wrong is not None:
            raise ConfigError(f"a dict of files has the key {wrong!r}, which is not a string", where=_brief(tree))
        children = sorted(tree.items(), key=lambda item: item[0])
    elif isinstance(tree, (tuple, list)):
        children = list(enumerate(tree))
    else:
        return None
    if depth >= _MAX_DEPTH:
        fix = "keep what belongs together in one tuple, list or dict, and name the files in it"
        raise ConfigError(f"a tree of files is nested more than {_MAX_DEPTH} deep", fix=fix)
    return children


def _name(leaf: Any) -> str:
    # strings first: an `isinstance` with an abstract class takes longer than all the rest
    name = leaf if isinstance(leaf, str) or not isinstance(leaf, os.PathLike) else os.fspath(leaf)
    if not isinstance(name, str):
        fix = "an entry is a file name, or a tuple, list or dict of file names"
        raise ConfigError(f"{_brief(leaf)} is not a file name, but of type {type(leaf).__name__}", fix=fix)
    if not name or "\0" in name:
        what = "a file name is empty" if not name else f"the file name {_brief(name)} holds a null character"
        raise ConfigError(what, fix="give the name of a file")
    return name


def _brief(value: object) -> str:
    if isinstance(value, (tuple, list, dict)):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
