"""The arrays inside a batch, whatever it is made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from headrace.loading import Batch, Packing


def map_leaves(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return a value of the same structure whose leaves went through a function.

    Args:
        value: A `Batch`, of which the arrays, the lengths and the packing are leaves; or what a `collate` made: dicts,
            lists, tuples and what is in them.
        function: Gets each leaf, an array or anything else, and returns what comes in its place.
    """
    if isinstance(value, Batch):
        packing = value.packing
        if packing is not None:
            packing = Packing(*(function(getattr(packing, field.name)) for field in dataclasses.fields(packing)))
        return dataclasses.replace(
            value,
            arrays={key: function(array) for key, array in value.arrays.items()},
            lengths={key: function(array) for key, array in value.lengths.items()},
            packing=packing,
        )
    if isinstance(value, Mapping):
        return {key: map_leaves(item, function) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_leaves(item, function) for item in value))
    if isinstance(value, tuple | list):
        return type(value)(map_leaves(item, function) for item in value)
    return function(value)
