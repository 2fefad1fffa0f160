"""Graphs of torch's pipes, of ours, and of both, are read, changed, split, sharded and seeded by the same code."""

import pickle
import subprocess
import sys
import textwrap

import numpy as np
import pytest

torch = pytest.importorskip("torch")
data = pytest.importorskip("torch.utils.data")
pytest.importorskip("torch.utils.data.datapipes")

from torch.utils.data.datapipes import iter as torch_iter  # noqa: E402
from torch.utils.data.datapipes import map as torch_map  # noqa: E402
from torch.utils.data.graph import traverse_dps as torch_traverse  # noqa: E402

from headrace.pipes import IterPipe, MapPipe, explain, functional_pipe, register_with_torch  # noqa: E402  # noqa: E402
from headrace.pipes.core.base import is_iter_pipe, is_map_pipe, is_pipe, read  # noqa: E402
from headrace.pipes.core.registry import _FUNCTIONS, list_functions  # noqa: E402
from headrace.pipes.graph import (  # noqa: E402
    find_dps,
    list_dps,
    list_pipes,
    remove,
    replace,
    sources_of,
    split_graph,
    traverse,
)
from headrace.pipes.graph.seeds import SeedGenerator, draw_seed, set_graph_random_seed  # noqa: E402
from headrace.pipes.graph.state import graph_state  # noqa: E402
from headrace.pipes.iter import IterableWrapper  # noqa: E402
from headrace.pipes.sharding import SHARDING_PRIORITIES, apply_sharding  # noqa: E402

Wrapper = torch_iter.IterableWrapper
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


class Ours(IterPipe):
    def __init__(self, datapipe, fn=None):
        self.datapipe = datapipe
        self.fn = fn

    def __iter__(self):
        for item in read(self.datapipe):
            yield item if self.fn is None else self.fn(item)


def negate(item):
    return -item


def build():
    """Both kinds of pipes in turns, with a fork of torch's in between."""
    shuffled = torch_iter.Shuffler(Ours(Wrapper(range(6)).map(negate))).set_shuffle(False)
    left, right = torch_iter.Forker(shuffled, 2)
    return torch_iter.ShardingFilter(Ours(left.map(negate).zip(Ours(right))))


def test_pipes_of_both_kinds_are_recognised():
    assert is_iter_pipe(Wrapper([]))
    assert is_map_pipe(torch_map.SequenceWrapper([]))
    assert not is_map_pipe(Wrapper([]))
    assert not is_iter_pipe(torch_map.SequenceWrapper([]))
    assert not is_pipe(Wrapper)
    assert isinstance(Ours(Wrapper([])), data.IterDataPipe)
    assert not isinstance(Ours(Wrapper([])), data.MapDataPipe)
    assert isinstance(type("Ours", (MapPipe,), {})(), data.MapDataPipe)


def test_a_mixed_graph_runs_and_gives_the_items():
    assert list(build()) == [(n, -n) for n in range(6)]


def test_a_mixed_graph_is_read_as_torch_reads_it():
    end = build()

    def flat(graph):
        return {number: pipe for number, (pipe, sources) in graph.items()} | {
            number: pipe for _, sources in graph.values() for number, pipe in flat(sources).items()
        }

    ours, theirs = flat(traverse(end)), flat(torch_traverse(end))
    assert ours == theirs
    assert len(ours) == len(list_pipes(end)) == len(list_dps(traverse(end))) == 12


def test_children_of_a_fork_share_their_main_pipe():
    left, right = Wrapper(range(3)).fork(2)
    names = [type(pipe).__name__ for pipe in list_pipes(left.zip(right))]
    assert names == [
        "IterableWrapperIterDataPipe",
        "_ForkerIterDataPipe",
        "_ChildDataPipe",
        "_ChildDataPipe",
        "ZipperIterDataPipe",
    ]
    small, large = Wrapper(range(5)).demux(2, lambda item: int(item > 2))
    assert len(list_pipes(small.concat(large))) == 5


def test_reading_a_graph_pickles_nothing_even_if_torch_would():
    class Prickly:
        def __reduce_ex__(self, protocol):
            raise AssertionError("pickled")

    end = Wrapper([Prickly(), np.zeros(10)], deepcopy=False).map(lambda item: item)
    assert len(list_pipes(end)) == 2
    assert len(end.datapipe.iterable) == 2


def test_torch_pipes_are_replaced_and_removed():
    source = Wrapper(range(3))
    middle = source.map(negate)
    end = middle.zip(source)
    wrapped = Ours(source, negate)
    replace(end, source, wrapped)
    assert sources_of(end) == [middle, wrapped]
    assert middle.datapipe is wrapped
    remove(end, middle)
    assert sources_of(end) == [wrapped]
    remove(end, wrapped)
    with pytest.raises(RuntimeError, match="Cannot remove the source DataPipe"):
        remove(end, source)


