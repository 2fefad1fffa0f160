"""A source of token files for training language models: billions of tokens, cut into documents or blocks.

To open a file of any size takes a look at its head. Cut into blocks, a corpus needs four bytes of memory a block and
data key; cut into documents, twelve and four a document, kept in the index. Tokens are read with `preadv`.
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
from headrace.files import open_regular
from headrace.index import CorpusIndex, GeneratedTags
from headrace.specs import DataSpec

from ..base import check_corpus_idx
from ..shared.paths import Files, IndexOption, list_paths
from ..shared.source import IndexedSource, PlainKey
from .files import (
    Cut,
    TokenFile,
    bounds_files,
    checked_cut,
    count_blocks,
    cut_documents,
    find_bounds,
    integer_dtype,
    open_token_file,
    read_specs,
    specs_path,
    tags_path,
)

INDEX_KIND = "tokens/1"  # with the version of what the columns and `meta` say


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
        cut = checked_cut(by, block_length, overlap, within_documents, keep_rest, targets, eos)
        stored = None if dtype is None else integer_dtype("dtype", dtype)
        token_files = [open_token_file(path, stored) for path in list_paths(files, "TokenSource")]
        bounds_paths = bounds_files(documents, eos, len(token_files))
        if targets == data_key:
            raise ConfigError(f"targets and data_key are both {targets!r}", where="TokenSource", fix="rename one")
        own = {file.dtype.newbyteorder("=") for file in token_files}
        if len(own) > 1 and as_dtype is None:
            raise ConfigError(
                f"the files have different dtypes: {sorted(map(str, own))}", where="TokenSource", fix="give as_dtype="
            )
        noted_dim, labels = read_specs(token_files, data_key, targets)
        dim = noted_dim if dim is None else check_count("dim", dim, minimum=1)
        native = token_files[0].dtype.newbyteorder("=")
        array_dtype = native if as_dtype is None else integer_dtype("as_dtype", as_dtype)
        for file in token_files if as_dtype is not None else ():
            if not np.can_cast(file.dtype, array_dtype):
                raise ConfigError(
                    f"as_dtype is {array_dtype}, which does not hold every {file.dtype}",
                    where=file.path,
                    fix="a wider one",
                )
        spec = DataSpec(array_dtype.name, sparse=True, dim=dim)
        specs = {data_key: spec} if targets is None else {data_key: spec, targets: spec}
        options = TokenOptions(token_files, cut, specs, labels)
        self._open_tokens(options, bounds_paths, index)

    def _open_tokens(self, options: TokenOptions, bounds_paths: list[str | None], index: IndexOption) -> None:
        """Make the index, or find it. Blocks without documents are arithmetic: there is nothing to keep."""
        files, cut = options.files, options.cut
        tags = [tags_path(file.path) for file in files] if cut.by == "document" else []
        own_tags = tags if tags and all(os.path.exists(path) for path in tags) else []
        more = [
            *(file.idx_path for file in files if cut.needs_bounds and file.idx_path),
            *filter(None, bounds_paths),
            *own_tags,
            *(path for path in (specs_path(file.path) for file in files) if os.path.exists(path)),
        ]
        said = {
            "cut": asdict(cut),
            "files": [[str(file.dtype), file.num_tokens, file.position] for file in files],
            "documents": [path is not None for path in bounds_paths],
            "tags": len(own_tags),
            "specs": {key: spec.to_json() for key, spec in options.specs.items()},
        }
        self._open(
            options,
            [*(file.path for file in files), *more],
            lambda: gather_tokens(options, bounds_paths, own_tags),
            index=None if index == "auto" and not cut.needs_bounds else index,
            kind=f"{INDEX_KIND} {json.dumps(said)}",
        )

    def _prepare(self) -> None:
        options, index = self._options, self._index
        self.specs, self.labels = dict(options.specs), dict(options.labels)
        self._first_of = [0, *accumulate(index.meta["num_seqs"])]  # corpus index of the first sequence of each file
        self._starts = index.locator("start") if options.cut.needs_bounds else None
        rows = [(file.num_tokens, file.position, file.dtype.itemsize) for file in options.files]
        self._file_table = np.array(rows, np.int64).T  # int64[3, F]
        key, *others = self.specs
        self._ahead = {key: 0, **dict.fromkeys(others, 1)}
        stored, dtype, dim = options.files[0].dtype, np.dtype(self.specs[key].dtype), self.specs[key].dim
        self._limit = None if dim is None or (dtype.kind == "u" and dim > np.iinfo(dtype).max) else dim
        if all(file.dtype == stored for file in options.files):
            checked = self._limit is not None
            for key, spec in self.specs.items():
                self._plain[key] = PlainKey.of(spec, index.lengths(key), stored=stored, is_inspected=checked)

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the files."""
        return sum(file.num_tokens for file in self._options.files)

    def read_seq(self, corpus_idx: int) -> dict[str, NDArray[Any]]:
        """Return all data keys of one sequence; tokens and targets are read at once."""
        check_corpus_idx(corpus_idx, self._num_seqs)
        num_frames = int(self._index.lengths(next(iter(self.specs)))[corpus_idx])
        if len(self.specs) == 1 or not num_frames:
            return {data_key: self.read(corpus_idx, data_key) for data_key in self.specs}
        key, target = self.specs
        tokens = self._read_tokens(corpus_idx, key, 0, num_frames + 1)
        return {key: tokens[:-1].copy(), target: tokens[1:].copy()}

    def reads_slices(self, data_key: str) -> bool:
        """Yes, also where the files have different number formats."""
        return data_key in self.specs

    def _locate(self, corpus_idx: int, data_key: str) -> tuple[int, int, int]:
        num_frames = int(self._index.lengths(data_key)[corpus_idx])
        file_idx, position = self._position(corpus_idx, data_key, 0, num_frames)
        return file_idx, position, num_frames * self._options.files[file_idx].dtype.itemsize

    def _locate_many(self, corpus_indices: NDArray[np.int64], data_key: str) -> tuple[list[int], list[int]]:
        file_of = np.searchsorted(self._first_of, corpus_indices, side="right") - 1
        if self._starts is None:
            firsts = (corpus_indices - np.asarray(self._first_of)[file_of]) * self._options.cut.stride
        else:
            firsts = self._starts[corpus_indices]
        firsts = firsts + self._ahead[data_key]
        lengths = self._index.lengths(data_key)[corpus_indices]
        num_tokens, positions, item_bytes = self._file_table[:, file_of]
        is_wrong = (lengths > 0) & ((firsts < 0) | (firsts > num_tokens - lengths))
        if is_wrong.any():
            wrong = int(np.argmax(is_wrong))
            raise self._beyond(int(corpus_indices[wrong]), int(file_of[wrong]), int(firsts[wrong]), int(lengths[wrong]))
        return file_of.tolist(), (positions + firsts * item_bytes).tolist()

    def _load(self, corpus_idx: int, data_key: str) -> NDArray[Any]:
        return self._load_part(corpus_idx, data_key, 0, int(self._index.lengths(data_key)[corpus_idx]))

    def _load_part(self, corpus_idx: int, data_key: str, start: int, end: int) -> NDArray[Any]:
        return self._read_tokens(corpus_idx, data_key, start, end - start)

    def _read_tokens(self, corpus_idx: int, data_key: str, start: int, num_tokens: int) -> NDArray[Any]:
        """Return `num_tokens` tokens of a sequence; up to one more than it has frames, for its targets."""
        file_idx, position = self._position(corpus_idx, data_key, start, num_tokens)
        array = self._files.read_array(file_idx, position, (num_tokens,), self._options.files[file_idx].dtype)
        array = array.astype(self.specs[data_key].dtype, copy=False)
        self._inspect(corpus_idx, data_key, start, array)
        return array

    def _position(self, corpus_idx: int, data_key: str, start: int, num_tokens: int) -> tuple[int, int]:
        """Return the file and the position of `num_tokens` tokens of a sequence."""
        file_idx = bisect_right(self._first_of, corpus_idx) - 1
        if self._starts is None:
            first = (corpus_idx - self._first_of[file_idx]) * self._options.cut.stride
        else:
            first = int(self._starts[corpus_idx])
        first += self._ahead[data_key] + start
        file = self._options.files[file_idx]
        if num_tokens and not 0 <= first <= first + num_tokens <= file.num_tokens:
            raise self._beyond(corpus_idx, file_idx, first, num_tokens)
        return file_idx, file.position + first * file.dtype.itemsize

    def _beyond(self, corpus_idx: int, file_idx: int, first: int, num_tokens: int) -> SourceError:
        file = self._options.files[file_idx]
        what = f"tokens {first}..{first + num_tokens} of the {file.num_tokens} in {file.path}"
        return self._index.damaged(f"it says that sequence {corpus_idx} is {what}")

    def _inspect(self, corpus_idx: int, data_key: str, start: int, array: NDArray[Any]) -> None:
        limit = self._limit
        if limit is not None and array.size and (array.max() >= limit or (array.dtype.kind == "i" and array.min() < 0)):
            wrong = int(np.argmax((array < 0) | (array >= limit)))
            file_idx, position = self._position(corpus_idx, data_key, start + wrong, 1)
            file = self._options.files[file_idx]
            raise SourceError(
                f"token {int(array[wrong])} is none of the {limit} classes",
                where=f"{file.path}, token {(position - file.position) // file.dtype.itemsize}, "
                f"{self._index.tags[corpus_idx]!r}",
                fix="give the dim of the tokenizer, or check the dtype of the file",
            )


