"""Sequences in `.npy` and `.npz` files, one file (or a few) a sequence.

Headers are read when the index is built, then only the bytes that were asked for. Nothing is unpickled. Read
`numpy_folder_scan.py` for what is indexed, `folder_listing.py` for which files count, `array_source.py` for how arrays
are read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from headrace.errors import ConfigError
from headrace.files import FileStamp
from headrace.index import CorpusIndex
from headrace.specs import DataSpec

from .array_source import PlainArraySource
from .array_table import fields_of, renamed
from .data_types import parse_data_types
from .folder_listing import Files, IndexOption, LazyStamps, list_corpus_files, open_or_build_listed
from .numpy_folder_scan import LAYOUTS, AboutFolder, FolderOptions, gather_index
from .plain_files import PlainFiles


class NumpyFolderSource(PlainArraySource):
    """The arrays of `.npy` and `.npz` files below a folder.

    Three layouts are known. `"file"`: each file is a sequence, and its tag is its path without the suffix; a `.npy` is
    the key "data", a `.npz` has a key for each array in it. `"suffix"`: `<tag>.<key>.npy`. `"folder"`:
    `<key>/<tag>.npy`. Sub-folders are parts of the tags. Sequences come in the order of their tags, in that of `files`
    if these are a list, or as they were written if `NumpyFolderWriter` made the folder.

    The first axis is time, and an array without axes is a key without time. Plain arrays (also in a `.npz` that is not
    compressed) are read by exactly the bytes that are asked for; compressed and Fortran-ordered ones are read whole.

    Args:
        files: The folder, or a list of files.
        layout: See above; `None` is what the folder says of itself, else "file".
        fields: Data key -> name of the array; `None` takes all, under their own names.
        specs: Data key -> layout (`DataSpec`, or a dict such as `{"sparse": True, "dim": 10}`), for what cannot be
            learnt from the arrays: how many classes there are, or that an axis may differ (`None` in the shape).
        labels: Data key -> class labels.
        label: `"folder"` adds the key "classes": the name of the folder that a file is in.
        index: `"auto"` keeps the index of a large folder in the cache folder; `None` always looks at all files; a path
            opens the index that `source.index.save(path)` wrote.

    Raises:
        ConfigError: An option is wrong.
        SourceError: A file is missing, torn, outside of the folder, holds something else than numbers, or is not like
            the others; or the given index is not one of these files as they are now.
    """

    def __init__(
        self,
        files: Files,
        *,
        layout: Literal["file", "suffix", "folder"] | None = None,
        fields: Mapping[str, Any] | None = None,
        specs: Mapping[str, DataSpec | Mapping[str, Any]] | None = None,
        labels: Mapping[str, Sequence[str]] | None = None,
        label: Literal["folder"] | None = None,
        index: IndexOption = "auto",
    ) -> None:
        is_folder = isinstance(files, str | os.PathLike)
        about = AboutFolder.read(os.path.abspath(files)) if is_folder else AboutFolder()  # type: ignore[arg-type]
        chosen = about.layout if layout is None else layout
        if chosen not in LAYOUTS:
            raise ConfigError(f"unknown layout {chosen!r}", where="NumpyFolderSource", fix=f"one of {LAYOUTS}")
        if label not in (None, "folder") or (label and chosen == "folder"):
            raise ConfigError(
                f"label={label!r} with layout={chosen!r}", where="NumpyFolderSource", fix='label is None or "folder"'
            )
        names = fields_of(fields, "NumpyFolderSource")
        options = FolderOptions(
            chosen,
            names,
            {**renamed(about.specs, names), **parse_data_types(specs or {})},
            {**renamed(about.labels, names), **{key: list(texts) for key, texts in (labels or {}).items()}},
            label == "folder",
            about.order,
        )
        suffixes = (".npy", ".npz") if chosen == "file" else (".npy",)
        listing = list_corpus_files(files, suffixes, "NumpyFolderSource")
        corpus = open_or_build_listed(listing, lambda: gather_index(listing, options), index=index, kind=options.kind)
        self._open(listing.root, corpus)

    def _open(self, root: str, index: CorpusIndex) -> None:
        self._root = root
        self._groups: list[tuple[str, str]] = [(first, last) for first, last in index.meta["groups"]]
        self._group_of: dict[str, int] = index.meta["group_of"]
        self._attach(index, PlainFiles(_stamps(root, self._groups, index)))

    @property
    def root(self) -> str:
        """The folder that the tags are relative to."""
        return self._root

    def _file_of(self, corpus_idx: int, data_key: str) -> int:
        return corpus_idx * len(self._groups) + self._group_of[data_key]

    def __getstate__(self) -> tuple[str, CorpusIndex]:
        return self._root, self._index

    def __setstate__(self, state: tuple[str, CorpusIndex]) -> None:
        self._open(*state)


def _stamps(root: str, groups: Sequence[tuple[str, str]], index: CorpusIndex) -> LazyStamps:
    """Return what file g + G i was when it was listed: it holds group g of the arrays of sequence i.

    Not a method: a circle of references would keep files open until it is found.
    """
    columns = [(index.locator(f"size{group}"), index.locator(f"time{group}")) for group in range(len(groups))]

    def stamp_of(file_idx: int) -> FileStamp:
        corpus_idx, group = divmod(file_idx, len(groups))
        first, last = groups[group]
        sizes, times = columns[group]
        path = os.path.join(root, f"{first}{index.tags[corpus_idx]}{last}")
        return FileStamp(path, int(sizes[corpus_idx]), int(times[corpus_idx]), digest="")

    return LazyStamps(index.num_seqs * len(groups), stamp_of)