def test_exact_types_are_found():
    end = build()
    assert len(find_dps(traverse(end), torch_iter.Mapper)) == 2
    assert len(find_dps(traverse(end), Ours)) == 3
    assert find_dps(traverse(end), data.IterDataPipe) == []


def test_torch_filters_get_their_shares():
    def items(worker):
        return list(apply_sharding(build(), 3, worker, SHARDING_PRIORITIES.MULTIPROCESSING))

    assert [items(worker) for worker in range(3)] == [[(0, 0), (3, -3)], [(1, -1), (4, -4)], [(2, -2), (5, -5)]]
    end = (
        Wrapper(range(12))
        .sharding_filter(SHARDING_PRIORITIES.DISTRIBUTED)
        .map(negate)
        .sharding_filter(SHARDING_PRIORITIES.MULTIPROCESSING)
    )
    apply_sharding(end, 2, 1, SHARDING_PRIORITIES.DISTRIBUTED)
    apply_sharding(end, 3, 2, SHARDING_PRIORITIES.MULTIPROCESSING)
    assert list(end) == [-5, -11]
    with pytest.raises(RuntimeError, match="Sharding twice on a single pipeline"):
        apply_sharding(Wrapper([]).sharding_filter().sharding_filter(), 2, 0)


def test_torch_groups_are_ours():
    theirs = torch_iter.sharding.SHARDING_PRIORITIES
    end = Wrapper(range(4)).sharding_filter(theirs.MULTIPROCESSING)
    apply_sharding(end, 2, 1, SHARDING_PRIORITIES.MULTIPROCESSING)
    assert list(end) == [1, 3]
    assert [int(priority) for priority in theirs] == [int(priority) for priority in SHARDING_PRIORITIES]


def test_torch_shuffles_are_seeded_alike_before_a_filter_and_not_alike_elsewhere():
    def build():
        return Wrapper(range(50)).shuffle().sharding_filter()

    first, second = (set_graph_random_seed(build(), SeedGenerator(1).spawn(worker)) for worker in range(2))
    assert list(first) == list(second) != list(range(50))
    first, second = (
        set_graph_random_seed(Wrapper(range(50)).shuffle(), SeedGenerator(1).spawn(worker)) for worker in range(2)
    )
    assert list(first) != list(second)


def test_a_seed_may_be_drawn_from_torch_on_request_only():
    torch.manual_seed(3)
    first = draw_seed(from_torch=True), draw_seed(from_torch=True)
    torch.manual_seed(3)
    assert (draw_seed(from_torch=True), draw_seed(from_torch=True)) == first
    state = torch.get_rng_state()
    assert draw_seed() != draw_seed()
    assert torch.equal(torch.get_rng_state(), state)


def test_a_torch_graph_is_split_and_explained():
    class Workers:
        num_workers, worker_prefetch_cnt, main_prefetch_cnt = 2, 10, 10

    end = Wrapper(range(3)).shuffle().sharding_filter().map(negate)
    assert split_graph(end).worker_root is end
    text = explain(end, Workers())
    assert "MapperIterDataPipe(fn=negate) <- 3" in text
    assert "1 IterableWrapperIterDataPipe(iterable=range(0, 3))" in text
    assert "warning" not in text
    assert "nothing shards the items of IterableWrapper" in explain(Wrapper([]).map(negate), Workers())


def test_the_place_of_a_torch_graph_cannot_be_told():
    assert graph_state(Ours(Wrapper([1]))) is None


@pytest.fixture
def twice():
    @functional_pipe("test_twice")
    class Twice(Ours):
        def __iter__(self):
            for item in read(self.datapipe):
                yield item
                yield item

    yield Twice
    del _FUNCTIONS[IterPipe]["test_twice"]
    del data.IterDataPipe.test_twice


def test_our_names_follow_torch_pipes_and_torch_names_follow_ours(twice):
    pipe = Wrapper(range(2)).test_twice()
    assert type(pipe) is twice
    data.IterDataPipe.register_function("test_of_theirs", torch_iter.Mapper)
    try:
        end = pipe.test_of_theirs(negate)
    finally:
        del data.IterDataPipe.functions["test_of_theirs"]
    assert type(end) is torch_iter.Mapper
    assert list(end) == [0, 0, -1, -1]
    assert list(Wrapper(range(2)).map(negate).test_twice().groupby(abs, group_size=2)) == [[0, 0], [-1, -1]]
    with pytest.raises(AttributeError):
        _ = Wrapper([]).no_such_name
    with pytest.raises(AttributeError):
        _ = pipe.no_such_name
    assert data.IterDataPipe.test_twice is twice


def spread(item):
    return [item] * item


