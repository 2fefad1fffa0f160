"""Writes one file of a conversion, and reads it back: a pure function of the source, the target and the range.

It runs in this process or in a worker; done twice it gives the same file. Verification compares digests over tags and
arrays: those given to the writer and those read back.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.engine import WorkerInfo
from headrace.errors import ConfigError, HeadraceError, SourceError, takes_note
from headrace.files.atomic import TEMPORARY_PREFIX, TEMPORARY_SUFFIX, PendingFiles, fsync_path
from headrace.sources import Source, open_source
from headrace.sources.formats import Format
from headrace.sources.registry import keeps_index, open_writer
from headrace.specs import DataSpec

from ..tally import SeqsDigest
from .shard_plan import Shard

Tell = Callable[[int, int], None]  # called with numbers of further sequences and bytes


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """What is known of a file that is whole.

    Attributes:
        name: File name.
        num_seqs: Number of its sequences.
        bytes: The size of the file, or of all files in the folder that it is.
        digest: XXH3-128 over its tags and arrays in order.
    """

    name: str
    num_seqs: int
    bytes: int
    digest: str


@dataclass(frozen=True)
class Target:
    """How the files are written.

    Attributes:
        format: Their format.
        options: More options of its writer.
        verify: Whether each file is read back and compared.
        replaces: Whether an existing file may be replaced.
    """

    format: Format
    options: Mapping[str, Any] = field(default_factory=dict)
    verify: bool = True
    replaces: bool = False


@dataclass(frozen=True)
class WriteShards:
    """The job of a worker of a conversion: the payload is a `Shard`, the result its record.

    Attributes:
        source: The corpus.
        target: How the files are written.
        specs: Data key -> layout, for the writer.
    """

    source: Source
    target: Target
    specs: Mapping[str, DataSpec]

    def __call__(self, _info: WorkerInfo) -> Callable[[Shard], ShardRecord]:
        """Return the function that does the work."""
        return lambda shard: write_shard(self.source, self.target, self.specs, shard)


def write_shard(
    source: Source, target: Target, specs: Mapping[str, DataSpec], shard: Shard, tell: Tell | None = None
) -> ShardRecord:
    """Write one file and verify it, unless it is there and holds what it should.

    Raises:
        ConfigError: The file exists, and is not to be replaced.
        SourceError: A sequence cannot be read or held, the disk is full, or the file reads back differently. It is
            removed then, and an existing one is kept.
    """
    if not os.path.lexists(shard.path):
        return _write_directly(source, target, specs, shard, tell)
    if not target.replaces:
        return _confirm_existing(source, target, shard, tell)
    if target.verify:
        return _write_aside(source, target, specs, shard, tell)
    return _write_directly(source, target, specs, shard, tell)


def _confirm_existing(source: Source, target: Target, shard: Shard, tell: Tell | None) -> ShardRecord:
    """Return the record of a file that exists, if it holds the sequences of the shard."""
    if not target.verify:
        raise ConfigError(
            "the file exists already",
            where=shard.path,
            fix="choose another name, or pass --overwrite; without --no-verify, files that are whole are kept",
        )
    digest = _digest_of(source, range(shard.start, shard.stop), tell)
    try:
        _verify(target, shard, list(source.specs), digest.hexdigest())
    except SourceError as error:
        raise ConfigError(
            f"the file exists, and does not hold sequences {shard.start} to {shard.stop - 1} of the corpus: "
            f"{error.what}",
            where=shard.path,
            fix="choose another name, or pass --overwrite",
        ) from error
    return _record_of(shard, digest)


def _write_aside(
    source: Source, target: Target, specs: Mapping[str, DataSpec], shard: Shard, tell: Tell | None
) -> ShardRecord:
    """Write one file in a folder of its own, and replace the existing one when it is verified."""
    open_target(source, target, specs, shard.path).abort()  # refuses what the writer would not replace itself
    beside = os.path.dirname(os.path.realpath(shard.path))
    with TemporaryDirectory(TEMPORARY_SUFFIX, TEMPORARY_PREFIX, beside, ignore_cleanup_errors=True) as folder:
        aside = os.path.join(folder, shard.name)
        try:
            record = _write_directly(source, target, specs, replace(shard, path=aside), tell)
            _replace_target(aside, shard.path, target.format)
        except HeadraceError as error:
            if error.where is not None:
                error.where = error.where.replace(folder, os.path.dirname(shard.path))
            raise
    return record


def _replace_target(new: str, old: str, entry: Format) -> None:
    """Replace a file, with the files beside it, by a newer one: one in one step, several as `PendingFiles` does it."""
    old = os.path.realpath(old)  # a link stays
    try:
        if entry.beside:
            together = PendingFiles(old, entry.files_beside(old), overwrite=True)
            try:
                for made in (*entry.files_beside(new), new):
                    if os.path.lexists(made):
                        os.rename(made, together.temporary(made))
                together.commit()
            finally:
                together.abort()
        else:
            os.replace(new, old)
        fsync_path(os.path.dirname(old))
    except OSError as error:
        raise SourceError(f"cannot replace the old file: {error.strerror or error}", where=old) from error


def _write_directly(
    source: Source, target: Target, specs: Mapping[str, DataSpec], shard: Shard, tell: Tell | None
) -> ShardRecord:
    digest = SeqsDigest()
    step = "starting it"
    try:
        with open_target(source, target, specs, shard.path) as writer:
            for corpus_idx in range(shard.start, shard.stop):
                step = f"sequence {corpus_idx} of the corpus"
                arrays = source.read_seq(corpus_idx)
                tag = source.tag(corpus_idx)
                writer.append(tag, arrays)
                digest.add(tag, comparable(arrays, source.specs))
                if tell is not None:
                    tell(1, sum(array.nbytes for array in arrays.values()))
            step = "finishing it"
    except Exception as error:
        takes_note(error, f"{shard.name}, {step}")
        raise
    if target.verify:
        try:
            _verify(target, shard, list(source.specs), digest.hexdigest())
        except BaseException:
            remove(shard.path, target.format)
            raise
    return _record_of(shard, digest)


def _record_of(shard: Shard, digest: SeqsDigest) -> ShardRecord:
    return ShardRecord(shard.name, shard.stop - shard.start, os.path.getsize(shard.path), digest.hexdigest())


def open_target(source: Source, target: Target, specs: Mapping[str, DataSpec], path: str) -> Any:
    """Open the writer of one file."""
    labels = dict(source.labels)
    if target.format.name == "hdf":  # its texts end at the first NUL; `losses` reports what is dropped
        labels = {key: names for key, names in labels.items() if not any("\0" in name for name in names)}
    return open_writer(
        target.format, path, specs=specs, labels=labels, overwrite=target.replaces, **dict(target.options)
    )


def open_written(target: Target, path: str, data_keys: Iterable[str]) -> Source:
    """Open the written file, with these data keys, by the source of its format."""
    options: dict[str, Any] = {}
    if target.format.key_option is not None:
        options[target.format.key_option] = next(iter(data_keys))
    if keeps_index({"class": target.format.source}):
        options["index"] = None
    return open_source(path, source_class=target.format.source, **options)


def comparable(arrays: Mapping[str, NDArray[Any]], specs: Mapping[str, DataSpec]) -> dict[str, NDArray[Any]]:
    """Return arrays in a form to compare: by key, a key without a time axis as one frame, as some formats store it."""
    return {key: arrays[key] if specs[key].has_time else arrays[key][None] for key in sorted(specs)}


def _digest_of(source: Source, corpus_indices: range, tell: Tell | None = None) -> SeqsDigest:
    """Read sequences; return the digest over their tags and arrays."""
    digest = SeqsDigest()
    for corpus_idx in corpus_indices:
        arrays = source.read_seq(corpus_idx)
        digest.add(source.tag(corpus_idx), comparable(arrays, source.specs))
        if tell is not None:
            tell(1, sum(array.nbytes for array in arrays.values()))
    return digest


def _verify(target: Target, shard: Shard, data_keys: list[str], expected: str) -> None:
    written = open_written(target, shard.path, data_keys)
    try:
        num_seqs = len(written)
        found = _digest_of(written, range(num_seqs))
    finally:
        written.close()
    if num_seqs != shard.stop - shard.start or found.hexdigest() != expected:
        raise SourceError(
            f"the file reads back differently: {num_seqs} sequences with the digest {found.hexdigest()}, "
            f"where {shard.stop - shard.start} of {expected} were written",
            where=shard.path,
            fix="if the format should hold such sequences, please report it; --no-verify keeps the file as it is",
        )


def remove(path: str, entry: Format) -> None:
    """Remove a written file, with those beside it; what cannot be removed stays."""
    for name in (path, *entry.files_beside(path)):
        with contextlib.suppress(OSError):
            os.unlink(name)


def join_digests(records: list[ShardRecord]) -> str:
    """Return one digest over those of all shards in order; of a single one, its own."""
    if len(records) == 1:
        return records[0].digest
    digest = xxhash.xxh3_128()
    for record in records:
        digest.update(f"{record.digest};".encode())
    return digest.hexdigest()


def losses(source: Source, written: Source) -> list[str]:
    """Describe what of the layout the format did not keep."""
    found = []
    for key, spec in source.specs.items():
        kept = written.specs.get(key)
        if kept is None:
            continue
        if kept.sparse != spec.sparse:
            found.append(f"{key!r} reads back as {'class indices' if kept.sparse else 'numbers'}")
        elif spec.sparse and kept.dim != spec.dim and spec.dim is not None:
            found.append(f"{key!r} has {spec.dim} classes, and reads back with {kept.dim}")
        if key in source.labels and list(written.labels.get(key, ())) != list(source.labels[key]):
            found.append(f"the labels of {key!r} are not kept")
        if spec.has_time != kept.has_time and not (spec.sparse and not spec.shape):  # a label is a frame to RETURNN
            found.append(f"{key!r} has no time axis, and reads back as one frame")
    return found


def largest_values(source: Source, keys: list[str]) -> dict[str, int]:
    """Return the largest value of each of these keys in the whole corpus, -1 if there are none; reads all of it."""
    largest = dict.fromkeys(keys, -1)
    for corpus_idx in range(len(source)):
        for key in keys:
            array = source.read(corpus_idx, key)
            largest[key] = max(largest[key], int(np.max(array, initial=-1)))
    return largest
