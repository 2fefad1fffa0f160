"""`progress(loader)`: a bar over the batches of an epoch, with the share of the time that the training waits for them.

It is drawn as all bars are (`bars.py`), in a log every half a minute. Between two drawings a batch costs two looks at
the clock, and a comparison. (tqdm's arrangement: wrap what is iterated.)
"""

from __future__ import annotations

import atexit
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .drawing import format_count, format_seconds

if TYPE_CHECKING:
    from .bars import Bar

Batch = TypeVar("Batch")

_LOG_SECONDS = 30.0


class progress(Generic[Batch]):
    """Show how far an iteration over a loader is: `for batch in hr.progress(loader): ...`.

    The line has the epoch, steps, steps and sequences a second, the share of the time in which the training waited for
    batches, and the time left where the number of steps is known. Everything else is the loader's: `len`,
    `state_dict()`, `set_epoch(...)`, ...; each new iteration has a bar of its own.

    Args:
        loader: Any loader; of others than ours the share of waiting is measured here.
        label: Begins the line; None: the epoch, if the loader knows it.
        total: Number of steps; None: `len(loader)`, if it has one. That of ours plans the whole epoch: 0.1 to 1 us a
            sequence.
        file: Where to write; None: standard error.
    """

    def __init__(self, loader: Any, label: str | None = None, total: int | None = None, file: Any = None) -> None:
        self._loader, self._label, self._total, self._file = loader, label, total, file

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # of an object that is only half made, as by `copy`
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)

    def __repr__(self) -> str:
        return f"progress({self._loader!r})"

    def __iter__(self) -> Iterator[Batch]:
        """Iterate over the loader; the bar ends with it, also by an error or Ctrl-C, and its last line stays."""
        batches = iter(self._loader)
        watch = _Watch(self._label)
        bar = _open_bar(self._file)
        # A loop that ends by an error keeps this alive for as long as its traceback: then the interpreter tidies up.
        atexit.register(bar.close)
        get_time, pause = time.monotonic, bar.pause_seconds
        try:
            before = get_time()
            due = before + bar.first_seconds
            for batch in batches:
                now = get_time()
                watch.waited += now - before
                if not watch.num_done:
                    watch.begin(batch, self._find_total())  # now the loader knows which epoch this is
                watch.take(batch)
                if now >= due:
                    due = now + pause
                    watch.draw(bar, now)
                yield batch
                before = get_time()
            if watch.num_done:
                watch.draw(bar, get_time())
        finally:
            bar.close()
            atexit.unregister(bar.close)

    def _find_total(self) -> int | None:
        if self._total is not None:
            return self._total
        try:
            return len(self._loader)
        except Exception:  # noqa: BLE001 (no length, or one that cannot be told yet: the loader says so where it matters)
            return None


class _Watch:
    """Counts what was delivered, and what was waited for.

    Attributes:
        num_done: Steps of this iteration.
        position: Steps of the epoch, with those that were done before it was resumed.
        total: Steps of the epoch; None: not known.
        waited: Seconds.
    """

    def __init__(self, label: str | None) -> None:
        self._label = label
        self._begin = time.monotonic()
        self.num_done, self._num_seqs, self.waited = 0, 0, 0.0
        self.position = 0
        self.total: int | None = None

    def begin(self, batch: Any, total: int | None) -> None:
        """Take note of the first batch: which epoch this is, and which of its steps."""
        epoch, step = getattr(batch, "epoch", None), getattr(batch, "step", None)
        if self._label is None and isinstance(epoch, int) and epoch >= 0:
            self._label = f"epoch {epoch}"
        self.position = step if isinstance(step, int) and step > 0 else 0
        self.total = total

    def take(self, batch: Any) -> None:
        """Count a batch."""
        self.num_done += 1
        self.position += 1
        corpus_idx = getattr(batch, "corpus_idx", None)
        if corpus_idx is not None:
            self._num_seqs += len(corpus_idx)

    def draw(self, bar: Bar, now: float) -> None:
        """Show it."""
        bar.draw(self._text(now), self.position, self.total)

    def _text(self, now: float) -> str:
        seconds = max(now - self._begin, 1e-9)
        of_all = "" if self.total is None else f"/{format_count(self.total)}"
        parts = [
            *([self._label] if self._label else []),
            f"{format_count(self.position)}{of_all} steps",
            f"{_rate(self.num_done / seconds)} steps/s",
            *([f"{_rate(self._num_seqs / seconds)} seqs/s"] if self._num_seqs else []),
            f"waiting {min(self.waited / seconds, 1):.0%}",
        ]
        if self.total is not None and self.total > self.position:
            parts.append(f"{format_seconds((self.total - self.position) * seconds / self.num_done)} left")
        else:
            parts.append(f"{format_seconds(seconds)} in all")
        return "  ".join(parts)


def _rate(per_second: float) -> str:
    return format_count(per_second) if per_second >= 10 else f"{per_second:.2g}"


def _open_bar(file: Any) -> Bar:
    from rich.console import Console  # only who shows something needs it

    from .bars import open_bar

    console = Console(file=file or sys.stderr, markup=False, highlight=False, emoji=False)
    return open_bar(console, stays=True, log_seconds=_LOG_SECONDS)
