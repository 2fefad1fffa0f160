"""Carries the user's functions and objects to a worker, or says clearly what cannot be carried.

What cloudpickle can carry can be carried: lambdas, closures, and functions and classes of `__main__`, of a notebook or
of `exec`, which travel by value. On top of cloudpickle:

* An open file is refused. (cloudpickle would read the whole file and ship a copy of its text.)
* Functions that travel by value keep the names of their files, so that tracebacks show their lines.
* A module that the import system did not load (`runpy.run_path(run_name="foo")`, `types.ModuleType`) cannot be imported
  by a worker, so what it defines travels by value too.
* More than 10 MB raise a warning: most of it is nearly always a global that a function mentions.

Invariants: a parcel holds two pickles that share one memo, the object and then the classes and functions of `__main__`
that travel with it by value. `unship` plants those in the worker's `__main__`, so that plain pickle finds them there.
Only a trainer and its own workers exchange parcels; nothing here reads a pickle from a file.
"""

from __future__ import annotations

import io
import pickle
import struct
import sys
import types
import warnings
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import cloudpickle

from headrace.errors import ConfigError

from ..codec.by_value import Pickler

# Above this a parcel is worth a warning: all but its large arrays is unpickled by each worker.
LARGE_BYTES = 10 * 1000 * 1000
_SHARED_BYTES = 64 << 10  # smaller arrays are in the pickle: a mapped one costs a page of its own
_MAIN = b"__main__"
_OWN = "headrace."
# Modules of others that are imported once for all workers, if those need them: they take a second, and start no thread
# where there is one thread for numerical libraries.
_SLOW_MODULES = ("torch",)


class Parcel(NamedTuple):
    """An object on its way to several workers.

    Attributes:
        data: Its pickle.
        buffers: Its large arrays, which are not in the pickle.
        modules: The names of our own modules that it refers to. No others: what importing those does, threads that
            it starts for example, is for the worker alone.
        slow_modules: Those of others, of a few known ones, that it needs: by name, or as the module of something that
            it refers to needs them. They may be imported before.
    """

    data: bytes
    buffers: list[pickle.PickleBuffer]
    modules: set[str]
    slow_modules: tuple[str, ...] = ()

    @property
    def num_bytes(self) -> int:
        """All that the workers are sent."""
        return len(self.data) + sum(buffer.raw().nbytes for buffer in self.buffers)


def ship(obj: object, *, what: str = "job", warn: bool = True) -> bytes:
    """Pickle an object for a worker, with the `__main__` classes that it needs.

    Args:
        obj: Anything that cloudpickle can carry, open files excepted.
        what: What the user calls this object.
        warn: Whether more than 10 MB raise a warning.

    Raises:
        ConfigError: Something in it cannot be carried.
    """
    return _pack(obj, what, warn=warn, splits=False).data


def ship_job(job: object) -> Parcel:
    """Pickle a job for several workers; its large arrays are for them to share. As `ship` otherwise."""
    return _pack(job, "job", warn=True, splits=True)


def _pack(obj: object, what: str, *, warn: bool, splits: bool) -> Parcel:
    try:
        parcel = _dump(obj, splits=splits)
    except Exception as error:  # pickling runs user code, which may raise anything
        raise ConfigError(
            f"this {what} cannot be sent to a worker process: {error or type(error).__name__}",
            fix="make what it holds inside the worker (in the setup function or on first use), leave it out in "
            "__getstate__, or use executor='thread' or 'inline'",
        ) from error
    if warn and parcel.num_bytes > LARGE_BYTES:
        warnings.warn(
            f"{what} takes {parcel.num_bytes / 1e6:.0f} MB, which the workers will hold once more. Load it inside the "
            "worker instead, or from a file that the workers share.",
            UserWarning,
            stacklevel=3,
        )
    return parcel


def ship_payload(payload: object) -> bytes:
    """Pickle what goes to a worker with one ticket: as `ship`, but by plain pickle (0.3 us against 15) where that does.

    Plain pickle refers to things of `__main__` by name, which a worker cannot resolve; those go the long way.
    """
    try:
        data = pickle.dumps(payload, pickle.HIGHEST_PROTOCOL)
    except Exception:  # noqa: BLE001 - whatever it is, `ship` carries it or says what is wrong
        return ship(payload, what="payload", warn=False)
    return ship(payload, what="payload", warn=False) if _MAIN in data else data


