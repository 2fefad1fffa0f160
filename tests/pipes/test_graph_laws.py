"""Laws over any graph of our pipes: it repeats with its seeds, it can be begun again, and it goes on from anywhere."""

import pickle
from itertools import islice

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.pipes.graph import list_pipes
from headrace.pipes.graph.seeds import SeedGenerator, set_graph_random_seed
from headrace.pipes.graph.state import graph_state, restore_graph
from headrace.pipes.iter import IterableWrapper, SampleMultiplexer


def pair(item):
    return (item, item)


def is_kept(item):
    return len(repr(item)) % 3 != 0


def spread(item):
    return [item] * (len(repr(item)) % 3)


def choose(item):
    return len(repr(item)) % 2


UNARY = {
    "map": lambda pipe: pipe.map(pair),
    "filter": lambda pipe: pipe.filter(is_kept),
    "flatmap": lambda pipe: pipe.flatmap(spread),
    "batch": lambda pipe: pipe.batch(3),
    "batch, unbatch": lambda pipe: pipe.batch(2).unbatch(),
    "shuffle": lambda pipe: pipe.shuffle(buffer_size=4),
    "enumerate": lambda pipe: pipe.enumerate(),
    "header": lambda pipe: pipe.header(5),
    "cycle": lambda pipe: pipe.cycle(2),
    "repeat": lambda pipe: pipe.repeat(2),
    "prefetch": lambda pipe: pipe.prefetch(3),
    "sharding_filter": lambda pipe: pipe.sharding_filter(),
    "dispatch": lambda pipe: pipe.sharding_round_robin_dispatch(),
    "in_memory_cache": lambda pipe: pipe.in_memory_cache(),
    "shuffled_flatmap": lambda pipe: pipe.shuffled_flatmap(spread, buffer_size=3),
    "bucketbatch": lambda pipe: pipe.bucketbatch(2, batch_num=2),
    "groupby": lambda pipe: pipe.groupby(choose, group_size=2, buffer_size=3),
    "in_batch_shuffle": lambda pipe: pipe.batch(3).in_batch_shuffle(),
    "map_batches": lambda pipe: pipe.map_batches(list, 3),
    "max_token_bucketize": lambda pipe: pipe.max_token_bucketize(12, len_fn=length, buffer_size=3),
    "round_robin_demux": lambda pipe: pipe.round_robin_demux(2)[1],
    "unzip": lambda pipe: zip_children(pipe.enumerate().unzip(2)),
    "fork, zip": lambda pipe: zip_children(pipe.fork(2)),
    "demux, concat": lambda pipe: concat_children(pipe.demux(2, choose)),
    "threadpool_map": lambda pipe: pipe.threadpool_map(pair, scheduled_tasks=3, max_workers=2),
}
JOINS = {
    "zip": lambda first, *others: first.zip(*others),
    "zip_longest": lambda first, *others: first.zip_longest(*others),
    "concat": lambda first, *others: first.concat(*others),
    "mux": lambda first, *others: first.mux(*others),
    "mux_longest": lambda first, *others: first.mux_longest(*others),
    "sample": lambda *pipes: SampleMultiplexer(dict.fromkeys(pipes, 1.0), seed=3),
}


def length(item):
    return len(repr(item))


def zip_children(children):
    return children[0].map(pair).zip(children[1])


def concat_children(children):
    return children[0].concat(children[1])


TREES = st.recursive(
    st.integers(0, 9),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(sorted(UNARY)), inner), st.tuples(st.sampled_from(sorted(JOINS)), inner, inner)
    ),
    max_leaves=4,
)
SOME = settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])


def build(tree, seed=1):
    pipe = build_part(tree)
    return set_graph_random_seed(pipe, SeedGenerator(seed))


def build_part(tree):
    if isinstance(tree, int):
        return IterableWrapper(range(tree))
    name, *inner = tree
    return {**UNARY, **JOINS}[name](*map(build_part, inner))


@SOME
@given(TREES)
def test_a_graph_repeats_with_its_seeds_and_can_be_begun_again_anywhere(tree):
    pipe = build(tree)
    whole = list(iter(pipe))
    assert list(iter(build(tree))) == whole
    set_graph_random_seed(pipe, SeedGenerator(1))
    iterator = iter(pipe)
    for _ in range(len(whole) // 2):
        next(iterator)
    set_graph_random_seed(pipe, SeedGenerator(1))
    assert list(iter(pipe)) == whole


@SOME
@given(TREES, st.integers(0, 40))
def test_a_graph_goes_on_from_anywhere_in_another_process(tree, taken):
    whole = list(iter(build(tree)))
    pipe = build(tree)
    iterator = iter(pipe)
    got = list(islice(iterator, taken))
    if taken > len(whole):
        return
    assert got == whole[:taken]
    state = graph_state(pipe)
    assert state is not None
    other = build(tree)
    restore_graph(other, pickle.loads(pickle.dumps(state)))
    assert list(iter(other)) == whole[taken:]
    assert list(iterator) == whole[taken:]


@SOME
@given(TREES, st.integers(0, 40), st.integers(0, 3))
def test_a_restored_graph_can_be_begun_anew_and_restored_again(tree, taken, more):
    whole = list(iter(build(tree)))
    pipe = build(tree)
    iterator = iter(pipe)
    taken = min(taken, len(whole))
    list(islice(iterator, taken))
    state = graph_state(pipe)
    other = build(tree)
    restore_graph(other, state)
    got = list(islice(iter(other), more))
    assert got == whole[taken : taken + more]
    set_graph_random_seed(other, SeedGenerator(1))
    assert list(iter(other)) == whole
    restore_graph(other, state)
    iterator = iter(other)
    assert list(islice(iterator, more)) == got
    assert list(iterator) == whole[taken + more :]


@SOME
@given(TREES)
def test_a_copy_of_a_graph_has_the_same_graph(tree):
    pipe = build(tree)
    next(iter(pipe), None)
    other = pickle.loads(pickle.dumps(pipe))
    names = [[repr(each) for each in list_pipes(end)] for end in (pipe, other)]
    assert names[0] == names[1]
