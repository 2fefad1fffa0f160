"""Sequences that come in blocks: the same answers as if they came one by one, and arrays come out as they went in."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from examples_of_laws import examples
from headrace.datasets import CachedDataset2, DatasetSeq, MultiProcDataset
from headrace.errors import ConfigError, SourceError
from headrace.sources import fill_rows

pytestmark = pytest.mark.usefixtures("warm_workers")


def features_of(number):
    return {"data": np.full((number % 4, 2), number, np.float32), "classes": np.arange(number % 4, dtype=np.int32)}


class OneByOne(CachedDataset2):
    """Sequences 0..count-1, collected singly: what the others are compared with."""

    def __init__(self, count, told=True, **options):
        super().__init__(**options)
        self.num_outputs = {"data": (2, 2), "classes": (4, 1)}
        self.count, self.told = count, told

    def supports_sharding(self):
        return True

    def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):
        super().init_seq_order(epoch, seq_list, seq_order)
        self.order = [] if epoch is None else list(range(self.count)) if seq_order is None else list(seq_order)
        self._num_seqs = len(self.order) if self.told else None
        return True

    def get_current_seq_order(self):
        return self.order

    def _collect_single_seq(self, seq_idx):
        if seq_idx >= len(self.order):
            return None
        return DatasetSeq(seq_idx, features_of(self.order[seq_idx]), seq_tag=f"t{self.order[seq_idx]}")


def in_blocks(count, buffer_size, method="dedicated", told=True, made=MultiProcDataset):
    dataset = made({"class": OneByOne, "count": count, "told": told}, 0, buffer_size, method)
    dataset.init_seq_order(epoch=1)
    return dataset


def answer(dataset, name, *arguments):
    """Return what a question gives, in a form that can be compared, or the type of its error."""
    try:
        value = getattr(dataset, name)
        return facts(value(*arguments) if callable(value) else value)
    except (ConfigError, IndexError, SourceError, NotImplementedError) as error:
        return type(error)


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
    st.sampled_from([("get_complete_frac", 0), ("get_data_dtype", "classes"), ("num_seqs",), ("added_data",)]),
)


@given(
    count=st.integers(0, 12),
    method=st.sampled_from(["seq_order", "dedicated", "untold"]),
    buffer_size=st.integers(1, 12),
    steps=st.lists(STEPS, max_size=12),
)
@examples(150)
def test_whatever_is_asked_blocks_answer_as_single_sequences_do(count, method, buffer_size, steps):
    told, loaded = method != "untold", 0
    single = OneByOne(count, told)
    single.init_seq_order(epoch=1)
    blocks = in_blocks(count, buffer_size, method if told else "dedicated", told)
    if told:
        assert blocks.num_seqs == count
    for name, *arguments in steps:
        if name in ("load_seqs", "next"):
            start = arguments[0] + (loaded if name == "next" else 0)  # on from where it is, as most readers do
            loaded = max(loaded, start)
            name, arguments = "load_seqs", (start, start + arguments[1])
        if told or name not in ("get_complete_frac", "num_seqs"):
            assert answer(blocks, name, *arguments) == answer(single, name, *arguments), (name, arguments)


def test_an_iterator_that_was_overtaken_says_so():
    dataset = in_blocks(12, 10)
    for far in (3, 7):
        seqs = dataset.iterate_epoch()
        next(seqs)
        dataset.load_seqs(far, far + 1)
        with pytest.raises(ConfigError, match="goes back"):
            next(seqs)


def test_a_data_key_that_a_sequence_lacks_is_named():
    dataset = in_blocks(12, 10)
    dataset.load_seqs(0, 1)
    with pytest.raises(SourceError, match=r"'dta'.*\n.*'t0'\n.*data"):
        dataset.get_data(0, "dta")


class Interrupted(MultiProcDataset):
    """Is interrupted in the n-th of its steps, where it is told n."""

    steps_left = 0

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if self.steps_left and name != "steps_left":
            self.__dict__["steps_left"] -= 1
            if not self.steps_left:
                raise KeyboardInterrupt


@pytest.mark.parametrize("interrupt_after", range(1, 8))
def test_an_interrupt_at_any_point_loses_no_sequence_and_takes_none_for_another(interrupt_after):
    dataset, num_interrupts = in_blocks(12, 4, made=Interrupted), 0
    for seq_idx in range(12):
        first = max(seq_idx - 2, 0)
        dataset.steps_left = interrupt_after
        try:
            dataset.load_seqs(first, seq_idx + 1)
        except KeyboardInterrupt:
            num_interrupts += 1
            dataset.load_seqs(first, seq_idx + 1)
        dataset.steps_left = 0
        for loaded in range(first, seq_idx + 1):
            assert dataset.get_tag(loaded) == f"t{loaded}"
            assert facts(dataset.get_data(loaded, "data")) == facts(features_of(loaded)["data"])
    assert num_interrupts >= 3
    assert not dataset.is_less_than_num_seqs(12)


# --- arrays ---

DTYPES = st.sampled_from(["f4", "i4", "u1", ">i2", "M8[s]", "U3", "c8", "O"])


def arrays_of(dtype, tail):
    if dtype == "O":
        return st.integers(0, 3).map(lambda n: np.full((n, *tail), "text", object))
    return npst.arrays(dtype, st.integers(0, 4).map(lambda n: (n, *tail)))


@st.composite
def columns_of_seqs(draw, num_seqs):
    """Draw one array for each sequence: alike, or with differences that a column cannot hold."""
    kind = draw(st.sampled_from(["ragged", "ragged", "0-d", "mixed", "fortran", "strided", "masked"]))
    dtype, tail = draw(DTYPES), draw(st.sampled_from([(), (2,), (1, 3), (0,)]))
    if kind == "mixed":
        alike = st.tuples(DTYPES, st.sampled_from([(), (2,), (3,)]))
        return [draw(arrays_of(*draw(alike))) for _ in range(num_seqs)]
    if kind == "0-d":
        return [np.array(draw(st.integers(0, 9)), "i8") for _ in range(num_seqs)]
    if kind == "masked":  # NumPy itself pickles other types in another byte order
        return [np.ma.masked_array(draw(arrays_of("f4", tail))) for _ in range(num_seqs)]
    arrays = [draw(arrays_of(dtype, tail)) for _ in range(num_seqs)]
    if kind == "fortran":
        return [np.asfortranarray(array) for array in arrays]
    if kind == "strided":
        return [np.repeat(array, 2, axis=0)[::2] for array in arrays]
    return arrays


@st.composite
def lists_of_features(draw):
    num_seqs = draw(st.integers(0, 5))
    columns = {key: draw(columns_of_seqs(num_seqs)) for key in draw(st.sets(st.sampled_from("abc")))}
    seqs = [{key: column[i] for key, column in columns.items()} for i in range(num_seqs)]
    if draw(st.booleans()) and seqs and columns:
        seqs[draw(st.integers(0, num_seqs - 1))].pop(draw(st.sampled_from(sorted(columns))))
    return seqs


class Given(CachedDataset2):
    """A stream of sequences that are given; each says how much is done."""

    def __init__(self, seqs, **options):
        super().__init__(**options)
        self.seqs = seqs

    def supports_sharding(self):
        return True

    def _collect_single_seq(self, seq_idx):
        if seq_idx == len(self.seqs):
            return None
        return DatasetSeq(seq_idx, self.seqs[seq_idx], seq_tag=f"s{seq_idx}", complete_frac=seq_idx / 10)


def check_arrays(seqs, num_workers, buffer_size):
    with MultiProcDataset({"class": Given, "seqs": seqs}, num_workers, buffer_size, "dedicated") as dataset:
        found = list(dataset.epoch(1))
    assert [(seq.seq_idx, seq.tag, seq.complete_frac) for seq in found] == [
        (i, f"s{i}", i / 10) for i in range(len(seqs))
    ]
    for seq, wanted in zip(found, seqs, strict=True):
        assert seq.features.keys() == wanted.keys()
        for key, array in wanted.items():
            out = seq[key]
            assert (type(out), out.dtype, out.shape) == (type(array), array.dtype, array.shape)
            assert out.flags.fnc == array.flags.fnc
            assert out.tolist() == array.tolist() if out.dtype.hasobject else out.tobytes() == array.tobytes()


@given(lists_of_features(), st.integers(1, 12))
@examples(200)
def test_sequences_come_out_as_they_went_in(seqs, buffer_size):
    check_arrays(seqs, 0, buffer_size)


@given(lists_of_features())
@examples(15)
def test_sequences_come_out_of_a_worker_process_as_they_went_in(seqs):
    check_arrays(seqs, 1, 12)


@pytest.mark.parametrize("num_bytes", [8, 100_000])
@pytest.mark.parametrize("shift", [-1, 1])
def test_rows_that_do_not_fit_are_refused(num_bytes, shift):
    arrays = [np.zeros(num_bytes, np.uint8)] * 2
    with pytest.raises(ValueError, match=r"size|shape"):
        fill_rows(np.empty(2 * num_bytes + shift, np.uint8), arrays)
    with pytest.raises(ValueError, match="no arrays"):
        fill_rows(np.empty(num_bytes, np.uint8), [])
