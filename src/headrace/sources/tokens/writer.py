"""`TokenWriter`: documents of tokens, in the format of Megatron, which other programs read, too."""

from __future__ import annotations

import os
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import IO, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.files.atomic import PendingFiles
from headrace.specs import DataSpec

from ..shared.data_types import as_array
from ..shared.writer import Writer
from .files import CODES, HEAD, MAGIC, VERSION, TokenNotes, specs_path, tags_path

_CODE_OF = {dtype: code for code, dtype in CODES.items()}
_MAX_LENGTH = 2**31 - 1  # lengths are int32 in the format


class TokenWriter(Writer):
    """Writes documents of tokens to `x.bin` and `x.idx`; a context manager, which aborts if its block fails.

    The format holds one data key, of class indices. Tags other than `doc-0`, `doc-1`, ... go to `x.tags.txt`, the
    number of classes and the labels to `x.specs.json`, which `TokenSource` reads and others need not. The `.bin` gets
    its name last: a reader that sees it sees all. If the process is killed while the files get their names,
    `TokenSource` or the next writer finishes it. Memory: four bytes a document.

    Args:
        path: The `.bin` to make. Its folder must exist.
        specs: Data key -> layout: one key. Without it, the first sequence says it.
        labels: Data key -> class labels.
        dtype: Dtype of the tokens; else that of the layout. One of uint8, int8, uint16, int16, int32, int64.
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
        super().__init__(path, specs=specs, labels=labels, overwrite=overwrite, beside=list(self._names.values()))
        self._wanted = None if dtype is None else _checked_dtype(dtype, self.path)
        self._lengths = array("i")
        self._tag_lines: list[str] | None = None  # from the first one on that is not by the rule
        self._open()

    def _begin(self) -> None:
        self._pending = self._files = PendingFiles(self.path, self._beside, overwrite=self._overwrite)
        self._file: IO[bytes] = self._opened.enter_context(open(self._files.temporary(self.path), "wb"))  # noqa: SIM115

    def _accept(self, specs: dict[str, DataSpec]) -> dict[str, DataSpec]:
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
        dtype = self._wanted or _checked_dtype(spec.dtype, self.path)
        return {key: replace(spec, dtype=dtype.name)}

    def _as_stored(self, data_key: str, value: Any, where: str) -> NDArray[Any]:
        """Return tokens in the dtype of the file, if they are integers that fit it."""
        tokens = as_array(value, None, f"{where}, data key {data_key!r}")
        dtype = np.dtype(self.specs[data_key].dtype) if data_key in self.specs else self._wanted
        if dtype is None or tokens.dtype.kind not in "iu":
            return tokens
        limits = np.iinfo(dtype)
        low, high = (int(tokens.min()), int(tokens.max())) if tokens.size else (0, 0)
        if low < limits.min or high > limits.max:
            wrong = low if low < limits.min else high
            raise SourceError(f"the token {wrong} does not fit {dtype}", where=where, fix="give a wider dtype=")
        return tokens.astype(dtype, copy=False)

    def _put(self, tag: str, arrays: dict[str, NDArray[Any]], where: str) -> None:
        (tokens,) = arrays.values()
        if "\n" in tag or "\r" in tag:
            raise SourceError(f"the tag {tag!r} contains a line end", where=self.path, fix="rename it")
        if len(tokens) > _MAX_LENGTH:
            raise SourceError(f"{len(tokens)} tokens; a document has up to {_MAX_LENGTH}", where=where, fix="split it")
        self._file.write(np.asarray(tokens, tokens.dtype.newbyteorder("<")).data)
        if self._tag_lines is None and tag != f"doc-{self.num_seqs}":
            self._tag_lines = [f"doc-{i}" for i in range(self.num_seqs)]
        if self._tag_lines is not None:
            self._tag_lines.append(tag)
        self._lengths.append(len(tokens))

    def _finish(self) -> None:
        self._file.close()
        for name, content in self._texts_beside().items():
            with open(self._files.temporary(self._names[name]), "wb") as file:
                file.write(content)

    def _texts_beside(self) -> dict[str, bytes]:
        (key, spec), *_ = [*self.specs.items(), ("", DataSpec((self._wanted or np.dtype("int32")).name))]
        dtype, labels = np.dtype(spec.dtype), self.labels.get(key)
        lengths = np.frombuffer(self._lengths, np.int32) if self._lengths else np.zeros(0, np.int32)
        ends = np.cumsum(lengths, dtype=np.int64)
        num_seqs = len(lengths)
        head = HEAD.pack(MAGIC, VERSION, _CODE_OF[dtype.name], num_seqs, num_seqs + 1)
        pointers = (ends - lengths) * dtype.itemsize
        columns = [lengths.astype("<i4"), pointers.astype("<i8"), np.arange(num_seqs + 1, dtype="<i8")]
        texts = {"idx": head + b"".join(column.tobytes() for column in columns)}
        if spec.dim is not None or labels is not None:
            notes = TokenNotes(int(lengths.sum(dtype=np.int64)), spec.dim, None if labels is None else list(labels))
            texts["specs"] = msgspec.json.encode(notes) + b"\n"
        if self._tag_lines is not None:
            texts["tags"] = "".join(f"{tag}\n" for tag in self._tag_lines).encode()
        return texts


def _checked_dtype(dtype: Any, path: str) -> np.dtype[Any]:
    name = np.dtype(dtype).name
    if name not in _CODE_OF:
        raise ConfigError(
            f"the file format has no code for {name}",
            where=path,
            fix=f'give dtype=, one of {", ".join(sorted(_CODE_OF))}; "int64" holds what uint32 does',
        )
    found: np.dtype[Any] = np.dtype(name)
    return found
