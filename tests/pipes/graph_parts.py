"""Small pipes for tests of graphs: they depend on nothing but `headrace.pipes.core.base`."""

from headrace.pipes import IterPipe, MapPipe
from headrace.pipes.core.base import read


class Count(IterPipe):
    """A source that knows its place: 0, 1, ..., n - 1."""

    def __init__(self, n=3):
        self.n = n

    def reset(self):
        self.place = 0

    def __iter__(self):
        while self.place < self.n:
            self.place += 1
            yield self.place - 1

    def state(self):
        return {"place": self.place}

    def restore(self, state):
        self.place = state["place"]

    def __len__(self):
        return self.n


class Pass(IterPipe):
    """Gives what its source gives, through a function if there is one."""

    def __init__(self, datapipe, fn=None):
        self.datapipe = datapipe
        self.fn = fn

    def __iter__(self):
        for item in read(self.datapipe):
            yield item if self.fn is None else self.fn(item)

    def state(self):
        return {}


class Join(IterPipe):
    """Zips any number of sources."""

    def __init__(self, *datapipes):
        self.datapipes = datapipes

    def __iter__(self):
        yield from zip(*map(read, self.datapipes), strict=False)

    def state(self):
        return {}


class Chain(IterPipe):
    """One source after the other; knows which."""

    def __init__(self, *datapipes):
        self.datapipes = datapipes

    def reset(self):
        self.index = 0

    def __iter__(self):
        while self.index < len(self.datapipes):
            yield from read(self.datapipes[self.index])
            self.index += 1

    def state(self):
        return {"index": self.index}

    def restore(self, state):
        self.index = state["index"]


class Shares(Pass):
    """A sharding pipe."""

    def __init__(self, datapipe, sharding_group_filter=None):
        super().__init__(datapipe)
        self.sharding_group_filter = sharding_group_filter
        self.applied = []

    def apply_sharding(self, num_of_instances, instance_id, sharding_group):
        self.applied.append((num_of_instances, instance_id, sharding_group))


class Shuffled(Pass):
    """A random pipe, for what its seed is."""

    seed_given = None

    def set_seed(self, seed):
        self.seed_given = seed


class ShardingRoundRobinDispatcher(Pass):
    """A dispatch point, by its name."""


class OnlyInMain(Pass):
    def is_replicable(self):
        return False


class Table(MapPipe):
    def __init__(self, values):
        self.values = values

    def __getitem__(self, index):
        return self.values[index]

    def __len__(self):
        return len(self.values)
