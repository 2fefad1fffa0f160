"""What the tests of the codec share: sameness, round trips, and strategies that draw values."""

from __future__ import annotations

import collections
import dataclasses
import enum
import struct
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from plain_slot import PlainSlot

from headrace.engine.codec.codec import decode, encode


class Span(NamedTuple):
    start: Any
    end: Any


Bare = collections.namedtuple("Bare", ["x", "y"])


@dataclasses.dataclass
class Seq:
    data: Any
    tag: Any = "t"


@dataclasses.dataclass(frozen=True)
class Frozen:
    data: Any
    tag: Any = "t"


@dataclasses.dataclass(slots=True)
class Slotted:
    data: Any
    tag: Any = "t"


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlotted:
    data: Any
    tag: Any = "t"


@dataclasses.dataclass(frozen=True, slots=True)
class Longer(FrozenSlotted):
    extra: Any = None


class Colour(enum.Enum):
    RED = 1
    BLUE = "b"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


RECORDS = [Span, Bare, Seq, Frozen, Slotted, FrozenSlotted, Longer]


def round_trip(value: Any, slot: PlainSlot | None = None) -> Any:
    slot = PlainSlot(1) if slot is None else slot
    header = encode(value, slot)
    return decode(header, slot.buffer)


def same(one: Any, other: Any) -> bool:
    """Tell whether two values are the same in everything that the codec keeps."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return _same_arrays(one, other)
    if isinstance(one, np.generic):
        return _same_arrays(np.asarray(one), np.asarray(other))
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other)
    if isinstance(one, complex):
        return same(one.real, other.real) and same(one.imag, other.imag)
    if isinstance(one, dict):
        return same(list(one), list(other)) and same(list(one.values()), list(other.values()))
    if isinstance(one, set | frozenset):
        return sorted(map(repr, one)) == sorted(map(repr, other))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if dataclasses.is_dataclass(one):
        names = [field.name for field in dataclasses.fields(one)]
        return all(same(getattr(one, name), getattr(other, name)) for name in names)
    return bool(one == other)


def _same_arrays(one: np.ndarray, other: np.ndarray) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.flags.fnc != other.flags.fnc:
        return False
    if one.dtype.hasobject:
        return same(one.tolist(), other.tolist())
    if one.dtype.names is not None:
        return all(_same_arrays(one[name].copy(), other[name].copy()) for name in one.dtype.names)
    if one.dtype.char in "gG":  # their padding is arbitrary; `contents` makes them of float64
        one, other = one.astype("c16"), other.astype("c16")
    return one.tobytes() == other.tobytes()


def plain_arrays(value: Any) -> list[np.ndarray]:
    """Gather the arrays that can lie in a slot, from containers that the codec knows."""
    if type(value) is np.ndarray:
        return [value] if value.nbytes and not value.dtype.hasobject else []
    if type(value) is dict:
        return [array for part in value.values() for array in plain_arrays(part)]
    if isinstance(value, list | tuple):
        return [array for part in value for array in plain_arrays(part)]
    if dataclasses.is_dataclass(value):
        return [array for field in dataclasses.fields(value) for array in plain_arrays(getattr(value, field.name))]
    return []


# Strategies

any_text = st.text(st.characters(exclude_categories=()), max_size=8)  # lone surrogates, too
atoms = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=-(10**400), max_value=10**400),
    st.floats(),
    st.complex_numbers(),
    any_text,
    st.binary(max_size=8),
)
keys = st.one_of(
    any_text,
    st.integers(-2, 2),
    st.booleans(),
    st.floats(allow_nan=False),
    st.none(),
    st.tuples(any_text, st.integers()),
)

plain_dtypes = st.one_of(
    npst.scalar_dtypes(),
    npst.byte_string_dtypes(max_len=5),
    npst.unicode_string_dtypes(max_len=5),
    st.sampled_from([np.dtype(char) for char in "lLqQgG"]),
)
dtypes = st.one_of(
    plain_dtypes,
    npst.array_dtypes(plain_dtypes, max_size=3),
    st.just(np.dtype([("a", "i1"), ("b", ">f8"), ("c", "U3")], align=True)),
    st.just(np.dtype(("V", 5))),
)


def contents(dtype: np.dtype, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Make an array of random bits; where not all bits are legal (bool, text), of legal ones."""
    rng = np.random.default_rng(seed)
    array = np.zeros(shape, dtype)
    if dtype.names is not None:
        for name in dtype.names:
            field = array[name]  # a field with a shape of its own has more axes
            field[...] = contents(field.dtype, field.shape, seed + 1)
    elif dtype.kind == "b":
        array[...] = rng.integers(0, 2, shape)
    elif dtype.kind in "SU":
        array[...] = rng.integers(0, 1000, shape).astype(dtype.kind + "3").astype(dtype)
    elif dtype.char in "gG":
        array[...] = rng.normal(size=shape)
    elif array.nbytes:
        array = np.frombuffer(rng.bytes(array.nbytes), dtype).reshape(shape).copy()
    return array


