"""Calls the functions of a `PostprocessingDataset`, and checks what they make of the sequences.

Invariants: an error says what it is about, with the tag; a stream that has failed never looks like one that has ended,
even if the function caught the error, and even though a generator that raised has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from headrace.errors import ConfigError, HeadraceError, TransformError, takes_note
from headrace.rng import derive_seed
from headrace.sources.shared.data_types import find_mismatch, parse_data_types
from headrace.specs import DataSpec

from ...corpus import Corpus
from ...seq import DatasetSeq, count_frames
from .functions import META_KEYS, Function, chosen, draws, name_of, names_taken, plain_seq

SeqKey = tuple[str, int, int]
GetFrac = Callable[[], float | None] | None
_IGNORED = ("batch_dim_axis", "time_dim_axis", "feature_dim_axis", "available_for_inference", "version", "name")


@dataclass(frozen=True)
class FunctionLayout:
    """The layout of what a function makes.

    Attributes:
        specs: Layouts by data key; `None` if they show with the first sequence.
        knows_dtypes: Whether their dtypes are known; otherwise nothing is asked of them.
        is_declared: Whether the user has said it, and other data keys are left out; else it is that of the inner
            dataset.
    """

    specs: Mapping[str, DataSpec] | None
    knows_dtypes: bool = True
    is_declared: bool = False

    @classmethod
    def of(cls, inner: Corpus) -> FunctionLayout:
        """Return the layout of a corpus."""
        layout = inner.layout()
        specs = {key: spec for key, spec in (layout or {}).items() if spec is not None}
        if layout is None or len(specs) < len(layout):
            return cls(None, knows_dtypes=False)
        return cls(specs, inner.knows_dtypes)

    @classmethod
    def parse(cls, map_outputs: Any) -> FunctionLayout:
        """Read the option `map_outputs`: data key -> dict, as `parse_data_types` takes, or with "dims".

        "dims" are numbers, `None` for a free one, or objects with such a number in `dimension`.

        Raises:
            ConfigError: The option has another form.
        """
        if not isinstance(map_outputs, Mapping) or not map_outputs:
            raise ConfigError(
                f"map_outputs is a dict, data key -> layout, got {map_outputs!r}",
                fix='write {"data": {"dim": 42}}, or {"data": {"shape": (None, 42), "dtype": "float32"}}',
            )
        reserved = sorted(set(map_outputs) & set(META_KEYS))
        if reserved:
            raise ConfigError(f"map_outputs names {reserved}, which each sequence has anyway", fix="leave them out")
        types: dict[str, Any] = {}
        for key, options in map_outputs.items():
            if isinstance(options, Mapping):
                options = {name: value for name, value in options.items() if name not in _IGNORED}
                for name in {"sparse_dim", "feature_dim"} & options.keys():
                    options[name] = _size(options[name])
                if "dims" in options:
                    if "shape" in options:
                        raise ConfigError("dims and shape say the same", where=f"map_outputs, data key {str(key)!r}")
                    options["shape"] = tuple(map(_size, options.pop("dims")))
            types[str(key)] = options
        return cls(parse_data_types(types), is_declared=True)

    def seq_of(
        self, data: Any, seq_idx: int, tag: str, corpus_idx: int | None, where: str, before: float = 0.0
    ) -> DatasetSeq:
        """Return a sequence that a function has made.

        Args:
            data: What it returned.
            seq_idx: Position of the sequence.
            tag: Its tag, unless the function has set one.
            corpus_idx: Its corpus index.
            where: What else to say, for messages.
            before: How much of the epoch was done before it.

        Raises:
            TransformError: It is not as it should be.
        """
        result, specs = plain_seq(data), self.specs or {}
        tag, frac = str(result.get("seq_tag", tag)), result.get("complete_frac")

        def error(what: str, fix: str | None = None) -> TransformError:
            return TransformError(what, where=f"sequence {tag!r}, {where}", fix=fix)

        if frac is not None:
            frac = float(frac)
            if not 0 <= frac <= 1:
                raise error(f"complete_frac is {frac}, not in 0..1")
            if frac < before:
                fix = "give it in the order in which it came in, as LaplaceOrdering does, or leave it out"
                raise error(f"complete_frac falls from {before} to {frac}", fix)
        arrays = {
            key: array
            for key, array in result.items()
            if key in specs or not (self.is_declared or key in META_KEYS or _is_text(array))
        }
        if self.specs is not None and arrays.keys() != specs.keys():
            made = sorted(map(str, set(result) - set(META_KEYS)))
            fix = "make those that map_outputs says" if self.is_declared else "give map_outputs where they change"
            raise error(f"the function made the data keys {made}, and not {sorted(specs)}", fix)
        for key, array in arrays.items():
            if not isinstance(array, np.ndarray):
                what = f"the function made a {type(array).__name__} for {key!r}, not a NumPy array"
                raise error(what, "wrap it with numpy.asarray")
            spec = specs.get(key)
            if spec is None:
                continue
            wrong = find_mismatch(array, spec if self.knows_dtypes else replace(spec, dtype=array.dtype.str))
            if wrong is not None:
                says = "map_outputs" if self.is_declared else "the inner dataset"
                fix = "correct the function, or say in map_outputs what it makes"
                raise error(f"{key!r} is not what {says} says: {wrong}", fix)
        return DatasetSeq.made_of(seq_idx, {key: arrays[key] for key in specs or arrays}, tag, frac, corpus_idx)


def _is_text(value: Any) -> bool:
    """Tell whether a value is a text, which a function gets and which is no data key, see `Dataset.get_text_keys`."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "U" and not value.ndim


