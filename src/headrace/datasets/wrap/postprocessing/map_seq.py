"""Calls a function of one sequence, with the sequence as a dict and a generator of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import TransformError, takes_note
from headrace.rng import derive_seed

from ...seq import DatasetSeq, count_frames
from .functions import Function, chosen, names_taken, plain_seq
from .layout import MappedLayout, arrays_of, frac_of
from .tensor_dict import name_of


@dataclass(frozen=True)
class DrawKey:
    """The key of the generator of one sequence, in addition to seed and epoch.

    Attributes:
        purpose: Text; with the tag in it where tags are the key.
        corpus_idx: Its corpus index; in a stream, its position there.
        occurrence: How often the sequence came before in the epoch.
    """

    purpose: str
    corpus_idx: int
    occurrence: int = 0


FedSeq = tuple[DatasetSeq, DrawKey, float | None]
"""What was read of a stream: a sequence, what its generator is keyed by, and how much of the epoch is done then."""


@dataclass(frozen=True)
class MapSeq:
    """A function of one sequence.

    Attributes:
        function: The user's function.
        layout: What it must make; `None` if that is not known.
        seed: Seed of all generators.
        fixed_seed: The seed of every epoch, in place of that.
        keeps_lengths: Whether it was said that lengths stay.
        keeps_tags: Whether tags must stay, since others know them.
    """

    function: Function
    layout: MappedLayout | None
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
            seq: Sequence of the inner dataset. Its arrays may be written to.
            epoch: The epoch.
            seq_idx: Its position.
            key: What its generator is keyed by.
            frac: Tells how much of the epoch is done after it; `None` if that is not known.
        """
        tag, lengths = seq.seq_tag, {name: count_frames(array) for name, array in seq.features.items()}
        data = SeqData({**seq.features, "seq_tag": tag, "seq_idx": seq_idx}, frac)
        where = f"epoch {epoch}, map_seq {name_of(self.function)}"
        try:
            result = plain_seq(self.function(data, **self._arguments(epoch, seq_idx, key)))
            features = arrays_of(result, self.layout, tag, where)
            self._check_kept(result, features, seq, lengths, where)
            given = frac_of(result, tag, where)
        except StopIteration as error:  # would end whatever loop this is in, without a word
            raise TransformError(
                "the function raised StopIteration", where=f"sequence {tag!r}, {where}", fix="give next() a default"
            ) from error
        except Exception as error:
            takes_note(error, f"sequence {tag!r}, {where}")
            raise
        return DatasetSeq.made_of(seq_idx, features, str(result.get("seq_tag", tag)), given, seq.corpus_idx)

    def of_stream(self, fed: FedSeq, epoch: int) -> DatasetSeq:
        """Return a sequence of a stream as the function makes it; the progress stays if the function sets none."""
        seq, key, frac = fed
        made = self(seq, epoch=epoch, seq_idx=seq.seq_idx, key=key, frac=None if frac is None else lambda: frac)
        if made.complete_frac is None:
            made.complete_frac = frac
        return made

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
            num_frames = count_frames(array)
            if name in lengths and num_frames != lengths[name]:
                raise TransformError(
                    f"map_seq_preserves_lengths=True, and {name!r} had {lengths[name]} frames and has {num_frames}",
                    where=f"sequence {tag!r}, {where}",
                    fix="leave map_seq_preserves_lengths out",
                )


class SeqData(dict[str, Any]):
    """A sequence as `map_seq` gets it; the progress of the epoch is computed when it is asked for.

    Args:
        data: All other entries.
        frac: Tells the progress; `None` if it is not known.
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
