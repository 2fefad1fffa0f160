"""An extension of Griffe that puts an example and links into the entries of the reference, before the members."""

from __future__ import annotations

from typing import Any

import griffe


class AddExamples(griffe.Extension):
    """Appends text to docstrings.

    Args:
        texts: What to append: name in full -> sections in the form of a docstring.
    """

    def __init__(self, texts: dict[str, str]) -> None:
        super().__init__()
        self._texts = texts

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Change the docstrings of the package, once it has been read."""
        for name, text in self._texts.items():
            path = name.partition(".")[2]
            found = pkg[path]
            target = found.final_target if found.is_alias else found
            if target.docstring is None:
                target.docstring = griffe.Docstring("", parent=target)
            target.docstring.value = f"{target.docstring.value.rstrip()}\n\n{text}".lstrip()
