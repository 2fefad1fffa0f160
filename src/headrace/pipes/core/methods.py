"""The functional forms as methods: their names and parameters are declared in the stub beside this file.

Nothing is defined here: `Pipe.__getattr__` finds the operation of a name. A stub may import the operations, which
import pipes; this file may not.
"""


class IterMethods:
    """What can follow the dot of an iterable pipe."""


class MapMethods:
    """What can follow the dot of a map-style pipe."""
