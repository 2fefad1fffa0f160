"""lhotse's Shar without its data: cuts with the locations of their recordings, features and arrays in the tar files.

`LazySharIterator` does all that it does: shards, shuffles, slices, functions on cuts. Only the `TarIterator` that it
opens for each tar file is replaced, while a loader draws for its workers and in the drawing thread; all other code gets
lhotse's, also at the same time. The replacement reads the headers and the small manifests, and gives objects of
lhotse's with a `Payload` instead of bytes. They are lhotse's in all else: code that needs the bytes gets them, a copy
keeps the location, and in a worker they are lhotse's own classes with bytes.

lhotse's reader is used for what cannot be read like that: commands, URLs, standard input, compressed tar files, other
layouts, and versions of lhotse with another reader than the one known here. Each is logged once.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from lhotse import Features, Recording
from lhotse.array import Array, TemporalArray
from lhotse.audio import AudioSource
from lhotse.serialization import BuiltinIOBackend, decode_json_line, deserialize_item, get_current_io_backend
from lhotse.shar.readers import lazy
from lhotse.shar.readers.tar import TarIterator, iterate_tarfile_pairwise, parse_tarinfo
from lhotse.shar.utils import fill_shar_placeholder

from headrace.errors import SourceError
from headrace.files import FileStamp

from .members import Member, scan_tar
from .payload import Payload, is_left_to_workers

_logger = logging.getLogger("headrace.adapters")
_logged: set[str] = set()

# The names that the replaced functions of lhotse's call. A version that calls others may do something else.
_KNOWN_CALLS: list[tuple[Callable[..., Any], str]] = [
    (
        TarIterator.__iter__,
        "tarfile open open_best source iterate_tarfile_pairwise deserialize_item decode_json_line decode "
        "fill_shar_placeholder",
    ),
    (iterate_tarfile_pairwise, "len tuple append parse_tarinfo RuntimeError"),
    (parse_tarinfo, "Path path suffix extractfile read"),
    (
        fill_shar_placeholder,
        "isinstance Cut getattr fill_shar_placeholder Path Recording len sources type source Features Array "
        "storage_key suffix storage_type RuntimeError TemporalArray array __name__",
    ),
]


def install() -> None:
    """Make lhotse use the reader of tar files defined here; harmless when repeated."""
    if lazy.TarIterator is _open_tar:
        return
    unknown = [function.__qualname__ for function, calls in _KNOWN_CALLS if not _calls_only(function, calls.split())]
    if lazy.TarIterator is not TarIterator:
        unknown.append("lazy.TarIterator")
    if unknown:
        _log_once("version", f"this version of lhotse has another {unknown[0]}")
        return
    lazy.TarIterator = _open_tar


def _calls_only(function: Any, names: list[str]) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and set(code.co_names) <= set(names)


def _log_once(kind: str, reason: str) -> None:
    if kind not in _logged:
        _logged.add(kind)
        _logger.info("data of Shar are read by the sampler, not by the workers: %s", reason)


def _open_tar(*args: Any, **options: Any) -> Any:
    """Return an iterable over a tar file of Shar; lhotse calls it instead of `TarIterator`."""
    if not is_left_to_workers():
        return TarIterator(*args, **options)
    if len(args) != 1 or options or not _is_plain_file(args[0]):
        # The source is not shown: a command or a URL may have a password in it.
        _log_once("source", "a tar file is a command, a URL, compressed, or opened by another backend of lhotse's")
        return TarIterator(*args, **options)
    return ShardIterator(args[0])


def _is_plain_file(source: Any) -> bool:
    """Tell whether lhotse would read a file of this machine, as it is."""
    if not isinstance(source, str | Path):
        return False
    backend = get_current_io_backend()
    backends = getattr(backend, "backends", [backend])
    chosen = next((one for one in backends if one.handles_special_case(source)), None)
    if chosen is None:
        chosen = next((one for one in backends if one.is_applicable(source)), None)
    return type(chosen) is BuiltinIOBackend and os.path.isfile(source)


class ShardIterator:
    """Manifests of a tar file of Shar, as `TarIterator` gives them, with their data left in the file.

    Args:
        source: Path of the tar file.
    """

    def __init__(self, source: str | Path) -> None:
        self.source = source

    def __iter__(self) -> Iterator[tuple[Any, Path]]:
        num = 0
        try:
            shard = FileStamp.of(os.path.realpath(self.source))
            for member in scan_tar(shard.path):
                yield _manifest_of(member, shard)
                num += 1
        except SourceError as error:
            # Errors in the file are left to lhotse, to report or to skip.
            _log_once("layout", f"{error.what} ({self.source})")
        else:
            return
        yield from itertools.islice(TarIterator(self.source), num, None)


def _manifest_of(member: Member, shard: FileStamp) -> tuple[Any, Path]:
    path = Path(member.name)
    if member.start < 0:
        return None, path
    manifest = deserialize_item(decode_json_line(member.meta.decode("utf-8")))
    payload = Payload(shard, member.start, member.num_bytes)
    if not _leave(manifest, payload, path):
        fill_shar_placeholder(manifest=manifest, data=payload.read(), tarpath=path)
    return manifest, path


def _leave(manifest: Any, payload: Payload, path: Path) -> bool:
    """Fill a manifest with the location of its data; return False if its type is unknown here."""
    holder = manifest
    if type(manifest) is Recording:
        holder = manifest.sources[0] if len(manifest.sources) == 1 else None
    elif type(manifest) is TemporalArray:
        holder = manifest.array
    kind = _HELD.get(type(holder))
    if kind is None:
        return False
    fill_shar_placeholder(manifest=manifest, data=payload, tarpath=path)
    if vars(holder).get(kind.payload_name) is not payload:
        return False
    holder.__class__ = kind
    return True


def _payload_property(name: str) -> Any:
    """Return an attribute that reads as bytes, and is stored in `__dict__` as the location of the bytes."""

    def get(self: Any) -> Any:
        value = vars(self)[name]
        return value.read() if type(value) is Payload else value

    def put(self: Any, value: Any) -> None:
        vars(self)[name] = value

    return property(get, put)


def _new_plain(kind: type) -> Any:
    return object.__new__(kind)


class _Held:
    """An object of lhotse's whose bytes may still be in their shard.

    `fastcopy` and `pickle` use `__dict__`, which holds the location: a copy is like its original, and a worker
    unpickles lhotse's own class.

    Attributes:
        kind: lhotse's class.
        payload_name: The attribute with the bytes.
    """

    kind: ClassVar[type]
    payload_name: ClassVar[str]

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return _new_plain, (self.kind,), vars(self)

    def __copy__(self) -> _Held:
        new = object.__new__(type(self))
        vars(new).update(vars(self))
        return new

    def __deepcopy__(self, memo: dict[int, Any]) -> _Held:
        new = object.__new__(type(self))
        vars(new).update(copy.deepcopy(vars(self), memo))
        return new

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, self.kind):
            return NotImplemented
        names = [field.name for field in dataclasses.fields(self.kind)]
        return all(getattr(self, name) == getattr(other, name) for name in names)

    __hash__ = None  # type: ignore[assignment] # as lhotse's


class HeldAudio(_Held, AudioSource):  # type: ignore[misc] # lhotse has no type hints
    """Audio."""

    kind, payload_name = AudioSource, "source"
    source = _payload_property("source")


class HeldFeatures(_Held, Features):  # type: ignore[misc]
    """Features."""

    kind, payload_name = Features, "storage_key"
    storage_key = _payload_property("storage_key")


class HeldArray(_Held, Array):  # type: ignore[misc]
    """An array, or what a `TemporalArray` has."""

    kind, payload_name = Array, "storage_key"
    storage_key = _payload_property("storage_key")


_HELD: dict[type, type[_Held]] = {kind.kind: kind for kind in (HeldAudio, HeldFeatures, HeldArray)}
