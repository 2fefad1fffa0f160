"""`headrace inspect`: the contents of data files and index files, without reading a sequence."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console

from headrace.errors import SourceError
from headrace.index import CorpusIndex
from headrace.show.drawing import QUANTILES, draw_histogram, format_bytes, format_count, plan_bins, quantiles_of
from headrace.sources.formats import FORMATS, find_format
from headrace.specs import DataSpec

from .configs import parse_settings
from .console import bold, open_output, print_json, shorten
from .opening import DataFile, find_data_files, open_corpus
from .options import DATA_FILES_HELP, AsJson, SourceClass, SourceSettings
from .report import describe_key

INDEX_SUFFIX = ".hrindex"
_OF_RECORDINGS = (FORMATS["manifest"].title, FORMATS["audio"].title)
_NUM_SHOWN = 5  # tags and labels: enough to recognize a corpus


@dataclass(frozen=True)
class _Corpus:
    """What is known of a corpus without reading it.

    Attributes:
        kind: The title of the format, such as "HDF5", or "index".
        files: The files that were named.
        index: Tags and lengths.
        specs: Data key -> layout; empty for an index without them.
        labels: Data key -> class labels, for those that have some.
    """

    kind: str
    files: Sequence[DataFile]
    index: CorpusIndex
    specs: Mapping[str, DataSpec]
    labels: Mapping[str, Sequence[str]]


def inspect(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILES",
            help="Data files, folders, manifests or index files; files of one format form one corpus. "
            + DATA_FILES_HELP,
        ),
    ],
    source_class: SourceClass = None,
    settings: SourceSettings = None,
    sample_rate: Annotated[
        int | None, typer.Option(min=1, help="Report lengths at this sample rate (for manifests with several rates).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the contents of files: data keys, dtypes, shapes, labels, number of sequences, lengths."""
    corpora = _open_corpora(find_data_files(files), source_class, parse_settings(settings), sample_rate)
    reports = [_describe(corpus) for corpus in corpora]
    if as_json:
        print_json({"corpora": reports})
        return
    output = open_output()
    for number, report in enumerate(reports):
        if number:
            output.print()
        _print_report(output, report)


def _open_corpora(
    files: list[DataFile], source_class: str | None, options: dict[str, Any], sample_rate: int | None
) -> list[_Corpus]:
    indices = [file for file in files if file.path.endswith(INDEX_SUFFIX)]
    corpora = []
    for title, named, takes_many in _by_format([file for file in files if file not in indices], source_class):
        # Nothing is read, so nothing of recordings is lost that has no targets.
        own = {"targets": {}, **options} if title in _OF_RECORDINGS else dict(options)
        if sample_rate is not None and title == FORMATS["manifest"].title:
            own["sample_rate"] = sample_rate
        groups = [named] if takes_many else [[file] for file in named]
        corpora += [_corpus_of(group, title, source_class, own) for group in groups]
    for file in indices:
        if not os.path.isfile(file.path):
            raise SourceError("no such file", where=file.name)
        # An index can be inspected without the files it describes.
        index = CorpusIndex.open(file.path, check_files=False)
        specs = {key: DataSpec.from_json(spec) for key, spec in index.meta.get("specs", {}).items()}
        corpora.append(_Corpus("index", [file], index, specs, index.meta.get("labels", {})))
    return corpora


def _by_format(files: list[DataFile], source_class: str | None) -> list[tuple[str, list[DataFile], bool]]:
    """Group files by format, in the order in which formats occur: (title, files, whether they are one corpus)."""
    if source_class is not None:
        return [(source_class, files, True)] if files else []
    groups: dict[str, list[DataFile]] = {}
    for file in files:
        groups.setdefault(find_format(file.path).name, []).append(file)
    return [(FORMATS[name].title, named, FORMATS[name].takes_many) for name, named in groups.items()]


def _corpus_of(files: Sequence[DataFile], kind: str, source_class: str | None, options: dict[str, Any]) -> _Corpus:
    source = open_corpus([file.path for file in files], source_class, options)
    corpus = _Corpus(kind, files, source.index, source.specs, source.labels)
    source.close()
    return corpus


def _size_of(path: str) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    if not os.path.isdir(path):
        return os.path.getsize(path)
    return sum(os.path.getsize(os.path.join(folder, name)) for folder, _, names in os.walk(path) for name in names)


