"""From any source to any writer: one file, or resumable shards, verified by reading back.

A corpus that the target cannot hold, or a target that exists, is refused before a byte is written. One file needs no
journal: it appears whole or not at all. Shards are recorded in `OUT.convert.json` beside them, see `journal.py`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from headrace.engine import Engine, EngineOptions
from headrace.engine.user.job import Job
from headrace.errors import CacheError, ConfigError, SourceError, takes_note
from headrace.files.locks import lock_exclusive_nowait
from headrace.show.drawing import format_count
from headrace.show.reporters import Reporter, open_reporter
from headrace.sources import Source
from headrace.specs import DataSpec

from .journal import Journal, ShardRecord, describe_files, describe_options
from .shard_plan import Shard, Sharding, plan_shards
from .shards import Target, WriteShards, largest_values, open_target, remove, size_of, write_shard

# A shard may take hours, without a sign of life meanwhile.
_ENGINE = EngineOptions(tickets_per_worker=1, warn_seconds=0, stall_seconds=0)


@dataclass(frozen=True)
class Conversion:
    """What is converted, and how.

    Attributes:
        source: The corpus.
        out: The file to make; with shards, the name that theirs are made of.
        target: How files are written.
        sharding: How the corpus is cut into files.
        options: JSON data about how the source was opened: other options make another conversion.
        num_workers: How many processes write shards; 0: this one.
        overwrite: Whether existing files may be replaced.
    """

    source: Source
    out: Path
    target: Target
    sharding: Sharding = field(default_factory=Sharding)
    options: Mapping[str, Any] = field(default_factory=dict)
    num_workers: int = 0
    overwrite: bool = False

    def run(self, messages: Console, *, quiet: bool = False) -> list[ShardRecord]:
        """Write the missing files; return the records of all, in order.

        Raises:
            ConfigError: An option is wrong; the target cannot hold the corpus; something would be replaced; or another
                conversion was started under this name.
            SourceError: A sequence cannot be read or written. Whole shards are kept, and the next run continues after
                them.
        """
        out = os.path.abspath(self.out)
        shards = plan_shards(self.source, out, self.target.format.suffix, self.sharding)
        self._refuse_own_input(shards)
        if self.num_workers and self.sharding.is_one_file:
            raise ConfigError(
                "--num-workers needs shards: each worker writes one at a time", fix="add --shard-seqs or --shard-bytes"
            )
        if self.sharding.is_one_file:
            self._refuse_existing(shards)
            # A file that another process creates meanwhile is not replaced, either.
            alone = replace(self, target=replace(self.target, replaces=self.overwrite))
            return alone._write(shards, alone._checked_specs(shards), None, messages, quiet=quiet)
        path = journal_path(out)
        with _alone(path):
            journal = self._open_journal(path, shards)
            specs = self._checked_specs(shards)
            if self.overwrite and path.exists():
                self._remove_unplanned(path, shards)
            journal.save()
            return self._write(shards[len(journal.done) :], specs, journal, messages, quiet=quiet)

    # --- before anything is written ---

    def _refuse_own_input(self, shards: list[Shard]) -> None:
        inputs = {os.path.realpath(stamp.path) for stamp in self.source.index.files}
        for shard in shards:
            if os.path.realpath(shard.path) in inputs:
                raise ConfigError("this is one of the files to convert", where=shard.path, fix="choose another name")

    def _refuse_existing(self, shards: list[Shard]) -> None:
        entry = self.target.format
        names = (name for shard in shards for name in (shard.path, *entry.files_beside(shard.path)))
        existing = next((name for name in names if os.path.lexists(name)), None)
        if existing is not None and not self.overwrite:
            raise ConfigError("the file exists already", where=existing, fix="choose another name, or pass --overwrite")

    def _open_journal(self, path: Path, shards: list[Shard]) -> Journal:
        about = self._about()
        if not path.exists() or self.overwrite:
            self._refuse_existing(shards)
            return Journal(path, about, [])
        journal = Journal.read(path)
        journal.check(about)
        kept = 0
        for record, shard in zip(journal.done, shards, strict=False):
            if record.name != shard.name or record.bytes != size_of(shard.path):
                break  # removed or changed from outside: written again, as are all after it
            kept += 1
        return Journal(path, about, journal.done[:kept])

    def _remove_unplanned(self, path: Path, shards: list[Shard]) -> None:
        """Remove the shards of an earlier conversion that this one will not replace: they would be read with it."""
        planned = {shard.name for shard in shards}
        try:
            earlier = Journal.read(path).done
        except SourceError:  # no readable journal: no file is known to be of an earlier conversion
            return
        for record in earlier:
            old = str(path.parent / record.name)
            if record.name not in planned and size_of(old) == record.bytes:
                remove(old, self.target.format)

    def _about(self) -> dict[str, Any]:
        index = self.source.index
        return {
            "source": {
                "class": type(self.source).__name__,
                "options": describe_options(self.options),
                "keys": list(self.source.specs),
                "num_seqs": len(self.source),
                "digest": index.digest,
                "kind": index.kind,
                "files": describe_files(index.files),
            },
            "target": {"format": self.target.format.name, "options": describe_options(self.target.options)},
            "shards": {"max_seqs": self.sharding.max_seqs, "max_bytes": self.sharding.max_bytes},
        }

    def _checked_specs(self, shards: list[Shard]) -> Mapping[str, DataSpec]:
        """Return the specs for the writer, which refuses here what the format cannot hold."""
        num_duplicates = self.source.index.num_duplicates
        if num_duplicates and self.target.format.unique_tags and len(shards) == 1:
            raise ConfigError(
                f"{format_count(num_duplicates)} sequences have the tag of an earlier one, and tags in a "
                f"{self.target.format.title} file must be unique",
                where=shards[0].path,
                fix="choose another format, or give sequences other tags",
            )
        specs = dict(self.source.specs)
        unknown = [key for key, spec in specs.items() if spec.sparse and spec.dim is None]
        if unknown and self.target.format.name == "hdf" and len(shards) > 1:
            # The layout has a number of classes, and files of one corpus must agree in it.
            largest = largest_values(self.source, unknown)
            specs.update({key: replace(specs[key], dim=max(largest[key] + 1, 1)) for key in unknown})
        open_target(self.source, self.target, specs, shards[0].path).abort()
        return specs

    # --- writing ---

    def _write(
        self,
        shards: list[Shard],
        specs: Mapping[str, DataSpec],
        journal: Journal | None,
        messages: Console,
        *,
        quiet: bool,
    ) -> list[ShardRecord]:
        records = [] if journal is None else journal.done
        num_before, num_shards = sum(record.num_seqs for record in records), len(records) + len(shards)
        try:
            with (
                open_reporter(messages, "converting", len(self.source) - num_before, quiet=quiet) as reporter,
                contextlib.closing(self._records(shards, specs, reporter)) as written,
            ):
                for record in written:
                    if journal is None:
                        records.append(record)
                    else:
                        journal.note(record)  # it is on the disk: writers sync
        except BaseException as error:
            if journal is not None:
                done = f"{format_count(len(journal.done))} of {format_count(num_shards)}"
                takes_note(error, f"{done} shards are whole: the same command continues after them")
            raise
        return records

    def _records(
        self, shards: list[Shard], specs: Mapping[str, DataSpec], reporter: Reporter
    ) -> Generator[ShardRecord, None, None]:
        """Write the shards, here or in workers; yield their records in order."""
        num_seqs = num_bytes = 0
        if self.num_workers and shards:
            work = WriteShards(self.source, self.target, specs)
            with Engine(Job(work), num_workers=min(self.num_workers, len(shards)), options=_ENGINE) as engine:
                for delivered in engine.run(shards):
                    record: ShardRecord = delivered.value
                    yield record
                    num_seqs, num_bytes = num_seqs + record.num_seqs, num_bytes + record.bytes
                    reporter.update(num_seqs, num_bytes)
            return

        def tell(more_seqs: int, more_bytes: int) -> None:
            nonlocal num_seqs, num_bytes
            num_seqs, num_bytes = num_seqs + more_seqs, num_bytes + more_bytes
            reporter.update(num_seqs, num_bytes)

        for shard in shards:
            yield write_shard(self.source, self.target, specs, shard, tell)


def journal_path(out: str | os.PathLike[str]) -> Path:
    """Return the path of the journal of a conversion to shards."""
    return Path(f"{os.path.abspath(out)}.convert.json")


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Refuse to write shards that another process is writing. The lock ends with the process, whatever ends it."""
    name = path.with_name(f".{path.name}.lock")
    try:
        lock = lock_exclusive_nowait(str(name))
    except FileNotFoundError as error:
        raise ConfigError("the folder does not exist", where=str(path.parent), fix="make it first") from error
    except CacheError:  # a disk without locks: two conversions at once are the user's responsibility
        yield
        return
    if lock is None:
        raise ConfigError("another process is converting to these files", where=str(path), fix="wait for it")
    try:
        yield
    finally:
        name.unlink(missing_ok=True)  # while it is locked: a process that opened it meanwhile sees that it is gone
        lock.close()
