"""Workers inside of this process: the consumer's own thread, or threads beside it.

It decides how a ticket is done without another process. It knows nothing of shared memory. Read `inline.py` first.
"""
