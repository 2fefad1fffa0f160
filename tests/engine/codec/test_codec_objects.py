"""What is no array: records, text, numbers, and what is left to pickle."""

from __future__ import annotations

import collections
import copyreg
import dataclasses
import functools
import sys
import threading
import types
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from codec_cases import RECORDS, Colour, Level, Longer, PlainSlot, Seq, Span, round_trip, same

from headrace.engine.codec import codec
from headrace.engine.codec.objects import record_form
from headrace.errors import TransformError

EXAMPLES = {
    "booleans are no integers": [True, 1, False, 0, {True: 1}, {1: True}],
    "empty containers": [[], (), {}, set(), frozenset(), "", b"", [[]], ([],), [{}, {}], [(), ()]],
    "keys of many types": {
        None: 1,
        1: 2,
        1.5: 3,
        "a": 4,
        b"b": 5,
        (1, ("x",)): np.ones(2),
        Colour.RED: 6,
        Level.LOW: 7,
    },
    "order of dicts": {"b": 1, "a": {"d": np.ones(1), "c": 2}},
    "long bytes as keys": {b"y" * 5000: 1},
    "standard types": [
        collections.OrderedDict(a=1),
        collections.Counter("aab"),
        collections.deque([1, 2], 5),
        types.SimpleNamespace(a=1),
        Path("/a/b"),
        range(3),
        slice(1, 2),
        ...,
        bytearray(b"abc"),
        functools.partial(int, base=2).func,
    ],
    "datetimes of NumPy": [np.datetime64("2024-01-02T03:04", "m"), np.timedelta64(3, "s"), np.datetime64("NaT", "s")],
    "text of NumPy": [np.str_("a"), np.str_("a\0"), np.bytes_(b"b\0\0"), {np.str_("k"): 1}],
    "text of NumPy in what is pickled": collections.OrderedDict(a=[np.str_("a\0"), np.bytes_(b"\0")]),
    "like dicts with keys of NumPy": [{"k": 1}, {np.str_("k"): 2}],
    "like dicts in another order": [{"a": 1, "b": np.ones(1)}, {"b": np.ones(1), "a": 2}],
    "like dicts with numbers as keys": [{1: np.ones(1)}, {True: np.ones(1)}, {1.0: np.ones(1)}],
    "like tuples of different lengths": [(np.ones(1), 2), (np.ones(1),)],
}


@pytest.mark.parametrize("value", EXAMPLES.values(), ids=EXAMPLES)
def test_what_comes_out_is_what_went_in(value):
    assert same(value, round_trip(value))


@pytest.mark.parametrize("record", RECORDS)
def test_arrays_of_records_are_not_pickled(record):
    assert record_form(record) is not None


class WithReduce(NamedTuple):
    x: int

    def __reduce__(self):
        return WithReduce, (self.x + 1,)


@dataclasses.dataclass
class WithState:
    x: Any

    def __getstate__(self):
        return {"x": "from __getstate__"}


@dataclasses.dataclass
class WithSetState:
    x: Any

    def __setstate__(self, state):
        self.x = "from __setstate__"


@dataclasses.dataclass
class WithNew:
    x: Any = None

    def __new__(cls, *args):
        made = super().__new__(cls)
        made.x = "from __new__"
        return made


@dataclasses.dataclass
class ListWithFields(list):
    x: Any = None


@dataclasses.dataclass
class Registered:
    x: Any


def test_a_class_that_says_how_it_is_pickled_is_pickled_that_way(monkeypatch):
    monkeypatch.setitem(copyreg.dispatch_table, Registered, lambda registered: (Registered, ("from copyreg",)))
    held = ListWithFields(3)
    held.extend([1, 2])
    assert round_trip(WithReduce(1)) == WithReduce(2)
    assert round_trip(WithState(1)).x == "from __getstate__"
    assert round_trip(WithSetState(1)).x == "from __setstate__"
    assert round_trip([WithNew(1), WithNew(2)]) == [WithNew(1), WithNew(2)]
    assert round_trip(Registered(1)).x == "from copyreg"
    decoded = round_trip(held)
    assert list(decoded) == [1, 2]
    assert decoded.x == 3


def test_attributes_that_are_no_fields_and_fields_without_a_value_are_kept():
    seq = Seq(np.ones(2))
    seq.note = "extra"
    assert round_trip(seq).note == "extra"
    slotted = object.__new__(Longer)
    object.__setattr__(slotted, "data", 1)
    assert not hasattr(round_trip(slotted), "tag")


