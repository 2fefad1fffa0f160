"""Toy data made on the spot: classes of RETURNN's that are useful in tests and first steps.

What sequence i of epoch E holds is a pure function of (seed of E, i), so that any process can make it, in any order.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.batching import NumbersDict
from headrace.errors import ConfigError
from headrace.index import CorpusIndex, GeneratedTags
from headrace.order import Order, RangeOrder, occurrences

from ..cached2 import CachedDataset2
from ..checks import check_count, check_epoch, check_outputs, check_tags, is_of_headrace
from ..corpus import Corpus, LengthsOf, num_left_out
from ..reading.loaded import OrderCursor
from ..reading.reader import CountedOrder, GivenOrder, Reader, ReadRequest
from ..reading.whole import WholeSeqReader
from ..seq import DatasetSeq

_SEEDS = 2**32  # that a RandomState takes


class GeneratingDataset(CachedDataset2):
    """Base class: a sub-class defines `generate_seq(seq_idx) -> DatasetSeq`.

    While that runs, `self.random` is a `RandomState` seeded by the pair (epoch seed, corpus index), as RETURNN's
    classes have it, so that what they draw is the same bit for bit. Sorting orders generate
    every sequence once per full epoch to learn its length. (RETURNN takes them for "default" silently.)

    Args:
        input_dim: Size of a frame of "data", or its number of classes; `None` if there is no "data".
        output_dim: Number of classes of "classes", or data key -> (dim, ndim), or -> dim.
        num_seqs: Number of sequences; `math.inf` (only in "default" order) never ends.
        **kwargs: See `Dataset`.

    Examples:
        >>> import headrace as hr
        >>> class Noise(hr.GeneratingDataset):
        ...     def generate_seq(self, seq_idx):
        ...         features = self.random.randn(4 + seq_idx, 3).astype("float32")
        ...         return hr.DatasetSeq(seq_idx, features={"data": features})
        >>> dataset = Noise(input_dim=3, output_dim={}, num_seqs=2)
        >>> [seq["data"].shape for seq in dataset.epoch(1)]
        [(4, 3), (5, 3)]
    """

    def __init__(
        self,
        input_dim: int | None,
        output_dim: int | Mapping[str, Any],
        num_seqs: float = math.inf,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not (num_seqs == math.inf or (num_seqs >= 0 and int(num_seqs) == num_seqs)):
            raise ConfigError(f"num_seqs must be a number >= 0 or inf: {num_seqs}")
        if num_seqs == math.inf and (
            self.seq_ordering != "default" or self.partition_epoch > 1 or self.repeat_epoch > 1
        ):
            raise ConfigError(
                f"an infinite dataset has one order and no sub-epochs: seq_ordering={self.seq_ordering!r}, "
                f"partition_epoch={self.partition_epoch}, repeat_epoch={self.repeat_epoch}",
                fix="give num_seqs",
            )
        self._corpus_num_seqs = num_seqs
        self.num_inputs = input_dim or 0
        self.num_outputs = check_outputs(output_dim, self.num_inputs, f"output_dim of dataset {self.name!r}")
        for key, (dim, _) in self.num_outputs.items():
            check_count(f"output_dim[{key!r}]", dim, minimum=1)
        self.random = np.random.RandomState(0)
        self._cursor = OrderCursor()
        self._epoch_seed = 0

    def generate_seq(self, seq_idx: int) -> DatasetSeq:  # noqa: ARG002 (a contract)
        """Return the sequence of one corpus index, drawing from `self.random`."""
        self._not_offered("generate_seq")

    def _generate(self, corpus_idx: int, epoch_seed: int | None = None) -> DatasetSeq:
        seed = self._epoch_seed if epoch_seed is None else epoch_seed
        self.random.seed((seed % _SEEDS, corpus_idx % _SEEDS))
        seq = self.generate_seq(corpus_idx)
        seq.corpus_idx, seq.seq_tag = corpus_idx, f"seq-{corpus_idx}"
        return seq

    def _lengths(self, epoch: int | None = None) -> NDArray[np.int64]:
        """Return `int64[N]`, the lengths of the first data key in an epoch; `None`: in the current one."""
        seed = None if epoch is None else self.get_random_seed_for_epoch(epoch)
        lengths = np.empty(int(self._corpus_num_seqs), dtype=np.int64)
        for corpus_idx in range(len(lengths)):
            lengths[corpus_idx] = self._generate(corpus_idx, seed).num_frames[self.get_data_keys()[0]]
        return lengths

    def init_seq_order(
        self, epoch: int | None = None, seq_list: Sequence[str] | None = None, seq_order: Sequence[int] | None = None
    ) -> bool:
        """Start a (sub-)epoch. `seq_list` holds the made-up tags `seq-<corpus index>`."""
        super().init_seq_order(epoch, seq_list, seq_order)
        self._epoch_seed = self.get_random_seed_for_epoch(epoch)
        self.random.seed(self._epoch_seed % _SEEDS)
        order = self._plan(epoch, GivenOrder.of(seq_list, seq_order))
        self._cursor = OrderCursor(order)
        is_given = seq_list is not None or seq_order is not None
        if epoch is None or is_given or self._corpus_num_seqs != math.inf:
            self._num_seqs = len(order)
        return True

    def _plan(self, epoch: int | None, given: GivenOrder | None) -> Order:
        """Return the order of an epoch, or the one that is given."""
        is_infinite = self._corpus_num_seqs == math.inf
        if given is not None:
            indices: Any = given.seq_order
            if given.seq_list is not None:
                indices = [_corpus_idx_of_tag(tag) for tag in check_tags(given.seq_list)]
            return self._explicit_order(indices, 2**62 if is_infinite else int(self._corpus_num_seqs))
        if epoch is None:
            return RangeOrder(range(0))
        if is_infinite:
            return RangeOrder(range(self._recipe.shard_index, 2**62, self._recipe.num_shards))
        return self._lazy_order_for_epoch(epoch, int(self._corpus_num_seqs), self._lengths_once(epoch))

    def _make_order(self, epoch: int | None, given: GivenOrder | None, *, counts: bool) -> CountedOrder:
        if not self._generates_by_epoch:
            return self._ask_for_order(epoch, given, counts=counts)
        self._check_shard()
        order = self._plan(check_epoch(epoch), given)
        if not (counts and order.may_repeat):
            return order, None
        if epoch is None or given is not None or not self._plans_order:
            return order, occurrences(order)
        return order, self._planner.counter(epoch)()

    def _lengths_once(self, epoch: int) -> Any:
        """Return the lengths only when asked: an order that needs none generates nothing."""
        lengths: list[NDArray[np.int64]] = []

        def length_of(corpus_idx: int) -> int:
            if not lengths:
                lengths.append(self._lengths(epoch))
            return int(lengths[0][corpus_idx])

        return length_of

    def _collect_single_seq(self, seq_idx: int) -> DatasetSeq | None:
        if seq_idx >= len(self._cursor):
            return None
        corpus_idx = self._cursor[seq_idx]
        seq = self._generate(corpus_idx)
        seq.seq_idx = seq_idx
        seq.complete_frac = super().get_complete_frac(seq_idx)
        return seq

    def _new_reader(self) -> Reader:
        return GeneratedSeqs(self) if self._generates_by_epoch else super()._new_reader()

    @property
    def _generates_by_epoch(self) -> bool:
        """Whether any epoch can be generated: a user-defined class may depend on which one is current."""
        return is_of_headrace(type(self).generate_seq)

    @property
    def num_seqs(self) -> int:
        """Number of sequences of the current epoch, of all before the first; `math.inf` if it never ends."""
        if not self.order_version and self._epoch is None:
            return self._corpus_num_seqs  # type: ignore[return-value]
        if self._num_seqs is None and self._epoch is not None:
            return math.inf  # type: ignore[return-value]
        return super().num_seqs

    def get_current_seq_order(self) -> Order:
        """Return the corpus indices of the current epoch, in order."""
        return self._cursor.order

    def supports_seq_order_sorting(self) -> bool:
        """Any finite toy data can be sorted."""
        return self._corpus_num_seqs != math.inf

    def supports_sharding(self) -> bool:
        """Yes."""
        return True

    supports_jumps = True
    content_options: tuple[str, ...] = ("input_dim", "output_dim")

    def get_corpus(self, epoch: int | None = None) -> Corpus:
        """Return what is known: for finite data tags and order, and lengths once they were generated."""
        corpus = super().get_corpus(epoch)
        if self._corpus_num_seqs == math.inf:
            return replace(corpus, knows_order=lambda: False)
        tags = self.get_corpus_tags()
        index = CorpusIndex.from_columns(tags=tags, lengths={})
        return replace(
            corpus,
            digest_text=lambda: index.digest,
            knows_order=lambda: True,
            size=lambda: len(tags),
            is_indexed=True,
            index=lambda: index,
            tags_of=tags.take,
            lengths=partial(self._lengths_of_epoch, epoch=epoch),
            sort_lengths=partial(self._lengths, epoch),
            kept=self._kept,
            num_filtered=lambda: num_left_out(self._kept()),
        )

    def _kept(self) -> NDArray[np.bool_] | None:
        return None if self._wanted_tags is None else self._keep_mask()

    def _lengths_of_epoch(self, key: str, may_cost: bool, epoch: int | None) -> LengthsOf | None:
        """Generate all sequences of an epoch, to learn the lengths of the first data key."""
        if key != self.get_data_keys()[0] or not may_cost:
            return None
        return self._lengths(epoch).__getitem__  # now: they differ from epoch to epoch

    def get_corpus_tags(self) -> GeneratedTags:
        """Return the tags of the whole corpus, before any filter."""
        if self._corpus_num_seqs == math.inf:
            self._not_offered("the tags of infinite data")
        return GeneratedTags(int(self._corpus_num_seqs))

    def get_all_tags(self) -> Sequence[str]:
        """Return the tags of all sequences, without those that the filter drops."""
        tags = self.get_corpus_tags()
        return tags if self._wanted_tags is None else tags.take(np.flatnonzero(self._keep_mask()))

    def get_total_num_seqs(self, *, fast: bool = False) -> int:  # noqa: ARG002 (always fast)
        """Return the number of sequences, without those that the filter drops."""
        return len(self.get_all_tags())

    def is_less_than_num_seqs(self, seq_idx: int) -> bool:
        """Whether the epoch has a sequence at this position; generates nothing."""
        return self._epoch is not None and seq_idx < len(self._cursor)

    def have_corpus_seq_idx(self) -> bool:
        """Yes."""
        return True

    def get_corpus_seq_idx(self, seq_idx: int) -> int:
        """Return the corpus index of a sequence of the current order."""
        return self._cursor[seq_idx]

    def have_get_corpus_seq(self) -> bool:
        """Yes."""
        return True

    def get_corpus_seq(self, corpus_seq_idx: int) -> DatasetSeq:
        """Return any sequence, as the current epoch's seed makes it."""
        return self._generate(corpus_seq_idx)


