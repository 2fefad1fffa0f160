"""Pipes: graphs of small operations on items, and what can be known about a graph without running it.

This room decides what a pipe is, what each operation does, and which part of a graph may run where. It never starts a
process: `dataloader2` decides where the parts run. Read `core/base.py` first, then `core/walk.py` and `graph/split.py`;
operations are in `ops/`, one family a file, and `iter.py` and `map.py` export them under the names that torchdata 0.7
documented.
"""

from . import iter as iter
from . import map as map
from .core.base import IterPipe as IterPipe
from .core.base import MapPipe as MapPipe
from .core.registry import functional_pipe as functional_pipe
from .core.torch_registration import register_when_torch_loads
from .core.torch_registration import register_with_torch as register_with_torch
from .graph.explain import explain as explain
from .graph.explain import to_graph as to_graph

functional_datapipe = functional_pipe  # torch's name

register_when_torch_loads()
