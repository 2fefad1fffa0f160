"""fork, demux, round_robin_demux, unzip against a model of a few lines, whoever reads when and stops where."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipes.graph.state import graph_state, restore_graph
from headrace.pipes.iter import IterableWrapper

NUM_READERS = 3
NUM_ITEMS = 9


def number_of(item):
    return item % NUM_READERS


SPLITS = {
    "fork": (lambda pipe, size: pipe.fork(NUM_READERS, buffer_size=size), lambda item, reader: (True, item)),
    "demux": (
        lambda pipe, size: pipe.map(lambda item: item * 5 % 7).demux(NUM_READERS, number_of, buffer_size=size),
        lambda item, reader: (number_of(item * 5 % 7) == reader, item * 5 % 7),
    ),
    "round_robin_demux": (
        lambda pipe, size: pipe.round_robin_demux(NUM_READERS, buffer_size=size),
        lambda item, reader: (item % NUM_READERS == reader, item),
    ),
    "unzip": (
        lambda pipe, size: pipe.map(lambda item: (item, item + 10, item + 20)).unzip(NUM_READERS, buffer_size=size),
        lambda item, reader: (True, item + 10 * reader),
    ),
}


class Model:
    """What each reader gets: its items in order, unless it is too far ahead, or somebody began anew."""

    def __init__(self, split, size):
        self.share, self.size, self.is_demux = SPLITS[split][1], size, "demux" in split
        self.round = 0
        self.begin_round()

    def begin_round(self):
        self.round += 1
        self.num_read = 0
        self.waiting = [[] for _ in range(NUM_READERS)]
        self.has_begun, self.has_left = [False] * NUM_READERS, [False] * NUM_READERS

    def begin(self, reader):
        if self.has_begun[reader]:
            self.begin_round()
        self.has_begun[reader] = True
        return self.round

    def leave(self, reader):
        self.has_left[reader] = True
        self.waiting[reader] = []

    def next(self, reader):
        while not self.waiting[reader]:
            if self.num_read == NUM_ITEMS:
                self.leave(reader)
                return StopIteration
            dealt = {}
            for other in range(NUM_READERS):
                wants, item = self.share(self.num_read, other)
                if wants and not self.has_left[other]:
                    dealt[other] = item
            for other in dealt:
                lines = self.waiting if self.is_demux else [self.waiting[other]]
                if other != reader and sum(map(len, lines)) >= self.size:
                    self.leave(reader)
                    return BufferError
            for other, item in dealt.items():
                self.waiting[other].append(item)
            self.num_read += 1
        return self.waiting[reader].pop(0)


class Reading:
    """One reader's newest iterator, and what the model knows of it."""

    def __init__(self, pipe, round_number):
        self.iterator, self.round = iter(pipe), round_number
        self.is_started = self.is_over = False


def outcome_of(iterator):
    try:
        return next(iterator)
    except (StopIteration, BufferError, RuntimeError) as error:
        return type(error)


STEPS = st.lists(
    st.tuples(st.sampled_from(["begin", "next", "next", "next", "drop"]), st.integers(0, NUM_READERS - 1)), max_size=60
)


@pytest.mark.filterwarnings("ignore:Some child DataPipes")
@pytest.mark.parametrize("split", SPLITS)
@given(steps=STEPS, size=st.integers(0, NUM_ITEMS))
def test_no_item_is_lost_whoever_reads_begins_anew_stops_or_is_too_far_ahead(split, steps, size):
    children = SPLITS[split][0](IterableWrapper(range(NUM_ITEMS)), size)
    model = Model(split, size)
    readings = {}
    for step, reader in steps:
        reading = readings.get(reader)
        if step == "begin":
            readings[reader] = None  # an iterator that is dropped while the next one is made leaves nothing behind
            if reading is not None and reading.is_started and not reading.is_over and reading.round == model.round:
                model.leave(reader)
            del reading
            round_number = model.begin(reader)
            readings[reader] = Reading(children[reader], round_number)
        elif step == "drop" and reading is not None:
            if reading.is_started and not reading.is_over and reading.round == model.round:
                model.leave(reader)
            del readings[reader], reading
        elif step == "next" and reading is not None:
            if reading.is_over:
                expected = StopIteration
            elif reading.round != model.round:
                expected = RuntimeError
            else:
                expected = model.next(reader)
            assert outcome_of(reading.iterator) == expected
            reading.is_started = True
            reading.is_over = isinstance(expected, type)


@pytest.mark.parametrize("split", SPLITS)
@given(size=st.integers(0, 1), num_before=st.integers(0, NUM_ITEMS))
def test_a_state_behind_a_buffer_error_has_the_item_that_could_not_be_dealt(split, size, num_before):
    build, share = SPLITS[split]
    whole = [item for wants, item in (share(number, 1) for number in range(NUM_ITEMS)) if wants]
    children = build(IterableWrapper(range(NUM_ITEMS)), size)[:2]
    iterator = iter(children[1])
    with pytest.raises(BufferError):
        list(children[0])
    got = list(itertools.islice(iterator, num_before))
    state = graph_state(children[1])
    again = build(IterableWrapper(range(NUM_ITEMS)), size)[1]
    restore_graph(again, state)
    assert got + list(again) == whole if num_before <= len(whole) else got == whole


@pytest.mark.parametrize("split", SPLITS)
def test_an_item_that_a_function_fails_on_is_an_error_for_each_reader_and_not_a_gap(split):
    class Source(IterableWrapper):
        def __iter__(self):
            yield from range(4)
            raise OSError("the disk is gone")

    children = SPLITS[split][0](Source(range(9)), NUM_ITEMS)
    with pytest.raises(OSError, match="disk is gone"):
        list(children[0])
    for child in children[1:]:
        with pytest.raises(RuntimeError, match="has raised"):
            list(child)
