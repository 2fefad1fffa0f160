"""Tells whether results are interchangeable: a digest of all that a worker is given, and of the user code around it.

Invariant: what differs in anything that is looked at here is not shared, though it may make the same batches; that
costs work and is never wrong. What is not looked at is what a function reads elsewhere at run time, files of the
user's own above all (docs/how-to/shared-service.md). Digests are XXH3 of 128 bits: they tell accidents apart, and who
may ask at all has shown that it knows the secret.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import cloudpickle
import msgspec
import xxhash

from ...process.worker_config import Shipment

DIGEST_BYTES = 16
"""Bytes of a digest."""

_OWN = "headrace"
_INSTALLED = ("site-packages", "dist-packages")


def digest_recipe(shipment: Shipment, *others: object) -> bytes:
    """Return the digest of a job, with all that its workers are given and the user's code next to it.

    Args:
        shipment: The job, pickled.
        others: Other things that have to be equal: numbers, texts, lists and bytes.
    """
    parcel = shipment.parcel
    plain = (
        list(map(_canonical, shipment.formats)),
        shipment.argv,
        shipment.cwd,
        shipment.preload,
        shipment.executor,
        [entry for entry in sys.path if isinstance(entry, str)],
        [buffer.raw().nbytes for buffer in parcel.buffers],
        digest_code(),
        others,
    )
    digest = xxhash.xxh3_128()
    for part in (msgspec.msgpack.encode(plain), _canonical(parcel.data)):
        digest.update(len(part).to_bytes(8, "little") + part)
    for buffer in parcel.buffers:
        digest.update(buffer.raw())
    return digest.digest()


def digest_payload(payload: bytes) -> bytes:
    """Return the digest of what a ticket is about."""
    return xxhash.xxh3_128_digest(payload)


def _canonical(data: bytes) -> bytes:
    """Return a pickle without the numbers that cloudpickle draws at random for classes of `__main__` in each process.

    A class that has no name there keeps its number, so what refers to it is never shared: results that are of this
    class would not be of the class that another trainer knows.
    """
    main = sys.modules.get("__main__")
    try:
        known = list(cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS.items())
    except AttributeError:  # another cloudpickle: what has such a class is not shared
        return data
    found = sorted(
        (place, number.encode())
        for kind, number in known
        if getattr(main, kind.__name__, None) is kind and (place := data.find(number.encode())) >= 0
    )
    for rank, (_, number) in enumerate(found):
        data = data.replace(number, b"%0*d" % (len(number), rank))
    return data


def digest_code() -> bytes:
    """Return the digest of the user's source files: all in the folders from which this process has imported any.

    A pickle names what can be imported, and does not hold it. Installed packages and Headrace are left out: the service
    has its own.
    """
    digest = xxhash.xxh3_128()
    for folder in sorted(_folders_of_user()):
        for path in sorted(folder.glob("*.py")):
            try:
                content = path.read_bytes()
            except OSError:  # it was there a moment ago, or is not for us to read: so it is for the workers
                continue
            digest.update(f"{path}\0{len(content)}\0".encode(errors="surrogateescape") + content)
    return digest.digest()


def _folders_of_user() -> set[Path]:
    installed = {path for name, path in sysconfig.get_paths().items() if name.endswith(("lib", "stdlib"))}
    folders = set()
    for name, file in _files_of_modules():
        path = Path(file).absolute()
        parts = path.parts
        is_installed = any(part in parts for part in _INSTALLED) or any(path.is_relative_to(root) for root in installed)
        if not is_installed and name.partition(".")[0] != _OWN:
            folders.add(path.parent)
    return folders


def _files_of_modules() -> Iterable[tuple[str, str]]:
    for name, module in list(sys.modules.items()):
        try:
            file = object.__getattribute__(module, "__dict__").get("__file__")  # without loading one that is lazy
        except AttributeError:
            continue
        if isinstance(file, str):
            yield name, file
