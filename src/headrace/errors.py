"""The tree of errors: what happened, where, and how to fix it.

Every error that Headrace raises on purpose is a `HeadraceError`. Its text has up to three parts: *what* happened (with
the two values that disagree), *where* (file, tag, epoch, ...), and the *fix* (an option or a command). All of them
survive pickling, because they cross process boundaries.
"""

from __future__ import annotations

import difflib
import operator
from collections.abc import Iterable
from typing import Any


class HeadraceError(Exception):
    """The root of the tree.

    Args:
        what: What happened, as a sentence without a final full stop.
        where: Where it happened: a file, a tag, an epoch, a worker.
        fix: What the user can do about it.

    Examples:
        >>> import headrace as hr
        >>> try:
        ...     hr.FixedCount(0)
        ... except hr.HeadraceError as error:
        ...     print(error.what)
        FixedCount: num_seqs must be in 1..2147483647, got 0
    """

    def __init__(self, what: str, *, where: str | None = None, fix: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        """Join the three parts into one short paragraph."""
        text = self.what
        if self.where:
            text += f"\n  where: {self.where}"
        if self.fix:
            text += f"\n  fix: {self.fix}"
        return text

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by parts, so that subclasses with keyword arguments survive; notes travel along."""
        return _rebuild, (type(self), self.what, self.where, self.fix), {"__notes__": getattr(self, "__notes__", [])}


def _rebuild(cls: type[HeadraceError], what: str, where: str | None, fix: str | None) -> HeadraceError:
    return cls(what, where=where, fix=fix)


class ConfigError(HeadraceError, ValueError):
    """An option, a config file or a combination of options is wrong."""


class SourceError(HeadraceError):
    """Stored data cannot be read, or is not what it claims to be."""


class TransformError(HeadraceError):
    """A user function returned something that cannot be used.

    Examples:
        >>> import headrace as hr
        >>> seqs = [{"data": [1.0, 2.0]}]
        >>> with hr.DataLoader(seqs, batch_size=1, transform=lambda seq: "text") as loader:
        ...     try:
        ...         next(iter(loader))
        ...     except hr.TransformError as error:
        ...         print(error.what)
        a transform returns a mapping data key -> array, got str
    """


class CacheError(HeadraceError):
    """A cache on disk or in memory cannot do what was asked.

    Examples:
        >>> import headrace as hr
        >>> try:
        ...     hr.FileCache(cache_directory="/dev/null/cache")
        ... except hr.CacheError as error:
        ...     print(error.what)
        the cache folder cannot be made: Not a directory
    """


class ResumeError(HeadraceError):
    """A saved state does not belong to this loader, or comes too late.

    Examples:
        >>> import headrace as hr
        >>> with hr.DataLoader(range(4), batch_size=2, seed=1) as loader:
        ...     state = loader.state_dict()
        >>> with hr.DataLoader(range(4), batch_size=2, seed=2) as loader:
        ...     try:
        ...         loader.load_state_dict(state)
        ...     except hr.ResumeError as error:
        ...         print(error.what.partition(":")[0])
        the state was saved with another seed
    """


class WorkerDiedError(HeadraceError, RuntimeError):  # as torch's DataLoader raises
    """A worker ended before its work was done, and may not be restarted.

    Attributes:
        ticket: What it was at, where that is known; not pickled.
        item_number: Which item of the ticket, where that is known; not pickled.

    Examples:
        >>> import os
        >>> import headrace as hr
        >>> from headrace.engine import Raising
        >>> def die(seq):
        ...     os._exit(7)
        >>> options = hr.EngineOptions(on_death=Raising())
        >>> seqs = [{"data": [1.0, 2.0]}]
        >>> with hr.DataLoader(seqs, batch_size=1, transform=die, num_workers=1, engine_options=options) as loader:
        ...     try:
        ...         next(iter(loader))
        ...     except hr.WorkerDiedError as error:
        ...         print(error.what)
        worker 0 ended with exit code 7
    """

    ticket: int | None = None
    item_number: int | None = None


class StalledError(HeadraceError, RuntimeError):  # as torch's DataLoader raises
    """A worker has shown no sign of life for too long.

    Attributes:
        seconds: For how long the consumer waited for it, where that is known; not pickled.

    Examples:
        >>> import headrace as hr
        >>> from headrace.engine import Raising
        >>> options = hr.EngineOptions(stall_seconds=600, on_stall=Raising())  # raises it, in place of a new worker
    """

    seconds: float | None = None


class InternalError(HeadraceError):
    """An invariant of Headrace itself is broken: please report it.

    Examples:
        >>> import headrace as hr
        >>> print(hr.InternalError("batch 7 came twice", where="epoch 1", fix="please report it"))
        batch 7 came twice
          where: epoch 1
          fix: please report it
    """


class NotCarriedOverError(HeadraceError, ImportError):
    """A class of another library that has no counterpart here; the fix names what to use instead.

    Examples:
        >>> from headrace.errors import NotCarriedOverError
        >>> from headrace.pipes import iter as pipes
        >>> try:
        ...     pipes.TFRecordLoader([])
        ... except NotCarriedOverError as error:
        ...     print(error.what)
        torchdata's TFRecordLoader is not part of headrace.pipes.iter
    """


class OptionalNotImplementedError(HeadraceError, NotImplementedError):
    """This dataset does not offer this optional method.

    Examples:
        >>> import headrace as hr
        >>> dataset = hr.CachedDataset2()  # a stream may have any tags
        >>> try:
        ...     dataset.get_all_tags()
        ... except hr.OptionalNotImplementedError as error:
        ...     print(error.what)
        CachedDataset2 does not offer get_all_tags
    """


def takes_note(error: BaseException, note: str) -> bool:
    """Add a note to any exception; tell whether it took it: user code may freeze exceptions or refuse notes."""
    try:
        error.add_note(note)
    except Exception:  # noqa: BLE001 - user code: odd __notes__, an add_note of their own
        return False
    return True


def check_count(name: str, value: Any, *, minimum: int = 0, maximum: int | None = None) -> int:
    """Return an integer option, of Python's or NumPy's type, as an int.

    Args:
        name: Name of the option, for the message.
        value: What was given. A bool is refused: it is most likely meant for another option.
        minimum: The smallest legal value.
        maximum: The largest legal value; `None`: no bound.

    Raises:
        ConfigError: It is not an integer, or out of bounds.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise ConfigError(f"{name} must be an integer, got {value!r}")
    if number < minimum or (maximum is not None and number > maximum):
        bounds = f"at least {minimum}" if maximum is None else f"in {minimum}..{maximum}"
        raise ConfigError(f"{name} must be {bounds}, got {number}")
    return number


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """Name the closest valid names for an unknown one, then list all of them.

    Args:
        name: What the user wrote.
        valid: The names that would have been accepted.
    """
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}valid: {', '.join(names)}"
