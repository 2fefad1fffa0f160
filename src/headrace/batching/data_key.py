"""Which data key's frames are counted: the one that the batching names, or else the main key, if it has frames.

A budget over a key without a time axis (a label, an id) would count one frame for each sequence, and fill a batch with
as many sequences as it allows frames; and a budget over the bytes of an id or a name is hardly ever meant. So if the
main key has no time axis, or is a text, the only other key that has a time axis and is no text is taken; where there
are several, the user must name one. Texts count where nothing else has a time axis. Known layouts are looked at before
anything starts; of items and streams, the first item is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from headrace.errors import ConfigError, did_you_mean
from headrace.specs import DataSpec

from .base import Batching


def choose_data_key(batching: Batching, first: str | None, specs: Mapping[str, DataSpec], name: str) -> str | None:
    """Return the key whose frames count, of a dataset; None where sequences are not by data key.

    Args:
        batching: It may name a key, and may not need lengths at all.
        first: The first data key.
        specs: What is known of the layout: a key that is missing here may have a time axis.
        name: Name of the dataset, for messages.

    Raises:
        ConfigError: The key that is named has no time axis; or none is named, and it is not clear which is meant.
    """
    key = first if batching.data_key is None else batching.data_key
    if key is None or key not in specs:
        return key
    if specs[key].has_time and not specs[key].is_text:
        return key
    return _choose(batching, key, [other for other, spec in specs.items() if spec.has_time], texts_of(specs), name)


def data_key_of_item(
    batching: Batching, item: Mapping[str, Any], where: str, *, texts: Collection[str] = ()
) -> str | None:
    """Return the key whose frames count, of items like this one.

    Args:
        batching: It may name a key, and may not need lengths at all.
        item: Values by data key.
        where: Location, for error messages.
        texts: The keys whose arrays are the bytes of texts.

    Raises:
        ConfigError: As `choose_data_key`; or there is no such key.
    """
    key = next(iter(item), None) if batching.data_key is None else batching.data_key
    if key is None:
        return None
    if key not in item:
        raise ConfigError(f"there is no data key {key!r}", where=where, fix=did_you_mean(key, item))
    if has_frames(item[key]) and key not in texts:
        return key
    return _choose(batching, key, [other for other, value in item.items() if has_frames(value)], texts, where)


def texts_of(specs: Mapping[str, DataSpec]) -> frozenset[str]:
    """Return the keys whose arrays are the bytes of texts."""
    return frozenset(key for key, spec in specs.items() if spec.is_text)


def has_frames(value: Any) -> bool:
    """Tell whether a value of an item has a time axis: at least one axis."""
    return len(np.shape(value)) > 0


def frames_of(value: Any) -> int:
    """Return the length of the first axis; 1 if there is none."""
    shape = np.shape(value)
    return int(shape[0]) if shape else 1


def _choose(batching: Batching, key: str, timed: Sequence[str], texts: Collection[str], where: str) -> str:
    """Return the key that counts: the one that would, or another one of those that have a time axis."""
    if batching.data_key is None:
        timed = [other for other in timed if other not in texts] or timed
    if key in timed:
        return key
    if batching.data_key is None and (len(timed) == 1 or not batching.needs_lengths):
        return timed[0] if timed else key
    names = ", ".join(map(repr, timed)) or "none"
    whose = f"the data key {key!r}" if batching.data_key is not None else f"the first data key {key!r}"
    lacks = "is a text" if key in texts else "has no time axis"
    fix = f"give it data_key={timed[0]!r}, for example" if timed else "give FixedCount(n), which counts sequences"
    raise ConfigError(
        f"{batching} counts frames, and {whose} {lacks}; these have a time axis: {names}", where=where, fix=fix
    )
