"""`headrace index`: build the index of a corpus once, so that every later process only maps it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from headrace.errors import ConfigError, SourceError
from headrace.index import CorpusIndex
from headrace.sources import HDFSource

from .console import bold, open_output, print_json
from .drawing import format_bytes, format_count, format_seconds
from .inspect import MANIFEST_SUFFIXES

_INDEX_MAGIC = b"HRINDEX\n"


def index(
    files: Annotated[list[Path], typer.Argument(help="HDF5 files, in the order of the corpus.", show_default=False)],
    output: Annotated[
        Path | None, typer.Option(help="Where to keep it (by custom *.hrindex). Default: the cache folder.")
    ] = None,
    refresh: Annotated[bool, typer.Option("--refresh", help="Build it again even if it is up to date.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Check an index against all of the files.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, nothing else.")] = False,
) -> None:
    """Build the index of a corpus: tags, lengths and places of all sequences, in one memory-mapped file."""
    _refuse_manifests(files)
    start = time.perf_counter()
    if verify:
        corpus, state = _open(files, output), "verified"
        _verify(corpus, files)
    elif output is None:
        corpus, state = _index_in_cache(files, refresh=refresh)
    else:
        corpus, state = _index_at(files, output, refresh=refresh)
    seconds = time.perf_counter() - start
    size = Path(corpus.path).stat().st_size if corpus.path else 0
    if as_json:
        print_json(
            {
                "path": corpus.path,
                "state": state,
                "num_seqs": corpus.num_seqs,
                "num_duplicate_tags": corpus.num_duplicates,
                "digest": corpus.digest,
                "bytes": size,
                "seconds": round(seconds, 6),
            }
        )
        return
    screen = open_output()
    kept = f"{corpus.path} ({format_bytes(size)})" if corpus.path else "not kept: building it is as quick as finding it"
    screen.print(bold(f"{format_count(corpus.num_seqs)} sequences"), f"{state} in {format_seconds(seconds)}: {kept}")
    screen.print(f"  digest  {corpus.digest}")
    if corpus.num_duplicates:
        screen.print(f"  {format_count(corpus.num_duplicates)} sequences have the tag of an earlier one")


def _refuse_manifests(files: Sequence[Path]) -> None:
    for path in files:
        if path.suffix in MANIFEST_SUFFIXES:
            raise ConfigError(
                "a manifest of recordings is indexed with the options of its dataset (features, targets, sample rate), "
                "which are not known here",
                where=str(path),
                fix="use the dataset: the first time, it keeps the index of a large manifest in the cache folder; or "
                "save one where you like by AudioSource(...).index.save(path)",
            )


def _open(files: Sequence[Path], output: Path | None) -> CorpusIndex:
    """Return the index at `output`, which must be one of these files as they are now; else from cache or memory."""
    source = HDFSource(files, index="auto" if output is None else output)
    source.close()
    return source.index


def _gather(files: Sequence[Path]) -> CorpusIndex:
    source = HDFSource(files, index=None)
    source.close()
    return source.index


def _index_in_cache(files: Sequence[Path], *, refresh: bool) -> tuple[CorpusIndex, str]:
    corpus = _open(files, None)
    if refresh and corpus.path:
        Path(corpus.path).unlink(missing_ok=True)
        corpus = _open(files, None)
    return corpus, "indexed"


def _index_at(files: Sequence[Path], output: Path, *, refresh: bool) -> tuple[CorpusIndex, str]:
    if output.exists():
        if not _is_index(output):
            raise ConfigError(
                "the file exists and is not an index: it is not replaced",
                where=str(output),
                fix="choose another name, or remove it",
            )
        if not refresh:
            try:
                return _open(files, output), "up to date, checked"
            except SourceError:
                pass  # torn, of other files, or of these before they changed: built again below
    _gather(files).save(output)
    return _open(files, output), "indexed"


def _is_index(path: Path) -> bool:
    """Tell whether a file is an index, whole or torn, so that nothing is lost if a new one replaces it."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        start = file.read(len(_INDEX_MAGIC))
    return _INDEX_MAGIC.startswith(start)


def _verify(corpus: CorpusIndex, files: Sequence[Path]) -> None:
    """Check an index as a whole, and that it says what the files say.

    Raises:
        SourceError: Something differs.
    """
    corpus.verify()
    found = _gather(files)
    if found.digest != corpus.digest:
        what = f"the index has the digest {corpus.digest} over tags and lengths, the files have {found.digest}"
    elif found.meta != corpus.meta:
        what = "the index has other layouts or labels than the files"
    else:
        return
    raise SourceError(what, where=corpus.path, fix="headrace index --refresh FILES")
