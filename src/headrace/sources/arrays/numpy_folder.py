"""Sequences in `.npy` and `.npz` files, one file (or a few) a sequence.

Headers are read when the index is built: which sequence is in which files, and where their numbers begin. Then only the
bytes are read that were asked for. Nothing is unpickled. Read `shared/folder.py` for which files count, `source.py` for
how arrays are read.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import msgspec
import numpy as np
import xxhash

from headrace.errors import ConfigError, SourceError
from headrace.files import FileStamp, open_regular
from headrace.index import CorpusIndex
from headrace.specs import DataSpec

from ..shared.data_types import parse_about, parse_data_types, with_labels
from ..shared.folder import (
    LazyStamps,
    ListedFile,
    Listing,
    for_each,
    list_corpus_files,
    read_part,
)
from ..shared.npy import HEAD_BYTES, NpyHeader, parse_any_npy
from ..shared.paths import Files, IndexOption
from ..shared.plain_files import PlainFiles
from ..shared.source import make_index
from ..shared.zip_members import Member, content_start, list_members
from .source import (
    DEFLATED,
    FORTRAN,
    SWAPPED,
    ArrayTable,
    PlainArraySource,
    StoredArray,
    fields_of,
    renamed,
)

INDEX_KIND = "numpy-folder/1"
ABOUT_FILE = "headrace.json"
TAGS_FILE = "headrace-tags.jsonl"
KEY_OF_NPY = "data"
LABEL_KEY = "classes"
LAYOUTS = ("file", "suffix", "folder")


@dataclass(frozen=True, slots=True)
class AboutFolder:
    """Contents of `headrace.json`, which `NumpyFolderWriter` stores in a folder.

    Attributes:
        layout: One of `LAYOUTS`.
        specs: Data key -> layout.
        labels: Data key -> class labels.
        order: Tags in the order of the corpus; `None` for that of their names.
    """

    layout: str = "file"
    specs: dict[str, DataSpec] = field(default_factory=dict)
    labels: dict[str, Sequence[str]] = field(default_factory=dict)
    order: list[str] | None = None

    @classmethod
    def read(cls, root: str) -> AboutFolder:
        """Read what a folder says; what it does not say is as in a new object.

        Raises:
            SourceError: It says something that cannot be read.
        """
        path = os.path.join(root, ABOUT_FILE)
        if not os.path.lexists(path):
            return cls()
        what = "the description of the folder"
        fix = f"restore {ABOUT_FILE} and {TAGS_FILE}, or remove both"
        try:
            with open_regular(path) as file:
                said = msgspec.json.decode(file.read())
            with open_regular(os.path.join(root, TAGS_FILE)) as file:
                order = [msgspec.json.decode(line, type=str) for line in file]
            layout = str(said["layout"])
        except (OSError, msgspec.MsgspecError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise SourceError(f"{what} cannot be read: {error}", where=path, fix=fix) from error
        specs, labels = parse_about(said, what, path, fix=fix)
        return cls(layout, specs, labels, order)


@dataclass(frozen=True, slots=True)
class FolderOptions:
    """Options of the user, and the contents of `headrace.json`.

    Attributes:
        layout: One of `LAYOUTS`.
        fields: Data key -> name of the array.
        specs: Data key -> layout.
        labels: Data key -> class labels.
        folder_label: Whether the name of a file's folder is its class.
        order: Tags in the order of the corpus.
    """

    layout: str
    fields: dict[str, str] | None
    specs: dict[str, DataSpec]
    labels: dict[str, Sequence[str]]
    folder_label: bool
    order: list[str] | None

    @property
    def kind(self) -> str:
        """Identify all options that change the index: the same text in every process."""
        specs = {key: spec.to_json() for key, spec in self.specs.items()}
        said = json.dumps([self.fields, specs, self.labels, self.folder_label, self.order])
        return f"{INDEX_KIND} {self.layout} {xxhash.xxh3_128_hexdigest(said.encode())}"


@dataclass(frozen=True, slots=True)
class _Plan:
    """Which files each sequence has.

    Attributes:
        groups: What stands before and after the tag in the name of a file.
        keys: The key of each group; `None` where a file holds all keys.
        files: Tag -> number of the file in each group, -1 where there is none.
    """

    groups: list[tuple[str, str]]
    keys: list[str | None]
    files: dict[str, list[int]]


def gather_index(listing: Listing, options: FolderOptions) -> CorpusIndex:
    """Read the headers of all files: some 0.1 ms a file, several at a time.

    Raises:
        SourceError: A file is truncated, holds no numbers, or is not like the others.
    """
    plan = _plan_files(listing, options)
    tags = _ordered(plan, options, listing.root)
    wanted = None if options.fields is None else set(options.fields.values())
    table = ArrayTable(options.specs, options.fields)
    numbers = [[number for number in plan.files[tag] if number >= 0] for tag in tags]
    flat = [number for group in numbers for number in group]
    found = iter(for_each(partial(_look, wanted), listing.files(flat)))
    for tag, files in zip(tags, (plan.files[tag] for tag in tags), strict=True):
        arrays: dict[str, StoredArray] = {}
        for key, number in zip(plan.keys, files, strict=True):
            if number >= 0:
                content = next(found)
                arrays.update(content if key is None else {key: content[KEY_OF_NPY]})
        table.add(tag, arrays, where=os.path.join(listing.root, tag))
    return _index(listing, options, plan, table)


def _index(listing: Listing, options: FolderOptions, plan: _Plan, table: ArrayTable) -> CorpusIndex:
    lengths, locators = table.lengths(), table.locators()
    specs = {key: table.specs[key] for key in sorted(lengths, key=lambda key: key != KEY_OF_NPY)}
    labels = dict(options.labels)
    group_of = {}
    for key in specs:
        name = key if options.fields is None else options.fields[key]
        group_of[key] = plan.keys.index(name) if name in plan.keys else 0
    if options.folder_label:
        if LABEL_KEY in specs:
            raise ConfigError(f"there is a stored {LABEL_KEY!r} already", where=listing.root, fix="leave out label=")
        folders = [_folder_of(tag, listing.root) for tag in table.tags]
        labels[LABEL_KEY] = sorted(set(folders))
        class_of = {name: number for number, name in enumerate(labels[LABEL_KEY])}
        specs[LABEL_KEY] = DataSpec("int32", sparse=True, dim=len(class_of))
        lengths[LABEL_KEY] = np.ones(len(folders), np.int64)
        locators["folder"] = np.array([class_of[name] for name in folders], np.int32)
    for group in range(len(plan.groups)):
        files = [plan.files[tag][group] for tag in table.tags]
        locators[f"size{group}"] = np.array([listing.sizes[number] for number in files], np.int64)
        locators[f"time{group}"] = np.array([listing.times[number] for number in files], np.int64)
    return make_index(
        specs=with_labels(specs, labels),
        labels=labels,
        tags=table.tags,
        lengths=lengths,
        locators=locators,
        groups=plan.groups,
        group_of=group_of,
        forms={key: [f"form:{key}" in locators, f"packed:{key}" in locators] for key in specs},
        folder_key=LABEL_KEY if options.folder_label else None,
    )


def _plan_files(listing: Listing, options: FolderOptions) -> _Plan:
    if options.layout == "file":
        suffixes = sorted({name[-4:] for name in listing.names}) or [".npy"]
        if len(suffixes) > 1:
            raise SourceError(
                "the folder has both .npy and .npz files", where=listing.root, fix="give a list of the ones to use"
            )
        key = KEY_OF_NPY if suffixes == [".npy"] else None
        return _Plan([("", suffixes[0])], [key], {name[:-4]: [number] for number, name in enumerate(listing.names)})
    files: dict[str, dict[str, int]] = {}
    for number, name in enumerate(listing.names):
        if options.layout == "suffix":
            tag, mark, key = name[:-4].rpartition(".")
        else:
            key, mark, tag = name[:-4].partition("/")
        if not mark or not tag or not key or "/" in key:
            form = "<tag>.<key>.npy" if options.layout == "suffix" else "<key>/<tag>.npy"
            raise SourceError(f"the name of a file is not of the form {form}", where=listing.path(number))
        files.setdefault(tag, {})[key] = number
    keys = sorted({key for of_tag in files.values() for key in of_tag}, key=lambda key: (key != KEY_OF_NPY, key))
    if options.fields is not None:
        keys = [key for key in keys if key in options.fields.values()]
    ends = [("", f".{key}.npy") if options.layout == "suffix" else (f"{key}/", ".npy") for key in keys]
    return _Plan(ends, list(keys), {tag: [of_tag.get(key, -1) for key in keys] for tag, of_tag in files.items()})


def _ordered(plan: _Plan, options: FolderOptions, root: str) -> Sequence[str]:
    """Return the tags in the order of the corpus."""
    if options.order is None:
        return list(plan.files) if options.layout == "file" else sorted(plan.files)
    missing = next((tag for tag in options.order if tag not in plan.files), None)
    if missing is not None or len(options.order) != len(plan.files):
        listed = set(options.order)
        extra = next((tag for tag in plan.files if tag not in listed), None)
        what = f"the sequence {missing!r} is missing" if missing is not None else f"{extra!r} was added to it"
        fix = f"restore it; or remove {ABOUT_FILE} and {TAGS_FILE}, and the folder is what is in it"
        raise SourceError(f"the folder is not as it was written: {what}", where=root, fix=fix)
    return options.order


def _folder_of(tag: str, root: str) -> str:
    folders = tag.split("/")[:-1]
    if not folders:
        raise SourceError("the sequence is in no sub-folder that would be its class", where=f"{root}, tag {tag!r}")
    return folders[-1]


def _look(wanted: set[str] | None, file: ListedFile) -> Mapping[str, StoredArray]:
    path, size, time = file
    if path.endswith(".npz"):
        arrays = _look_into_npz(path, wanted)
        read_part(path, size, time, 0)
        return arrays
    header = parse_any_npy(read_part(path, size, time, HEAD_BYTES), path)
    return {KEY_OF_NPY: _stored(header, 0, size, path)}


def _look_into_npz(path: str, wanted: set[str] | None) -> dict[str, StoredArray]:
    arrays = {}
    members = {name.removesuffix(".npy"): member for name, member in list_members(path).items()}
    try:
        with open_regular(path) as file:
            for name, member in members.items():
                if wanted is None or name in wanted:
                    arrays[name] = _look_at_member(file.fileno(), member, f"{path}, array {name!r}")
    except OSError as error:
        raise SourceError(f"the file cannot be read: {error.strerror}", where=path) from error
    return arrays


def _look_at_member(descriptor: int, member: Member, where: str) -> StoredArray:
    head = os.pread(descriptor, member.head + HEAD_BYTES, member.start)
    start = content_start(head, member, where)
    packed = head[start : start + member.packed]
    if not member.deflated:
        return _stored(parse_any_npy(packed, where), member.start + start, member.size, where)
    try:
        header = parse_any_npy(zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, HEAD_BYTES), where)
    except zlib.error as error:
        raise SourceError(f"the member is damaged: {error}", where=where, fix="restore the file") from error
    array = _stored(header, 0, member.size, where)
    return StoredArray(array.dtype, array.shape, member.start + start, array.form | DEFLATED, member.packed)


def _stored(header: NpyHeader, start: int, size: int, where: str) -> StoredArray:
    if header.end > size:
        raise SourceError(
            f"the file is truncated: it has {size} bytes, and its header says that numbers end at byte {header.end}",
            where=where,
            fix="restore it",
        )
    form = FORTRAN if header.fortran and len(header.shape) > 1 else 0
    form |= 0 if header.dtype.isnative else SWAPPED
    return StoredArray(header.dtype, header.shape, start + header.num_bytes, form)


class NumpyFolderSource(PlainArraySource):
    """The arrays of `.npy` and `.npz` files below a folder.

    Three layouts are known. `"file"`: each file is a sequence, and its tag is its path without the suffix; a `.npy` is
    the key "data", a `.npz` has a key for each array in it. `"suffix"`: `<tag>.<key>.npy`. `"folder"`:
    `<key>/<tag>.npy`. Sub-folders are parts of the tags. Sequences come in the order of their tags, in that of `files`
    if these are a list, or as they were written if `NumpyFolderWriter` made the folder.

    The first axis is time, and an array without axes is a key without a time axis. Plain arrays (also in a `.npz` that
    is not compressed) are read by exactly the bytes that are asked for; compressed and Fortran-ordered ones are read
    whole.

    Args:
        files: The folder, or a list of files.
        layout: See above; `None` is the description of the folder, else "file".
        fields: Data key -> name of the array; `None` takes all, under their own names.
        specs: Data key -> layout (`DataSpec`, or a dict such as `{"sparse": True, "dim": 10}`), for what cannot be
            learnt from the arrays: how many classes there are, or that an axis may differ (`None` in the shape).
        labels: Data key -> class labels.
        label: `"folder"` adds the key "classes": the name of the folder that a file is in.
        index: `"auto"` keeps the index of a large folder in the cache folder; `None` always looks at all files; a path
            opens the index that `source.index.save(path)` wrote.

    Raises:
        ConfigError: An option is wrong.
        SourceError: A file is missing, truncated, outside of the folder, holds something else than numbers, or is not
            like the others; or the given index is not one of these files as they are now.
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
        self._open(listing.root, listing, lambda: gather_index(listing, options), index=index, kind=options.kind)

    def _prepare(self) -> None:
        super()._prepare()
        self._groups: list[tuple[str, str]] = [(first, last) for first, last in self._index.meta["groups"]]
        self._group_of: dict[str, int] = self._index.meta["group_of"]

    def _prepare_files(self) -> None:
        self._files = PlainFiles(_stamps(self.root, self._groups, self._index))

    def _file_of(self, corpus_idx: int, data_key: str) -> int:
        return corpus_idx * len(self._groups) + self._group_of[data_key]


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