class GeneratedSeqs(WholeSeqReader):
    """Reads toy data: each sequence is generated when it is asked for.

    Args:
        dataset: The dataset that generates them.
    """

    def __init__(self, dataset: GeneratingDataset) -> None:
        super().__init__()
        self._dataset, self._epoch_seed = dataset, 0

    def start(self, wanted: ReadRequest) -> None:
        """Set the sequences to read next."""
        if wanted.tags is not None:
            indices = np.array([_corpus_idx_of_tag(tag) for tag in wanted.tags], np.int64)
            wanted = ReadRequest.of(wanted.epoch, indices, first=wanted.first)
        super().start(wanted)
        self._epoch_seed = self._dataset.get_random_seed_for_epoch(wanted.epoch)

    def tags(self) -> list[str]:
        """Return the tags, which are made of the corpus indices."""
        return [f"seq-{corpus_idx}" for corpus_idx in self._wanted.indices.tolist()]

    def _make(self, number: int) -> DatasetSeq:
        seq = self._dataset._generate(self._cursor[number], self._epoch_seed)
        seq.seq_idx = number
        return self._dataset._with_window(seq)


class DummyDataset(GeneratingDataset):
    """Sequences of one length whose values are a plain formula: easy to check by eye.

    With c the corpus index, T = `seq_len` and D = `input_dim`: `data.flat[j] = ((c + j) % input_max_value +
    input_shift) * input_scale`, float32[T, D], and `classes[t] = (c + T * D + t) % output_dim`, int32[T].

    Args:
        input_dim: D.
        output_dim: Number of classes.
        num_seqs: Number of sequences, or `math.inf`.
        seq_len: T, for all sequences.
        input_max_value: See the formula.
        input_shift: Default is `-input_max_value / 2`.
        input_scale: Default is `1 / input_max_value`.
        **kwargs: See `Dataset`.

    Examples:
        >>> import headrace as hr
        >>> dataset = hr.DummyDataset(input_dim=2, output_dim=5, num_seqs=3, seq_len=2, input_shift=0, input_scale=1)
        >>> [seq["data"].tolist() for seq in dataset.epoch(1)]
        [[[0.0, 1.0], [2.0, 3.0]], [[1.0, 2.0], [3.0, 4.0]], [[2.0, 3.0], [4.0, 5.0]]]
    """

    content_options = (
        "input_dim",
        "output_dim",
        "seq_len",
        "input_max_value",
        "input_shift",
        "input_scale",
    )

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        num_seqs: float,
        seq_len: int = 2,
        input_max_value: float = 10.0,
        input_shift: float | None = None,
        input_scale: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(input_dim=input_dim, output_dim=output_dim, num_seqs=num_seqs, **kwargs)
        self.seq_len = seq_len
        self.input_max_value = input_max_value
        self.input_shift = -input_max_value / 2.0 if input_shift is None else input_shift
        self.input_scale = 1.0 / input_max_value if input_scale is None else input_scale

    def generate_seq(self, seq_idx: int) -> DatasetSeq:
        """Return the sequence of one corpus index."""
        count, dim = self.seq_len * self.num_inputs, self._num_output("classes")[0]
        values = ((seq_idx + np.arange(count)) % self.input_max_value + self.input_shift) * self.input_scale
        data = values.astype(np.float32).reshape(self.seq_len, self.num_inputs)
        classes = ((seq_idx + count + np.arange(self.seq_len)) % dim).astype(np.int32)
        return DatasetSeq(seq_idx, data, targets=classes)

    def _lengths(self, epoch: int | None = None) -> NDArray[np.int64]:  # noqa: ARG002 (they are those of all)
        return np.full(int(self._corpus_num_seqs), self.seq_len, dtype=np.int64)

    def get_num_timesteps(self) -> NumbersDict:
        """Return data key -> number of frames of the current epoch."""
        return NumbersDict(dict.fromkeys(self.get_data_keys(), int(self.num_seqs) * self.seq_len))


