"""Keeps the operations between a dispatch point and a join in the workers.

Dispatched branches can only be joined in a process that sees all of their items: the dispatching process. By
torchdata's rule all operations before the join run there too, though the user put them after the dispatch point to
have the workers share them.

A join that never looks at its items (`zip`, `mux`, `concat`, ...) yields the same order whether one-to-one operations
come before or after it. So the graph is rewritten: the dispatching process joins the items as they come from the
dispatch points, each marked with its branch, and a worker applies the operations of that branch. Each item is delivered
once, in the order of a single process, for any number of workers. If each worker joined its shares instead, the order
would depend on the number of workers, and `zip` and `mux` would lose items at the end.

Only operations that make exactly one item of one item, whatever the others are, can be moved (`map`, `collate`): after
a `filter` or a `batch`, which items meet in the join depends on all items before. These operations stay in the
dispatching process, as in torchdata.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..core.base import read
from ..core.naming import class_name
from ..core.skeletons import OneForOne, Positioned
from ..core.walk import list_pipes, sources_of
from .edit import replace, replace_in
from .split import dispatch_roots, is_dispatch_point

_JOINS = ("Zipper", "ZipperLongest", "Multiplexer", "MultiplexerLongest", "Concater", "SampleMultiplexer")
_ONE_TO_ONE = ("Mapper", "Collator")
_KNOWN_PACKAGES = ("headrace", "torch", "torchdata")  # a user's class of such a name may do something else


class Marked(NamedTuple):
    """An item that passes through a join, with the branch that it came from."""

    branch: int
    item: Any


class BranchMarker(OneForOne[Marked], source="datapipe"):
    """Marks items with their branch; runs in the dispatching process."""

    def __init__(self, datapipe: Any, branch: int) -> None:
        self.datapipe = datapipe
        self.branch = branch

    def __iter__(self) -> Iterator[Marked]:
        for item in read(self.datapipe):
            yield Marked(self.branch, item)


class BranchFeeder(Positioned[Any]):
    """Stands at the start of a branch's operations in a worker, and yields the item that they shall work on next."""

    def __init__(self) -> None:
        self.pending: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        while self.pending:
            yield self.pending.pop()


class BranchReader(OneForOne[Any], source="datapipe"):
    """Applies to each item of a join the operations of the branch that it came from; runs in the workers.

    Args:
        datapipe: The join, whose items are marked, or are tuples of marked items.
        feeders: For each branch, the pipe at the start of its operations.
        ends: For each branch, the last of its operations.
    """

    def __init__(self, datapipe: Any, feeders: list[BranchFeeder], ends: list[Any]) -> None:
        self.datapipe = datapipe
        self.feeders = feeders
        self.ends = ends

    def __iter__(self) -> Iterator[Any]:
        for feeder in self.feeders:
            feeder.pending.clear()
        branches = list(zip(self.feeders, map(read, self.ends), strict=True))

        def apply_operations(marked: Any) -> Any:
            if type(marked) is not Marked:
                return marked  # the fill value of zip_longest
            feeder, end = branches[marked.branch]
            feeder.pending.append(marked.item)
            return next(end)

        for joined in read(self.datapipe):
            yield apply_operations(joined) if type(joined) is Marked else tuple(map(apply_operations, joined))


@dataclass(frozen=True)
class Hoist:
    """One join that is moved before the operations of its branches.

    Attributes:
        join: The join.
        bases: For each branch, the pipe that its operations read: a dispatch point or a join of several.
        operations: For each branch, its operations, upstream first; there may be none. A join among them is moved too,
            and stands for the operations of its branches.
    """

    join: Any
    bases: tuple[Any, ...]
    operations: tuple[tuple[Any, ...], ...]


def plan_hoists(pipe: Any) -> list[Hoist]:
    """Return the joins that can be moved before operations, upstream first. The graph is not changed.

    Args:
        pipe: The end of the graph.

    Raises:
        ConfigError: The graph has a cycle.
    """
    pipes = list_pipes(pipe)
    roots = dispatch_roots(pipe, [each for each in pipes if is_dispatch_point(each)])
    num_readers = Counter(id(source) for each in pipes for source in sources_of(each))
    passed: dict[int, tuple[Any, ...] | None] = {}  # the operations since the dispatch point; None: cannot be moved
    hoists = []
    for each in pipes:
        root = roots.get(id(each))
        ends = sources_of(each)
        if root is None:
            continue
        passed[id(each)] = ()
        if root is not each:
            before = passed[id(ends[0])] if len(ends) == 1 and num_readers[id(ends[0])] == 1 else None
            passed[id(each)] = None if before is None or not _is_one_of(each, _ONE_TO_ONE) else (*before, each)
        elif _is_one_of(each, _JOINS) and all(num_readers[id(end)] == 1 and id(end) in passed for end in ends):
            operations = tuple(known for end in ends if (known := passed[id(end)]) is not None)
            if len(operations) == len(ends) > 1 and any(operations):
                hoists.append(Hoist(each, tuple(roots[id(end)] for end in ends), operations))
                passed[id(each)] = (each,)
    return hoists


def hoist_joins(pipe: Any) -> Any:
    """Rewrite a graph so that operations between dispatch points and joins stay in the workers.

    Args:
        pipe: The end of the graph, which is changed in place.

    Returns:
        The end of the graph.

    Raises:
        ConfigError: The graph has a cycle.
    """
    readers: dict[int, BranchReader] = {}
    for hoist in plan_hoists(pipe):
        feeders, ends = [], []
        for branch, (base, planned) in enumerate(zip(hoist.bases, hoist.operations, strict=True)):
            operations = [readers.get(id(operation), operation) for operation in planned]
            feeder = BranchFeeder()
            replace_in(hoist.join, operations[-1] if operations else base, BranchMarker(base, branch))
            if operations:
                replace_in(operations[0], base, feeder)
            feeders.append(feeder)
            ends.append(operations[-1] if operations else feeder)
        readers[id(hoist.join)] = reader = BranchReader(hoist.join, feeders, ends)
        pipe = replace(pipe, hoist.join, reader)
    return pipe


def _is_one_of(pipe: Any, names: tuple[str, ...]) -> bool:
    return type(pipe).__module__.split(".")[0] in _KNOWN_PACKAGES and class_name(pipe) in names
