"""The contract of a writer, and what all writers have in common.

A writer takes the sequences of a corpus, one by one, and makes a file that a source reads. The target appears under its
name when it is whole and on the disk, or not at all; an existing one is replaced only if that was asked for, and of two
writers of one name only one succeeds then. What a format cannot hold is refused, when the layout is known or with the
sequence, and never changed in silence.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, HeadraceError, SourceError
from headrace.files import PendingFile
from headrace.files.atomic.together import PendingFiles, settle
from headrace.specs import DataSpec

from .data_types import check_classes, checked_seq, learn_specs, native, with_labels


class Writer(ABC):
    """Writes one file (or folder), sequence by sequence; a context manager, which aborts if its block fails.

    The constructor takes the path, `specs` (data key -> layout; without them the first sequence says it), `labels`
    (data key -> class labels), `overwrite`, and what the format needs.

    Attributes:
        path: The target, absolute.
    """

    path: str

    @property
    @abstractmethod
    def num_seqs(self) -> int:
        """Number of sequences appended so far."""

    @abstractmethod
    def append(self, tag: str, data: Mapping[str, NDArray[Any]]) -> None:
        """Append one sequence. If it is refused, nothing of it is stored, and the next one may be appended.

        Args:
            tag: Its name.
            data: Data key -> `dtype[T, ...]`, or a scalar for a key without a time axis.

        Raises:
            SourceError: The sequence does not fit the layout or the format, or the disk is full.
            ConfigError: The writer is closed.
        """

    @abstractmethod
    def close(self) -> None:
        """Finish the target and give it its name. Does nothing after `close` or `abort`.

        Raises:
            SourceError: It cannot be written; nothing is left.
        """

    @abstractmethod
    def abort(self) -> None:
        """Give up and leave nothing. Does nothing after `close` or `abort`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if error is None:
            self.close()
        else:
            self.abort()


class Pending(Protocol):
    """A target under its temporary name: a `PendingFile`, or the like of it for a folder or several files."""

    def commit(self) -> None:
        """Give the target its name, durably."""

    def abort(self) -> None:
        """Remove the temporary name. Does nothing after `commit` or `abort`."""


class FileWriter(Writer):
    """What all writers have in common: open and closed, the target and its durability, and what a full disk does.

    A sub-class checks its own options in its constructor, between `super().__init__` and `self._open()`.

    Args:
        path: The target. Its folder must exist.
        overwrite: Whether an existing target may be replaced.
        beside: Names of the files that belong to the target, if it has more than one.

    Raises:
        ConfigError: The target exists, and may not be replaced.
    """

    # What a library raises if the disk refuses; pyarrow has exceptions of its own.
    _disk_errors: tuple[type[Exception], ...] = (OSError,)

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool, beside: Sequence[str] = ()) -> None:
        self._is_open = False
        self._pid = os.getpid()
        self.path = os.path.abspath(path)
        self._overwrite = overwrite
        self._num_seqs = 0
        self._pending: Pending | None = None
        self._opened = contextlib.ExitStack()  # closed at the end, whatever it was
        self._beside = tuple(beside)
        if beside:
            settle(self.path)
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

    @abstractmethod
    def _checked(self, tag: str, data: Mapping[str, NDArray[Any]], where: str) -> Any:
        """Return a sequence as `_put` takes it, or say why the format cannot hold it: then nothing has changed."""

    @abstractmethod
    def _put(self, checked: Any) -> None:
        """Store what `_checked` returned. A `HeadraceError` means that nothing of the sequence is there."""

    @abstractmethod
    def _finish(self) -> None:
        """Write what comes last, and close the file (which `_opened` may do once more)."""

    # --- what all do ---

    def _pend(self) -> PendingFile:
        """Return the one file of the target under its temporary name; it is ours from now on."""
        self._pending = pending = PendingFile(self.path, fsync=True, overwrite=self._overwrite)
        return pending

    def _pend_together(self) -> PendingFiles:
        """Return the several files of the target under temporary names; they are ours from now on."""
        self._pending = pending = PendingFiles(self.path, self._beside, overwrite=self._overwrite)
        return pending

    def _open(self) -> None:
        """Begin; the last step of a constructor.

        Raises:
            SourceError: The folder is missing or cannot be written to, or no more files can be opened.
        """
        self._is_open = True
        try:
            self._begin()
        except BaseException as error:
            self.abort()
            if isinstance(error, self._disk_errors):
                raise self._disk_error(error) from error
            raise

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
        where = f"{self.path}, sequence {tag!r}"
        checked = self._checked(tag, data, where)
        try:
            self._put(checked)
        except HeadraceError:
            raise
        except BaseException as error:  # an interrupt, too, may have come in the middle of a sequence
            self.abort()
            if isinstance(error, self._disk_errors):
                raise self._disk_error(error) from error
            raise
        self._num_seqs += 1

    def close(self) -> None:
        """Finish the target, wait until it is on the disk, and give it its name. Does nothing after `close` or `abort`.

        Raises:
            SourceError: The disk is full or refuses; nothing is left.
            ConfigError: Something has come to the name meanwhile, and may not be replaced; nothing is left of ours.
        """
        if not self._is_open:
            return
        try:
            self._check_target()
            self._finish()
            assert self._pending is not None
            self._pending.commit()
        except BaseException as error:
            self.abort()
            if isinstance(error, self._disk_errors):
                raise self._disk_error(error) from error
            raise
        self.abort()  # which has nothing to remove any more

    def abort(self) -> None:
        """Give up and leave nothing. Does nothing after `close` or `abort`."""
        if not self._is_open:
            return
        self._is_open = False
        try:
            self._opened.close()
        except self._disk_errors:  # it tries to write what it still holds, which nobody wants any more
            pass
        finally:
            if self._pending is not None:
                self._pending.abort()

    def _disk_error(self, error: Exception) -> SourceError:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        return SourceError(f"cannot write: {reason}", where=self.path, fix="make room, or write to another folder")

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
    try:
        tag.encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair
        raise SourceError(f"the tag {tag!r} is not valid Unicode", where=path, fix="correct it") from error