LAYOUTS = {
    "as it is": lambda array: array,
    "transposed": lambda array: array.T,
    "Fortran": np.asfortranarray,
    "backwards": lambda array: array[::-1] if array.ndim else array,
    "every other": lambda array: array[..., ::2] if array.ndim else array,
    "swapped axes": lambda array: array.swapaxes(0, -1) if array.ndim else array,
    "broadcast": lambda array: np.broadcast_to(array, (2, *array.shape)),
    "view": lambda array: np.concatenate([array, array])[1 : 1 + len(array)] if array.ndim else array,
}


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    """Draw an array of any dtype, shape and layout; maybe read-only."""
    shape = draw(npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    array = contents(draw(dtypes), shape, draw(st.integers(0, 2**32)))
    array = LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))](array)
    if draw(st.booleans()):
        array = array.view()
        array.flags.writeable = False
    return array


numbers = st.builds(
    lambda char, seed: contents(np.dtype(char), (1,), seed)[0],
    st.sampled_from("?bBhHiIlLqQefdgFDG"),
    st.integers(0, 99),
)
rarer = st.one_of(
    st.sampled_from([Colour.RED, Colour.BLUE, Level.HIGH, ..., int, len, range(3), bytearray(b"abc"), b"x" * 5000]),
    st.builds(np.datetime64, st.integers(0, 9), st.just("ms")),
    st.builds(np.str_, any_text),
    st.builds(np.bytes_, st.binary(max_size=4)),
    st.sets(atoms.filter(lambda atom: atom == atom), max_size=3),
    st.frozensets(st.tuples(any_text, st.integers()), max_size=3),
    st.builds(lambda parts: np.array([*parts, None], object), st.lists(atoms, max_size=3)),
    st.builds(collections.OrderedDict, st.dictionaries(any_text, arrays(), max_size=2)),
)
leaves = st.one_of(atoms, arrays(), numbers, rarer)


@st.composite
def columns(draw: st.DrawFn, elements: st.SearchStrategy[Any] = leaves) -> list[Any]:
    """Draw a list of like things: arrays that agree in dtype and tail, numbers of one type, atoms; or not quite."""
    num = draw(st.integers(0, 5))
    form = draw(st.sampled_from(["ragged", "equal", "points", "numbers", "text", "anything"]))
    dtype, seed = draw(dtypes), draw(st.integers(0, 2**32))
    tail = draw(npst.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3))
    if form == "ragged":
        column: list[Any] = [contents(dtype, (draw(st.integers(0, 4)), *tail), seed + i) for i in range(num)]
    elif form == "equal":
        column = [contents(dtype, (2, *tail), seed + i) for i in range(num)]
    elif form == "points":
        column = [contents(dtype, (), seed + i) for i in range(num)]
    elif form == "numbers":
        char = draw(st.sampled_from("?bBhHiIlLqQefdgFDG"))
        column = [contents(np.dtype(char), (1,), seed + i)[0] for i in range(num)]
    elif form == "text":
        column = draw(st.lists(any_text, min_size=num, max_size=num))
    else:
        column = draw(st.lists(elements, min_size=num, max_size=num))
    if column and draw(st.integers(0, 3)) == 0:  # one that does not fit
        column[draw(st.integers(0, num - 1))] = draw(elements)
    return column


@st.composite
def seq_lists(draw: st.DrawFn, elements: st.SearchStrategy[Any] = leaves) -> list[Any]:
    """Draw a list of records with the same fields."""
    made_of = draw(st.sampled_from([dict, tuple, *RECORDS]))
    names = draw(st.lists(any_text, max_size=4, unique=True)) if made_of in (dict, tuple) else ["one", "two"]
    fields = [draw(columns(elements)) for _ in names]
    rows = list(zip(*fields, strict=False))
    if made_of is dict:
        return [dict(zip(names, row, strict=True)) for row in rows]
    if made_of is tuple:
        return rows
    return [made_of(*row) for row in rows]


def _containers(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(parts, max_size=4),
        st.lists(parts, max_size=4).map(tuple),
        st.dictionaries(keys, parts, max_size=4),
        st.builds(lambda record, one, two: record(one, two), st.sampled_from(RECORDS), parts, parts),
        columns(parts),
        seq_lists(parts),
    )


values = st.recursive(leaves, _containers, max_leaves=12)
