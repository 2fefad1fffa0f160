"""From any source to any writer: one file, or shards, verified by reading back.

A corpus that the target cannot hold, or a target that exists, is refused before a byte is written. Each file appears
whole or not at all; so a shard that is there and holds what it should is done, and the same command resumes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from rich.console import Console

from headrace.engine import Engine, EngineOptions
from headrace.engine.user.job import Job
from headrace.errors import ConfigError, did_you_mean, takes_note
from headrace.index import CorpusIndex
from headrace.show.drawing import format_count
from headrace.show.reporters import Reporter, open_reporter
from headrace.sources import Source
from headrace.sources.base import check_data_key
from headrace.specs import DataSpec

from .shard_plan import Shard, Sharding, list_unplanned, plan_shards
from .shards import ShardRecord, Target, WriteShards, largest_values, open_target, write_shard

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
        num_workers: How many processes write shards; 0: this one.
    """

    source: Source
    out: Path
    target: Target
    sharding: Sharding = field(default_factory=Sharding)
    num_workers: int = 0

    def run(self, messages: Console, *, quiet: bool = False) -> list[ShardRecord]:
        """Write the missing files; return the records of all, in order.

        Raises:
            ConfigError: An option is wrong; the target cannot hold the corpus; or something would be replaced.
            SourceError: A sequence cannot be read or written. Whole shards are kept, and the next run continues after
                them.
        """
        out, suffix = os.path.abspath(self.out), self.target.format.suffix
        shards = plan_shards(self.source, out, suffix, self.sharding)
        self._refuse_own_input(shards)
        if self.sharding.is_one_file:
            if self.num_workers:
                raise ConfigError(
                    "--num-workers needs shards: each worker writes one at a time",
                    fix="add --shard-seqs or --shard-bytes",
                )
            self._refuse_existing(shards)
        elif unplanned := list_unplanned(shards, out, suffix):
            raise ConfigError(
                f"{len(unplanned)} files have names of further shards, and would be read together with these",
                where=unplanned[0],
                fix="remove them, or choose another name",
            )
        return self._write(shards, self._checked_specs(shards), messages, quiet=quiet)

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
        if existing is not None and not self.target.replaces:
            raise ConfigError("the file exists already", where=existing, fix="choose another name, or pass --overwrite")

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
        open_target(self.source, replace(self.target, replaces=True), specs, shards[0].path).abort()
        return specs

    # --- writing ---

    def _write(
        self, shards: list[Shard], specs: Mapping[str, DataSpec], messages: Console, *, quiet: bool
    ) -> list[ShardRecord]:
        records: list[ShardRecord] = []
        existing_first = sorted(shards, key=lambda shard: not os.path.lexists(shard.path))  # refused before any is made
        try:
            with (
                open_reporter(messages, "converting", len(self.source), quiet=quiet) as reporter,
                contextlib.closing(self._records(existing_first, specs, reporter)) as written,
            ):
                records.extend(written)
        except BaseException as error:
            if not self.sharding.is_one_file:
                done = f"{format_count(len(records))} of {format_count(len(shards))}"
                takes_note(error, f"{done} shards are whole: the same command continues after them")
            raise
        return sorted(records, key=lambda record: record.name)

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


class SomeKeys(Source):
    """The same sequences with fewer data keys; the others are not read.

    Args:
        source: The corpus.
        data_keys: The keys to keep, in this order.

    Raises:
        ConfigError: There is no such key, or one is named twice.
    """

    def __init__(self, source: Source, data_keys: Sequence[str]) -> None:
        for key in data_keys:
            if key not in source.specs:
                raise ConfigError(f"the corpus has no data key {key!r}", fix=did_you_mean(key, source.specs))
            if list(data_keys).count(key) > 1:
                raise ConfigError(f"the data key {key!r} is named twice", fix="name it once")
        self._source = source
        self.specs = {key: source.specs[key] for key in data_keys}
        self.labels = {key: source.labels[key] for key in data_keys if key in source.labels}

    @property
    def index(self) -> CorpusIndex:
        """Tags and lengths of the whole source."""
        return self._source.index

    @property
    def runs_user_code(self) -> bool:
        """Whether reading the source does."""
        return self._source.runs_user_code

    def read(self, corpus_idx: int, data_key: str) -> NDArray[Any]:
        """Return one data key of one sequence."""
        return self._source.read(corpus_idx, check_data_key(data_key, self.specs))

    def read_slice(self, corpus_idx: int, data_key: str, start: int, end: int) -> NDArray[Any]:
        """Return frames start..end of one data key."""
        return self._source.read_slice(corpus_idx, check_data_key(data_key, self.specs), start, end)

    def close(self) -> None:
        """Release the files of the source."""
        self._source.close()
