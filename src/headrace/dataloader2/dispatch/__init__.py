"""The dispatching process: runs the part of a graph that must not be replicated, and deals its items out in turn.

Knows nothing of the loop in the main process. Read `server.py` first, then `client.py` (in a worker) and `process.py`
(the main process's side).
"""
