"""`Writer`, the base of all writers.

A writer takes the sequences of a corpus, one by one, and makes a file that a source reads. The target appears under its
name when it is whole and on the disk, or not at all; an existing one is replaced only if that was asked for, and of two
writers of one name only one succeeds then. What a format cannot hold is refused, when the layout is known or with the
sequence, and never changed silently.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, HeadraceError, SourceError
from headrace.files import PendingFile
from headrace.files.atomic import PendingFiles
from headrace.specs import DataSpec

from .data_types import check_classes, checked_seq, learn_specs, native, with_labels

_NO_CLASSES = (0, -1)


class Writer(ABC):
    """Writes one file, sequence by sequence; a context manager, which aborts if its block fails.

    It handles the target and its durability, closing and aborting, and checks of each sequence. A sub-class checks its
    own options in its constructor, between `super().__init__` and `self._open()`.

    Args:
        path: The target. Its folder must exist.
        specs: Data key -> layout; without it, the first sequence says what the keys, dtypes and shapes are.
        labels: Data key -> class labels.
        overwrite: Whether an existing target may be replaced.
        beside: Names of the files that belong to the target, if it has more than one.

    Attributes:
        path: The target, absolute.
        specs: Data key -> layout, as it is stored; {} until it is known.
        labels: Data key -> class labels.

    Raises:
        ConfigError: The target exists, and may not be replaced; or labels are no texts.

    Examples:
        >>> import tempfile
        >>> import headrace as hr
        >>> import numpy as np
        >>> def write_zeros(writer: hr.Writer) -> None:
        ...     with writer:
        ...         for number in range(3):
        ...             writer.append(f"seq-{number}", {"data": np.zeros((2, 4), np.float32)})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_zeros(hr.HDFWriter(f"{folder}/a.hdf"))
        ...     write_zeros(hr.TarWriter(f"{folder}/a.tar"))
        ...     print([hr.open_source(f"{folder}/a.{ending}").index.num_seqs for ending in ("hdf", "tar")])
        [3, 3]
    """

    # What a library raises if the disk refuses; pyarrow has exceptions of its own.
    _disk_errors: tuple[type[Exception], ...] = (OSError,)
    _number_kinds = "biufc"  # of the dtypes that the format holds, as NumPy has them
    _has_unique_tags = False
    _needs_all_labels = True  # whether labels must be as many as there are classes
    _learns_classes = False  # whether the range of classes is tracked where their number is not declared
    _least_class: int | None = 0  # that a key with a known number of classes may have; None: any

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        specs: Mapping[str, DataSpec] | None = None,
        labels: Mapping[str, Sequence[str]] | None = None,
        overwrite: bool,
        beside: Sequence[str] = (),
    ) -> None:
        self._is_open = False
        self._pid = os.getpid()
        self.path = os.path.abspath(path)
        self.labels = {key: self._checked_labels(key, names) for key, names in (labels or {}).items()}
        self.specs: dict[str, DataSpec] = {}
        self._given = dict(specs or {})
        self._class_ranges: dict[str, tuple[int, int]] = {}  # of sparse keys: the least (at most 0), the largest
        self._tags: set[str] = set()  # if they have to differ
        self._overwrite = overwrite
        self._num_seqs = 0
        self._pending: PendingFile | PendingFiles | None = None
        self._opened = contextlib.ExitStack()  # closed at the end, whatever it was
        self._beside = tuple(beside)
        self._check_target()

    def _check_target(self) -> None:
        """Refuse early what the commit would refuse: to finish a large target may take long."""
        for name in (self.path, *self._beside):
            if not self._overwrite and os.path.lexists(name):
                raise ConfigError("the file exists", where=name, fix="give another path, or overwrite=True")

    # --- what a format does ---

    def _begin(self) -> None:
        """Make the target under its temporary name, and open what is written to, in `_opened`."""
        raise NotImplementedError

    def _accept(self, specs: dict[str, DataSpec]) -> dict[str, DataSpec]:
        """Return layouts as the format keeps them; `ConfigError` for what it cannot hold. It changes nothing."""
        return specs

    def _as_stored(self, data_key: str, value: Any, where: str) -> Any:  # noqa: ARG002
        """Return a value in the dtype and with the axes that the format has for its key, before it is compared.

        It is not asked about an array that has the dtype and the axes of its key already.
        """
        return value

    @abstractmethod
    def _put(self, tag: str, arrays: dict[str, NDArray[Any]], where: str) -> None:
        """Store a sequence that has the layouts of `specs`. A `HeadraceError` means that nothing of it is there.

        Args:
            tag: Valid text.
            arrays: `dtype[T, ...]` in C order and in native byte order, in the order of the specs.
            where: Location, for error messages.
        """

    @abstractmethod
    def _finish(self) -> None:
        """Write what comes last, and close the file (which `_opened` may do once more)."""

    # --- what all do ---

    def _pend(self) -> PendingFile:
        """Return the one file of the target under its temporary name; it is ours from now on."""
        self._pending = pending = PendingFile(self.path, fsync=True, overwrite=self._overwrite)
        return pending

    def _open(self) -> None:
        """Begin; the last step of a constructor.

        Raises:
            ConfigError: The format cannot hold the layouts that were said, or the labels do not fit them.
            SourceError: The folder is missing or cannot be written to, or no more files can be opened.
        """
        if self._given:
            self.specs = self._accepted(self._given)
        self._is_open = True
        with self._aborting():
            self._begin()

    @property
    def num_seqs(self) -> int:
        """Number of sequences appended so far."""
        return self._num_seqs

    def append(self, tag: str, data: Mapping[str, NDArray[Any]]) -> None:
        """Append one sequence. If it is refused, nothing of it is stored, and the next one may be appended.

        Args:
            tag: Its name.
            data: Data key -> `dtype[T, ...]`, or an array of the layout's shape for a key without a time axis.

        Raises:
            SourceError: The sequence does not fit the layout or the format. If the disk is full the writer is aborted,
                too.
            ConfigError: The writer is closed, or the format cannot hold the layout that the first sequence has.
        """
        if not self._is_open:
            raise ConfigError("the writer is closed", where=self.path, fix="append before close()")
        _check_tag(tag, self.path)
        if tag in self._tags:
            raise SourceError(f"the tag {tag!r} was there before", where=self.path, fix="give each sequence its own")
        where = f"{self.path}, sequence {tag!r}"
        specs, arrays = self._checked(data, where)
        ranges = self._ranges(specs, arrays, where)
        before, self.specs, refused = self.specs, specs, None
        with self._aborting():  # also at an interrupt, which may come in the middle of a sequence
            try:
                self._put(tag, arrays, where)
            except HeadraceError as error:
                self.specs, refused = before, error
        if refused is not None:
            raise refused
        self._num_seqs += 1
        if self._has_unique_tags:
            self._tags.add(tag)
        for key, (low, high) in ranges:
            least, largest = self._class_ranges.get(key, _NO_CLASSES)
            if low < least or high > largest:
                self._class_ranges[key] = min(low, least), max(high, largest)

    def _checked(self, data: Mapping[str, Any], where: str) -> tuple[dict[str, DataSpec], dict[str, NDArray[Any]]]:
        """Return the layouts, and the arrays of a sequence as they will be stored.

        It changes nothing: what a sequence that is refused says of the layouts does not hold.
        """
        if not isinstance(data, Mapping) or not data:
            found = f"has the data keys {list(data)}" if isinstance(data, Mapping) else f"is a {type(data).__name__}"
            raise SourceError(
                f"a sequence has at least one array, and this {found}", where=where, fix="give data key -> array"
            )
        values = {key: self._as_stored(key, native(value), where) for key, value in data.items()}
        specs = self.specs or self._accepted(learn_specs(values, where))
        arrays = checked_seq(values, specs, exact=True, where=where)
        return specs, {key: np.asarray(array, order="C") for key, array in arrays.items()}

    def _ranges(
        self, specs: Mapping[str, DataSpec], arrays: Mapping[str, NDArray[Any]], where: str
    ) -> list[tuple[str, tuple[int, int]]]:
        """Return the ranges of the classes of a sequence, after a look at whether there are such classes."""
        return [
            (key, check_classes(arrays[key], spec, f"{where}, data key {key!r}", least=self._least_class))
            for key, spec in specs.items()
            if spec.sparse and (self._learns_classes or spec.dim is not None)
        ]

    def _class_range(self, data_key: str) -> tuple[int, int]:
        """Return the least class index of a key so far, 0 if none is below it, and the largest, -1 without any.

        For a key without a declared number of classes, it is known only with `_learns_classes`.
        """
        return self._class_ranges.get(data_key, _NO_CLASSES)

    def _accepted(self, specs: Mapping[str, DataSpec]) -> dict[str, DataSpec]:
        """Return layouts as they are stored, with the numbers of classes that labels say, or raise `ConfigError`."""
        for key, spec in specs.items():
            if not _is_text(key):
                raise ConfigError(f"{key!r} cannot be the name of a data key", where=self.path, fix="rename it")
            dtype = np.dtype(spec.dtype)
            if dtype.kind not in self._number_kinds or dtype.itemsize > (16 if dtype.kind == "c" else 8):
                raise ConfigError(
                    f"{key!r} has the dtype {spec.dtype}, which this format cannot hold",
                    where=self.path,
                    fix="convert it, for example to numbers of up to 64 bits; or write another format",
                )
        accepted = self._accept(dict(specs))
        try:
            return with_labels(accepted, self.labels, exact=self._needs_all_labels)
        except ConfigError as error:
            raise ConfigError(error.what, where=self.path, fix=error.fix) from error

    def _checked_labels(self, data_key: str, labels: Sequence[str]) -> list[str]:
        entries = list(labels)
        if isinstance(labels, str) or not all(map(_is_text, entries)):
            what = f"the labels of {data_key!r} are not a list of texts: {labels!r:.100}"
            raise ConfigError(what, where=self.path, fix="pass a list with one str for each class")
        return entries

    def _about(self) -> dict[str, Any]:
        """Return layouts and labels as JSON data; without layouts nothing, as there was no sequence."""
        specs = {key: spec.to_json() for key, spec in self.specs.items()}
        return {"specs": specs, "labels": self.labels if specs else {}}

    def close(self) -> None:
        """Finish the target, wait until it is on the disk, and give it its name. Does nothing after `close` or `abort`.

        Raises:
            SourceError: The disk is full or refuses; nothing is left.
            ConfigError: Something has come to the name meanwhile, and may not be replaced; nothing is left of ours.
        """
        if not self._is_open:
            return
        with self._aborting():
            self._check_target()
            self._finish()
            assert self._pending is not None
            self._pending.commit()
        self.abort()  # which has nothing to remove any more

    def abort(self) -> None:
        """Give up and leave nothing. Does nothing after `close` or `abort`."""
        if not self._is_open:
            return
        self._is_open = False
        try:
            self._opened.close()
        except self._disk_errors:  # it tries to flush its buffer, which is discarded anyway
            pass
        finally:
            if self._pending is not None:
                self._pending.abort()

    @contextlib.contextmanager
    def _aborting(self) -> Iterator[None]:
        """Abort at any error inside, and tell one of the disk as ours."""
        try:
            yield
        except BaseException as error:
            self.abort()
            if isinstance(error, self._disk_errors):
                reason = error.strerror if isinstance(error, OSError) and error.strerror else error
                fix = "make room, or write to another folder"
                raise SourceError(f"cannot write: {reason}", where=self.path, fix=fix) from error
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if error is None:
            self.close()
        else:
            self.abort()

    def __del__(self) -> None:
        if (
            os is not None and getattr(self, "_is_open", False) and os.getpid() == self._pid
        ):  # a forked child has only a copy
            name = type(self).__name__
            warnings.warn(f"a {name} of {self.path} was neither closed nor aborted", ResourceWarning, stacklevel=2)
            self.abort()


def _check_tag(tag: Any, path: str) -> None:
    if not isinstance(tag, str):
        raise SourceError(f"the tag {tag!r} is a {type(tag).__name__}, not a str", where=path, fix="give a str")
    if not tag.isascii() and not _is_text(tag):
        raise SourceError(f"the tag {tag!r} is not valid Unicode", where=path, fix="correct it")


def _is_text(name: Any) -> bool:
    """Tell whether something is a text that can be written as UTF-8."""
    try:
        return isinstance(name, str) and name.encode() is not None
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