def _describe(corpus: _Corpus) -> dict[str, Any]:
    index = corpus.index
    return {
        "kind": corpus.kind,
        "files": [{"path": file.name, "bytes": _size_of(file.path)} for file in corpus.files],
        "num_seqs": index.num_seqs,
        "num_duplicate_tags": index.num_duplicates,
        "first_tags": list(index.tags[:_NUM_SHOWN]),
        "digest": index.digest,
        "keys": {key: _describe_data_key(corpus, key) for key in (corpus.specs or index.data_keys)},
    }


def _describe_data_key(corpus: _Corpus, key: str) -> dict[str, Any]:
    described: dict[str, Any] = {}
    spec = corpus.specs.get(key)
    if spec is not None:
        described.update(spec.to_json())
    labels = corpus.labels.get(key)
    if labels:
        described["num_labels"] = len(labels)
        described["first_labels"] = [str(label) for label in labels[:_NUM_SHOWN]]
    if corpus.index.has_lengths(key):
        described["lengths"] = _describe_lengths(np.asarray(corpus.index.lengths(key)))
    return described


def _describe_lengths(lengths: NDArray[Any]) -> dict[str, Any]:
    described: dict[str, Any] = {"frames": int(lengths.sum(dtype=np.int64))}
    if len(lengths):
        edges = plan_bins(int(lengths.min()), int(lengths.max()), max_bins=12)
        described.update(
            mean=round(float(lengths.mean()), 3),
            quantiles=dict(zip(map(str, QUANTILES), quantiles_of(lengths), strict=True)),
            histogram={"edges": edges.tolist(), "counts": np.histogram(lengths, bins=edges)[0].tolist()},
        )
    return described


def _print_report(output: Console, report: dict[str, Any]) -> None:
    total_bytes = sum(file["bytes"] for file in report["files"])
    num_files = len(report["files"])
    name = report["files"][0]["path"] if num_files == 1 else f"{num_files} files"
    count = format_count(report["num_seqs"])
    output.print(bold(name), f"({report['kind']}, {format_bytes(total_bytes)}): {count} sequences")
    if num_files > 1:
        for file in report["files"]:
            output.print(f"  {file['path']}  {format_bytes(file['bytes'])}")
    tags = [shorten(tag, 24) for tag in report["first_tags"]]
    output.print(f"  tags    {', '.join(tags)}{', …' if report['num_seqs'] > len(tags) else ''}")
    if report["num_duplicate_tags"]:
        output.print(f"          {format_count(report['num_duplicate_tags'])} sequences have the tag of an earlier one")
    output.print(f"  digest  {report['digest']}")
    shown: dict[str, str] = {}
    for key, described in report["keys"].items():
        _print_data_key(output, key, described, shown)


def _print_data_key(output: Console, key: str, described: dict[str, Any], shown: dict[str, str]) -> None:
    """Print one data key; `shown` maps lengths that were printed already to their data key."""
    output.print()
    title = describe_key(key, described) if "dtype" in described else key
    output.print(bold(title))
    if "first_labels" in described:
        more = ", …" if described["num_labels"] > len(described["first_labels"]) else ""
        output.print(f"  labels  {', '.join(shorten(label, 24) for label in described['first_labels'])}{more}")
    lengths = described.get("lengths")
    if lengths is None:
        output.print("  lengths unknown without reading the sequences")
        return
    frames = f"  frames  {format_count(lengths['frames'])}"
    if "quantiles" not in lengths:
        output.print(frames)
        return
    values = list(lengths["quantiles"].values())
    if values[0] == values[-1]:
        output.print(f"{frames}, {format_count(values[0])} in each sequence")
        return
    output.print(f"{frames}, {lengths['mean']:,.1f} a sequence")
    names = ("min", "5 %", "25 %", "50 %", "75 %", "95 %", "max")
    output.print("  length  " + "   ".join(f"{name} {value:,}" for name, value in zip(names, values, strict=True)))
    same = shown.setdefault(str(lengths), key)
    if same != key:
        output.print(f"          distributed as in {same}")
        return
    edges, counts = (np.array(lengths["histogram"][name]) for name in ("edges", "counts"))
    for line in draw_histogram(edges, counts, output.width - 4):
        output.print(f"    {line}")
