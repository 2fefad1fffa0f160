"""`headrace convert`: recordings listed in a manifest, to one HDF5 file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from headrace.errors import ConfigError
from headrace.sources import AudioSource, HDFWriter, Source

from .console import bold, open_messages, open_output
from .drawing import format_bytes, format_count
from .progress import open_reporter
from .report import describe_key


class Features(StrEnum):
    """What becomes the key "data"."""

    RAW = "raw"
    LOG_MEL = "log_mel"


class Compression(StrEnum):
    """How the file is packed."""

    NONE = "none"
    GZIP = "gzip"
    LZF = "lzf"


_FILTER: dict[Compression, Literal["gzip", "lzf"] | None] = {
    Compression.NONE: None,
    Compression.GZIP: "gzip",
    Compression.LZF: "lzf",
}


def convert(
    manifest: Annotated[Path, typer.Argument(help="JSONL: tag, audio, fields.", show_default=False)],
    out: Annotated[Path, typer.Argument(help="The HDF5 file to make.", show_default=False)],
    features: Annotated[Features, typer.Option(help="What becomes the key data.")] = Features.RAW,
    label: Annotated[
        list[str] | None, typer.Option(metavar="KEY=FIELD", help="Class indices from a field of the manifest.")
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option(metavar="KEY=FIELD", help="UTF-8 bytes from a field of the manifest.")
    ] = None,
    sample_rate: Annotated[
        int | None, typer.Option(min=1, help="Resample to this many Hz. Default: as recorded.")
    ] = None,
    channel: Annotated[int | None, typer.Option(min=0, help="Which channel of recordings with several.")] = None,
    compression: Annotated[Compression, typer.Option(help="gzip is small, lzf is fast.")] = Compression.NONE,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Convert recordings to HDF5; the file appears under its name when it is whole."""
    if out.exists() and not overwrite:
        raise ConfigError("the file exists already", where=str(out), fix="choose another name, or pass --overwrite")
    targets = parse_targets(label or (), text or ())
    # Without a kept index, so that missing recordings are named before the first one is read.
    source = AudioSource(
        manifest, features=features.value, targets=targets, sample_rate=sample_rate, channel=channel, index=None
    )
    write_corpus(source, out, open_messages(), compression=_FILTER[compression], quiet=quiet)
    print_written(open_output(), source, out)


def parse_targets(labels: Iterable[str], texts: Iterable[str]) -> dict[str, Any]:
    """Return the targets for `AudioSource` that "key=field" texts ask for.

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
                raise ConfigError(f"the key {key!r} is there already", where=where, fix="choose another name")
            targets[key] = {"field": field, "vocab": vocab}
    return targets


def write_corpus(
    source: Source,
    out: Path,
    messages: Console,
    *,
    compression: Literal["gzip", "lzf"] | None = None,
    quiet: bool = False,
) -> None:
    """Write all sequences of a source to an HDF5 file, in its place if there is one, with progress on `messages`.

    Raises:
        SourceError: A sequence cannot be read or written; nothing is left, and a file that was there stays.
    """
    num_bytes = 0
    with (
        HDFWriter(out, specs=source.specs, labels=source.labels, compression=compression, overwrite=True) as writer,
        open_reporter(messages, "converting", len(source), quiet=quiet) as reporter,
    ):
        for corpus_idx in range(len(source)):
            arrays = source.read_seq(corpus_idx)
            writer.append(source.tag(corpus_idx), arrays)
            num_bytes += sum(array.nbytes for array in arrays.values())
            reporter.update(corpus_idx + 1, num_bytes)
    source.close()


def print_written(output: Console, source: Source, out: Path) -> None:
    """Print what was written, in two lines."""
    output.print(bold(str(out)), f"{format_count(len(source))} sequences, {format_bytes(out.stat().st_size)}")
    output.print(f"  {describe_layout(source)}")


def describe_layout(source: Source) -> str:
    """Return one phrase for each data key of a source."""
    layouts: Mapping[str, dict[str, Any]] = {key: spec.to_json() for key, spec in source.specs.items()}
    return "; ".join(describe_key(key, layout) for key, layout in layouts.items())
