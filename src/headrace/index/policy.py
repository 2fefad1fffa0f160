"""Where a source gets its index from: built in memory, a file that the user named, or the cache folder."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Literal

import xxhash

from headrace.errors import CacheError, SourceError
from headrace.files import (
    FileStamp,
    kept_folder,
    kept_path,
    note_use,
    remove_unused,
    warn_once_of_folder,
)

from .corpus import CorpusIndex
from .storage import BUILD, FORMAT_VERSION

_LOGGER = logging.getLogger("headrace.index")
_MIN_CACHED_SEQS = 2_000  # below, and with few files, building again is about as quick as finding it
_MIN_CACHED_FILES = 16
_FOLDER = "index"  # in the user's cache folder
_MAX_KEPT_BYTES = 32 << 30  # some 300 million sequences
_NOT_KEPT = "the index stays in memory and will be built again the next time, as it cannot be stored"


def open_or_build(
    files: Sequence[str | os.PathLike[str]],
    build: Callable[[], CorpusIndex],
    *,
    index: str | os.PathLike[str] | Literal["auto"] | None,
    kind: str,
) -> CorpusIndex:
    """Return the index of some files, built only if it must be.

    Args:
        files: What the index is built from, in the order of the corpus.
        build: Builds the index in memory; its `files` and `kind` are set here.
        index: None builds in memory. A path opens that index, which must be of these files as they are now. `"auto"`
            opens it from the cache folder, or builds it and stores it there unless the corpus is small. Several
            processes may do so at once: each builds its own, and the last one remains. A cache that cannot be used is
            not an error: it is logged once per folder, and the index stays in memory.
        kind: Names the source, and every option of it that changes what is in the index.

    Raises:
        SourceError: A file is missing or changed while it was read, or the named index is of other files.
    """
    if index is None:
        return _built(files, build, kind)
    if index == "auto":
        return _opened_from_cache(files, build, kind)
    corpus = CorpusIndex.open(index)
    _check_purpose(corpus, files, kind)
    return corpus


def _built(files: Sequence[str | os.PathLike[str]], build: Callable[[], CorpusIndex], kind: str) -> CorpusIndex:
    # Stamped before they are read, and compared afterwards: a file that changed in between is noticed.
    stamps = [FileStamp.of(file) for file in files]
    corpus = build().built_from(stamps, kind)
    for stamp in stamps:
        difference = stamp.difference()
        if difference is not None:
            what = f"a file changed while it was indexed: {difference}"
            raise SourceError(what, where=stamp.path, fix="wait until the file is complete")
    return corpus


def _check_purpose(corpus: CorpusIndex, files: Sequence[str | os.PathLike[str]], kind: str) -> None:
    if corpus.kind != kind:
        what = f"the index was made for {corpus.kind!r}, not for {kind!r}"
        raise SourceError(what, where=corpus.path, fix=BUILD)
    asked, found = [os.path.realpath(file) for file in files], [os.path.realpath(file.path) for file in corpus.files]
    if asked != found:
        pairs = zip(asked, found, strict=False)
        differing = next((pair for pair in pairs if pair[0] != pair[1]), None)
        detail = f"{differing[1]} where {differing[0]} was expected" if differing else f"{len(found)}, not {len(asked)}"
        what = f"the index is of other files, or of another order of them: {detail}"
        raise SourceError(what, where=corpus.path, fix=BUILD)


def _opened_from_cache(
    files: Sequence[str | os.PathLike[str]], build: Callable[[], CorpusIndex], kind: str
) -> CorpusIndex:
    name = _file_name(files, kind)
    try:
        folder = kept_path(_FOLDER)
    except CacheError as error:
        warn_once_of_folder(_LOGGER, "", _NOT_KEPT, error)
        return _built(files, build, kind)
    try:
        corpus = CorpusIndex.open(folder / name)
        _check_purpose(corpus, files, kind)
    except SourceError as error:  # there is none yet, or it is out of date
        _LOGGER.debug("building the index: %s", error)
    else:
        note_use(folder / name)
        if os.path.lexists(folder / name):  # not removed meanwhile: workers will open it, too
            return corpus
    corpus = _built(files, build, kind)
    if corpus.num_seqs < _MIN_CACHED_SEQS and len(files) < _MIN_CACHED_FILES:
        return corpus
    try:
        folder = kept_folder(_FOLDER)
        corpus.save(folder / name, follow_links=False)
        kept = CorpusIndex.open(folder / name, check_files=False)
        remove_unused(folder, "*.hrindex", max_bytes=_MAX_KEPT_BYTES)
    except (OSError, SourceError, CacheError) as error:
        warn_once_of_folder(_LOGGER, str(folder), _NOT_KEPT, error)
        return corpus
    return kept


def _file_name(files: Sequence[str | os.PathLike[str]], kind: str) -> str:
    paths = [os.fsencode(os.path.abspath(file)) for file in files]
    name = xxhash.xxh3_128_hexdigest(b"\0".join([str(FORMAT_VERSION).encode(), kind.encode(), *paths]))
    return f"{name}.hrindex"
