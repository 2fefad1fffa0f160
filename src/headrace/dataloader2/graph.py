"""The functions of `torchdata.dataloader2.graph`, under the same module name."""

from headrace.pipes.graph import Graph as DataPipeGraph
from headrace.pipes.graph import find_dps as find_dps
from headrace.pipes.graph import is_iter_pipe, is_map_pipe
from headrace.pipes.graph import list_dps as list_dps
from headrace.pipes.graph import remove_dp as remove_dp
from headrace.pipes.graph import replace_dp as replace_dp
from headrace.pipes.graph import traverse_dps as traverse_dps
from headrace.pipes.graph.seeds import set_datapipes_seed as set_datapipes_seed
from headrace.pipes.graph.seeds import set_graph_random_seed as set_graph_random_seed

__all__ = [
    "DataPipeGraph",
    "find_dps",
    "is_iter_pipe",
    "is_map_pipe",
    "list_dps",
    "remove_dp",
    "replace_dp",
    "set_datapipes_seed",
    "set_graph_random_seed",
    "traverse_dps",
]
