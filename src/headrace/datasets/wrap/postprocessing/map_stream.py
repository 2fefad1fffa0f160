"""Calls a function over a stream.

Invariants: an error says what it is about, with the tag; a stream that has failed never looks like one that has ended,
even if the function caught the error, and even though a generator that raised has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.errors import TransformError, takes_note

from ...seq import DatasetSeq
from .functions import Function, chosen, names_taken, plain_seq
from .layout import MappedLayout, arrays_of, frac_of
from .tensor_dict import name_of


@dataclass(frozen=True)
class MapStream:
    """A function over a stream.

    Attributes:
        function: The user's function.
        layout: What it must make; `None` if that is not known.
        keeps_count: Whether it was said that as many sequences come out as go in.
    """

    function: Function
    layout: MappedLayout | None
    keeps_count: bool

    def __call__(
        self, seqs: Iterator[DatasetSeq], *, epoch: int, rng: Any, get_frac: Callable[[DatasetSeq], float | None]
    ) -> Generator[DatasetSeq]:
        """Yield what the function makes of the sequences of an epoch.

        Args:
            seqs: The sequences.
            epoch: The epoch.
            rng: The generator that the function gets.
            get_frac: Tells how much of the epoch is done after a sequence; `None` if it is not known.
        """
        inputs, num_seqs, frac = _Inputs(seqs, get_frac), 0, 0.0
        results: Iterator[Any] | None = None
        where = f"epoch {epoch}, map_seq_stream {name_of(self.function)}"
        arguments = chosen({"epoch": epoch, "rng": rng}, names_taken(self.function))
        try:
            results = _as_iterator(self.function(inputs, **arguments), self.function)
            for data in results:
                seq = self._checked(data, num_seqs, where, frac)
                num_seqs, frac = num_seqs + 1, max(frac, seq.complete_frac or 0.0)
                yield seq
            if self.keeps_count:
                self._check_count(inputs, num_seqs)
        except Exception as error:
            read = "" if inputs.tag is None else f", after it had read {inputs.tag!r}"
            takes_note(error, f"sequence {num_seqs} of the stream{read}, {where}")
            raise
        finally:
            _close(results)
            inputs.close()
        if inputs.failure is not None:
            raise inputs.failure  # the function has caught it, and ended

    def _check_count(self, inputs: _Inputs, num_seqs: int) -> None:
        """Refuse an end before all sequences were read, and another number of them; a failure is told by itself."""
        if inputs.failure is not None:
            return
        is_early = next(inputs, None) is not None
        if is_early or inputs.num_seqs != num_seqs:
            num_read = f"{inputs.num_seqs}, and more follow" if is_early else str(inputs.num_seqs)
            raise wrong_count(f"{num_seqs} came out of {num_read}")

    def _checked(self, data: Any, seq_idx: int, where: str, frac_before: float) -> DatasetSeq:
        result = plain_seq(data)
        tag = str(result.get("seq_tag", f"seq-{seq_idx}"))
        features = arrays_of(result, self.layout, tag, where)
        frac = frac_of(result, tag, where)
        if frac is not None and frac < frac_before:
            raise TransformError(
                f"complete_frac falls from {frac_before} to {frac}",
                where=f"sequence {tag!r}",
                fix="give it in the order in which it came in, as LaplaceOrdering does, or leave it out",
            )
        return DatasetSeq.made_of(seq_idx, features, tag, frac, None)


class _Inputs(Iterator[dict[str, Any]]):
    """What a stream function reads; knows afterwards where it was, and whether reading has failed."""

    def __init__(self, seqs: Iterator[DatasetSeq], get_frac: Callable[[DatasetSeq], float | None]) -> None:
        self._seqs = seqs
        self._get_frac = get_frac
        self.tag: str | None = None
        self.num_seqs = 0
        self.failure: BaseException | None = None

    def __next__(self) -> dict[str, Any]:
        if self.failure is not None:
            raise self.failure
        try:
            seq = next(self._seqs)
        except StopIteration:
            raise
        except BaseException as error:
            self.failure = error
            raise
        self.tag = seq.seq_tag
        self.num_seqs += 1
        data = {**seq.features, "seq_tag": seq.seq_tag, "seq_idx": seq.seq_idx}
        frac = self._get_frac(seq)
        return data if frac is None else {**data, "complete_frac": frac}

    def close(self) -> None:
        _close(self._seqs)


def _as_iterator(result: Any, function: Function) -> Iterator[Any]:
    """Return an iterator over what a stream function has returned.

    Raises:
        TransformError: That cannot be iterated over, or is a single sequence.
    """
    if isinstance(result, list | tuple) or (
        isinstance(result, Iterable) and not isinstance(result, Mapping | str | bytes)
    ):
        return iter(result)
    raise TransformError(
        f"map_seq_stream returns an iterator of sequences, got {type(result).__name__}",
        where=f"function {name_of(function)}",
        fix="write it as a generator (yield), or use map_seq for a function of one sequence",
    )


def _close(iterator: Any) -> None:
    """End a generator now, and not when its memory is wanted."""
    close = getattr(iterator, "close", None)
    if callable(close):
        close()


def wrong_count(what: str) -> TransformError:
    """Return the error about a stream function that does not keep the number of sequences."""
    return TransformError(
        f"map_seq_stream is said to preserve the number of sequences, and {what}",
        fix="set map_seq_stream_preserves_num_seqs=False",
    )
