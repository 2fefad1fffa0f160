"""Generators of the process that are seeded when they are next drawn from: what is not drawn from costs nothing.

A Mersenne twister takes some microseconds to seed, and most functions of users never draw. So only the seed is noted
here; code that draws, or looks at a state, or sets one, gets a generator that was seeded just before. From then on it
is what it was before: nothing of ours is in the way of a draw. Every number, and every state, is the same as if the
generators had been seeded at once.

Invariants: a generator is seeded lazily only where no code holds a function or object that draws without passing here
(`from random import random` binds one), which the counts of references tell. What is forked while a seed is noted draws
what it would have drawn: NumPy's generator goes on from the seed, Python's from what the system gave it. For processes
in which one thread at a time seeds; draws of other threads are as safe as they are without this.
"""

from __future__ import annotations

import ctypes
import os
import random
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from numpy.random import MT19937, RandomState

from .keyed import derive_seed

# A generator that was drawn from is next seeded at once, for this many seedings, and twice as many each time: code that
# always draws pays no more for being asked again and again.
_FIRST_PAUSE = 16


SeedKey = tuple[int, str, int, int]  # seed, purpose, epoch and number, see `derive_seed`


def key_seed(key: SeedKey) -> int:
    """Return the seed of a key: 63 bits, of which NumPy's generator takes the lower 32."""
    seed, purpose, epoch, number = key
    return derive_seed(seed, purpose, epoch=epoch, corpus_idx=number, bits=63)


class _LazySeed:
    """The seed of one generator, and whether to note it.

    Attributes:
        is_armed: Whether it tells of the next draw.
        pending: What it is seeded by then.
    """

    def __init__(self) -> None:
        self.pending: SeedKey | None = None
        self._pause, self._num_left = _FIRST_PAUSE, 0
        self.is_armed = False

    def note(self, key: SeedKey) -> bool:
        """Have the generator seeded when it is drawn from; False if it has to be seeded at once."""
        if not self.is_armed:
            if self._num_left:
                self._num_left -= 1
                return False
            self.is_armed = self._arm()
            if not self.is_armed:
                self._wait()
                return False
        self.pending = key
        return True

    def take(self) -> int | None:
        """Let the generator draw for itself; return the seed that it has to get before, if there is one."""
        if not self.is_armed:
            return None
        self._wait()
        self.is_armed = False
        self._disarm()
        key, self.pending = self.pending, None
        return None if key is None else key_seed(key)

    def _wait(self) -> None:
        self._num_left, self._pause = self._pause, 2 * self._pause

    def _arm(self) -> bool:
        """Be told of the next draw; False if that cannot be."""
        raise NotImplementedError

    def _disarm(self) -> None:
        """Have it draw for itself."""
        raise NotImplementedError


# --- Python's ---

_SHARED: Any = random._inst  # the generator whose methods are the functions of `random`
# Those of its methods that draw or tell the state by themselves. All others call these, or touch `gauss_next`, which
# `seed` and `setstate` do: so these are noticed also where somebody has bound them before.
_METHODS = ("random", "getrandbits", "getstate")


class _LazyRandom(random.Random):
    """The class of Python's generator while a seed is noted for it."""

    __slots__ = ()

    def random(self) -> float:
        """Draw."""
        return _settled().random()  # type: ignore[no-any-return]

    def getrandbits(self, k: int, /) -> int:
        """Draw."""
        return _settled().getrandbits(k)  # type: ignore[no-any-return]

    def getstate(self) -> tuple[Any, ...]:
        """Return the state that it would have had."""
        return _settled().getstate()  # type: ignore[no-any-return]

    def __reduce__(self) -> Any:
        return _settled().__reduce__()

    @property
    def gauss_next(self) -> float | None:
        """The normal number that is kept for the next call."""
        return _settled().gauss_next  # type: ignore[no-any-return]

    @gauss_next.setter
    def gauss_next(self, value: float | None) -> None:  # somebody is setting the state
        of_python.take()
        _SHARED.gauss_next = value


def _settled() -> Any:
    """Return Python's generator, seeded if a seed is noted for it."""
    seed = of_python.take()
    if seed is not None:
        _SHARED.seed(seed)
    return _SHARED


