"""The tree that describes an encoded value: it says where in the slot each part lies and how to put it together.

A node is either an atom, which stands for itself (None, bool, int, float, complex, str or bytes of exactly that type),
or a tuple whose first element is one of the tags below. The tree is made of what `marshal` knows: it writes text three
times faster than pickle, and keeps each type, the sign of a zero, NaNs and lone surrogates. The tree is made and read
by the same interpreter on the same machine, and only travels between a trainer and its own workers.

A place is where bytes begin: `offset >= 0`, from the start of what the codec reserved, or `~position < 0` of what was
produced in the slot already. A token names a dtype (`codec_dtypes`). An items node is restored to a list, or, if it is
raw, to what it holds, a list or a tuple. Raw is a container of atoms and of other raw containers.
"""

from __future__ import annotations

from typing import Any

Node = Any

# tag                what follows it in the tuple
RAW = 0  #           the value: a list, tuple, dict, set or frozenset
LIST = 1  #          list of nodes
TUPLE = 2  #         items node
DICT = 3  #          items node of the keys, list of nodes of the values
NAMED = 4  #         index of the class in the pickled list, items node: a namedtuple
OBJECT = 5  #        index of the class in the pickled list, node of the dict of its state: a dataclass
ARRAY = 6  #         place, token, shape, whether in Fortran order
BLOB = 7  #          place, number of bytes: long bytes
SCALAR = 8  #        token, its bytes: a NumPy number
TENSOR = 9  #        torch dtype where NumPy has none, else None; node of the array
PICKLED = 10  #      index in the pickled list
TEXT = 11  #         str or bytes, of which NumPy's class is made

# columns: nodes that are restored to a list
RAGGED = 12  #       place, token, tuple of the lengths, shape of the other axes
STACKED = 13  #      place, token, shape of the column: arrays of one shape
POINTS = 14  #       place, token, number of arrays: 0-d arrays
NUMBERS = 15  #      place, token, number of elements: NumPy numbers
TENSORS = 16  #      torch dtype where NumPy has none, else None; items node of the arrays
DICTS = 17  #        tuple of the keys, list of items nodes, one for each key
TUPLES = 18  #       list of items nodes, one for each place in the tuple
NAMEDS = 19  #       index of the class, TUPLES node
OBJECTS = 20  #      index of the class, items node of the dicts of their state
PLACED = (
    21  #       token, tuple of starts, tuple of lengths, shape of the other axes: arrays produced in the slot; a start
)
#                    is a position in the slot divided by the size of an element
LISTED = 22  #       index of the class in the pickled list, items node: a kind of list that adds methods only

ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes})