class DummyDatasetMultipleSequenceLength(DummyDataset):
    """As `DummyDataset`, with lengths by data key: "classes" go on counting where "data" have stopped.

    Args:
        input_dim: See `DummyDataset`.
        output_dim: See `DummyDataset`.
        num_seqs: See `DummyDataset`.
        seq_len: Data key -> length; 10 of "data" and 20 of "classes" if `None`.
        **kwargs: See `DummyDataset`.

    Examples:
        >>> from headrace.datasets import DummyDatasetMultipleSequenceLength
        >>> lengths = {"data": 4, "classes": 2}
        >>> with DummyDatasetMultipleSequenceLength(input_dim=3, output_dim=5, num_seqs=1, seq_len=lengths) as dataset:
        ...     [(seq["data"].shape, seq["classes"].shape) for seq in dataset.epoch(1)]
        [((4, 3), (2,))]
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        num_seqs: float,
        seq_len: Mapping[str, int] | None = None,
        **kwargs: Any,
    ) -> None:
        lengths = {"data": 10, "classes": 20} if seq_len is None else dict(seq_len)
        if set(lengths) != {"data", "classes"}:
            raise ConfigError(f"seq_len has a length of data and one of classes, got {seq_len!r}")
        super().__init__(input_dim, output_dim, num_seqs, lengths["data"], **kwargs)
        self._num_classes_frames = check_count("seq_len['classes']", lengths["classes"])

    def generate_seq(self, seq_idx: int) -> DatasetSeq:
        """Return the sequence of one corpus index."""
        seq = super().generate_seq(seq_idx)
        start, dim = seq_idx + self.seq_len * self.num_inputs, self._num_output("classes")[0]
        seq.features["classes"] = ((start + np.arange(self._num_classes_frames)) % dim).astype(np.int32)
        return seq

    def get_num_timesteps(self) -> NumbersDict:
        """Return data key -> number of frames of the current epoch."""
        lengths = {"data": self.seq_len, "classes": self._num_classes_frames}
        return NumbersDict({key: int(self.num_seqs) * length for key, length in lengths.items()})


class Task12AXDataset(GeneratingDataset):
    """The 12AX task: a small test of memory with two nested contexts. The data are those of RETURNN's class.

    A stream of the symbols 1 2 3 A B C X Y Z. The answer is R at an X if the last of 1 and 2 was 1 and the last of A
    and B, since the last X or Y, was A; at a Y likewise with 2 and B; everywhere else it is L. The symbols 3, C and Z
    are distractors. Source: O'Reilly and Frank, "Making Working Memory Work", Neural Computation 18, 2006.

    Keys: "data" float32[T, 9] (one-hot), "classes" int32[T] (0 is L, 1 is R), 10 to 99 frames.

    Args:
        **kwargs: `num_seqs`, and see `Dataset`.

    Examples:
        >>> import headrace as hr
        >>> dataset = hr.Task12AXDataset(num_seqs=2)
        >>> [seq.tag for seq in dataset.epoch(1)]
        ['seq-0', 'seq-1']
    """

    _SYMBOLS = "123ABCXYZ"
    _ANSWERS = "LR"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(input_dim=len(self._SYMBOLS), output_dim=len(self._ANSWERS), **kwargs)
        self.labels = {"data": list(self._SYMBOLS), "classes": list(self._ANSWERS)}

    def generate_seq(self, seq_idx: int) -> DatasetSeq:
        """Return the stream of one corpus index."""
        size = int(self.random.randint(10, 100))
        symbols = str(self.random.choice(["", *"12"]))
        while len(symbols) < size:
            symbols += self._maybe(0.5, [*"12"]) + self._maybe(0.9, ["AX", "BY"])
            symbols += "".join(iter(lambda: self._maybe(0.5, [*self._SYMBOLS]), ""))
        symbols = symbols[:size]
        data = np.eye(len(self._SYMBOLS), dtype=np.float32)[[self._SYMBOLS.index(symbol) for symbol in symbols]]
        classes = np.array([self._ANSWERS.index(answer) for answer in answers_12ax(symbols)], dtype=np.int32)
        return DatasetSeq(seq_idx, data, targets=classes)

    def _maybe(self, chance: float, choices: Sequence[str]) -> str:
        """Draw whether, and then which."""
        return str(self.random.choice(choices)) if self.random.uniform() < chance else ""


def answers_12ax(symbols: Sequence[str]) -> list[str]:
    """Return the right answer, "L" or "R", at each symbol of a 12AX stream.

    Examples:
        >>> from headrace.datasets import answers_12ax
        >>> answers_12ax("1AXBY2BY")
        ['L', 'L', 'R', 'L', 'L', 'L', 'L', 'R']
    """
    context, letter, answers = "", "", []
    for symbol in symbols:
        answers.append("R" if context + letter + symbol in ("1AX", "2BY") else "L")
        if symbol in "12":
            context = symbol
        elif symbol in "AB":
            letter = symbol
        elif symbol in "XY":
            letter = ""
    return answers


def _corpus_idx_of_tag(tag: str) -> int:
    if not re.fullmatch("seq-(0|[1-9][0-9]{0,18})", tag):
        raise ConfigError(f"no sequence is tagged {tag!r}: generated data have tags seq-0, seq-1, ...")
    return int(tag.removeprefix("seq-"))