class _OfPython(_LazySeed):
    def __init__(self) -> None:
        super().__init__()
        self._plain: dict[str, Any] = {}  # the functions of the module, while others are in their place
        self._lazy: dict[str, Any] = {}

    def _arm(self) -> bool:
        if type(_SHARED) is not random.Random or not _are_unshared(random, _METHODS):
            return False
        if any(getattr(random, name) != getattr(_SHARED, name) for name in _METHODS):  # replaced by the user
            return False
        if not self._lazy:
            os.register_at_fork(after_in_child=self._forget)
        _SHARED.__class__ = _LazyRandom
        self._plain = {name: getattr(random, name) for name in _METHODS}
        self._lazy = {name: getattr(_SHARED, name) for name in _METHODS}
        for name, function in self._lazy.items():
            setattr(random, name, function)
        return True

    def _disarm(self) -> None:
        shared = _SHARED
        if type(shared) is _LazyRandom:
            shared.__class__ = random.Random  # type: ignore[assignment]
        plain, self._plain = self._plain, {}
        for name, function in plain.items():
            if getattr(random, name) is self._lazy[name]:  # and not what somebody has put there meanwhile
                setattr(random, name, function)

    def _forget(self) -> None:
        """Leave the generator as it is: in a forked child, for which Python has seeded it anew."""
        self.take()


def _are_unshared(module: ModuleType, names: tuple[str, ...]) -> bool:
    """Tell whether bound methods that are in a module are nowhere else."""
    other: Any = ModuleType("other")
    instance = random.Random(0)  # noqa: S311 - to compare with
    for name in names:
        setattr(other, name, getattr(instance, name))
    return all(sys.getrefcount(getattr(module, name)) <= sys.getrefcount(getattr(other, name)) for name in names)


# --- NumPy's ---


MT19937_BYTES = 625 * 4  # the C struct of NumPy's Mersenne twister: 624 words of state, and the position in them


class _BitGenStruct(ctypes.Structure):
    """NumPy's `bitgen_t`: the state, and the functions that draw from it."""

    _fields_ = (
        ("state", ctypes.c_void_p),
        ("next_uint64", ctypes.c_void_p),
        ("next_uint32", ctypes.c_void_p),
        ("next_double", ctypes.c_void_p),
        ("next_raw", ctypes.c_void_p),
    )


_RESULTS: dict[str, Any] = {
    "next_uint64": ctypes.c_uint64,
    "next_uint32": ctypes.c_uint32,
    "next_double": ctypes.c_double,
    "next_raw": ctypes.c_uint64,
}
_CAPSULE_NAME = b"BitGenerator"
_POINTER_OF = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_CAPSULE_OF = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


class _LazyTwister(MT19937):
    """Stands for NumPy's generator while a seed is noted for it; a look at it gives the state of the real one.

    The functions of C that draw call Python once, which seeds the generator and puts it back in its place. They have
    the state of the generator itself, so what was begun goes on with it.
    """

    def __init__(self, real: MT19937) -> None:
        super().__init__(0)
        self.real = real
        self._is_shown = False
        address = _POINTER_OF(real.capsule, _CAPSULE_NAME)
        plain = _BitGenStruct.from_address(address)
        self._functions = []  # of C, which call Python
        self._struct = _BitGenStruct(state=plain.state)
        for name, result in _RESULTS.items():
            kind = ctypes.CFUNCTYPE(result, ctypes.c_void_p)
            function = kind(_settling(kind(getattr(plain, name))))
            self._functions.append(function)
            setattr(self._struct, name, ctypes.cast(function, ctypes.c_void_p).value)
        own = _POINTER_OF(MT19937.capsule.__get__(self), _CAPSULE_NAME)  # type: ignore[attr-defined, unused-ignore]
        self._own_state = _BitGenStruct.from_address(own).state
        self._own_capsule = _CAPSULE_OF(ctypes.addressof(self._struct), _CAPSULE_NAME, None)

    def arm(self) -> None:
        """Take its place."""
        self._is_shown = True
        try:
            np.random.set_bit_generator(self)  # type: ignore[attr-defined, unused-ignore]
        finally:
            self._is_shown = False

    def seed_real(self, seed: int) -> None:
        """Seed the generator as NumPy does; not by NumPy, whose older versions wait here for the lock of the draw."""
        MT19937._legacy_seeding(self, seed)  # type: ignore[attr-defined, unused-ignore]
        ctypes.memmove(self._struct.state, self._own_state, MT19937_BYTES)

    def settled(self) -> MT19937:
        """Return the generator, seeded if a seed is noted for it."""
        of_numpy.settle()
        return self.real

    @property
    def capsule(self) -> Any:
        """What C draws from: for others than NumPy's own functions, that of the generator."""
        return self._own_capsule if self._is_shown else self.settled().capsule

    @property
    def lock(self) -> Any:  # type: ignore[override]
        """The lock of the generator."""
        return self.real.lock

    @property
    def state(self) -> Any:
        """The state that the generator would have had."""
        return self.settled().state

    @state.setter
    def state(self, value: Any) -> None:
        of_numpy.settle()
        self.real.state = value

    def __reduce__(self) -> Any:
        return self.settled().__reduce__()

    def _legacy_seeding(self, seed: Any) -> None:
        of_numpy.settle()  # before: it may be refused
        self.real._legacy_seeding(seed)  # type: ignore[attr-defined, unused-ignore]


