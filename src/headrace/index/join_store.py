"""Joins that are remembered: mapped from the cache folder, shared by all processes of a machine.

A join is named by the digests of both indices, so a file that is found is never too old. It is kept in the format of an
index, whose one column are the places.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import xxhash

from headrace.errors import CacheError, SourceError
from headrace.files import KeepLimit, kept_folder, kept_path, note_use, remove_unused, warn_once_of_folder

from .corpus import CorpusIndex
from .join import TagJoin, join_tags
from .storage import FORMAT_VERSION
from .tags import GeneratedTags

_LOGGER = logging.getLogger("headrace.index")
_KIND = "join 1"
_PLACES = "places"
_MIN_KEPT_SEQS = 500_000  # below, joining again takes some 0.2 s at most
_FOLDER = "joins"  # in the user's cache folder
_LIMIT = KeepLimit(max_files=32)  # a corpus that changes from day to day must not fill the disk
_NOT_KEPT = "a join stays in memory and will be made again, as it cannot be kept"


class _About(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a stored join says of itself, see `TagJoin`.

    Attributes:
        is_same: Whether each sequence has the same place in both corpora, so that there is no column.
    """

    is_same: bool
    num_others: int
    num_missing: int
    num_ambiguous: int
    num_unused: int


def open_or_join(left: CorpusIndex, right: CorpusIndex) -> TagJoin:
    """Return the join of two indices: of large ones that are files themselves, from the cache folder.

    Several processes may make it at once: each makes its own, and the last one's stays. A cache folder that cannot be
    used is no error: it is logged, once, and the join stays in memory.
    """
    if left.path is None or right.path is None or len(left) < _MIN_KEPT_SEQS:
        return join_tags(left, right)
    name = _file_name(left, right)
    try:
        folder = kept_path(_FOLDER)
    except CacheError as error:
        warn_once_of_folder(_LOGGER, "", _NOT_KEPT, error)
        return join_tags(left, right)
    try:
        return _opened(folder / name, left, right)
    except SourceError as error:  # none yet, or one that is torn
        _LOGGER.debug("joining: %s", error)
    join = join_tags(left, right)
    try:
        folder = kept_folder(_FOLDER)
        _save(join, folder / name)
        kept = _opened(folder / name, left, right)
        remove_unused(folder, "*.hrindex", limit=_LIMIT)
    except (OSError, SourceError, CacheError) as error:
        warn_once_of_folder(_LOGGER, str(folder), _NOT_KEPT, error)
        return join
    return kept


def _file_name(left: CorpusIndex, right: CorpusIndex) -> str:
    name = xxhash.xxh3_128_hexdigest(f"{FORMAT_VERSION} {_KIND} {left.digest} {right.digest}".encode())
    return f"{name}.hrindex"


def _opened(path: Path, left: CorpusIndex, right: CorpusIndex) -> TagJoin:
    stored = CorpusIndex.open(path, check_files=False)
    try:
        about = msgspec.convert(stored.meta, _About)
    except msgspec.ValidationError as error:
        raise stored.damaged(f"it is no join: {error}") from error
    if stored.kind != _KIND or stored.num_seqs != len(left) or about.num_others != len(right):
        raise stored.damaged(f"it joins {stored.num_seqs} to {about.num_others}, not {len(left)} to {len(right)}")
    note_use(path)
    return TagJoin(
        None if about.is_same else stored.locator(_PLACES),
        stored.num_seqs,
        about.num_others,
        about.num_missing,
        about.num_ambiguous,
        about.num_unused,
        where=str(path),
    )


def _save(join: TagJoin, path: Path) -> None:
    about = _About(join.places is None, join.num_others, join.num_missing, join.num_ambiguous, join.num_unused)
    index = CorpusIndex.from_columns(
        tags=GeneratedTags(join.num_seqs),
        lengths={},
        locators={} if join.places is None else {_PLACES: join.places},
        meta=msgspec.to_builtins(about),
    )
    index.built_from((), _KIND).save(path, follow_links=False)