def _size(dim: Any) -> Any:
    return getattr(dim, "dimension", dim)


@dataclass(frozen=True)
class MapSeq:
    """Calls a function of one sequence, with the sequence as a dict and a generator of its own.

    Attributes:
        function: The user's function.
        layout: What it must make.
        seeds: The options "fixed_random_seed", the seed of every epoch, and "random_seed_offset", which counts together
            with the epoch where there is none.
        keeps_lengths: Whether it was said that lengths stay.
        keeps_tags: Whether tags must stay, since others know them.
    """

    function: Function
    layout: FunctionLayout
    seeds: Mapping[str, Any]
    keeps_lengths: bool
    keeps_tags: bool

    @cached_property
    def _names(self) -> frozenset[str] | None:
        return names_taken(self.function)

    @cached_property
    def draws(self) -> bool:
        """Whether the function gets a generator."""
        return draws(self.function)

    def __call__(self, seq: DatasetSeq, epoch: int, seq_idx: int, key: SeqKey, get_frac: GetFrac) -> DatasetSeq:
        """Return the sequence as the function makes it.

        Args:
            seq: Sequence of the inner dataset. Its arrays may be written to.
            epoch: The epoch.
            seq_idx: Its position.
            key: What its generator is keyed by, in addition to seed and epoch: a text, a number of the sequence, how
                often it came before in the epoch.
            get_frac: Tells how much of the epoch is done after it; `None` if that is not known.
        """
        tag, where = seq.seq_tag, f"epoch {epoch}, map_seq {name_of(self.function)}"
        lengths = {name: count_frames(seq.features[name]) for name in seq.features} if self.keeps_lengths else {}
        arguments: dict[str, Any] = {"epoch": epoch, "seq_idx": seq_idx}
        if self.draws:
            arguments["rng"] = self._rng(epoch, *key)
        data = SeqData({**seq.features, "seq_tag": tag, "seq_idx": seq_idx}, get_frac)
        try:
            made = self.function(data, **chosen(arguments, self._names))
            made = self.layout.seq_of(made, seq_idx, tag, seq.corpus_idx, where)
            self._check_kept(made, tag, lengths)
        except StopIteration as error:  # would end whatever loop this is in, without a word
            raise TransformError(
                "the function raised StopIteration", where=f"sequence {tag!r}, {where}", fix="give next() a default"
            ) from error
        except Exception as error:
            takes_note(error, f"sequence {tag!r}, {where}")
            raise
        return made

    def of_stream(self, seq: DatasetSeq, epoch: int) -> DatasetSeq:
        """Return a sequence of a stream as the function makes it; the progress stays if the function sets none.

        Its position is what its generator is keyed by: tags may repeat in a stream, and are not counted.
        """
        frac = seq.complete_frac
        key = f"map_seq of {seq.seq_tag}", seq.seq_idx, 0
        made = self(seq, epoch, seq.seq_idx, key, None if frac is None else lambda: frac)
        if made.complete_frac is None:
            made.complete_frac = frac
        return made

    def _rng(self, epoch: int, purpose: str, corpus_idx: int, occurrence: int) -> np.random.RandomState:
        seed = self.seeds["fixed_random_seed"]
        seed, epoch = (self.seeds["random_seed_offset"], epoch) if seed is None else (seed, 0)
        bits = derive_seed(seed, purpose, epoch=epoch, corpus_idx=corpus_idx, occurrence=occurrence, bits=128)
        return np.random.RandomState(np.random.Philox(key=bits))

    def _check_kept(self, made: DatasetSeq, tag: str, lengths: Mapping[str, int]) -> None:
        """Refuse what goes against what was said."""
        if self.keeps_tags and made.seq_tag != tag:
            raise TransformError(
                f"map_seq has changed the tag {tag!r} to {made.seq_tag!r}",
                fix="leave seq_tag as it is: sequences are found by it; map_seq_stream may change it",
            )
        for key in lengths.keys() & made.features.keys():
            num_frames = count_frames(made.features[key])
            if num_frames != lengths[key]:
                raise TransformError(
                    f"map_seq_preserves_lengths=True, and {key!r} had {lengths[key]} frames and has {num_frames}",
                    fix="leave map_seq_preserves_lengths out",
                )


