"""Whether user code fills the same memory again for a later value, so that values which wait for others are copied.

Values that go into a batch or a group together are kept until the last of them is made. A dataset that gives one array
again and again, each time with new content, would give that many times the last content, and nobody would see why.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from headrace.specs import is_plain_tensor

_MAX_CHECKED = 64  # arrays and containers that are looked at again
_ENOUGH = 16  # values: if none of them has changed, none is copied from then on
_MAX_BYTES = 1 << 24  # of an array that is copied: with larger ones, no others share a group


class ReuseCheck:
    """Copies values until it is clear whether that is necessary: they are compared with their copies later.

    Looked at are arrays and torch tensors, also in tuples, lists and dicts, and whether the latter have other content.

    Attributes:
        copies: Whether values are to be given to `keep`.
    """

    def __init__(self) -> None:
        self.copies = True
        self._num_values, self._is_known = 0, False
        self._checked: list[tuple[Any, Any]] = []  # what was given, and its copy or what was in it

    def keep(self, value: Any) -> Any:
        """Return what stays the same whatever becomes of the value."""
        self._num_values += 1
        return self._copied(value)

    def kept(self, values: Iterator[Any]) -> Iterator[Any]:
        """Return an iterator that gives each value to `keep`, as long as that is necessary; ask anew after `look`."""
        return map(self.keep, values) if self.copies else values

    def look(self) -> None:
        """See whether values have changed since they were given to `keep`."""
        if self._is_known:
            return
        if any(not _is_same(given, copy) for given, copy in self._checked):
            self._is_known = True
        elif self._num_values >= _ENOUGH:
            self._is_known, self.copies = True, False
        if self._is_known:
            self._checked = []

    def _copied(self, value: Any) -> Any:
        kind, copy = type(value), value
        if kind is tuple:
            return tuple([self._copied(part) for part in value])
        if kind is list:
            self._check(value, list(value))
            return [self._copied(part) for part in value]
        if kind is dict:
            self._check(value, dict(value))
            return {key: self._copied(part) for key, part in value.items()}
        if kind is np.ndarray:
            if not value.dtype.hasobject and value.nbytes <= _MAX_BYTES:
                copy = value.copy(order="K")
        elif is_plain_tensor(value) and value.nbytes <= _MAX_BYTES:
            copy = value.clone()
        if copy is not value:
            self._check(value, copy)
        return copy

    def _check(self, given: Any, copy: Any) -> None:
        if not self._is_known and len(self._checked) < _MAX_CHECKED:
            self._checked.append((given, copy))


def _is_same(given: Any, copy: Any) -> bool:
    """Return whether an array or tensor is equal to its copy, to the bit; or whether a container has the same parts."""
    if type(given) is np.ndarray:
        return bool(given.shape == copy.shape) and given.tobytes() == copy.tobytes()
    if type(given) is list:
        return len(given) == len(copy) and all(one is other for one, other in zip(given, copy, strict=True))
    if type(given) is dict:
        return given.keys() == copy.keys() and all(given[key] is copy[key] for key in copy)
    return bool(given.shape == copy.shape and ((given == copy) | ((given != given) & (copy != copy))).all())
