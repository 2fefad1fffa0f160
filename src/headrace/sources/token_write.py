"""`TokenWriter`: documents of tokens, in the format of Megatron, which other programs read, too."""

from __future__ import annotations

import contextlib
import os
from array import array
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, HeadraceError, SourceError
from headrace.files import PendingFile
from headrace.specs import DataSpec

from .pending import open_pending
from .token_cuts import specs_path, tags_path
from .token_files import CODES, HEAD, MAGIC, VERSION
from .token_specs import make_specs
from .writer import Writer

_CODE_OF = {dtype: code for code, dtype in CODES.items()}
_MAX_LENGTH = 2**31 - 1  # lengths are int32 in the format


class TokenWriter(Writer):
    """Writes documents of tokens to `x.bin` and `x.idx`; a context manager, which aborts if its block fails.

    The format holds one data key, of class indices. Tags other than `doc-0`, `doc-1`, ... go to `x.tags.txt`, the
    number of classes and the labels to `x.specs.json`, which `TokenSource` reads and others need not. The `.bin` gets
    its name last: a reader that sees it sees all. Memory: four bytes a document.

    Args:
        path: The `.bin` to make. Its folder must exist.
        specs: Data key -> layout: one key. Without it, the first sequence says it.
        labels: Data key -> class labels.
        dtype: Of the tokens; else that of the layout. One of uint8, int8, uint16, int16, int32, int64.
        overwrite: Whether existing files may be replaced.

    Raises:
        ConfigError: An option is wrong, the format cannot hold the layout, or a file exists.
        SourceError: The folder is missing or cannot be written to.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        specs: Mapping[str, DataSpec] | None = None,
        labels: Mapping[str, Sequence[str]] | None = None,
        dtype: str | None = None,
        overwrite: bool = False,
    ) -> None:
        self.path = os.path.abspath(path)
        if not self.path.endswith(".bin"):
            raise ConfigError("the name must end with .bin: the .idx goes beside it", where=self.path)
        self._overwrite, self._labels = overwrite, dict(labels or {})
        stem = self.path.removesuffix(".bin")
        self._beside = {"idx": stem + ".idx", "tags": tags_path(self.path), "specs": specs_path(self.path)}
        self._check_target()
        self._wanted = None if dtype is None else _checked_dtype(dtype, self.path)
        self._dtype: np.dtype[Any] | None = None
        self._key = ""
        self._dim: int | None = None
        if specs:
            self._adopt(specs)
        self._lengths = array("i")
        self._tags: list[str] | None = None  # from the first one on that is not by the rule
        self._num_tokens = 0
        self._pending, self._file = open_pending(self.path)
        self._is_open = True

    def _check_target(self) -> None:
        for path in (self.path, *self._beside.values()):
            if os.path.lexists(path) and not self._overwrite:
                raise ConfigError("the file exists", where=path, fix="give another path, or overwrite=True")

    def _adopt(self, specs: Mapping[str, DataSpec]) -> None:
        if len(specs) != 1:
            raise ConfigError(
                f"a file of tokens holds one data key, not {sorted(specs)}", where=self.path, fix="choose one of them"
            )
        ((key, spec),) = specs.items()
        if not (spec.sparse and spec.has_time and not spec.shape):
            raise ConfigError(
                f"{key!r} is {spec.dtype}[T, {', '.join(map(str, spec.shape))}]; a file of tokens holds class indices",
                where=self.path,
                fix="write it to HDF5 or to a folder of arrays",
            )
        unknown = sorted(set(self._labels) - {key})
        if unknown:
            raise ConfigError(f"labels for {unknown}, but the key is {key!r}", where=self.path, fix="rename them")
        dtype = self._wanted or _checked_dtype(spec.dtype, self.path)
        dim = spec.dim if spec.dim is not None else len(self._labels.get(key, ())) or None
        self._key, self._dim, self._dtype = key, dim, dtype

    @property
    def num_seqs(self) -> int:
        """Number of documents appended so far."""
        return len(self._lengths)

    def append(self, tag: str, data: Mapping[str, NDArray[Any]]) -> None:
        """Append one document. If it is refused, nothing of it is stored, and the next one may be appended.

        Args:
            tag: Its name: no line end in it.
            data: The data key -> `int[T]`.

        Raises:
            SourceError: It is not one key of class indices, a token does not fit the dtype or the number of classes, or
                the disk is full, which aborts the writer.
            ConfigError: The writer is closed.
        """
        if not self._is_open:
            raise ConfigError("the writer is closed", where=self.path, fix="append before close()")
        where = f"{self.path}, document {tag!r}"
        _check_tag(tag, self.path)
        is_first = self._dtype is None
        try:
            if is_first:
                self._adopt({key: DataSpec.of_array(np.asarray(value)) for key, value in data.items()})
                self._dim = len(self._labels.get(self._key, ())) or None
            tokens = self._checked(data, where)
        except HeadraceError as error:
            if is_first:
                self._dtype = None  # what a refused one said of the layout does not hold
            raise SourceError(error.what, where=where, fix=error.fix) from error
        try:
            self._file.write(tokens.data)
            self._note(tag, len(tokens))
        except OSError as error:
            self.abort()
            raise SourceError(f"cannot write: {error.strerror}", where=self.path, fix="make room") from error
        except BaseException:
            self.abort()
            raise

    def _note(self, tag: str, num_tokens: int) -> None:
        if self._tags is None and tag != f"doc-{self.num_seqs}":
            self._tags = [f"doc-{i}" for i in range(self.num_seqs)]
        if self._tags is not None:
            self._tags.append(tag)
        self._lengths.append(num_tokens)
        self._num_tokens += num_tokens

    def _checked(self, data: Mapping[str, NDArray[Any]], where: str) -> NDArray[Any]:
        if data.keys() != {self._key}:
            raise SourceError(
                f"the keys are {sorted(data)}, not [{self._key!r}]", where=where, fix="give this key only"
            )
        tokens = np.asarray(data[self._key])
        assert self._dtype is not None
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu" or len(tokens) > _MAX_LENGTH:
            raise SourceError(
                f"{self._key!r} is {tokens.dtype} of the shape {tokens.shape}, not up to {_MAX_LENGTH} class indices",
                where=where,
            )
        if tokens.size:
            low, high = int(tokens.min()), int(tokens.max())
            limits = np.iinfo(self._dtype)
            if low < limits.min or high > limits.max:
                wrong = low if low < limits.min else high
                raise SourceError(
                    f"the token {wrong} does not fit {self._dtype}", where=where, fix="give a wider dtype="
                )
            if self._dim is not None and not 0 <= low <= high < self._dim:
                raise SourceError(
                    f"the token {low if low < 0 else high} is none of the {self._dim} classes", where=where
                )
        return np.ascontiguousarray(tokens, self._dtype.newbyteorder("<"))

    def close(self) -> None:
        """Write the index and give the files their names. Does nothing after `close` or `abort`.

        Raises:
            SourceError: The disk is full or refuses; the `.bin` does not appear.
            ConfigError: A file has come into being meanwhile; nothing is left of ours.
        """
        if not self._is_open:
            return
        try:
            self._check_target()
            self._file.close()
            with ExitStack() as stack:
                texts = self._texts_beside()
                for name, content in texts.items():
                    pending = stack.enter_context(PendingFile(self._beside[name]))
                    pending.temporary.write_bytes(content)
                if self._overwrite:
                    # What is left of older files must not be taken for part of this one, nor the new index for that of
                    # the old tokens, if we are killed here.
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(os.path.realpath(self.path))
                    for name in self._beside.keys() - texts.keys():
                        if os.path.lexists(self._beside[name]):
                            os.unlink(self._beside[name])
            self._pending.commit()
        except OSError as error:
            raise SourceError(f"cannot write: {error.strerror}", where=self.path, fix="make room") from error
        finally:
            self.abort()

    def _texts_beside(self) -> dict[str, bytes]:
        dtype = self._dtype or self._wanted or np.dtype("int32")
        lengths = np.frombuffer(self._lengths, np.int32) if self._lengths else np.zeros(0, np.int32)
        ends = np.cumsum(lengths, dtype=np.int64)
        num_seqs = len(lengths)
        head = HEAD.pack(MAGIC, VERSION, _CODE_OF[dtype.name], num_seqs, num_seqs + 1)
        pointers = (ends - lengths) * dtype.itemsize
        columns = [lengths.astype("<i4"), pointers.astype("<i8"), np.arange(num_seqs + 1, dtype="<i8")]
        texts = {"idx": head + b"".join(column.tobytes() for column in columns)}
        labels = self._labels.get(self._key)
        if self._dim is not None or labels is not None:
            texts["specs"] = make_specs(self._num_tokens, self._dim, labels).encode()
        if self._tags is not None:
            texts["tags"] = "".join(f"{tag}\n" for tag in self._tags).encode()
        return texts

    def abort(self) -> None:
        """Give up and leave nothing. Does nothing after `close` or `abort`."""
        if self._is_open:
            self._is_open = False
            with contextlib.suppress(OSError):  # it tries to write what it still holds, which nobody wants any more
                self._file.close()
            self._pending.abort()


def _checked_dtype(dtype: Any, path: str) -> np.dtype[Any]:
    name = np.dtype(dtype).name
    if name not in _CODE_OF:
        raise ConfigError(
            f"the format has no code for {name}",
            where=path,
            fix=f'give dtype=, one of {", ".join(sorted(_CODE_OF))}; "int64" holds what uint32 does',
        )
    found: np.dtype[Any] = np.dtype(name)
    return found


def _check_tag(tag: Any, path: str) -> None:
    if not isinstance(tag, str) or "\n" in tag or "\r" in tag:
        raise SourceError(f"the tag {tag!r} is not a str without a line end", where=path, fix="rename it")
    try:
        tag.encode()
    except UnicodeEncodeError as error:
        raise SourceError(f"the tag {tag!r} is not valid Unicode", where=path, fix="correct it") from error
