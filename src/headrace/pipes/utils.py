"""What torchdata had in `torchdata.datapipes.utils`, under its documented names."""

from __future__ import annotations

from .explain_parts import to_graph as to_graph
from .pin_memory import pin_memory_fn as pin_memory_fn
from .streams import StreamWrapper as StreamWrapper
from .streams import close_streams as janitor

__all__ = ["StreamWrapper", "janitor", "pin_memory_fn", "to_graph"]
