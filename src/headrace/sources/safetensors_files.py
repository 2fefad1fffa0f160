"""Sequences in `.safetensors` files: many in a file, or a file for each.

Headers are read when the index is built, then only the bytes that were asked for; the package safetensors is not
needed. Read `safetensors_format.py` for the header, `array_source.py` for how arrays are read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import xxhash

from headrace.errors import ConfigError, SourceError
from headrace.files import FileStamp
from headrace.index import CorpusIndex, open_or_build
from headrace.specs import DataSpec

from .array_source import PlainArraySource
from .array_table import ArrayTable, StoredArray, fields_of, renamed, with_labels
from .data_types import parse_data_types
from .folder_listing import (
    Files,
    IndexOption,
    LazyStamps,
    Listing,
    for_each,
    list_corpus_files,
    open_or_build_listed,
    read_part,
)
from .plain_files import PlainFiles
from .safetensors_format import SafetensorsHeader, read_safetensors_header

INDEX_KIND = "safetensors/1"
ABOUT = "headrace"  # the entry of the metadata that a writer of ours makes
LAYOUTS = ("names", "file")
_SUFFIX = ".safetensors"


class SafetensorsSource(PlainArraySource):
    """The tensors of `.safetensors` files.

    Two layouts are known. `"names"`: a tensor is called `<tag>/<key>`, and a file has any number of sequences, in the
    order in which their names first occur. `"file"`: each file is a sequence, its tag is its path without the suffix,
    and the tensors have the names of the keys. The first axis is time; a tensor without axes is a key without time.
    bfloat16 becomes float32, which is exact.

    Args:
        files: A file, a folder (with its sub-folders), or a list of files.
        layout: See above.
        fields: Data key -> name of the tensor (without the tag); `None` takes all, under their own names.
        specs: Data key -> layout, for what the tensors do not say: how many classes there are, or that an axis may
            differ (`None` in the shape). What `SafetensorsWriter` was told is in its file.
        labels: Data key -> class labels.
        index: `"auto"` keeps the index of a large corpus in the cache folder; `None` always reads the headers; a path
            opens the index that `source.index.save(path)` wrote.

    Raises:
        ConfigError: An option is wrong.
        SourceError: A file is missing, torn or damaged, has a tag twice, or sequences that are not alike; or the given
            index is not one of these files as they are now.
    """

    def __init__(
        self,
        files: Files,
        *,
        layout: Literal["names", "file"] = "names",
        fields: Mapping[str, Any] | None = None,
        specs: Mapping[str, DataSpec | Mapping[str, Any]] | None = None,
        labels: Mapping[str, Sequence[str]] | None = None,
        index: IndexOption = "auto",
    ) -> None:
        if layout not in LAYOUTS:
            raise ConfigError(f"unknown layout {layout!r}", where="SafetensorsSource", fix=f"one of {LAYOUTS}")
        is_file = isinstance(files, str | os.PathLike) and not os.path.isdir(files)
        listing = list_corpus_files([files] if is_file else files, (_SUFFIX,), "SafetensorsSource")  # type: ignore[list-item]
        names, said = fields_of(fields, "SafetensorsSource"), parse_data_types(specs or {})
        own_labels = {key: list(entries) for key, entries in (labels or {}).items()}
        what = json.dumps([names, {key: spec.to_json() for key, spec in said.items()}, own_labels])
        kind = f"{INDEX_KIND} {layout} {xxhash.xxh3_128_hexdigest(what.encode())}"
        gather = _Gathering(listing, names, said, own_labels)
        if layout == "file":
            corpus = open_or_build_listed(listing, gather.one_a_file, index=index, kind=kind)
        else:
            paths = [listing.path(number) for number in range(len(listing.names))]
            corpus = open_or_build(paths, gather.by_names, index=index, kind=kind)
        self._open(listing.root, corpus)

    def _open(self, root: str, index: CorpusIndex) -> None:
        self._root = root
        if index.meta["layout"] == "file":
            self._files_of_seqs = None
            files: Sequence[FileStamp] = _stamps(root, index)
        else:
            self._files_of_seqs = index.locator("file")
            files = index.files
        self._num_files = len(files)
        self._attach(index, PlainFiles(files))

    def _file_of(self, corpus_idx: int, data_key: str) -> int:  # noqa: ARG002 - all keys are in one file
        if self._files_of_seqs is None:
            return corpus_idx
        file_idx = int(self._files_of_seqs[corpus_idx])
        if not 0 <= file_idx < self._num_files:
            raise self._index.damaged(f"it says that sequence {corpus_idx} is in file {file_idx} of {self._num_files}")
        return file_idx

    def __getstate__(self) -> tuple[str, CorpusIndex]:
        return self._root, self._index

    def __setstate__(self, state: tuple[str, CorpusIndex]) -> None:
        self._open(*state)


def _stamps(root: str, index: CorpusIndex) -> LazyStamps:
    """Return what the file of each sequence was. Not a method: see `numpy_folder.py`."""
    sizes, times = index.locator("size0"), index.locator("time0")

    def stamp_of(corpus_idx: int) -> FileStamp:
        path = os.path.join(root, index.tags[corpus_idx] + _SUFFIX)
        return FileStamp(path, int(sizes[corpus_idx]), int(times[corpus_idx]), digest="")

    return LazyStamps(index.num_seqs, stamp_of)


class _Gathering:
    """Makes the index of some files."""

    def __init__(
        self,
        listing: Listing,
        fields: dict[str, str] | None,
        specs: dict[str, DataSpec],
        labels: dict[str, list[str]],
    ) -> None:
        self._listing = listing
        self._fields, self._specs, self._labels = fields, specs, labels

    def one_a_file(self) -> CorpusIndex:
        """Take each file for a sequence."""
        listing = self._listing
        headers = self._read_headers(read_safetensors_header)
        table = ArrayTable(self._specs, self._fields)
        for number, header in enumerate(headers):
            table.add(listing.names[number].removesuffix(_SUFFIX), header.tensors, listing.path(number))
        sizes, times = np.array(listing.sizes, np.int64), np.array(listing.times, np.int64)
        return self._index(table, {"size0": sizes, "time0": times}, "file")

    def by_names(self) -> CorpusIndex:
        """Take each name for a tag and a key."""
        headers = self._read_headers(read_safetensors_header)
        self._take_about(headers)
        table = ArrayTable(self._specs, self._fields)
        file_of: list[int] = []
        first_file: dict[str, int] = {}
        for number, header in enumerate(headers):
            path = self._listing.path(number)
            for tag, arrays in _by_tag(header, path).items():
                if first_file.setdefault(tag, number) != number:
                    twice = f"{self._listing.path(first_file[tag])}, {path}"
                    raise SourceError(f"two files have the sequence {tag!r}", where=twice, fix="rename one of them")
                table.add(tag, arrays, f"{path}, sequence {tag!r}")
                file_of.append(number)
        return self._index(table, {"file": np.array(file_of, np.int32)}, "names")

    def _read_headers(self, read: Callable[[str], SafetensorsHeader]) -> list[SafetensorsHeader]:
        listing = self._listing

        def look(number: int) -> SafetensorsHeader:
            header = read(listing.path(number))
            read_part(listing.path(number), listing.sizes[number], listing.times[number], 0)
            return header

        return for_each(look, range(len(listing.names)))

    def _take_about(self, headers: Sequence[SafetensorsHeader]) -> None:
        """Take layouts and labels that a writer of ours put into the first file; what the user said counts more."""
        if not headers or ABOUT not in headers[0].metadata:
            return
        try:
            said = msgspec.json.decode(headers[0].metadata[ABOUT])
            specs = {str(key): DataSpec.from_json(spec) for key, spec in said["specs"].items()}
            labels = {str(key): [str(name) for name in names] for key, names in said["labels"].items()}
        except (msgspec.MsgspecError, KeyError, TypeError, AttributeError, RecursionError, ConfigError) as error:
            raise SourceError(
                f"what the file says of itself cannot be read: {error}", where=self._listing.path(0)
            ) from error
        self._specs = {**renamed(specs, self._fields), **self._specs}
        self._labels = {**renamed(labels, self._fields), **self._labels}

    def _index(self, table: ArrayTable, locators: dict[str, Any], layout: str) -> CorpusIndex:
        lengths = table.lengths()
        specs = with_labels({key: table.specs[key] for key in lengths}, self._labels)
        where = table.locators()
        return CorpusIndex.from_columns(
            tags=table.tags,
            lengths=lengths,
            locators={**where, **locators},
            meta={
                "specs": {key: spec.to_json() for key, spec in specs.items()},
                "labels": self._labels,
                "forms": {key: [f"form:{key}" in where, False] for key in specs},
                "layout": layout,
            },
        )


def _by_tag(header: SafetensorsHeader, path: str) -> dict[str, dict[str, StoredArray]]:
    """Group tensors by tag, in the order in which tags first occur."""
    found: dict[str, dict[str, StoredArray]] = {}
    for name, array in header.tensors.items():
        tag, mark, key = name.rpartition("/")
        if not mark or not key:
            raise SourceError(
                f"the tensor {name!r} is not called <tag>/<key>", where=path, fix='layout="file": a file is a sequence'
            )
        found.setdefault(tag, {})[key] = array
    return found
