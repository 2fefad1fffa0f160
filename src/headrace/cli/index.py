"""`headrace index`: build the index of a corpus once, so that every later process only maps it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.datasets import gathering
from headrace.errors import ConfigError, SourceError
from headrace.index import CorpusIndex
from headrace.show.drawing import format_bytes, format_count, format_seconds
from headrace.show.reporters import report_progress
from headrace.show.watched import PATIENCE_SECONDS
from headrace.sources import AudioSource
from headrace.sources.registry import keeps_index

from .configs import parse_settings
from .console import bold, open_messages, open_output, print_json
from .opening import class_of, find_data_files, open_corpus
from .options import DATA_FILES_HELP, AsJson, SourceClass, SourceSettings

_INDEX_MAGIC = b"HRINDEX\n"


def index(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILES",
            help="Files of one format; their order is that of the corpus. " + DATA_FILES_HELP,
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None, typer.Option(help="Index file to write, usually *.hrindex. Default: a file in the cache folder.")
    ] = None,
    source_class: SourceClass = None,
    settings: SourceSettings = None,
    refresh: Annotated[bool, typer.Option("--refresh", help="Rebuild it even if it is up to date.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Check the index against the data files.")] = False,
    num_workers: Annotated[
        int | None,
        typer.Option(min=0, help="Processes that read; 0: none but this one. Default: all cores, for large corpora."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Build the index of a corpus: tags, lengths and offsets of all sequences, in one memory-mapped file."""
    corpus_files = _Files([file.path for file in find_data_files(files)], source_class, parse_settings(settings))
    corpus_files.check()
    start = time.perf_counter()
    with (
        report_progress(open_messages(), "indexing", unit="part", quiet=as_json, after=PATIENCE_SECONDS) as tell,
        gathering(num_workers=num_workers, tell=tell),
    ):
        if verify:
            corpus, state = corpus_files.open(output), "verified"
            _verify(corpus, corpus_files)
        elif output is None:
            corpus, state = _index_in_cache(corpus_files, refresh=refresh)
        else:
            corpus, state = _index_at(corpus_files, output, refresh=refresh)
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
    kept = f"{corpus.path} ({format_bytes(size)})" if corpus.path else "not kept: building it is as fast as finding it"
    screen.print(bold(f"{format_count(corpus.num_seqs)} sequences"), f"{state} in {format_seconds(seconds)}: {kept}")
    screen.print(f"  digest  {corpus.digest}")
    if corpus_files.encodes_texts:
        screen.print(
            "  each epoch encodes its texts again; `headrace convert` with the same options stores them encoded"
        )
    if corpus.num_duplicates:
        screen.print(f"  {format_count(corpus.num_duplicates)} sequences have the tag of an earlier one")


@dataclass
class _Files:
    """The files of a corpus, and how to open them."""

    files: Sequence[str]
    source_class: str | None
    options: Mapping[str, Any]
    encodes_texts: bool = False  # known once they were opened

    def check(self) -> None:
        """Refuse formats without an index to keep, or with one that depends on options that are unknown here.

        Raises:
            ConfigError: With the way to do it instead.
        """
        cls = class_of(self.files, self.source_class)
        if not keeps_index({"class": cls}):
            raise ConfigError(
                f"{cls.__name__} keeps no index: opening it is fast, or it has one of its own",
                where=self.files[0],
            )
        if issubclass(cls, AudioSource) and not self.options and self.source_class is None:
            raise ConfigError(
                "a manifest of recordings is indexed with the options of its dataset (features, targets, sample rate), "
                "which are not known here",
                where=self.files[0],
                fix="use the dataset: the first time, it keeps the index of a large manifest in the cache folder; or "
                "give the options: --set features=log_mel; or save one where you like by "
                "AudioSource(...).index.save(path)",
            )

    def open(self, index: Path | None) -> CorpusIndex:
        """Return the index at a path, which must be of these files as they are now; else from cache or memory."""
        return self._opened("auto" if index is None else index)

    def gather(self) -> CorpusIndex:
        """Return a new index."""
        return self._opened(None)

    def _opened(self, index: str | Path | None) -> CorpusIndex:
        source = open_corpus(self.files, self.source_class, self.options, index)
        source.close()
        self.encodes_texts = source.encodes_texts
        return source.index


def _index_in_cache(files: _Files, *, refresh: bool) -> tuple[CorpusIndex, str]:
    corpus = files.open(None)
    if refresh and corpus.path:
        Path(corpus.path).unlink(missing_ok=True)
        corpus = files.open(None)
    return corpus, "indexed"


def _index_at(files: _Files, output: Path, *, refresh: bool) -> tuple[CorpusIndex, str]:
    if output.exists():
        if not _is_index(output):
            raise ConfigError(
                "the file exists and is not an index: it is not replaced",
                where=str(output),
                fix="choose another name, or remove it",
            )
        if not refresh:
            try:
                return files.open(output), "up to date, checked"
            except SourceError:
                pass  # truncated, of other files, or of these before they changed: built again below
    files.gather().save(output)
    return files.open(output), "indexed"


def _is_index(path: Path) -> bool:
    """Tell whether a file is an index, whole or truncated, so that nothing is lost if a new one replaces it."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        start = file.read(len(_INDEX_MAGIC))
    return _INDEX_MAGIC.startswith(start)


def _verify(corpus: CorpusIndex, files: _Files) -> None:
    """Check an index as a whole, and that it agrees with the files.

    Raises:
        SourceError: Something differs.
    """
    corpus.verify()
    found = files.gather()
    if found.digest != corpus.digest:
        what = f"the index has the digest {corpus.digest} over tags and lengths, the files have {found.digest}"
    elif found.meta != corpus.meta:
        what = "the index has other layouts or labels than the files"
    else:
        return
    raise SourceError(what, where=corpus.path, fix="headrace index --refresh FILES")
