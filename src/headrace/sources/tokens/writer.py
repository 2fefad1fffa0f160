"""`TokenWriter`: documents of tokens, in the format of Megatron, which other programs read, too."""

from __future__ import annotations

import os
from array import array
from collections.abc import Mapping, Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, HeadraceError, SourceError
from headrace.specs import DataSpec

from ..shared.writer import FileWriter
from .cuts import make_specs, specs_path, tags_path
from .files import CODES, HEAD, MAGIC, VERSION

_CODE_OF = {dtype: code for code, dtype in CODES.items()}
_MAX_LENGTH = 2**31 - 1  # lengths are int32 in the format


class TokenWriter(FileWriter):
    """Writes documents of tokens to `x.bin` and `x.idx`; a context manager, which aborts if its block fails.

    The format holds one data key, of class indices. Tags other than `doc-0`, `doc-1`, ... go to `x.tags.txt`, the
    number of classes and the labels to `x.specs.json`, which `TokenSource` reads and others need not. The `.bin` gets
    its name last: a reader that sees it sees all. If the process is killed while the files get their names,
    `TokenSource` or the next writer finishes it. Memory: four bytes a document.

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
        stem = os.path.abspath(path).removesuffix(".bin")
        self._names = {"idx": stem + ".idx", "tags": tags_path(stem + ".bin"), "specs": specs_path(stem + ".bin")}
        if not os.fspath(path).endswith(".bin"):
            raise ConfigError("the name must end with .bin: the .idx goes beside it", where=os.path.abspath(path))
        super().__init__(path, overwrite=overwrite, beside=list(self._names.values()))
        self._labels = dict(labels or {})
        self._wanted = None if dtype is None else _checked_dtype(dtype, self.path)
        self._dtype: np.dtype[Any] | None = None
        self._key = ""
        self._dim: int | None = None
        if specs:
            self._adopt(specs)
        self._lengths = array("i")
        self._tags: list[str] | None = None  # from the first one on that is not by the rule
        self._num_tokens = 0
        self._open()

    def _begin(self) -> None:
        self._files = self._pend_together()
        self._file: IO[bytes] = self._opened.enter_context(open(self._files.temporary(self.path), "wb"))  # noqa: SIM115

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

    def _checked(self, tag: str, data: Mapping[str, NDArray[Any]], where: str) -> tuple[str, NDArray[Any]]:
        _check_tag(tag, self.path)
        is_first = self._dtype is None
        try:
            if is_first:
                self._adopt({key: DataSpec.of_array(np.asarray(value)) for key, value in data.items()})
                self._dim = len(self._labels.get(self._key, ())) or None
            return tag, self._tokens_of(data, where)
        except HeadraceError as error:
            if is_first:
                self._dtype = None  # what a refused one said of the layout does not hold
            raise SourceError(error.what, where=where, fix=error.fix) from error

    def _put(self, checked: tuple[str, NDArray[Any]]) -> None:
        tag, tokens = checked
        self._file.write(tokens.data)
        self._note(tag, len(tokens))

    def _note(self, tag: str, num_tokens: int) -> None:
        if self._tags is None and tag != f"doc-{self.num_seqs}":
            self._tags = [f"doc-{i}" for i in range(self.num_seqs)]
        if self._tags is not None:
            self._tags.append(tag)
        self._lengths.append(num_tokens)
        self._num_tokens += num_tokens

    def _tokens_of(self, data: Mapping[str, NDArray[Any]], where: str) -> NDArray[Any]:
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

    def _finish(self) -> None:
        self._file.close()
        for name, content in self._texts_beside().items():
            with open(self._files.temporary(self._names[name]), "wb") as file:
                file.write(content)

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


def _check_tag(tag: str, path: str) -> None:
    if "\n" in tag or "\r" in tag:
        raise SourceError(f"the tag {tag!r} is not one without a line end", where=path, fix="rename it")