class SeqData(dict[str, Any]):
    """A sequence as `map_seq` gets it; the progress of the epoch is computed when it is asked for.

    Args:
        data: All other entries.
        get_frac: Tells the progress; `None` if it is not known.
    """

    def __init__(self, data: dict[str, Any], get_frac: GetFrac) -> None:
        super().__init__(data)
        self._get_frac = get_frac

    def __missing__(self, key: str) -> Any:
        if key != "complete_frac" or self._get_frac is None:
            raise KeyError(key)
        value = self[key] = self._get_frac()
        return value

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"a sequence is a dict here, data key -> array, and has no attribute {name!r}; a function that was written "
            "for RETURNN gets a TensorDict if its argument is annotated so, or by TakesTensorDict(function)"
        )


@dataclass(frozen=True)
class MapStream:
    """Calls a function over a stream.

    Attributes:
        function: The user's function.
        layout: What it must make.
        keeps_count: Whether it was said that as many sequences come out as go in.
    """

    function: Function
    layout: FunctionLayout
    keeps_count: bool

    def __call__(self, seqs: Iterator[DatasetSeq], epoch: int, seed: int) -> Generator[DatasetSeq]:
        """Yield what the function makes of the sequences of an epoch; `seed` is that of its generator."""
        inputs, num_seqs, frac = StickySeqs(seqs), 0, 0.0
        results: Iterator[Any] | None = None
        where = f"epoch {epoch}, map_seq_stream {name_of(self.function)}"
        arguments = {"epoch": epoch, "rng": np.random.RandomState(seed)}
        try:
            made = self.function(map(_as_dict, inputs), **chosen(arguments, names_taken(self.function)))
            results = self._checked_stream(made)
            for data in results:
                seq = self.layout.seq_of(data, num_seqs, f"seq-{num_seqs}", None, where, frac)
                num_seqs, frac = num_seqs + 1, max(frac, seq.complete_frac or 0.0)
                yield seq
            if self.keeps_count and inputs.failure is None:  # a failure is told by itself
                self._check_count(inputs, num_seqs)
        except Exception as error:
            read = f", after it had read {inputs.tag!r}" if inputs.num_seqs else ""
            takes_note(error, f"sequence {num_seqs} of the stream{read}, {where}")
            raise
        finally:
            for iterator in (results, seqs):  # a generator ends now, and not when its memory is wanted
                getattr(iterator, "close", bool)()
        if inputs.failure is not None:
            raise inputs.failure  # the function has caught it, and ended

    def _checked_stream(self, made: Any) -> Iterator[Any]:
        if isinstance(made, Iterable) and not isinstance(made, Mapping | str | bytes):
            return iter(made)
        raise TransformError(
            f"map_seq_stream returns an iterator of sequences, got {type(made).__name__}",
            where=f"function {name_of(self.function)}",
            fix="write it as a generator (yield), or use map_seq for a function of one sequence",
        )

    def _check_count(self, inputs: StickySeqs, num_seqs: int) -> None:
        """Refuse an end before all sequences were read, and another number of them."""
        is_early = next(inputs, None) is not None
        if is_early or inputs.num_seqs != num_seqs:
            raise wrong_count(f"{num_seqs} came out of {inputs.num_seqs}{', and more follow' * is_early}")


class StickySeqs(Iterator[DatasetSeq]):
    """The sequences of a stream; one that has failed fails again, and never ends instead.

    Args:
        seqs: The sequences.

    Attributes:
        num_seqs: How many came.
        tag: The tag of the last one.
        failure: What was raised, if it has failed.
    """

    def __init__(self, seqs: Iterator[DatasetSeq]) -> None:
        self._seqs = seqs
        self.num_seqs, self.tag = 0, ""
        self.failure: BaseException | None = None

    def __next__(self) -> DatasetSeq:
        if isinstance(self.failure, Exception):
            raise self.failure
        if self.failure is not None:
            raise HeadraceError("reading was interrupted", fix="start the epoch again with init_seq_order")
        try:
            seq = next(self._seqs)
        except StopIteration:
            raise
        except BaseException as error:
            self.failure = error
            raise
        self.tag, self.num_seqs = seq.seq_tag, self.num_seqs + 1
        return seq


def _as_dict(seq: DatasetSeq) -> dict[str, Any]:
    data = {**seq.features, "seq_tag": seq.seq_tag, "seq_idx": seq.seq_idx}
    return data if seq.complete_frac is None else {**data, "complete_frac": seq.complete_frac}


def wrong_count(what: str) -> TransformError:
    """Return the error about a stream function that does not keep the number of sequences."""
    return TransformError(
        f"map_seq_stream is said to preserve the number of sequences, and {what}",
        fix="set map_seq_stream_preserves_num_seqs=False",
    )
