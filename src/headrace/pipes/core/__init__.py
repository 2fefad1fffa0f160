"""What a pipe is, how it is named, found by name and checked, and how its graph is read.

Knows no operation and no process. Read `base.py` first, then `walk.py`; `skeletons.py` has the base classes of
operations.
"""
