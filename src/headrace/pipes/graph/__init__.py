"""Functions over graphs: to find, replace and split pipes, seed them, save their state; torchdata's functions too.

Decides what may run where, and the seeds and states of a graph; starts nothing, and knows operations by their class
names only. Read `split.py` first and `state.py`.
"""

from ..core.base import is_iter_pipe as is_iter_pipe
from ..core.base import is_map_pipe as is_map_pipe
from ..core.base import is_pipe as is_pipe
from ..core.walk import Graph as Graph
from ..core.walk import find as find
from ..core.walk import list_pipes as list_pipes
from ..core.walk import sources_of as sources_of
from ..core.walk import traverse as traverse
from .edit import remove as remove
from .edit import replace as replace
from .split import Parts as Parts
from .split import lowest_common_ancestor as lowest_common_ancestor
from .split import split_graph as split_graph
from .torchdata import find_dps as find_dps
from .torchdata import list_dps as list_dps
from .torchdata import remove_dp as remove_dp
from .torchdata import replace_dp as replace_dp
from .torchdata import traverse_dps as traverse_dps
