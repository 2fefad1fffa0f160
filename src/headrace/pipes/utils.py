"""The functions of `torchdata.datapipes.utils`, under the same names."""

from __future__ import annotations

from .core.streams import StreamWrapper as StreamWrapper
from .core.streams import close_streams as janitor
from .graph.explain import to_graph as to_graph
from .ops.buffers.prefetch import pin_memory_fn as pin_memory_fn

__all__ = ["StreamWrapper", "janitor", "pin_memory_fn", "to_graph"]