OPERATIONS = {
    "header": (3,),
    "cycle": (2,),
    "repeat": (2,),
    "enumerate": (),
    "flatmap": (spread,),
    "shuffled_flatmap": (spread,),
    "prefetch": (2,),
    "map_batches": (sorted, 3),
    "max_token_bucketize": (5, abs),
    "bucketbatch": (2,),
    "in_memory_cache": (),
    "threadpool_map": (negate,),
    "sharding_round_robin_dispatch": (SHARDING_PRIORITIES.MULTIPROCESSING,),
    "set_length": (6,),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_that_torch_lacks_work_on_its_pipes(name):
    def run(source):
        end = getattr(source(range(1, 7)), name)(*OPERATIONS[name])
        return list(iter(set_graph_random_seed(end, SeedGenerator(1)).map(str)))

    assert name not in data.IterDataPipe.functions
    assert run(Wrapper) == run(IterableWrapper) != []


def test_all_names_of_ours_are_there_on_torch_pipes():
    for ours, theirs in ((IterPipe, data.IterDataPipe), (MapPipe, data.MapDataPipe)):
        for name in list_functions(ours):
            assert name in theirs.functions or hasattr(theirs, name), name


def test_what_torch_has_registered_goes_first(twice):
    class Theirs(data.IterDataPipe):
        def __init__(self, datapipe):
            self.datapipe = datapipe

        def __iter__(self):
            yield "theirs"

    before = data.IterDataPipe.functions["map"]
    assert register_with_torch()
    assert data.IterDataPipe.functions["map"] is before
    assert "map" not in vars(data.IterDataPipe)
    data.IterDataPipe.register_function("test_twice", Theirs)
    try:
        assert list(Wrapper([1]).test_twice()) == ["theirs"]
    finally:
        del data.IterDataPipe.functions["test_twice"]
    assert list(Wrapper([1]).test_twice()) == [1, 1]


def test_an_attribute_of_a_pipe_goes_before_a_name_of_ours(twice):
    pipe = Wrapper([1])
    pipe.test_twice = 5
    assert pipe.test_twice == 5


def test_torch_classes_that_insist_on_torch_pipes_take_ours():
    ours = Ours(Wrapper(range(2)))
    assert list(Wrapper(range(2)).zip(ours)) == [(0, 0), (1, 1)]
    assert list(Wrapper(range(2)).concat(ours)) == [0, 1, 0, 1]
    assert list(torch_iter.Multiplexer(ours, Wrapper(range(2)))) == [0, 0, 1, 1]


def test_torch_dataloader_reads_ours_in_its_workers():
    end = Ours(Wrapper(range(8)).sharding_filter(), negate)
    loader = data.DataLoader(end, batch_size=None, num_workers=2, multiprocessing_context="fork")
    assert sorted(loader) == sorted(-n for n in range(8))
    copy = pickle.loads(pickle.dumps(Ours(Wrapper([1, 2]), negate)))
    assert list(copy) == [-1, -2]


def test_a_new_iterator_over_a_shared_source_invalidates_a_torch_reader():
    source = Ours(Wrapper(range(3)))
    reader = iter(source.groupby(abs, group_size=1))
    next(reader)
    list(source)
    with pytest.raises(RuntimeError, match="invalidated"):
        list(reader)


@pytest.mark.parametrize("order", ["torch first", "torch later", "never"])
def test_the_order_of_imports_does_not_matter(order):
    imports = {
        "torch first": ["import torch.utils.data", "import headrace.pipes"],
        "torch later": ["import headrace.pipes", "assert 'torch' not in sys.modules", "import torch.utils.data"],
        "never": ["import headrace.pipes.graph", "assert 'torch' not in sys.modules", "exit()"],
    }
    program = ["import sys", *imports[order]]
    program.append(
        textwrap.dedent("""
        from torch.utils.data.datapipes.iter import IterableWrapper
        from headrace.pipes import IterPipe, functional_pipe
        from headrace.pipes.core.torch_registration import _TorchWatcher

        @functional_pipe("test_first")
        class First(IterPipe):
            def __init__(self, datapipe):
                self.datapipe = datapipe

            def __iter__(self):
                yield next(iter(self.datapipe))

        assert list(IterableWrapper([1, 2]).test_first()) == [1]
        assert isinstance(First(None), torch.utils.data.IterDataPipe)
        assert not any(isinstance(finder, _TorchWatcher) for finder in sys.meta_path)
        """)
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "\n".join(program)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_torchdata_may_be_imported_later_and_its_own_names_then_go_first():
    program = """
import headrace.pipes
from headrace.pipes.graph import split_graph, list_pipes
from torch.utils.data.datapipes.iter import IterableWrapper
from headrace.pipes.sharding import SHARDING_PRIORITIES
assert type(IterableWrapper([1]).header(1)) is headrace.pipes.iter.Header
import torchdata.datapipes as theirs
assert type(IterableWrapper([1]).header(1)) is theirs.iter.Header
source = IterableWrapper(range(4)).sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)
assert type(source).__module__.startswith("torchdata.")
parts = split_graph(source.fullsync().prefetch(2))
assert parts.dispatch_root is parts.worker_root is source
assert len(parts.main) == 2
from torchdata.dataloader2 import DataLoader2
assert list(DataLoader2(headrace.pipes.iter.Mapper(IterableWrapper([1, 2]), abs))) == [1, 2]
"""
    pytest.importorskip("torchdata.datapipes")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
