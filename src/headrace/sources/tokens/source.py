"""A source of token files, as language models are trained on: billions of tokens, cut into documents or blocks.

To open a file of any size takes a look at its head. Cut into blocks, a corpus needs four bytes of memory a block and
data key; cut into documents, twelve and four a document, kept in the index. Tokens are read with `preadv`.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict
from itertools import accumulate
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, check_count
from headrace.files import open_regular
from headrace.index import CorpusIndex, GeneratedTags, open_or_build
from headrace.specs import DataSpec

from ..base import Source, check_corpus_idx, check_data_key
from ..lines.text import PathLike, check_paths
from ..shared.plain_files import PlainFiles
from .cuts import (
    bounds_files,
    checked_cut,
    count_blocks,
    cut_documents,
    find_bounds,
    integer_dtype,
    read_specs,
    specs_path,
    tags_path,
)
from .files import open_token_file

INDEX_KIND = "tokens/1"  # with the version of what the columns and `meta` say


class TokenSource(Source):
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
        dtype: Of the tokens in raw files, such as "uint16".
        as_dtype: Of the arrays; that of the files if `None`. Reading is fastest without a change.
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

    def __init__(
        self,
        files: PathLike | Sequence[PathLike],
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
        documents: PathLike | Sequence[PathLike] | None = None,
        eos: int | None = None,
        data_key: str = "data",
        index: PathLike | Literal["auto"] | None = "auto",
    ) -> None:
        cut = checked_cut(by, block_length, overlap, within_documents, keep_rest, targets, eos)
        stored = None if dtype is None else integer_dtype("dtype", dtype)
        self._token_files = [open_token_file(path, stored) for path in check_paths(files, "TokenSource")]
        bounds_paths = bounds_files(documents, eos, len(self._token_files))
        if targets == data_key:
            raise ConfigError(f"targets and data_key are both {targets!r}", where="TokenSource", fix="rename one")
        own = {file.dtype.newbyteorder("=") for file in self._token_files}
        if len(own) > 1 and as_dtype is None:
            raise ConfigError(
                f"the files have different dtypes: {sorted(map(str, own))}", where="TokenSource", fix="give as_dtype="
            )
        noted_dim, self.labels = read_specs(self._token_files, data_key, targets)
        dim = noted_dim if dim is None else check_count("dim", dim, minimum=1)
        native = self._token_files[0].dtype.newbyteorder("=")
        array_dtype = native if as_dtype is None else integer_dtype("as_dtype", as_dtype)
        for file in self._token_files if as_dtype is not None else ():
            if not np.can_cast(file.dtype, array_dtype):
                raise ConfigError(
                    f"as_dtype is {array_dtype}, which does not hold every {file.dtype}",
                    where=file.path,
                    fix="a wider one",
                )
        spec = DataSpec(array_dtype.name, sparse=True, dim=dim)
        self.specs = {data_key: spec} if targets is None else {data_key: spec, targets: spec}
        self._cut = cut
        self._open(bounds_paths, index)
        self._attach()

    def _open(self, bounds_paths: list[str | None], index: Any) -> None:
        """Make the index, or find it. Blocks without documents are arithmetic: there is nothing to keep."""
        tags = [tags_path(file.path) for file in self._token_files] if self._cut.by == "document" else []
        self._tag_paths = tags if tags and all(os.path.exists(path) for path in tags) else []
        notes = [specs_path(file.path) for file in self._token_files]
        more = [
            *(file.idx_path for file in self._token_files if self._cut.needs_bounds and file.idx_path),
            *filter(None, bounds_paths),
            *self._tag_paths,
            *(path for path in notes if os.path.exists(path)),
        ]
        said = {
            "cut": asdict(self._cut),
            "files": [[str(file.dtype), file.num_tokens, file.position] for file in self._token_files],
            "documents": [path is not None for path in bounds_paths],
            "tags": len(self._tag_paths),
            "specs": {key: spec.to_json() for key, spec in self.specs.items()},
        }
        paths = [*(file.path for file in self._token_files), *more]
        self._index = open_or_build(
            paths,
            lambda: self._gather(bounds_paths),
            index=None if index == "auto" and not self._cut.needs_bounds else index,
            kind=f"{INDEX_KIND} {json.dumps(said)}",
        )

    def _gather(self, bounds_paths: list[str | None]) -> CorpusIndex:
        cut = self._cut
        starts: list[NDArray[np.int64]] = []
        lengths: list[NDArray[Any]] = []
        for file, bounds_path in zip(self._token_files, bounds_paths, strict=True):
            if not cut.needs_bounds:
                lengths.append(self._block_lengths(file.num_tokens))
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
        if self._tag_paths:
            tags = _read_tags(self._tag_paths, [len(part) for part in lengths])
        return CorpusIndex.from_columns(
            tags=tags,
            lengths=dict.fromkeys(self.specs, column),
            locators={"start": np.concatenate(starts)} if starts else {},
            meta={"num_seqs": [len(part) for part in lengths]},
        )

    def _block_lengths(self, num_tokens: int) -> NDArray[np.int32]:
        """Return the frames of each block of one file: all the same, but perhaps the last."""
        cut = self._cut
        usable = max(num_tokens - cut.num_ahead, 0)
        num_blocks = int(count_blocks(np.array([usable]), cut.length, cut.stride, with_rest=cut.with_rest)[0])
        lengths = np.full(num_blocks, cut.length, np.int32)
        if num_blocks:
            lengths[-1] = min(cut.length, usable - (num_blocks - 1) * cut.stride)
        return lengths

    def _attach(self) -> None:
        """Work out everything that follows from the index."""
        index = self._index
        self._first_of = [0, *accumulate(index.meta["num_seqs"])]  # corpus index of the first sequence of each file
        self._starts = index.locator("start") if self._cut.needs_bounds else None
        self._files = PlainFiles(index.files)
        places = [(file.num_tokens, file.position, file.dtype.itemsize) for file in self._token_files]
        self._places = np.array(places, np.int64).T  # int64[3, F]
        key, *others = self.specs
        self._lengths = index.lengths(key)
        self._ahead = {key: 0, **dict.fromkeys(others, 1)}
        self._dtype = np.dtype(self.specs[key].dtype)
        dim = self.specs[key].dim
        self._limit = None if dim is None or (self._dtype.kind == "u" and dim > np.iinfo(self._dtype).max) else dim

    @property
    def index(self) -> CorpusIndex:
        """Tags, lengths, and where each sequence starts."""
        return self._index

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the files."""
        return sum(file.num_tokens for file in self._token_files)

    def read(self, corpus_idx: int, data_key: str) -> NDArray[Any]:
        """Return the tokens of a sequence, or those that follow each of them, `int[T]`."""
        check_data_key(data_key, self.specs)
        check_corpus_idx(corpus_idx, self._index.num_seqs)
        return self._read(corpus_idx, self._ahead[data_key], int(self._lengths[corpus_idx]))

    def read_slice(self, corpus_idx: int, data_key: str, start: int, end: int) -> NDArray[Any]:
        """Return frames start..end of one data key, `int[end - start]`; no others are read."""
        check_data_key(data_key, self.specs)
        check_corpus_idx(corpus_idx, self._index.num_seqs)
        if not 0 <= start <= end <= self._lengths[corpus_idx]:
            raise IndexError(f"frames {start}..{end} of a sequence of {self._lengths[corpus_idx]} frames")
        return self._read(corpus_idx, self._ahead[data_key] + start, end - start)

    def read_seq(self, corpus_idx: int) -> dict[str, NDArray[Any]]:
        """Return all data keys of one sequence; tokens and targets are read at once."""
        check_corpus_idx(corpus_idx, self._index.num_seqs)
        num_frames = int(self._lengths[corpus_idx])
        if len(self.specs) == 1 or not num_frames:
            return {data_key: self.read(corpus_idx, data_key) for data_key in self.specs}
        tokens = self._read(corpus_idx, 0, num_frames + 1)
        key, target = self.specs
        return {key: tokens[:-1].copy(), target: tokens[1:].copy()}

    @property
    def has_fast_rows(self) -> bool:
        """Yes: tokens are read to where they are wanted."""
        return True

    def read_rows(self, corpus_indices: NDArray[np.int64], data_key: str, out: NDArray[Any]) -> None:
        """Read one data key of several sequences into one array."""
        ends = np.cumsum(self._lengths[corpus_indices], dtype=np.int64).tolist()
        if len(out) != (ends[-1] if ends else 0):
            raise IndexError(f"the sequences do not have {len(out)} frames")
        starts = [0, *ends[:-1]]
        self.read_into(corpus_indices, data_key, [out[a:b] for a, b in zip(starts, ends, strict=False)])

    def read_into(self, corpus_indices: NDArray[np.int64], data_key: str, outs: Sequence[NDArray[Any]]) -> None:
        """Read one data key of several sequences, each into an array of its own."""
        check_data_key(data_key, self.specs)
        num_seqs = self._index.num_seqs
        if corpus_indices.size:  # all of them at once, which costs as much as two one by one
            check_corpus_idx(int(corpus_indices.min()), num_seqs)
            check_corpus_idx(int(corpus_indices.max()), num_seqs)
        lengths = np.asarray(self._lengths)[corpus_indices]
        for length, out in zip(lengths.tolist(), outs, strict=True):
            if len(out) != length:
                raise IndexError(f"{length} frames of {data_key!r} do not fit into {len(out)} rows")
        file_of = np.searchsorted(self._first_of, corpus_indices, side="right") - 1
        if self._starts is None:
            firsts = (corpus_indices - np.asarray(self._first_of)[file_of]) * self._cut.stride
        else:
            firsts = self._starts[corpus_indices]
        firsts = firsts + self._ahead[data_key]
        num_tokens, positions, item_bytes = self._places[:, file_of]
        is_wrong = (lengths > 0) & ((firsts < 0) | (firsts > num_tokens - lengths))
        if is_wrong.any():
            wrong = int(np.argmax(is_wrong))
            raise self._beyond(int(corpus_indices[wrong]), int(file_of[wrong]), int(firsts[wrong]), int(lengths[wrong]))
        files = file_of.tolist()
        stored = [self._stored_like(file_idx, out) for file_idx, out in zip(files, outs, strict=True)]
        self._files.read_many(zip(files, (positions + firsts * item_bytes).tolist(), stored, strict=True))
        for out, array in zip(outs, stored, strict=True):
            if array is not out:
                out[...] = array
        for corpus_idx, file_idx, first, out in zip(
            corpus_indices.tolist() if self._limit is not None else (), files, firsts.tolist(), outs, strict=False
        ):
            self._check_classes(corpus_idx, file_idx, first, out)

    def _read(self, corpus_idx: int, offset: int, num_tokens: int) -> NDArray[Any]:
        """Return so many tokens, from that many after the start of a sequence."""
        if not num_tokens:
            return np.empty(0, self._dtype)
        file_idx = bisect_right(self._first_of, corpus_idx) - 1
        if self._starts is None:
            first = (corpus_idx - self._first_of[file_idx]) * self._cut.stride + offset
        else:
            first = int(self._starts[corpus_idx]) + offset
        file = self._token_files[file_idx]
        if not 0 <= first <= file.num_tokens - num_tokens or num_tokens < 0:
            raise self._beyond(corpus_idx, file_idx, first, num_tokens)
        position = file.position + first * file.dtype.itemsize
        array = self._files.read_array(file_idx, position, (num_tokens,), file.dtype)
        if file.dtype != self._dtype:
            array = array.astype(self._dtype)
        if self._limit is not None:
            self._check_classes(corpus_idx, file_idx, first, array)
        return array

    def _beyond(self, corpus_idx: int, file_idx: int, first: int, num_tokens: int) -> SourceError:
        file = self._token_files[file_idx]
        what = f"tokens {first}..{first + num_tokens} of the {file.num_tokens} in {file.path}"
        return self._index.damaged(f"it says that sequence {corpus_idx} is {what}")

    def _stored_like(self, file_idx: int, out: NDArray[Any]) -> NDArray[Any]:
        """Return an array to read to: the given one, if it has the dtype of the file."""
        dtype = self._token_files[file_idx].dtype
        return out if out.dtype == dtype else np.empty(len(out), dtype)

    def _check_classes(self, corpus_idx: int, file_idx: int, first: int, tokens: NDArray[Any]) -> None:
        limit = self._limit
        assert limit is not None
        if tokens.size and (tokens.max() >= limit or (tokens.dtype.kind == "i" and tokens.min() < 0)):
            wrong = int(np.argmax((tokens < 0) | (tokens >= limit)))
            raise SourceError(
                f"token {int(tokens[wrong])} is none of the {limit} classes",
                where=f"{self._token_files[file_idx].path}, token {first + wrong}, {self._index.tags[corpus_idx]!r}",
                fix="give the dim of the tokenizer, or check the dtype of the file",
            )

    def close(self) -> None:
        """Release files; a later read opens them again. Harmless when called twice."""
        self._files.close()

    def __getstate__(self) -> dict[str, Any]:
        names = ("_index", "_token_files", "_cut", "_tag_paths", "specs", "labels")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._attach()


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