def test_init_is_not_called_when_a_dataclass_comes_back():
    @dataclasses.dataclass
    class Counted:
        x: Any
        num_calls: int = 0

        def __post_init__(self):
            self.num_calls += 1

    assert round_trip(Counted(np.ones(1))).num_calls == 1
    assert [counted.num_calls for counted in round_trip([Counted(1), Counted(2)])] == [1, 1]


def test_classes_and_functions_without_an_importable_name_come_by_cloudpickle():
    class Local:
        def __init__(self, x):
            self.x = x

    class Main:
        pass

    Main.__module__, Main.__qualname__ = "__main__", "Main"  # as a worker sees a class of the user's script
    offset = 3
    local, main, add = round_trip([Local(np.arange(3)), Main(), lambda x: x + offset])
    assert type(local) is Local
    assert local.x.tolist() == [0, 1, 2]
    assert type(main) is Main
    assert add(1) == 4


def test_a_value_that_contains_itself_comes_back_so():
    value: list[Any] = [1, np.arange(3)]
    value.append({"again": value})
    decoded = round_trip(value)
    assert decoded[2]["again"] is decoded
    assert decoded[1].tolist() == [0, 1, 2]
    mapping: dict[str, Any] = {}
    mapping["self"] = mapping
    first, _second = round_trip([mapping, mapping])
    assert first["self"] is first


def test_a_deep_value_comes_back():
    value: Any = np.arange(3)
    for _ in range(200):
        value = [value]
    decoded = round_trip(value)
    for _ in range(200):
        (decoded,) = decoded
    assert decoded.tolist() == [0, 1, 2]


@pytest.mark.long
def test_lists_that_hold_the_same_list_twice_are_not_followed_for_ever():
    value: Any = np.arange(3)
    for _ in range(50):
        value = [value, value]
    decoded = round_trip(value)
    for _ in range(50):
        decoded = decoded[1]
    assert decoded.tolist() == [0, 1, 2]


def test_what_marshal_refuses_is_pickled_as_a_whole(monkeypatch):
    def dumps(tree: Any, version: int) -> bytes:
        if "long" in repr(tree):  # stands for text of 2 GiB
            raise ValueError("unmarshallable object")
        return real.dumps(tree, version)

    real = codec.marshal
    monkeypatch.setattr(codec, "marshal", types.SimpleNamespace(dumps=dumps, loads=real.loads))
    value = {"a": "long", "b": np.arange(3)}
    assert same(value, round_trip(value))


LOCK = threading.Lock()
REFUSED = {
    "a lock in a list": ([1, {"x": LOCK}], "result[1]['x']", "_thread.lock"),
    "a lock in like dicts": ([{"x": 1}, {"x": LOCK}], "result[1]['x']", "_thread.lock"),
    "a generator": ((i for i in range(3)), "result", "generator"),
    "an open file in a dataclass": (Seq(data=sys.__stdout__), "result.data", "TextIOWrapper"),
    "a memoryview in a namedtuple": (Span(1, memoryview(b"abc")), "result[1]", "memoryview"),
}


@pytest.mark.parametrize(("value", "where", "what"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_sent_is_refused_with_its_place_and_leaves_the_slot_as_it_was(value, where, what):
    slot = PlainSlot()
    with pytest.raises(TransformError, match=what) as caught:
        codec.encode(value, slot)
    assert caught.value.where == where
    assert slot.used == 0


def test_an_error_of_the_users_own_pickling_passes_through():
    class Broken:
        def __reduce__(self):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        codec.encode([Broken()], PlainSlot())


class Chunk(list):
    __slots__ = ()


class Named(list):
    def __init__(self, items=(), name="n"):
        super().__init__(items)
        self.name = name


def test_a_kind_of_list_travels_as_a_list_does():
    value = [Chunk([{"x": np.arange(5), "n": n} for n in range(3)]), Chunk([1, 2]), Chunk(), Chunk([Chunk([None])])]
    restored = round_trip(value)
    assert [type(part) for part in restored] == [Chunk] * 4
    assert type(restored[3][0]) is Chunk
    assert restored[0][2]["x"].tolist() == [0, 1, 2, 3, 4]
    assert restored[1:] == value[1:]


def test_a_kind_of_list_with_something_of_its_own_is_pickled():
    restored = round_trip([Named([1, 2], "a")])
    assert (type(restored[0]), restored[0], restored[0].name) == (Named, [1, 2], "a")
    assert record_form(Named) is None
