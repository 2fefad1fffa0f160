"""Random graphs of native pipes for laws: built from a recipe, so that a fresh copy can be built again."""

import asyncio

from hypothesis import strategies as st

from headrace.pipes.core.walk import list_pipes
from headrace.pipes.iter import IterableWrapper, SampleMultiplexer
from headrace.pipes.map import SequenceWrapper


def add_one(number):
    return number + 1


def is_kept(number):
    return number % 3 != 0


def twice(number):
    return [number, -number]


def count_up(number):
    yield from range(abs(number) % 4)


def in_pairs(number):
    return number, number + 100


def total(numbers):
    return sum(number or 0 for number in numbers)


def parity(number):
    return number % 2


def size_of(number):
    return abs(number) % 5 + 1


def negate_all(numbers):
    return [-number for number in numbers]


async def add_two_slowly(number):
    await asyncio.sleep(0)
    return number + 2


def other(length=7):
    return IterableWrapper(range(1000, 1000 + length))


SOURCES = {
    "range": lambda n: IterableWrapper(range(n)),
    "list": lambda n: IterableWrapper(list(range(n))),
    "iterable": lambda n: IterableWrapper(dict.fromkeys(range(n))),
    "sequence": lambda n: SequenceWrapper(list(range(n))).to_iter_datapipe(),
    "shuffled sequence": lambda n: SequenceWrapper(list(range(n))).shuffle(),
}

OPERATIONS = {
    "map": lambda pipe: pipe.map(add_one),
    "filter": lambda pipe: pipe.filter(is_kept),
    "flatmap of lists": lambda pipe: pipe.flatmap(twice),
    "flatmap of generators": lambda pipe: pipe.flatmap(count_up),
    "shuffled_flatmap": lambda pipe: pipe.shuffled_flatmap(twice, buffer_size=3),
    "shuffled_flatmap of generators": lambda pipe: pipe.shuffled_flatmap(count_up, buffer_size=2),
    "batch, unbatch": lambda pipe: pipe.batch(3).unbatch(),
    "batch twice, unbatch all": lambda pipe: pipe.batch(2).batch(2, drop_last=True).unbatch(-1),
    "in_batch_shuffle": lambda pipe: pipe.batch(4).in_batch_shuffle().unbatch(),
    "collate": lambda pipe: pipe.batch(2).collate(collate_fn=total),
    "shuffle": lambda pipe: pipe.shuffle(buffer_size=5),
    "shuffle of batches": lambda pipe: pipe.batch(2).shuffle(buffer_size=3, unbatch_level=1),
    "sharding_filter": lambda pipe: sharded(pipe.sharding_filter()),
    "dispatch": lambda pipe: pipe.sharding_round_robin_dispatch(),
    "prefetch": lambda pipe: pipe.prefetch(3),
    "zip": lambda pipe: pipe.zip(other()).map(total),
    "zip_longest": lambda pipe: pipe.zip_longest(other()).map(total),
    "concat": lambda pipe: pipe.concat(other(3), other(2)),
    "concat behind": lambda pipe: other(4).concat(pipe),
    "mux": lambda pipe: pipe.mux(other(), other(9)),
    "mux_longest": lambda pipe: pipe.mux_longest(other(), other(2)),
    "sample_multiplexer": lambda pipe: SampleMultiplexer({pipe: 2, other(): 1, other(3): 0.5}),
    "cycle": lambda pipe: pipe.cycle(2),
    "repeat": lambda pipe: pipe.repeat(3),
    "header": lambda pipe: pipe.header(8),
    "enumerate": lambda pipe: pipe.enumerate(5).map(total),
    "set_length": lambda pipe: pipe.set_length(3),
    "fork, zip": lambda pipe: zipped(pipe.fork(2)),
    "fork, concat": lambda pipe: joined(pipe.fork(3, buffer_size=10_000)),
    "fork, one ends early": lambda pipe: mixed([(c := pipe.fork(2, buffer_size=10_000))[0].header(3), c[1]]),
    "demux": lambda pipe: mixed(pipe.demux(2, parity)),
    "round_robin_demux": lambda pipe: mixed(pipe.round_robin_demux(3)),
    "unzip": lambda pipe: zipped(pipe.map(in_pairs).unzip(2)),
    "prefetched forks": lambda pipe: zipped([child.prefetch(2) for child in pipe.fork(2)]),
    "max_token_bucketize": lambda pipe: pipe.max_token_bucketize(9, len_fn=size_of, buffer_size=4).unbatch(),
    "bucketbatch": lambda pipe: pipe.bucketbatch(2, batch_num=2, bucket_num=2, sort_key=sorted).unbatch(),
    "bucketbatch through buffers": lambda pipe: pipe.bucketbatch(2, batch_num=2, use_in_batch_shuffle=False).unbatch(),
    "groupby": lambda pipe: pipe.groupby(parity, buffer_size=5, group_size=3, drop_remaining=True).unbatch(),
    "groupby of all": lambda pipe: pipe.groupby(parity).unbatch(),
    "threadpool_map": lambda pipe: pipe.threadpool_map(add_one, scheduled_tasks=3, max_workers=2),
    "map_batches": lambda pipe: pipe.map_batches(negate_all, 3),
    "async_map_batches": lambda pipe: pipe.async_map_batches(add_two_slowly, 3),
    "in_memory_cache": lambda pipe: pipe.in_memory_cache(),
    "random_split": lambda pipe: pipe.random_split({"a": 2, "b": 1}, seed=3, total_length=10_000, target="a"),
    "zip_with_iter": lambda pipe: pipe.map(parity).enumerate().zip_with_iter(numbered(), first).map(first).map(first),
    "zip_with_map": lambda pipe: pipe.map(parity).zip_with_map(SequenceWrapper([7, 8]), key_fn=parity).map(total),
}

# What gives as many items as come, though in another order: laws of multisets are for these.
PERMUTING = [
    "batch, unbatch", "in_batch_shuffle", "shuffle", "dispatch", "prefetch", "set_length", "demux", "round_robin_demux",
    "bucketbatch", "bucketbatch through buffers", "groupby of all", "in_memory_cache",
]  # fmt: skip


def first(pair):
    return pair[0]


def numbered():
    return IterableWrapper([(number, -number) for number in reversed(range(3000))])


def sharded(pipe):
    pipe.apply_sharding(2, 1)
    return pipe


def zipped(children):
    return children[0].zip(*children[1:]).map(total)


def joined(children):
    return children[0].concat(*children[1:])


def mixed(children):
    return children[0].mux_longest(*children[1:])


def build(recipe, seed):
    """Build a graph from a recipe: (source, its length, operations); each random pipe gets a seed of its own."""
    source, length, operations = recipe
    pipe = SOURCES[source](length)
    for name in operations:
        pipe = OPERATIONS[name](pipe)
    for place, each in enumerate(list_pipes(pipe)):
        if hasattr(type(each), "set_seed"):
            each.set_seed(seed + place)
    return pipe


def recipes(operations=tuple(OPERATIONS), max_operations=4):
    return st.tuples(
        st.sampled_from(sorted(SOURCES)),
        st.integers(0, 25),
        st.lists(st.sampled_from(sorted(operations)), max_size=max_operations),
    )
