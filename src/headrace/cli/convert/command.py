"""`headrace convert`: sequences from any format that can be read to any that can be written."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from headrace.errors import ConfigError, did_you_mean
from headrace.files.cache.options import parse_bytes
from headrace.files.locations import local_path, shown_url
from headrace.show.drawing import format_bytes, format_count
from headrace.sources import AudioSource
from headrace.sources.formats import FORMATS, Format, format_named, format_of_target
from headrace.sources.naming import options_of
from headrace.sources.registry import writer_class_of
from headrace.specs import DataSpec

from ..configs import parse_settings
from ..console import bold, open_messages, open_output
from ..opening import class_of, find_data_files, open_corpus
from ..options import DATA_FILES_HELP, Quiet, SourceClass, SourceSettings
from ..report import describe_key
from .conversion import Conversion, SomeKeys
from .shard_plan import Sharding
from .shards import ShardRecord, Target, join_digests, losses, open_written

_WRITTEN = ", ".join(sorted(name for name, entry in FORMATS.items() if entry.writer))


class Features(StrEnum):
    """What becomes the key "data" of recordings."""

    RAW = "raw"
    LOG_MEL = "log_mel"


class Compression(StrEnum):
    """How an HDF5 file is compressed."""

    NONE = "none"
    GZIP = "gzip"
    LZF = "lzf"


@dataclass(frozen=True)
class RecordingOptions:
    """Options of the command line about recordings; `None` or empty if not given."""

    features: Features | None = None
    label: Iterable[str] = ()
    text: Iterable[str] = ()
    sample_rate: int | None = None
    channel: int | None = None

    def to_options(self) -> dict[str, Any]:
        """Return the options for a source of recordings.

        Raises:
            ConfigError: A target has a wrong form.
        """
        given = {
            "features": self.features and self.features.value,
            "targets": parse_targets(self.label, self.text) or None,
            "sample_rate": self.sample_rate,
            "channel": self.channel,
        }
        return {name: value for name, value in given.items() if value is not None}


def convert(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="IN",
            help="Files or folders of one format; together they form the corpus. " + DATA_FILES_HELP,
            show_default=False,
        ),
    ],
    target_name: Annotated[
        str,
        typer.Argument(metavar="OUT", help="File to write; the extension selects the format.", show_default=False),
    ],
    source_class: SourceClass = None,
    target: Annotated[str | None, typer.Option("--to", metavar="FORMAT", help=f"One of {_WRITTEN}.")] = None,
    settings: SourceSettings = None,
    out_settings: Annotated[
        list[str] | None, typer.Option("--set-out", metavar="KEY=VALUE", help="An option of the writer.")
    ] = None,
    keys: Annotated[
        list[str] | None, typer.Option("--key", metavar="KEY", help="Keep only this data key; repeatable.")
    ] = None,
    shard_seqs: Annotated[int | None, typer.Option(min=1, help="Split into shards of N sequences.")] = None,
    shard_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Split into shards of this many bytes of data, e.g. 1GiB.")
    ] = None,
    num_workers: Annotated[int, typer.Option(min=0, help="Processes; each writes one shard at a time.")] = 0,
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Do not verify by reading back.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing files; start over.")] = False,
    features: Annotated[Features | None, typer.Option(help='Recordings: what to store under the key "data".')] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="KEY=FIELD", help="Recordings: class indices from a manifest field.")
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option(metavar="KEY=FIELD", help="Recordings: UTF-8 bytes from a manifest field.")
    ] = None,
    sample_rate: Annotated[
        int | None, typer.Option(min=1, help="Recordings: resample to this many Hz. Default: as recorded.")
    ] = None,
    channel: Annotated[int | None, typer.Option(min=0, help="Recordings: channel to use, from 0.")] = None,
    compression: Annotated[
        Compression | None, typer.Option(help="HDF5 compression: gzip is smaller, lzf is faster.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Convert sequences to another format: one file, or resumable shards; verified by reading back."""
    out = _local_target(target_name)
    entry = _target_format(out, target)
    writer_options = _writer_options(entry, out_settings or (), compression)
    sharding = Sharding(shard_seqs, None if shard_bytes is None else _parse_size(shard_bytes))
    files = [file.path for file in find_data_files(inputs)]
    for path in files:
        if os.path.realpath(path) == os.path.realpath(out):
            raise ConfigError("this is one of the files to convert", where=str(out), fix="choose another name")
    recordings = RecordingOptions(features, label or (), text or (), sample_rate, channel)
    options = _source_options(files, source_class, settings or (), recordings)
    source = open_corpus(files, source_class, options, "auto")
    try:
        chosen = source if not keys else SomeKeys(source, keys)
        conversion = Conversion(
            chosen,
            out,
            Target(entry, writer_options, verify=not no_verify, replaces=overwrite),
            sharding,
            num_workers,
        )
        messages = open_messages()
        records = conversion.run(messages, quiet=quiet)
        _print_written(open_output(), messages, conversion, records)
    finally:
        source.close()