def unship(data: bytes | memoryview, buffers: Iterable[memoryview] = ()) -> Any:
    """Return the object of a parcel, after planting its `__main__` names. Worker only.

    Args:
        data: Its pickle.
        buffers: What belongs to it; arrays become views of them.

    Raises:
        ConfigError: A module that the parcel refers to cannot be imported here.
    """
    try:
        if type(data) is bytes and _MAIN not in data:  # nothing to plant: a third of the time
            return pickle.loads(data, buffers=buffers)  # noqa: S301 - from our own trainer
        file = io.BytesIO(data)
        unpickler = pickle.Unpickler(file, buffers=buffers)  # noqa: S301 - the same
        obj = unpickler.load()
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"a worker cannot import the module {error.name!r}, which defines something that was sent to it",
            where=f"sys.path of the worker: {sys.path}",
            fix="put the module on sys.path before the workers start, or define the object in __main__, "
            "whose functions and classes travel by value",
        ) from error
    if file.tell() == len(data):  # nothing of __main__ is in it
        return obj
    planted = unpickler.load()
    main = sys.modules["__main__"]
    for name, value in planted.items():
        if not hasattr(main, name):
            setattr(main, name, value)
    return obj


class _ParcelPickler(Pickler):
    """cloudpickle, which also notes what travels by value, and refuses open files."""

    def __init__(self, file: io.BytesIO, buffers: list[pickle.PickleBuffer] | None) -> None:
        keep = None if buffers is None else partial(_is_small, buffers)
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL, buffer_callback=keep)
        self.planted: dict[str, object] = {}
        self.by_value: list[types.ModuleType] = []
        self.own_modules: set[str] = set()
        self.other_modules: set[str] = set()

    def slow_modules(self) -> tuple[str, ...]:
        """Return those that are needed for what was pickled so far."""
        loaded = [name for name in _SLOW_MODULES if name in sys.modules]
        return tuple(name for name in loaded if any(_needs(other, name) for other in self.other_modules))

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, io.IOBase) and not isinstance(obj, io.BytesIO | io.StringIO):
            raise pickle.PicklingError(f"an open file cannot be sent to a worker process: {obj!r}")
        if type(obj) is struct.Struct:  # which pickle cannot, and modules that read files have
            return struct.Struct, (obj.format,)
        if isinstance(obj, type | types.FunctionType):
            self._note_origin(obj)
        elif isinstance(obj, types.ModuleType):
            self.other_modules.add(obj.__name__)
        return super().reducer_override(obj)

    def _note_origin(self, obj: type | types.FunctionType) -> None:
        origin = obj.__module__
        if origin == "__main__":
            if obj.__qualname__.isidentifier() and obj.__name__ != "<lambda>":
                self.planted[obj.__qualname__] = obj
            return
        if isinstance(origin, str) and origin.startswith(_OWN):
            self.own_modules.add(origin)
            return
        module = sys.modules.get(origin) if isinstance(origin, str) else None
        # `builtins` and extension modules have a spec; a module without one was made by hand and cannot be imported.
        if isinstance(module, types.ModuleType) and getattr(module, "__spec__", None) is None:
            if origin in cloudpickle.list_registry_pickle_by_value():
                return
            cloudpickle.register_pickle_by_value(module)
            self.by_value.append(module)
        elif isinstance(origin, str) and origin not in cloudpickle.list_registry_pickle_by_value():
            self.other_modules.add(origin)

    def restore_registry(self) -> None:
        for module in self.by_value:
            cloudpickle.unregister_pickle_by_value(module)


def _needs(module: str, name: str) -> bool:
    """Tell whether to import a module is to import another, as far as the names in the module tell."""
    if _is_part(module, [name]):
        return True
    values = list(_namespace_of(sys.modules.get(module)).values())
    return any(
        isinstance(value, types.ModuleType) and _is_part(_namespace_of(value).get("__name__", ""), [name])
        for value in values
    )


def _is_part(module: str, packages: Sequence[str]) -> bool:
    return module.partition(".")[0] in packages


def _namespace_of(module: object) -> dict[str, Any]:
    """Return the names in a module, without loading one that loads itself when it is first used."""
    try:
        namespace: dict[str, Any] = object.__getattribute__(module, "__dict__")
    except AttributeError:
        return {}
    return namespace


def _is_small(buffers: list[pickle.PickleBuffer], buffer: pickle.PickleBuffer) -> bool:
    """Tell whether an array goes into the pickle; add it to the buffers if not."""
    if buffer.raw().nbytes < _SHARED_BYTES:
        return True
    buffers.append(buffer)
    return False


def _dump(obj: object, *, splits: bool = False) -> Parcel:
    file = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    pickler = _ParcelPickler(file, buffers if splits else None)
    try:
        pickler.dump(obj)
        if pickler.planted:
            pickler.dump(dict(pickler.planted))
    finally:
        pickler.restore_registry()
    return Parcel(file.getvalue(), buffers, pickler.own_modules, pickler.slow_modules() if splits else ())
