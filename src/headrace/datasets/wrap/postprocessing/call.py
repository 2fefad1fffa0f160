"""Calling the function of a `PostprocessingDataset`, for one sequence or over a stream of them.

Invariants: what an error is about is in it, with the tag; a stream that has failed never looks like one that has ended,
though the function may have caught the error, and though a generator that raised is over.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import HeadraceError, SourceError, TransformError, takes_note
from headrace.rng import derive_seed

from ...base import Dataset
from ...seq import DatasetSeq
from ..blockwise import BlockwiseDataset
from .functions import META_KEYS, Function, as_iterator, chosen, name_of, names_taken, plain_seq
from .layout import Layout, is_text


@dataclass(frozen=True)
class DrawKey:
    """What the generator of one sequence is keyed by, besides seed and epoch.

    Attributes:
        purpose: Text; with the tag in it where tags are the key.
        corpus_idx: Place in the corpus; in a stream, the place there.
        occurrence: How often the sequence came before in the epoch.
    """

    purpose: str
    corpus_idx: int
    occurrence: int = 0


@dataclass(frozen=True)
class MapSeq:
    """A function of one sequence.

    Attributes:
        function: It.
        layout: What it must make; `None` if that is not known.
        seed: Of all generators.
        fixed_seed: The seed of every epoch, in place of that.
        keeps_lengths: Whether it was said that lengths stay.
        keeps_tags: Whether tags must stay, since others know them.
    """

    function: Function
    layout: Layout | None
    seed: int
    fixed_seed: int | None
    keeps_lengths: bool
    keeps_tags: bool
    _names: frozenset[str] | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_names", names_taken(self.function))

    def __call__(
        self, seq: DatasetSeq, *, epoch: int, seq_idx: int, key: DrawKey, frac: Callable[[], float] | None
    ) -> DatasetSeq:
        """Return the sequence as the function makes it.

        Args:
            seq: Of the inner dataset. Its arrays may be written to.
            epoch: The epoch.
            seq_idx: Its place.
            key: What its generator is keyed by.
            frac: Tells how much of the epoch is done after it; `None` if nobody knows.
        """
        tag, lengths = seq.seq_tag, {name: _length(array) for name, array in seq.features.items()}
        data = SeqData({**seq.features, "seq_tag": tag, "seq_idx": seq_idx}, frac)
        where = f"epoch {epoch}, map_seq {name_of(self.function)}"
        try:
            result = plain_seq(self.function(data, **self._arguments(epoch, seq_idx, key)))
            features = _arrays(result, self.layout, tag, where)
            self._check_kept(result, features, seq, lengths, where)
            given = _frac_of(result, tag, where)
        except StopIteration as error:  # would end whatever loop this is in, without a word
            raise TransformError(
                "the function raised StopIteration", where=f"sequence {tag!r}, {where}", fix="give next() a default"
            ) from error
        except Exception as error:
            takes_note(error, f"sequence {tag!r}, {where}")
            raise
        return DatasetSeq.made_of(seq_idx, features, str(result.get("seq_tag", tag)), given, seq.corpus_idx)

    def _arguments(self, epoch: int, seq_idx: int, key: DrawKey) -> dict[str, Any]:
        names = self._names
        arguments: dict[str, Any] = {"epoch": epoch, "seq_idx": seq_idx}
        if names is None or "rng" in names:
            fixed = self.fixed_seed
            arguments["rng"] = self._rng(self.seed if fixed is None else fixed, epoch if fixed is None else 0, key)
        return chosen(arguments, names)

    def _rng(self, seed: int, epoch: int, key: DrawKey) -> Any:
        bits = derive_seed(
            seed, key.purpose, epoch=epoch, corpus_idx=key.corpus_idx, occurrence=key.occurrence, bits=128
        )
        return np.random.RandomState(np.random.Philox(key=bits))

    def _check_kept(
        self,
        result: dict[str, Any],
        features: dict[str, NDArray[Any]],
        seq: DatasetSeq,
        lengths: dict[str, int],
        where: str,
    ) -> None:
        """Refuse what goes against what was said."""
        tag = seq.seq_tag
        if self.keeps_tags and str(result.get("seq_tag", tag)) != tag:
            raise TransformError(
                f"map_seq has changed the tag {tag!r} to {str(result['seq_tag'])!r}",
                where=where,
                fix="leave seq_tag as it is: sequences are found by it; map_seq_stream may change it",
            )
        for name, array in features.items() if self.keeps_lengths else ():
            if name in lengths and _length(array) != lengths[name]:
                raise TransformError(
                    f"map_seq_preserves_lengths=True, and {name!r} had {lengths[name]} frames and has {_length(array)}",
                    where=f"sequence {tag!r}, {where}",
                    fix="leave map_seq_preserves_lengths out",
                )


class SeqData(dict[str, Any]):
    """A sequence as `map_seq` gets it; the progress of the epoch is found out when it is asked for.

    Args:
        data: All other entries.
        frac: Tells the progress; `None` if nobody knows it.
    """

    def __init__(self, data: dict[str, Any], frac: Callable[[], float] | None) -> None:
        super().__init__(data)
        self._frac = frac

    def __missing__(self, key: str) -> Any:
        if key != "complete_frac" or self._frac is None:
            raise KeyError(key)
        value = self[key] = self._frac()
        return value

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"a sequence is a dict here, data key -> array, and has no attribute {name!r}; a function that was written "
            "for RETURNN gets a TensorDict if its argument is annotated so, or by TakesTensorDict(function)"
        )


def _length(array: NDArray[Any]) -> int:
    return len(array) if array.ndim else 1


def _arrays(result: dict[str, Any], layout: Layout | None, tag: str, where: str) -> dict[str, NDArray[Any]]:
    if layout is not None:
        return layout.check(result, tag, where)
    arrays = {key: value for key, value in result.items() if key not in META_KEYS and not is_text(value)}
    return DatasetSeq(0, arrays, seq_tag=tag).features


def _frac_of(result: dict[str, Any], tag: str, where: str) -> float | None:
    value = result.get("complete_frac")
    if value is None:
        return None
    frac = float(value)
    if not 0 <= frac <= 1:
        raise TransformError(f"complete_frac is {frac}, not in 0..1", where=f"sequence {tag!r}, {where}")
    return frac


def read_seqs(dataset: Dataset, first: int = 0, step: int = 1) -> Iterator[DatasetSeq]:
    """Yield every `step`-th sequence of the current epoch from a place on; their arrays may be written to.

    Where the dataset can jump, the others are not read.

    Raises:
        HeadraceError: Somebody else has started an epoch of it.
    """
    version, jumps = dataset.order_version, dataset.supports_jumps
    place, tag = first if jumps else 0, None
    while True:
        if dataset.order_version != version:
            raise taken(dataset)
        try:
            if not dataset.is_less_than_num_seqs(place):
                return
            dataset.load_seqs(place, place + 1)
            seq = dataset.get_seq(place) if (place - first) % step == 0 and place >= first else None
        except Exception as error:
            after = "" if tag is None else f", after sequence {tag!r}"
            takes_note(error, f"while sequence {place} of the inner dataset {dataset.name!r} was read{after}")
            raise
        if seq is not None:
            tag = seq.seq_tag
            yield own_seq(dataset, seq, place)
        place += step if jumps else 1


def own_seq(dataset: Dataset, seq: DatasetSeq, place: int) -> DatasetSeq:
    """Return a sequence with its texts, whose arrays may be written to: some datasets keep what they give."""
    texts = {key: dataset.get_data(place, key) for key in dataset.get_text_keys()}
    is_own = dataset.reads_singly or isinstance(dataset, BlockwiseDataset)
    if is_own and not texts:
        return seq
    features = {**{key: array if is_own else np.array(array) for key, array in seq.features.items()}, **texts}
    return DatasetSeq.made_of(seq.seq_idx, features, seq.seq_tag, seq.complete_frac, seq.corpus_idx)


def taken(dataset: Dataset) -> HeadraceError:
    """Return what is raised if an inner dataset is not where its reader left it."""
    return HeadraceError(
        "somebody else has started or ended an epoch of the inner dataset that a PostprocessingDataset is reading",
        where=f"inner dataset {dataset.name!r}",
        fix="give it a dataset of its own",
    )


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


@dataclass(frozen=True)
class MapStream:
    """A function over a stream.

    Attributes:
        function: It.
        layout: What it must make; `None` if that is not known.
        keeps_count: Whether it was said that as many sequences come out as go in.
    """

    function: Function
    layout: Layout | None
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
            results = as_iterator(self.function(inputs, **arguments), self.function)
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

    def _checked(self, data: Any, place: int, where: str, frac_before: float) -> DatasetSeq:
        result = plain_seq(data)
        tag = str(result.get("seq_tag", f"seq-{place}"))
        features = _arrays(result, self.layout, tag, where)
        frac = _frac_of(result, tag, where)
        if frac is not None and frac < frac_before:
            raise TransformError(
                f"complete_frac falls from {frac_before} to {frac}",
                where=f"sequence {tag!r}",
                fix="give it in the order in which it came in, as LaplaceOrdering does, or leave it out",
            )
        return DatasetSeq.made_of(place, features, tag, frac, None)


def check_keys(dataset: Dataset, layout: Layout | None, reserved: tuple[str, ...]) -> None:
    """Refuse a dataset with data keys that are called as other entries of a sequence.

    Raises:
        SourceError: It has one.
    """
    taken = sorted(set(layout.specs if layout is not None else ()) & set(reserved))
    if taken:
        raise SourceError(
            f"the inner dataset has the data keys {taken}, and the function gets something else under these names",
            where=f"dataset {dataset.name!r}",
            fix="rename them, for example by the data_map of a MetaDataset",
        )