def _local_target(name: str) -> Path:
    """Return the path to write.

    Raises:
        ConfigError: It is a URL of a store.
    """
    path = local_path(name)
    if path is None:
        raise ConfigError(
            "files are written on this machine, and this is a URL",
            where=shown_url(name),
            fix="write to a local path, and copy that by the tools of the store",
        )
    return Path(path)


def _target_format(out: Path, name: str | None) -> Format:
    """Return the format to write.

    Raises:
        ConfigError: Neither the option nor the extension names a format that can be written.
    """
    found = format_of_target(out) if name is None else format_named(name)
    if found is None:
        what = "the extension is not that of a format that is written"
        raise ConfigError(what, where=str(out), fix=f"give another, or add --to, one of {_WRITTEN}")
    writer_class_of(found)
    return found


def _writer_options(entry: Format, settings: Iterable[str], compression: Compression | None) -> dict[str, Any]:
    options = parse_settings(settings)
    if compression not in (None, Compression.NONE):
        options["compression"] = compression.value
    valid = options_of(writer_class_of(entry)) - {"path", "specs", "labels", "overwrite"}
    for name in options:
        if name not in valid:
            raise ConfigError(
                f"{entry.writer} has no option {name!r}",
                where="--compression" if name == "compression" else f"--set-out {name}",
                fix=did_you_mean(name, valid) if valid else "leave it out",
            )
    return options


def _source_options(
    files: Sequence[str], source_class: str | None, settings: Iterable[str], recordings: RecordingOptions
) -> dict[str, Any]:
    options, given = parse_settings(settings), recordings.to_options()
    cls = class_of(files, source_class)
    unknown = sorted(set(given) - options_of(cls))
    if unknown:
        raise ConfigError(
            f"features, labels, texts, sample rate and channel are options of recordings, not of {cls.__name__}",
            where=", ".join(unknown),
            fix="leave them out; --set KEY=VALUE gives an option to a source",
        )
    # Without a cached index, so that missing recordings are reported before the first one is read.
    unkept = {"index": None} if issubclass(cls, AudioSource) else {}
    return {**unkept, **given, **options}


def _parse_size(text: str) -> int:
    size = parse_bytes(re.sub(r"^([\d.]+)\s*([A-Za-z])", r"\1 \2", text.strip()), "--shard-bytes")
    if size < 1:
        raise ConfigError("a shard of 0 bytes holds nothing", where="--shard-bytes", fix="for example 1GiB")
    return size


def parse_targets(labels: Iterable[str], texts: Iterable[str]) -> dict[str, Any]:
    """Return the targets for a source of recordings that "key=field" texts name.

    Raises:
        ConfigError: A text has another form, or a key is given twice.
    """
    targets: dict[str, Any] = {}
    for option, vocab, assignments in (("--label", None, labels), ("--text", "bytes", texts)):
        for assignment in assignments:
            key, _, field = assignment.partition("=")
            where = f"{option} {assignment}"
            if not key or not field:
                raise ConfigError("expected KEY=FIELD", where=where, fix=f"for example {option} classes=word")
            if key in targets or key == "data":
                raise ConfigError(f"the key {key!r} exists already", where=where, fix="choose another name")
            targets[key] = {"field": field, "vocab": vocab}
    return targets


def _print_written(output: Console, messages: Console, conversion: Conversion, records: list[ShardRecord]) -> None:
    """Summarize the written files in a few lines, and warn of what the format did not keep."""
    source, out = conversion.source, conversion.out
    size = format_bytes(sum(record.bytes for record in records))
    if conversion.sharding.is_one_file:
        output.print(bold(str(out)), f"{format_count(len(source))} sequences, {size}")
    else:
        first = out.with_name(records[0].name)
        files = str(first) if len(records) == 1 else f"{first} … {records[-1].name}"
        noun = "shard" if len(records) == 1 else "shards"
        output.print(bold(files), f"{format_count(len(source))} sequences in {len(records)} {noun}, {size}")
    specs, lost = dict(source.specs), []
    if conversion.target.verify:
        with contextlib.closing(
            open_written(conversion.target, str(out.with_name(records[0].name)), source.specs)
        ) as written:
            lost = losses(source, written)
            for key in specs.keys() & written.specs.keys():
                specs[key] = replace(specs[key], has_time=written.specs[key].has_time)
    output.print(f"  {describe_layout(specs)}")
    verified = "verified" if conversion.target.verify else "not verified"
    output.print(f"  {verified}: digest {join_digests(records)}")
    for loss in lost:
        messages.print(f"warning: {loss}: {conversion.target.format.title} cannot store more")


def describe_layout(specs: Mapping[str, DataSpec]) -> str:
    """Return one phrase for each data key."""
    return "; ".join(describe_key(key, spec.to_json()) for key, spec in specs.items())