def gather_tokens(options: TokenOptions, bounds_paths: list[str | None], tag_paths: list[str]) -> CorpusIndex:
    """Find where each sequence starts, and how long it is.

    Args:
        options: The files, and how they are cut.
        bounds_paths: For each file, a `.npy` with the first token of each document, or `None`.
        tag_paths: For each file, one with the tags; or none.

    Raises:
        SourceError: A file cannot be read, or does not fit the others.
    """
    cut = options.cut
    starts: list[NDArray[np.int64]] = []
    lengths: list[NDArray[Any]] = []
    for file, bounds_path in zip(options.files, bounds_paths, strict=True):
        if not cut.needs_bounds:
            lengths.append(_block_lengths(cut, file.num_tokens))
            continue
        bounds = find_bounds(file, bounds_path, cut.eos)
        if cut.by == "document":
            starts.append(bounds[:-1])
            lengths.append(np.maximum(np.diff(bounds) - cut.num_ahead, 0))
        else:
            first, frames = cut_documents(
                bounds, cut.length, cut.stride, num_ahead=cut.num_ahead, with_rest=cut.with_rest
            )
            starts.append(first)
            lengths.append(frames)
    column = np.concatenate(lengths)
    tags: Any = GeneratedTags(len(column), "doc-" if cut.by == "document" else "block-")
    if tag_paths:
        tags = _read_tags(tag_paths, [len(part) for part in lengths])
    return CorpusIndex.from_columns(  # the layouts are known from the options
        tags=tags,
        lengths=dict.fromkeys(options.specs, column),
        locators={"start": np.concatenate(starts)} if starts else {},
        meta={"num_seqs": [len(part) for part in lengths]},
    )


def _block_lengths(cut: Cut, num_tokens: int) -> NDArray[np.int32]:
    """Return the frames of each block of one file: all the same, but perhaps the last."""
    usable = max(num_tokens - cut.num_ahead, 0)
    num_blocks = int(count_blocks(np.array([usable]), cut.length, cut.stride, with_rest=cut.with_rest)[0])
    lengths = np.full(num_blocks, cut.length, np.int32)
    if num_blocks:
        lengths[-1] = min(cut.length, usable - (num_blocks - 1) * cut.stride)
    return lengths


def _read_tags(paths: list[str], counts: list[int]) -> list[str]:
    tags: list[str] = []
    for path, count in zip(paths, counts, strict=True):
        try:
            with open_regular(path) as file:
                own = file.read().decode().split("\n")[:-1]
        except (OSError, UnicodeDecodeError) as error:
            raise SourceError(f"the tags cannot be read: {error}", where=path, fix="write them again") from error
        if len(own) != count:
            raise SourceError(
                f"there are {len(own)} tags for {count} documents", where=path, fix="write it again, or remove it"
            )
        tags += own
    return tags
