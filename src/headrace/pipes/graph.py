"""The functions over graphs, in one place: read, find, change, split; the documented ones of torchdata's too."""

from .base import is_iter_pipe as is_iter_pipe
from .base import is_map_pipe as is_map_pipe
from .base import is_pipe as is_pipe
from .graph_dps import find_dps as find_dps
from .graph_dps import list_dps as list_dps
from .graph_dps import remove_dp as remove_dp
from .graph_dps import replace_dp as replace_dp
from .graph_dps import traverse_dps as traverse_dps
from .graph_edit import remove as remove
from .graph_edit import replace as replace
from .graph_hoist import hoist_joins as hoist_joins
from .graph_split import Parts as Parts
from .graph_split import lowest_common_ancestor as lowest_common_ancestor
from .graph_split import split_graph as split_graph
from .graph_walk import Graph as Graph
from .graph_walk import find as find
from .graph_walk import list_pipes as list_pipes
from .graph_walk import sources_of as sources_of
from .graph_walk import traverse as traverse
