"""Code that draws from the global generators: the same batches in each run, for any number of workers."""

import random

import numpy as np
import pytest

from headrace import (
    ConcatDataset,
    ConfigError,
    CorpusIndex,
    Dataset,
    DataSpec,
    MapDataset,
    MetaDataset,
    Source,
    SourceDataset,
    StaticDataset,
)
from headrace.batching import Chunks, FixedCount, FrameBudget
from headrace.loading import DataLoader, work
from headrace.loading import options as options_module

pytestmark = pytest.mark.usefixtures("warm_workers")

NUM = 22


def draw():
    return np.array([random.random(), np.random.random(), np.random.randn()])


class MapStyle:
    def __init__(self, value=draw):
        self.value = value

    def __len__(self):
        return NUM

    def __getitem__(self, i):
        return {"data": self.value()}


class Stream:
    """Draws when it begins, and for each item."""

    def __iter__(self):
        order = list(range(NUM))
        random.shuffle(order)
        return ({"data": np.array([i, *draw()])} for i in order)


def add_draw(seq):
    return {"data": np.concatenate([seq["data"], draw()])}


FACES = {
    "map-style": lambda: (MapStyle(), {}),
    "tuples": lambda: ([(i,) for i in range(NUM)], {"transform": lambda item: (*item, *draw())}),
    "dataset": lambda: (StaticDataset([{"data": np.ones(2)}] * NUM), {"transform": add_draw}),
    "dataset of a map": lambda: (MapDataset(MapStyle()), {}),
    "collate": lambda: ([1.0] * NUM, {"collate": lambda items: np.stack([draw() for _ in items])}),
    "stream": lambda: (Stream(), {"window_seqs": 6}),
    "stream, growing": lambda: (Stream(), {}),
    "stream, transform": lambda: (Stream(), {"window_seqs": 9, "transform": add_draw}),
}


def numbers_of(batch):
    if isinstance(batch, np.ndarray):
        return batch.tolist()
    if isinstance(batch, tuple):
        return [np.asarray(part).tolist() for part in batch]
    return batch["data"].tolist()


def run(face, workers, first=0, epoch=1, **others):
    data, options = FACES[face]()
    before = random.getstate(), repr(np.random.get_state())
    options = {"batching": FixedCount(3), "num_workers": workers, **options, **others}
    found = batches_of(data, first, epoch, options)
    if options.get("seed_globals", True) and options.get("executor") != "thread":
        assert (random.getstate(), repr(np.random.get_state())) == before
    return found


def batches_of(data, first, epoch, options):
    with DataLoader(data, **options) as loader:
        loader.set_epoch(epoch)
        if first:
            batches = iter(loader)
            for _ in range(first):
                next(batches)
            batches.close()
            state = loader.state_dict()
            loader.load_state_dict(state)
        return [numbers_of(batch) for batch in loader]


@pytest.mark.sample(4)
@pytest.mark.parametrize("face", FACES)
def test_batches_do_not_depend_on_who_makes_them_or_on_what_was_drawn_before(face):
    alone = run(face, 0)
    assert run(face, 0) == run(face, 2) == alone
    assert run(face, 0, first=4) == alone[4:]
    assert run(face, 0, epoch=2) != alone
    assert run(face, 0, seed=1) != alone
    drawn = {round(number, 12) for batch in alone for row in batch for number in np.ravel(row) if number % 1}
    assert len(drawn) >= 3 * NUM  # no two draws are the same


@pytest.mark.parametrize("face", ["map-style", "stream, transform"])
def test_without_it_the_trainers_generators_are_drawn_from(face):
    drawn = []
    for seed in (1, 1, 2):
        random.seed(seed)
        np.random.seed(seed)
        drawn.append(run(face, 0, seed_globals=False))
    assert drawn[0] == drawn[1] != drawn[2]


def test_threads_share_the_generators_so_they_are_not_seeded():
    assert len(run("map-style", 2, executor="thread")) == 8
    with pytest.raises(ConfigError, match="threads of a process share"):
        run("map-style", 2, executor="thread", seed_globals=True)


@pytest.mark.parametrize(("options", "is_seeded"), [({}, False), ({"transform": add_draw}, True)])
def test_where_no_code_of_the_users_is_involved_nothing_is_seeded(monkeypatch, options, is_seeded):
    seeded = []
    for module in (work, options_module):
        monkeypatch.setattr(module, "seed_globals", lambda *args, **kwargs: seeded.append(args))
    seqs = StaticDataset([{"data": np.ones(n + 1)} for n in range(NUM)])
    with DataLoader(seqs, batching=FrameBudget(40), **options) as loader:
        num_batches = len(list(loader))
    assert len(seeded) == num_batches * is_seeded


class Rows(list):
    def __getitem__(self, i):
        return super().__getitem__(i) + random.random()


class Drawing:
    def __array__(self, dtype=None, copy=None):
        return draw()