def _passed_on(name: str) -> Any:
    return property(lambda twister: getattr(twister.settled(), name))


for _name in ("cffi", "ctypes", "jumped", "random_raw", "seed_seq", "spawn", "_seed_seq"):
    if hasattr(MT19937, _name):
        setattr(_LazyTwister, _name, _passed_on(_name))


def _settling(draw: Callable[[int], Any]) -> Callable[[int], Any]:
    def first(state: int) -> Any:
        of_numpy.settle()
        return draw(state)

    return first


class _OfNumPy(_LazySeed):
    def __init__(self) -> None:
        super().__init__()
        self.twister: _LazyTwister | None = None

    def note(self, key: SeedKey) -> bool:
        """See the class above."""
        if self.is_armed and np.random.get_bit_generator() is not self.twister:  # type: ignore[attr-defined, unused-ignore]
            self.settle()  # the user has put another generator in its place
        return super().note(key)

    def settle(self) -> None:
        """Seed the generator if a seed is noted, and let it draw for itself."""
        seed = self.take()
        if seed is not None:
            assert self.twister is not None
            self.twister.seed_real(seed % 2**32)

    def _arm(self) -> bool:
        twister = self.twister
        if twister is not None and settled_bit_generator() is not twister.real:
            twister = self.twister = None
        if type(settled_bit_generator()) is not MT19937 or not _is_unshared(0 if twister is None else 1):
            return False
        try:
            self.twister = twister = twister or _LazyTwister(settled_bit_generator())
        except (OSError, MemoryError):  # a system on which no function can be made
            return False
        twister.arm()
        return True

    def _disarm(self) -> None:
        _replace_twister()


def _is_unshared(num_ours: int) -> bool:
    """Tell whether only NumPy, and `num_ours` references of ours, can draw from its generator."""
    other: Any = RandomState(MT19937(0))
    shared: Any = np.random
    return sys.getrefcount(shared.get_bit_generator()) <= sys.getrefcount(
        other._bit_generator
    ) + num_ours and sys.getrefcount(shared.get_bit_generator().capsule) <= sys.getrefcount(
        other._bit_generator.capsule
    )


of_python = _OfPython()
of_numpy = _OfNumPy()


def note_another(key: SeedKey) -> bool:
    """Note a seed for both, if none of them was drawn from since the last one; in a third of the time of `note`."""
    if not (of_python.is_armed and of_numpy.is_armed):
        return False
    if np.random.get_bit_generator() is not of_numpy.twister:  # type: ignore[attr-defined, unused-ignore]
        return False
    of_python.pending = of_numpy.pending = key
    return True


def _replace_twister() -> None:
    """Put NumPy's generator where what stands for it is now, if it is there."""
    current = np.random.get_bit_generator()  # type: ignore[attr-defined, unused-ignore]
    if type(current) is _LazyTwister:
        np.random.set_bit_generator(current.real)  # type: ignore[attr-defined, unused-ignore]


def settled_bit_generator() -> Any:
    """Return NumPy's generator itself, seeded if a seed is noted for it."""
    of_numpy.settle()
    if type(np.random.get_bit_generator()) is _LazyTwister:  # type: ignore[attr-defined, unused-ignore]
        state: Any = np.random.get_state(legacy=False)  # the user has put it back, and may have drawn from it
        _replace_twister()
        np.random.set_state(state)  # with the normal number that is held back for the next call
    return np.random.get_bit_generator()  # type: ignore[attr-defined, unused-ignore]
