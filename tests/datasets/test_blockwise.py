"""Sequences that come in blocks: the same answers as if they came one by one."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace.datasets import CachedDataset2, DatasetSeq
from headrace.datasets.wrap.blockwise import BlockwiseDataset, ReadBlock, make_columns
from headrace.errors import ConfigError, SourceError


def features_of(number):
    return {"data": np.full((number % 4, 2), number, np.float32), "classes": np.arange(number % 4, dtype=np.int32)}


class OneByOne(CachedDataset2):
    """Sequences 0..count-1, collected singly: what the others are compared with."""

    def __init__(self, count, *, told):
        super().__init__()
        self.num_outputs = {"data": (2, 2), "classes": (4, 1)}
        self.count, self.told = count, told

    def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):
        super().init_seq_order(epoch, seq_list, seq_order)
        self._num_seqs = self.count if self.told and epoch is not None else None
        return True

    def _collect_single_seq(self, seq_idx):
        return DatasetSeq(seq_idx, features_of(seq_idx), seq_tag=f"t{seq_idx}") if seq_idx < self.count else None


class ByBlocks(BlockwiseDataset):
    """The same in blocks of given sizes; jumps over what is not wanted if it can."""

    def __init__(self, count, *, told, sizes, jumps):
        super().__init__()
        self.num_outputs = {"data": (2, 2), "classes": (4, 1)}
        self.count, self.told, self.sizes, self.jumps = count, told, sizes, jumps

    def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):
        super().init_seq_order(epoch, seq_list, seq_order)
        self._num_seqs = self.count if self.told and epoch is not None else None
        return True

    def _is_far(self, num_seqs):
        return self.jumps and num_seqs > 3

    def _open_blocks(self, position):
        first = max(position - 1, 0) if self.jumps else 0
        return first, self.blocks(first)

    def blocks(self, start):
        for size in itertools.cycle(self.sizes):
            if start >= self.count:
                return
            stop = min(start + size, self.count)
            seqs = [features_of(i) for i in range(start, stop)]
            yield ReadBlock(([f"t{i}" for i in range(start, stop)], None, None, make_columns(seqs)))
            start = stop


def outcome(dataset, step):
    """Return what a step gives, in a form that can be compared, or the type of its error."""
    try:
        value = take(dataset, step)
    except (ConfigError, IndexError, SourceError, NotImplementedError) as error:
        return type(error)
    return facts(value)


def facts(value):
    if isinstance(value, DatasetSeq):
        return value.seq_idx, value.tag, {k: facts(v) for k, v in value.features.items()}
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tolist()
    return [facts(part) for part in value] if isinstance(value, list) else value


PLACES = st.integers(0, 14)
STEPS = st.one_of(
    st.tuples(st.just("load_seqs"), PLACES, st.integers(0, 5)),
    st.tuples(st.just("next"), st.integers(0, 2), st.integers(1, 3)),
    st.tuples(st.just("get_data"), PLACES, st.sampled_from(["data", "classes", "nope"])),
    st.tuples(st.sampled_from(["get_tag", "get_seq", "get_seq_length", "is_less_than_num_seqs"]), PLACES),
    st.tuples(st.sampled_from(["get_complete_frac", "get_data_dtype", "num_seqs", "added_data"])),
)


def take(dataset, step):
    name, *arguments = step
    if name == "load_seqs":
        return dataset.load_seqs(arguments[0], arguments[0] + arguments[1])
    if name == "next":  # on from where it is, as most readers do
        start = dataset._load_start + arguments[0]
        return dataset.load_seqs(start, start + arguments[1])
    if name in ("num_seqs", "added_data"):
        return getattr(dataset, name)
    if name == "get_complete_frac":
        return dataset.get_complete_frac(0) if dataset.told else None
    if name == "get_data_dtype":
        return dataset.get_data_dtype("classes")
    return getattr(dataset, name)(*arguments)


@given(
    count=st.integers(0, 12),
    told=st.booleans(),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    jumps=st.booleans(),
    steps=st.lists(STEPS, max_size=12),
)
@examples(300)
def test_whatever_is_asked_blocks_answer_as_single_sequences_do(count, told, sizes, jumps, steps):
    single, blocks = OneByOne(count, told=told), ByBlocks(count, told=told, sizes=sizes, jumps=jumps)
    for dataset in (single, blocks):
        dataset.init_seq_order(epoch=1)
    for step in steps:
        assert outcome(blocks, step) == outcome(single, step), step


@given(
    count=st.integers(0, 12),
    told=st.booleans(),
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=4).filter(any),
    early=st.integers(0, 12),
)
@examples(100)
def test_an_epoch_is_read_whole_however_often_it_is_begun(count, told, sizes, early):
    single, blocks = OneByOne(count, told=told), ByBlocks(count, told=told, sizes=sizes, jumps=False)
    expected = facts(list(single.epoch(1)))
    for _ in zip(range(early), blocks.epoch(1), strict=False):
        pass
    assert facts(list(blocks.iterate_epoch())) == expected
    assert facts(list(blocks.epoch(2))) == expected


def open_blocks(count=12, sizes=(5,)):
    dataset = ByBlocks(count, told=True, sizes=sizes, jumps=False)
    dataset.init_seq_order(epoch=1)
    return dataset


def test_reading_while_iterating_never_gives_another_sequence():
    dataset = open_blocks()
    for seq in dataset.iterate_epoch():
        assert dataset.get_tag(seq.seq_idx) == seq.tag
        assert dataset.get_data(seq.seq_idx, "data") is seq["data"]
        if seq.seq_idx >= 1:
            with pytest.raises(ConfigError, match="gone"):
                dataset.get_data(seq.seq_idx - 1, "data")


def test_an_iterator_that_was_overtaken_says_so():
    dataset = open_blocks()
    for far in (3, 7):
        seqs = dataset.iterate_epoch()
        next(seqs)
        dataset.load_seqs(far, far + 1)
        with pytest.raises(ConfigError, match="goes back"):
            next(seqs)


def test_looking_ahead_while_iterating_loses_nothing():
    dataset = open_blocks(sizes=(5, 1, 2))
    tags = []
    for seq in dataset.iterate_epoch():
        tags.append(seq.tag)
        if seq.seq_idx in (1, 5):
            assert dataset.get_tag(seq.seq_idx + 6) == f"t{seq.seq_idx + 6}"
    assert tags == [f"t{i}" for i in range(12)]


def test_only_what_is_loaded_is_held_of_the_blocks_before():
    dataset = open_blocks(sizes=(2,))
    dataset.load_seqs(0, 7)
    assert list(dataset._added) == [0, 1, 2, 3, 4, 5]
    dataset.load_seqs(5, 7)
    assert list(dataset._added) == [5]
    dataset.load_seqs(6, 7)
    assert not dataset._added
    dataset.load_seqs(7, 12)
    assert list(dataset._added) == [7, 8, 9]
    dataset.finish_epoch()
    assert not dataset._added
    assert len(dataset._current[-1]) == 0


def test_a_data_key_that_a_sequence_lacks_is_named():
    dataset = open_blocks()
    dataset.load_seqs(0, 1)
    with pytest.raises(SourceError, match=r"'dta'.*\n.*'t0'\n.*data"):
        dataset.get_data(0, "dta")


class Interrupted(ByBlocks):
    """Is interrupted in the n-th step after each block was made, once."""

    def __init__(self, interrupt_after):
        super().__init__(12, told=True, sizes=(2, 3), jumps=False)
        self.interrupt_after, self.num_interrupts, self.at = interrupt_after, 0, set()

    def blocks(self, start):
        for read in super().blocks(start):
            if start not in self.at:
                self.at.add(start)
                self.steps_left = self.interrupt_after
            start += len(read.parts[0])
            yield read

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if self.__dict__.get("steps_left"):
            self.__dict__["steps_left"] -= name != "steps_left"
            if not self.steps_left:
                self.__dict__["num_interrupts"] += 1
                raise KeyboardInterrupt


@pytest.mark.parametrize("interrupt_after", range(1, 8))
def test_an_interrupt_at_any_point_loses_no_sequence_and_takes_none_for_another(interrupt_after):
    dataset = Interrupted(interrupt_after)
    dataset.init_seq_order(epoch=1)
    seq_idx = 0
    while dataset.is_less_than_num_seqs(seq_idx):
        first = max(seq_idx - 2, 0)
        try:
            dataset.load_seqs(first, seq_idx + 1)
        except KeyboardInterrupt:
            continue
        for loaded in range(first, seq_idx + 1):
            assert dataset.get_tag(loaded) == f"t{loaded}"
            assert facts(dataset.get_data(loaded, "data")) == facts(features_of(loaded)["data"])
        seq_idx += 1
    assert seq_idx == 12
    assert dataset.num_interrupts >= 3
