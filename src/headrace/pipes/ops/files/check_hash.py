"""Checking the hashes of files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from headrace.errors import ConfigError

from ...core.base import IterPipe, read
from ...core.registry import functional_pipe
from ...core.skeletons import OneForOne

_PIECE_BYTES = 2**20


def hash_of(data: Any, hash_type: str, *, rewind: bool = True) -> str:
    """Return the hash of bytes, text (as UTF-8) or an open file, in hexadecimal digits.

    Args:
        data: The data. An open file is read to its end.
        hash_type: `"sha256"` or `"md5"`.
        rewind: Seek back to the start of the file afterwards.
    """
    digest = hashlib.new(hash_type, usedforsecurity=False)
    if isinstance(data, str):
        digest.update(data.encode())
    elif isinstance(data, (bytes, bytearray, memoryview)):
        digest.update(data)
    else:
        while piece := data.read(_PIECE_BYTES):
            digest.update(piece.encode() if isinstance(piece, str) else piece)
        if rewind:
            data.seek(0)
    return digest.hexdigest()


def check_hash_type(hash_type: str) -> str:
    """Return the name of a hash function.

    Raises:
        ConfigError: It is neither `"sha256"` nor `"md5"`.
    """
    if hash_type not in ("sha256", "md5"):
        raise ConfigError(f"Invalid hash_type requested, should be one of ['sha256', 'md5'], got {hash_type!r}")
    return hash_type


@functional_pipe("check_hash")
class HashChecker(OneForOne[Any]):
    """Check the hash of each file, and pass the item on.

    Args:
        source_datapipe: The source, whose items are (path, data): bytes, text or an open file.
        hash_dict: Path -> expected hash in hexadecimal digits.
        hash_type: `"sha256"` or `"md5"`.
        rewind: Seek open files back to their start afterwards.

    Raises:
        ConfigError: The hash type is unknown.
        RuntimeError: A path is not in `hash_dict`, or its hash differs (while iterating).

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> import hashlib
        >>> known = {"a.txt": hashlib.sha256(b"hello").hexdigest()}
        >>> list(IterableWrapper([("a.txt", b"hello")]).check_hash(known))
        [('a.txt', b'hello')]
    """

    def __init__(
        self,
        source_datapipe: IterPipe[Any],
        hash_dict: Mapping[str, str],
        hash_type: str = "sha256",
        rewind: bool = True,
    ) -> None:
        self.source_datapipe = source_datapipe
        self.hash_dict = hash_dict
        self.hash_type = check_hash_type(hash_type)
        self.rewind = rewind

    def __iter__(self) -> Iterator[Any]:
        for path, data in read(self.source_datapipe):
            if path not in self.hash_dict:
                raise RuntimeError(f"Unspecified hash for file {path}")
            found = hash_of(data, self.hash_type, rewind=self.rewind)
            if found != self.hash_dict[path].lower():
                raise RuntimeError(
                    f"The computed hash {found} of {path} does not match the expected hash {self.hash_dict[path]}. "
                    "Delete the file manually and retry."
                )
            yield path, data
