"""Epochs that somebody else counts: a loader, or a training that begins in the middle."""

from __future__ import annotations

from typing import Any

from headrace.rng import derive_seed

from .base import IterPipe
from .draws import Draws
from .from_dataset import FromDataset
from .graph_walk import list_pipes
from .registry import register_function


def set_epoch(datapipe: IterPipe[Any], epoch: int) -> IterPipe[Any]:
    """Let the next iteration over a graph be the epoch of a number: it follows from that and the seeds alone.

    So processes that read copies of the graph agree on its order, whatever they have read before. Random pipes without
    a seed have seed 0 from now on. `headrace.DataLoader` calls it.

    Args:
        datapipe: The end of the graph.
        epoch: The number, 1, 2, ...

    Returns:
        The pipe.
    """
    for place, pipe in enumerate(list_pipes(datapipe)):
        counters = [value for value in vars(pipe).values() if isinstance(value, Draws)]
        if isinstance(pipe, FromDataset):
            pipe.set_number(epoch)
        for counter in counters:
            counter.set_number(epoch)
        if not counters and callable(getattr(type(pipe), "set_seed", None)):
            pipe.set_seed(derive_seed(0, "pipes: epoch", epoch=epoch, corpus_idx=place))
    return datapipe


register_function(IterPipe, "set_epoch", set_epoch)
