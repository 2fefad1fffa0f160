"""File trees: the files that belong together in one entry of a file list.

A tree is the name of a file, or a tuple, list or dict of trees: a corpus in several modalities keeps the files of one
part in one tree. The leaves come in the order of the tree, those of a dict in the order of its sorted keys, so that
nothing depends on how a dict was built.
"""

from __future__ import annotations

import os
from collections.abc import Callable
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
    names: list[str] = []
    map_leaves(tree, names.append)
    return names


def tree_key(tree: FileTree) -> str:
    r"""Return a text that two trees share only if they are equal: same structure, same names.

    Each name is quoted as in JSON, so that no character of it can be taken for structure: the key of `("a", "b")` is
    `("a","b")`, that of the one file `a","b` is `"a\",\"b"`. A path object counts as its text.

    Raises:
        ConfigError: As in `tree_leaves`.
    """
    return _key(map_leaves(tree, str))


def _key(tree: Any) -> str:
    if isinstance(tree, str):
        return _quoted(tree)
    if isinstance(tree, dict):
        return "{" + ",".join(f"{_quoted(key)}:{_key(child)}" for key, child in sorted(tree.items())) + "}"
    inner = ",".join(map(_key, tree))
    return f"({inner})" if isinstance(tree, tuple) else f"[{inner}]"


def map_leaves(tree: FileTree, function: Callable[[str], Any], _depth: int = 0) -> Any:
    """Return a tree of the same structure with `function(name)` for each file name.

    Tuples with names stay what they are, dicts keep the order of their keys; any other dict becomes a plain one. The
    function is called in the order of `tree_leaves`.

    Raises:
        ConfigError: As in `tree_leaves`.
    """
    if isinstance(tree, str) or not isinstance(tree, (dict, tuple, list)):  # nearly all are strings
        return function(_name(tree))
    if _depth >= _MAX_DEPTH:
        fix = "keep what belongs together in one tuple, list or dict, and name the files in it"
        raise ConfigError(f"a tree of files is nested more than {_MAX_DEPTH} deep", fix=fix)
    if isinstance(tree, dict):
        wrong = [key for key in tree if not isinstance(key, str)]
        if wrong:
            raise ConfigError(f"a dict of files has the key {wrong[0]!r}, which is not a string", where=_brief(tree))
        mapped = {key: map_leaves(tree[key], function, _depth + 1) for key in sorted(tree)}
        return {key: mapped[key] for key in tree}
    parts = [map_leaves(child, function, _depth + 1) for child in tree]
    if isinstance(tree, list):
        return parts
    return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)  # a named tuple takes its fields one by one


def _name(leaf: Any) -> str:
    # strings first: an `isinstance` with an abstract class takes longer than all the rest
    name = os.fspath(leaf) if not isinstance(leaf, str) and isinstance(leaf, os.PathLike) else leaf
    if not isinstance(name, str):
        fix = "an entry is a file name, or a tuple, list or dict of file names"
        raise ConfigError(f"{_brief(leaf)} is not a file name, but of type {type(leaf).__name__}", fix=fix)
    if not name or "\0" in name:
        what = f"the file name {_brief(name)} holds a null character" if name else "a file name is empty"
        raise ConfigError(what, fix="pass the name of a file")
    return name


def _brief(value: object) -> str:
    if isinstance(value, (tuple, list, dict)):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
