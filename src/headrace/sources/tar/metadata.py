"""What `TarWriter` notes in an archive: layouts, labels, and which member is which data key.

The metadata are a JSON object, the last member, in a folder that readers of the WebDataset format leave alone. Several
archives of one corpus have one each; they must agree, but for the number of classes: each writer saw its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import SourceError
from headrace.specs import DataSpec

from ..shared.data_types import parse_about
from .members import MemberKey

VERSION = 1


class Metadata:
    """Metadata of one archive, or of several that agree.

    Attributes:
        members: Data key -> extension.
        specs: Data key -> layout, in the order of the keys.
        labels: Data key -> class labels.
        where: The archive, for errors.
    """

    def __init__(
        self, members: dict[str, str], specs: dict[str, DataSpec], labels: Mapping[str, Sequence[str]], where: str = ""
    ) -> None:
        self.members, self.specs, self.labels, self.where = members, specs, labels, where

    def adopt(self, codecs: Mapping[str, MemberKey], lengths: dict[str, NDArray[np.int64]]) -> None:
        """Give codecs the layouts that the writer stored, and set the lengths of keys without a time axis to 1.

        Raises:
            SourceError: The arrays do not have these layouts.
        """
        key_of = {ext: key for key, ext in self.members.items()}
        for own, member_key in codecs.items():
            if not member_key.has_stored_layout or member_key.ext not in key_of:
                continue
            key, codec, frames = key_of[member_key.ext], member_key.codec, lengths[own]
            spec = self.specs[key]
            if len(frames):
                found = codec.spec
                first = int(frames[0]) if frames.min() == frames.max() else None
                axes = (*((first,) if found.has_time else ()), *found.shape)
                wanted = (None, *spec.shape) if spec.has_time else spec.shape
                fits = len(axes) == len(wanted) and all(w in (None, a) for w, a in zip(wanted, axes, strict=True))
                if found.dtype != spec.dtype or not fits:
                    raise SourceError(
                        f"its metadata says {spec.dtype}{list(wanted)} for {key!r}, "
                        f"and the arrays are {found.dtype}{list(axes)}",
                        where=self.where,
                        fix="the archive was changed after it was written: write it again with TarWriter",
                    )
            codec.settle(spec, self.labels.get(key), codec.learnt)
            if not spec.has_time:
                frames[:] = 1

    def to_bytes(self) -> bytes:
        """Return it as it is stored."""
        specs = {key: spec.to_json() for key, spec in self.specs.items()}
        return msgspec.json.encode({"version": VERSION, "members": self.members, "specs": specs, "labels": self.labels})


def read_metadata(data: bytes, where: str) -> Metadata:
    """Read what `to_bytes` returned.

    Raises:
        SourceError: It is damaged, or of a later version.
    """
    what, fix = "the metadata of the archive", "write the archive again with TarWriter, or take its metadata out"
    try:
        stored = msgspec.json.decode(data, type=dict[str, Any])
        version, members = stored["version"], msgspec.convert(stored["members"], dict[str, str])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, KeyError) as error:
        raise SourceError(f"{what} cannot be read: {error}", where=where, fix=fix) from error
    if version != VERSION:
        raise SourceError(
            f"{what} has the version {version}, and this program knows {VERSION}",
            where=where,
            fix="use a newer Headrace",
        )
    specs, labels = parse_about(stored, what, where, fix=fix)
    if members.keys() != specs.keys() or not labels.keys() <= specs.keys():
        raise SourceError(f"the entries in {what} contradict each other", where=where, fix=fix)
    return Metadata({key: members[key] for key in specs}, specs, labels, where)


def merge_metadata(found: list[Metadata]) -> Metadata:
    """Return the merged metadata of several archives of one corpus.

    Raises:
        SourceError: They contradict each other.
    """
    first = found[0]
    specs = dict(first.specs)
    for metadata in found[1:]:
        for key in sorted(specs.keys() ^ metadata.specs.keys()):
            raise _disagreement(f"the data key {key!r} is in one of them only", first, metadata)
        for key, spec in metadata.specs.items():
            ours = specs[key]
            if replace(spec, dim=None) != replace(ours, dim=None) or metadata.labels.get(key) != first.labels.get(key):
                raise _disagreement(f"layouts or labels of {key!r} differ ({ours}, {spec})", first, metadata)
            if metadata.members[key] != first.members[key]:
                raise _disagreement(f"members of {key!r} differ", first, metadata)
            dim = None if spec.dim is None or ours.dim is None else max(spec.dim, ours.dim)
            specs[key] = replace(ours, dim=dim)
    return Metadata(first.members, specs, first.labels, first.where)


def _disagreement(what: str, first: Metadata, other: Metadata) -> SourceError:
    return SourceError(
        f"the archives are not of one corpus: {what}",
        where=f"{first.where} and {other.where}",
        fix="write them with the same specs= and labels=, or read them on their own",
    )
