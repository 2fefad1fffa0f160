"""The functional forms (`pipe.map(...)`), declared for type checkers in the stub beside this file.

Nothing is defined here: `Pipe.__getattr__` looks operations up by name. The stub may import the operations, which
import pipes; this file may not.
"""


class IterMethods:
    """The functional forms of iterable pipes."""


class MapMethods:
    """The functional forms of map-style pipes."""