class WrittenLayout:
    """Checks sequences before anything of them is written.

    Args:
        specs: Data key -> layout; `None`: the first sequence says it.
        labels: Data key -> class labels.
        path: The target, for errors.

    Attributes:
        specs: Data key -> layout; `None` before the first sequence if nobody said.
        labels: Data key -> class labels.
    """

    def __init__(
        self, specs: Mapping[str, DataSpec] | None, labels: Mapping[str, Sequence[str]] | None, path: str
    ) -> None:
        self.specs: dict[str, DataSpec] | None = None
        self.labels = {key: [str(name) for name in names] for key, names in (labels or {}).items()}
        self._path = path
        if specs is not None:
            self.adopt(dict(specs))

    def adopt(self, specs: dict[str, DataSpec]) -> None:
        """Make these the layouts, from now on unchangeable.

        Raises:
            ConfigError: There are labels for another key, or not so many as there are classes.
        """
        try:
            with_labels(specs, self.labels)  # as the readers do
        except ConfigError as error:
            raise ConfigError(error.what, where=self._path, fix=error.fix) from error
        self.specs = specs

    def checked(self, data: Mapping[str, Any], where: str) -> tuple[dict[str, DataSpec], dict[str, NDArray[Any]]]:
        """Return the layouts and the arrays of a sequence as they will be stored; changes nothing, see `adopt`.

        Raises:
            SourceError: A key is missing or new, or an array has another layout, or classes that are none.
        """
        if not isinstance(data, Mapping) or not data:
            raise SourceError("a sequence has at least one array", where=where, fix="give data key -> array")
        data = {key: native(value) for key, value in data.items()}
        specs = self.specs if self.specs is not None else learn_specs(data, where)
        arrays = checked_seq(data, specs, exact=True, where=where)
        for key, array in arrays.items():
            spec = specs[key]
            dim = spec.dim if spec.dim is not None else len(self.labels.get(key, ())) or None
            check_classes(array, replace(spec, dim=dim) if spec.sparse else spec, f"{where}, data key {key!r}")
            arrays[key] = np.asarray(array, order="C")
        return specs, arrays

    def about(self) -> dict[str, Any]:
        """Return layouts and labels as JSON data; nothing, if there was no sequence and nobody said the layouts."""
        if self.specs is None:
            return {"specs": {}, "labels": {}}
        return {"specs": {key: spec.to_json() for key, spec in self.specs.items()}, "labels": self.labels}