ROWS = [np.full(2, i) for i in range(NUM)]
ITEMS = {
    "array": (np.stack(ROWS), {}, False),
    "list": (ROWS, {}, False),
    "texts": (["a"] * NUM, {}, False),
    "transform": (ROWS, {"transform": lambda row: row + random.random()}, True),
    "collate": (ROWS, {"collate": lambda rows: rows[0] + random.random()}, True),
    "own list": (Rows(ROWS), {}, True),
    "tuples": ([(row, 1) for row in ROWS], {}, True),  # what is in them is not looked at
    "one that draws": ([*ROWS[1:], Drawing()], {}, True),
    "array of objects": (np.array(["a"] * NUM, object), {}, True),
}


@pytest.mark.parametrize("kind", ITEMS)
def test_where_items_are_plain_arrays_numbers_or_texts_nothing_is_seeded(kind, monkeypatch):
    items, options, is_seeded = ITEMS[kind]
    seeded = []
    monkeypatch.setattr(work, "seed_globals", lambda *args, **kwargs: seeded.append(args))
    with DataLoader(items, batch_size=1, **options) as loader:
        assert len(list(loader)) == NUM
    assert len(seeded) == NUM * is_seeded


class Sampler:
    """Draws the order from the global generators, as torch's RandomSampler does."""

    def __iter__(self):
        return iter(np.random.permutation(NUM).tolist())


class DrawnOrder(Dataset):
    """A class of the user's that draws its order from the global generators."""

    num_inputs, num_outputs = 1, {"data": (1, 1)}

    def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):
        super().init_seq_order(epoch, seq_list, seq_order)
        self.places = random.sample(range(NUM), NUM) if seq_order is None else list(seq_order)
        return True

    @property
    def num_seqs(self):
        return len(self.places)

    def get_current_seq_order(self):
        return self.places

    def load_seqs(self, start, end):
        pass

    def get_data(self, seq_idx, key):
        return np.array([self.places[seq_idx]])


def drawn_ordering(epoch):
    del epoch
    return f"permute:seed={random.randrange(1000)}"


@pytest.mark.parametrize("who", ["sampler", "dataset", "ordering", "part"])
def test_an_order_that_is_drawn_from_the_global_generators_is_one_for_all_ranks_and_runs(who):
    def loader(rank=0, world_size=1, num_workers=0):
        static = {"class": "StaticDataset", "data": [{"data": np.array([i])} for i in range(NUM)]}
        drawn = {**static, "seq_ordering": drawn_ordering}
        order = {"sampler": Sampler()} if who == "sampler" else {}
        return DataLoader(
            {
                "sampler": static,
                "dataset": {"class": DrawnOrder},
                "ordering": drawn,
                "part": {"class": "ConcatDataset", "datasets": [drawn]},
            }[who],
            batching=FixedCount(2),
            rank=rank,
            world_size=world_size,
            num_workers=num_workers,
            remainder="keep",
            **order,
        )

    def values(batches):
        return [batch["data"].ravel().tolist() for batch in batches]

    with loader() as one:
        first, second = (values(one) for _ in range(2))
        state = one.state_dict()
        third = values(one)
    assert sorted(value for batch in first for value in batch) == list(range(NUM))
    assert first != second
    ranks = []
    for rank in range(2):
        random.seed(rank)
        np.random.seed(rank)
        with loader(rank, 2) as mine:
            mine.explain()
            ranks.append(values(mine))
        assert np.random.get_state()[1][0] == rank  # the user's, as they were
    assert [ranks[n % 2][n // 2] for n in range(len(first))] == first
    with loader(num_workers=1) as other:
        other.load_state_dict(state)
        assert values(other) == third


class FastDraws(Source):
    """A user's source that reads many sequences at once, and draws."""

    has_fast_rows = True

    def __init__(self):
        self.specs = {"data": DataSpec("float32", ())}

    @property
    def index(self):
        return CorpusIndex.from_columns(tags=list("abcd"), lengths={"data": [3] * 4})

    def read(self, corpus_idx, data_key):
        return np.random.random(3).astype(np.float32)


def test_a_source_of_the_users_draws_the_same_also_as_a_part_of_a_joint_dataset():
    def rest(start):
        dataset, batching = ConcatDataset([SourceDataset(FastDraws())]), FixedCount(1)
        with DataLoader(dataset, batching=batching) as before, DataLoader(dataset, batching=batching) as after:
            for _ in zip(range(start), before, strict=False):
                pass
            after.load_state_dict(before.state_dict())
            return [batch["data"].tolist() for batch in after]

    assert rest(2) == rest(0)[2:]


class TwoKeys(MapStyle):
    """Items with a key that is not asked for, whose lengths are known."""

    def __getitem__(self, i):
        return {"data": np.random.random(40), "classes": np.zeros(40)}

    def get_seq_len(self, i):
        return {"data": 40, "classes": 40}


def test_an_item_of_which_some_keys_are_read_is_drawn_for_each_batch_that_has_chunks_of_it():
    def rest(start):
        dataset = MetaDataset({"a": MapDataset(TwoKeys())}, data_map={"data": ("a", "data")})
        batching = Chunks(FixedCount(2), 10)
        with DataLoader(dataset, batching=batching) as before, DataLoader(dataset, batching=batching) as after:
            for _ in zip(range(start), before, strict=False):
                pass
            after.load_state_dict(before.state_dict())
            return [batch["data"].tolist() for batch in after]

    whole = rest(0)
    for start in (1, 3, 5):
        assert rest(start) == whole[start:]
