"""Cutting a sequence into chunks: what the `chunking` option means, and which chunks a sequence of given lengths has.

All of it is plain arithmetic on lengths. `parse_chunking` reads the option once; `plan_chunks` lists the chunks of
one sequence. Invariant: the first chunk starts at frame 0 and every sequence has at least one chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from headrace.errors import ConfigError, did_you_mean

from .numbers import NumbersDict

ChunkingFunction: TypeAlias = Callable[..., Iterator[tuple[int, NumbersDict, NumbersDict]]]
"""A function of your own that cuts sequences: it yields (index of the sequence, first frames, ends) of each chunk."""
_FORMS = (
    'valid forms: None, 50, "50:25", (50, 25), {"data": 50, "classes": 50}, ({"data": 50}, {"data": 25}), or a function'
)


@dataclass(frozen=True, slots=True)
class Chunking:
    """Chunks of `size` frames that start every `step` frames, by data key.

    Attributes:
        size: Frames of a chunk, each > 0.
        step: Frames from the start of a chunk to the start of the next. A key with step 0 is not cut: every chunk has
            all of it. At least one step is > 0.
    """

    size: NumbersDict
    step: NumbersDict

    def __post_init__(self) -> None:
        """Refuse sizes and steps that cut nothing."""
        if set(self.size.keys()) != set(self.step.keys()):
            raise ConfigError(
                f"chunking sizes and steps are for different keys: {sorted(self.size.keys())} and "
                f"{sorted(self.step.keys())}",
                fix="give the same data keys in both dicts; a step of 0 gives a key in full with each chunk",
            )
        for numbers in (self.size, self.step):
            fraction = [value for value in numbers.values() if value % 1 != 0]
            if fraction:
                raise ConfigError(f"chunking needs whole frames: {fraction[0]}", fix=_FORMS)
        if not self.size.has_values() or self.size.min_value() <= 0:
            raise ConfigError(f"a chunk size must be > 0: {self.size}", fix="chunking=None, or 0, switches it off")
        if self.step.min_value() < 0 or self.step.max_value() <= 0:
            raise ConfigError(f"chunk steps must be >= 0, and one of them > 0: {self.step}", fix=_FORMS)


def parse_chunking(value: Any) -> Chunking | ChunkingFunction | None:
    """Read the `chunking` option.

    | given | chunks |
    |---|---|
    | `None`, `0`, `"0"`, `(0, x)`, `{}`, a dict of zeros | `None`: no chunking |
    | `50`, `"50"`, `"50:0"`, `(50, 0)`, `(50, None)` | 50 frames every 50 frames |
    | `"50:25"`, `(50, 25)`, `[50, 25]` | 50 frames every 25 frames |
    | `{"data": 100, "classes": 50}` | by key, step = size |
    | `({"data": 100, "classes": 50}, {"data": 50, "classes": 25})` | by key, size and step |
    | a `Chunking`, or a function | returned as it is |

    Args:
        value: One of the forms above.

    Returns:
        The sizes and steps, the function, or `None` for no chunking.

    Raises:
        ConfigError: Another form, a negative number, a zero beside other sizes, or different keys for sizes and steps.
    """
    if value is None or isinstance(value, Chunking):
        return value
    if callable(value):
        function: ChunkingFunction = value
        return function
    size, step = _size_and_step(value)
    if not size:  # all zero, or nothing at all
        return None
    if not step:  # zero for every key: RETURNN documents it as "step = size"
        if isinstance(value, tuple | list) and isinstance(value[1], Mapping | NumbersDict) and value[1].keys():
            raise ConfigError(f"chunk steps are 0 for every key: {value[1]!r}", fix="leave the steps out: step = size")
        step = size.copy()
    return Chunking(size, step)


def _size_and_step(value: Any) -> tuple[NumbersDict, NumbersDict]:
    """Split the option into sizes and steps; an empty step is one that was not given."""
    step: Any = None
    if isinstance(value, str):
        size, step = _parse_text(value)
    elif isinstance(value, tuple | list):
        if len(value) != 2:
            raise ConfigError(f"chunking needs a pair (size, step), not {len(value)} items: {value!r}", fix=_FORMS)
        size, step = value
    else:
        size = value
    for part in (size, step):
        if part is not None and not _is_frames(part):
            raise ConfigError(f"chunking cannot be read: {value!r}", fix=_FORMS)
    return NumbersDict(size), NumbersDict(step)


def _parse_text(text: str) -> tuple[int, int | None]:
    """Read "50" or "50:25"."""
    parts = text.split(":")
    try:
        numbers = [int(part) for part in parts]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2):
        raise ConfigError(f"chunking cannot be read: {text!r}", fix=_FORMS)
    return numbers[0], numbers[1] if len(numbers) == 2 else None


def _is_frames(part: object) -> bool:
    """Tell whether a part of the option has the type of a number of frames, alone or by key."""
    return isinstance(part, int | np.integer | Mapping | NumbersDict) and not isinstance(part, bool)


def vary_chunking(chunking: Chunking, variance: float, draw: float) -> Chunking:
    """Shrink chunks at random, for one sequence.

    Sizes and steps become `max(int(x * scale), 1)` with `scale = 1 - draw * variance`. Keys whose number is a whole
    multiple of the smallest keep that ratio, so that aligned keys stay aligned; steps of 0 stay 0.

    Args:
        chunking: What to shrink.
        variance: 0 (nothing) to 1 (down to one frame).
        draw: A random number in [0, 1), for example of `random.Random(epoch_seed)`.
    """
    scale = 1.0 - draw * variance
    return Chunking(_scaled(chunking.size, scale), _scaled(chunking.step, scale))


def _scaled(numbers: NumbersDict, scale: float) -> NumbersDict:
    smallest = min(value for value in numbers.values() if value > 0)
    new_smallest = max(int(smallest * scale), 1)

    def scaled(value: float) -> int:
        if value % smallest == 0:  # 0 as well
            return int(value // smallest) * new_smallest
        return max(int(value * scale), 1)

    default = numbers.broadcast_value
    return NumbersDict(
        numbers_dict={key: scaled(value) for key, value in numbers.items()},
        broadcast_value=None if default is None else scaled(default),
    )


def plan_chunks(
    lengths: NumbersDict,
    chunking: Chunking,
    min_chunk_size: NumbersDict | int = 0,
    used_data_keys: Iterable[str] | None = None,
) -> list[tuple[NumbersDict, NumbersDict]]:
    """List the chunks of one sequence as (start, end) frames by data key.

    Chunk j of a key is frames `[j * step, min(j * step + size, length)]`. After the first, a chunk is made only if
    more than `min_chunk_size` frames are left for it, in every key that is cut. The reference key is "data", else the
    first key by name, the first with a step > 0; every other key must have as many chunks as it. Two kinds of keys
    are not cut but given in full with each chunk, and have no say in the number of chunks: those with step 0, and
    those of at most one frame that do not match the reference. (RETURNN fails on the first kind and loses the rest of
    the sequence with the second. It also drops a sequence without frames, which is one empty chunk here, as it is
    without chunking.)

    Args:
        lengths: Frames of the sequence, by data key.
        chunking: Sizes and steps.
        min_chunk_size: A remainder of at most this many frames is dropped.
        used_data_keys: The keys that count; all keys of `lengths` if `None`.

    Raises:
        ConfigError: A key has no chunk size, or its number of chunks does not match the reference.
    """
    keys = sorted(set(_used_keys(lengths, used_data_keys)))
    min_sizes = NumbersDict(min_chunk_size)
    for key in keys:
        if chunking.size.get(key) is None:
            raise ConfigError(
                f"chunking has no size for the data key {key!r}, only for {sorted(chunking.size.keys())}",
                fix=f"add {key!r} to chunking (step 0: given in full), or leave it out of used_data_keys",
            )
    reference = _reference_key(keys, chunking)
    if reference is None:
        return [(NumbersDict(dict.fromkeys(keys, 0)), NumbersDict({key: lengths[key] for key in keys}))]
    cut_keys = [key for key in keys if _is_cut(key, reference, lengths, chunking, min_sizes)]
    num_chunks = min(
        _num_chunks(int(lengths[key]), int(chunking.step[key]), int(min_sizes.get(key, 0) or 0)) for key in cut_keys
    )
    bounds = {
        key: _bounds(int(lengths[key]), int(chunking.size[key]), int(chunking.step[key]), num_chunks)
        if key in cut_keys
        else [(0, int(lengths[key]))] * num_chunks
        for key in keys
    }
    return [
        (NumbersDict({key: bounds[key][j][0] for key in keys}), NumbersDict({key: bounds[key][j][1] for key in keys}))
        for j in range(num_chunks)
    ]


def _bounds(length: int, size: int, step: int, num_chunks: int) -> list[tuple[int, int]]:
    """Return (start, end) of each chunk of one key."""
    return [(start, min(start + size, length)) for start in range(0, num_chunks * step, step)]


def _used_keys(lengths: NumbersDict, used_data_keys: Iterable[str] | None) -> Iterable[str]:
    if used_data_keys is None:
        return lengths.keys()
    used = list(used_data_keys)
    unknown = [key for key in used if lengths.get(key) is None]
    if unknown:
        raise ConfigError(f"no data key {unknown[0]!r} to chunk", fix=did_you_mean(unknown[0], lengths.keys()))
    return used


def _reference_key(keys: list[str], chunking: Chunking) -> str | None:
    """Return the key whose length decides, or `None` if none of them is cut."""
    ordered = ["data", *keys] if "data" in keys else keys
    return next((key for key in ordered if chunking.step[key] > 0), None)


def _num_chunks(length: int, step: int, min_size: int) -> int:
    """Count the starts 0, step, 2 * step, ... that leave more than `min_size` frames; the first always counts."""
    return max(1, -(-(length - max(min_size, 0)) // step))


def _is_cut(key: str, reference: str, lengths: NumbersDict, chunking: Chunking, min_sizes: NumbersDict) -> bool:
    """Tell whether a key is cut along with the reference, rather than given in full with each chunk."""
    if chunking.step[key] == 0:
        return False
    if chunking.step[key] == chunking.step[reference]:
        matches = lengths[key] == lengths[reference]
    else:
        matches = _returnn_count(key, lengths, chunking, min_sizes) == _returnn_count(
            reference, lengths, chunking, min_sizes
        )
    if not matches and lengths[key] > 1:
        raise ConfigError(
            f"the data keys {reference!r} and {key!r} cannot be chunked together: lengths {lengths[reference]} and "
            f"{lengths[key]}, chunk steps {chunking.step[reference]} and {chunking.step[key]}",
            fix=f"give each key a step that fits its frame rate, step 0 for {key!r} to have it in full with each "
            f"chunk, or leave it out of used_data_keys",
        )
    return matches


def _returnn_count(key: str, lengths: NumbersDict, chunking: Chunking, min_sizes: NumbersDict) -> int:
    """Count chunks by RETURNN's rule for comparing keys of different steps; a little looser than `_num_chunks`."""
    limit = int(min_sizes.get(key, 0) or 0) or 1
    return max(1, (int(lengths[key]) - limit) // int(chunking.step[key]) + 1)
