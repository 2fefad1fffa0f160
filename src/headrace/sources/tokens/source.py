"""A source of token files for training language models: billions of tokens, cut into documents or blocks.

To open a file of any size takes a look at its head. Cut into blocks, a corpus needs four bytes of memory a block and
data key; cut into documents, twelve and four a document, kept in the index. Tokens are read with `preadv`.

A cut is a first token and a number of tokens. With targets, a sequence needs one token more than it has frames: its
last frame must know what comes next, so a cut of n tokens has n - 1 frames.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, check_count
from headrace.index import CorpusIndex, GeneratedTags
from headrace.specs import DataSpec

from ..shared.paths import Files, IndexOption, list_paths
from ..shared.source import IndexedSource, PlainKey, column_view
from .files import TokenFile, common_notes, find_bounds, open_token_file, specs_path, tags_path

INDEX_KIND = "tokens/1"  # with the version of what the columns and `meta` say


@dataclass(frozen=True, slots=True)
class Cut:
    """How tokens become sequences: the user's options, checked.

    Attributes:
        by: "block" or "document".
        length: Tokens of a block; 0 for whole documents.
        stride: From the start of a block to that of the next.
        num_ahead: Tokens that a sequence needs after its last frame: 1 with targets.
        within: Whether blocks end where documents end.
        with_rest: Whether a last block may be shorter.
        eos: The token that ends a document, or `None`.
    """

    by: str
    length: int
    stride: int
    num_ahead: int
    within: bool
    with_rest: bool
    eos: int | None

    @property
    def needs_bounds(self) -> bool:
        """Whether it must be known where documents end."""
        return self.by == "document" or self.within

    def apply(self, bounds: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return first token and number of frames of each sequence, from the bounds of documents, `int64[D + 1]`."""
        usable = np.maximum(np.diff(bounds) - self.num_ahead, 0)
        if self.by == "document":
            return bounds[:-1], usable
        counts = np.where(usable >= self.length, (usable - self.length) // self.stride + 1, 0)
        if self.with_rest:  # then every token is in a block
            counts += np.where(counts > 0, (counts - 1) * self.stride + self.length, 0) < usable
        first = np.repeat(np.cumsum(counts) - counts, counts)
        offsets = (np.arange(int(counts.sum())) - first) * self.stride
        return np.repeat(bounds[:-1], counts) + offsets, np.minimum(np.repeat(usable, counts) - offsets, self.length)


@dataclass(frozen=True, slots=True)
class TokenOptions:
    """The options of a source, and the heads of its files.

    Attributes:
        files: The files with tokens.
        cut: How they become sequences.
        specs: Data key -> layout.
        labels: Data key -> class labels.
    """

    files: list[TokenFile]
    cut: Cut
    specs: dict[str, DataSpec]
    labels: Mapping[str, Sequence[str]]


class TokenSource(IndexedSource):
    """Runs of tokens in files, cut into documents or into blocks of a fixed length.

    Args:
        files: One path, or several: raw `.bin` (give `dtype`), `.npy` with one axis, or Megatron's `.bin` with an
            `.idx` beside it. Several files follow one another; no sequence goes over the end of one.
        by: "block" for blocks of `block_length` tokens, "document" for whole documents, with the tags `doc-<n>`, or
            those that `TokenWriter` wrote.
        block_length: Tokens of a block.
        overlap: Tokens that a block shares with the next one, less than `block_length`.
        within_documents: Whether each document is cut for itself, so that no block has tokens of two.
        keep_rest: Whether what is left at the end is a shorter block; without it, those tokens are in none.
        targets: Name of a key with the next token for each token of "data", such as "classes". A document of n tokens
            then has n - 1 frames.
        dtype: Dtype of the tokens in raw files, such as "uint16".
        as_dtype: Dtype of the arrays; that of the files if `None`. Reading is fastest without a change.
        dim: Number of classes; a token that is none is an error when it is read. Default: what `TokenWriter` noted,
            else not known.
        documents: A `.npy` file with the first token of each document (for each file), in place of an `.idx`.
        eos: The token that ends each document, in place of an `.idx`: the files are read once for it.
        data_key: Name of the key with the tokens.
        index: For documents: `"auto"` keeps the index of a large corpus in the cache folder; `None` works it out each
            time; a path opens the index that `TokenSource(...).index.save(path)` wrote with the same options.

    Raises:
        ConfigError: An option is wrong, or missing.
        SourceError: A file is missing, truncated, does not fit its `.idx`, or has a size that is no multiple of its
            dtype's.
    """

    _options: TokenOptions

    def __init__(
        self,
        files: Files,
        *,
        by: Literal["block", "document"] = "block",
        block_length: int | None = None,
        overlap: int = 0,
        within_documents: bool = False,
        keep_rest: bool = True,
        targets: str | None = None,
        dtype: str | None = None,
        as_dtype: str | None = None,
        dim: int | None = None,
        documents: Files | None = None,
        eos: int | None = None,
        data_key: str = "data",
        index: IndexOption = "auto",
    ) -> None:
        _check_options(by, block_length, overlap, within_documents, data_key, targets)
        length = 0 if by == "document" else check_count("block_length", block_length, minimum=1, maximum=2**31 - 1)
        stride = length and length - check_count("overlap", overlap, minimum=0, maximum=length - 1)
        eos = None if eos is None else check_count("eos", eos)
        cut = Cut(by, length, stride, int(targets is not None), bool(within_documents), bool(keep_rest), eos)
        given = None if dtype is None else _integer_dtype("dtype", dtype)
        token_files = [open_token_file(path, given) for path in list_paths(files, "TokenSource")]
        bounds_paths = list_paths(documents, "TokenSource") if documents is not None else ()
        if documents is not None and (eos is not None or len(bounds_paths) != len(token_files)):
            what = f"documents names {len(bounds_paths)} files for {len(token_files)} files of tokens, and eos is {eos}"
            raise ConfigError(what, where="TokenSource", fix="give either documents= (one a file) or eos=")
        stored = token_files[0].dtype
        for file in token_files:
            if file.dtype != stored:
                what = f"the tokens of this file are {file.dtype}, and those of the first file are {stored}"
                raise ConfigError(what, where=file.path, fix="open files of one dtype")
        array_dtype = stored.newbyteorder("=") if as_dtype is None else _integer_dtype("as_dtype", as_dtype)
        if not np.can_cast(stored, array_dtype):
            what = f"as_dtype is {array_dtype}, which does not hold every {stored}"
            raise ConfigError(what, where=token_files[0].path, fix="a wider one")
        noted_dim, labels = common_notes(token_files)
        dim = noted_dim if dim is None else check_count("dim", dim, minimum=1)
        keys = [data_key] if targets is None else [data_key, targets]
        specs = dict.fromkeys(keys, DataSpec(array_dtype.name, sparse=True, dim=dim))
        options = TokenOptions(token_files, cut, specs, {} if labels is None else dict.fromkeys(keys, labels))
        # Blocks without documents are arithmetic: there is nothing to keep.
        has_tags = by == "document" and all(os.path.exists(tags_path(file.path)) for file in token_files)
        beside = [path for file in token_files for path in (specs_path(file.path),) if os.path.exists(path)]
        said = {
            "cut": asdict(cut),
            "files": [[str(file.dtype), file.num_tokens, file.position] for file in token_files],
            "documents": len(bounds_paths),
            "tags": has_tags,
            "specs": {key: spec.to_json() for key, spec in specs.items()},
        }
        self._open(
            options,
            [
                *(file.path for file in token_files),
                *(file.idx_path for file in token_files if cut.needs_bounds and file.idx_path),
                *bounds_paths,
                *(tags_path(file.path) for file in token_files if has_tags),
                *beside,
            ],
            lambda: gather_tokens(options, bounds_paths, has_tags=has_tags),
            index=None if index == "auto" and not cut.needs_bounds else index,
            kind=f"{INDEX_KIND} {json.dumps(said)}",
        )

    def _prepare(self) -> None:
        options, index = self._options, self._index
        self.specs, self.labels = dict(options.specs), dict(options.labels)
        self._first_of = [0, *accumulate(index.meta["num_seqs"])]  # corpus index of the first sequence of each file
        self._starts = column_view(index.locator("start")) if options.cut.needs_bounds else None
        self._ahead = {key: number for number, key in enumerate(self.specs)}
        stored = options.files[0].dtype
        for key, spec in self.specs.items():
            is_any = spec.dim is None or (spec.dtype[0] == "u" and spec.dim > np.iinfo(spec.dtype).max)
            self._limit = None if is_any else spec.dim
            self._plain[key] = PlainKey.of(spec, index.lengths(key), stored=stored, is_inspected=not is_any)

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the files."""
        return sum(file.num_tokens for file in self._options.files)

    def _locate(self, corpus_idx: int, data_key: str) -> tuple[int, int, int]:
        file_idx = bisect_right(self._first_of, corpus_idx) - 1
        if self._starts is None:
            first = (corpus_idx - self._first_of[file_idx]) * self._options.cut.stride
        else:
            first = self._starts[corpus_idx]
        first += self._ahead[data_key]
        file, num_frames = self._options.files[file_idx], self._lengths[data_key][corpus_idx]
        if num_frames and not 0 <= first <= first + num_frames <= file.num_tokens:
            what = f"tokens {first}..{first + num_frames} of the {file.num_tokens} in {file.path}"
            raise self._index.damaged(f"it says that sequence {corpus_idx} is {what}")
        return file_idx, file.position + first * file.dtype.itemsize, num_frames * file.dtype.itemsize

    def _inspect(self, corpus_idx: int, data_key: str, start: int, array: NDArray[Any]) -> None:
        limit = self._limit
        if limit is not None and array.size and (array.max() >= limit or (array.dtype.kind == "i" and array.min() < 0)):
            wrong = int(np.argmax((array < 0) | (array >= limit)))
            file_idx, position, _ = self._locate(corpus_idx, data_key)
            file = self._options.files[file_idx]
            number = (position - file.position) // file.dtype.itemsize + start + wrong
            raise SourceError(
                f"token {int(array[wrong])} is none of the {limit} classes",
                where=f"{file.path}, token {number}, {self._index.tags[corpus_idx]!r}",
                fix="give the dim of the tokenizer, or check the dtype of the file",
            )


def _check_options(by: Any, block_length: Any, overlap: Any, within: Any, data_key: Any, targets: Any) -> None:
    wrong = None
    if by not in ("block", "document"):
        wrong = f'by is {by!r}, and not "block" or "document"'
    elif targets is not None and (not isinstance(targets, str) or not targets):
        wrong = f"targets is {targets!r}, and not the name of a key"
    elif targets == data_key:
        wrong = f"targets and data_key are both {targets!r}"
    elif by == "block" and block_length is None:
        wrong = 'by="block" needs block_length'
    elif by == "document" and (block_length is not None or overlap or within):
        wrong = 'by="document" takes no block_length, overlap or within_documents'
    if wrong is not None:
        fix = 'pieces of documents: by="block", block_length=1024, within_documents=True'
        raise ConfigError(wrong, where="TokenSource", fix=fix)


def _integer_dtype(name: str, value: Any) -> np.dtype[Any]:
    try:
        dtype: np.dtype[Any] | None = np.dtype(value)
    except TypeError:
        dtype = None
    if dtype is None or dtype.kind not in "iu" or not dtype.isnative:
        what = f"{name} is {value!r}, not an integer in native byte order"
        raise ConfigError(what, where="TokenSource", fix='for example "uint16"')
    return dtype


def gather_tokens(options: TokenOptions, bounds_paths: Sequence[str], *, has_tags: bool) -> CorpusIndex:
    """Find where each sequence starts, and how long it is.

    Args:
        options: The files, and how they are cut.
        bounds_paths: For each file, a `.npy` with the first token of each document; or none.
        has_tags: Whether each file has one with the tags beside it.

    Raises:
        SourceError: A file cannot be read, or does not fit the others.
    """
    cut = options.cut
    starts: list[NDArray[np.int64]] = []
    lengths: list[NDArray[Any]] = []
    tags: Any = []
    for file_idx, file in enumerate(options.files):
        bounds = np.array([0, file.num_tokens])
        if cut.needs_bounds:
            bounds = find_bounds(file, bounds_paths[file_idx] if bounds_paths else None, cut.eos)
        first, frames = cut.apply(bounds)
        lengths.append(frames if cut.needs_bounds else frames.astype(np.int32))
        if cut.needs_bounds:
            starts.append(first)
        if has_tags:
            tags += file.tags(len(frames))
    column = np.concatenate(lengths)
    return CorpusIndex.from_columns(  # the layouts are known from the options
        tags=tags if has_tags else GeneratedTags(len(column), "doc-" if cut.by == "document" else "block-"),
        lengths=dict.fromkeys(options.specs, column),
        locators={"start": np.concatenate(starts)} if starts else {},
        meta={"num_seqs": [len(part) for part in lengths]},
    )
