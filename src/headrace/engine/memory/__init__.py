"""Shared memory: anonymous files, the arenas of workers, leases of the trainer, rings for small messages.

It decides when memory may be written again. It knows nothing of what lies in it, nor of tickets. Read `arena.py` first,
and `lease.py` for the trainer's side.
"""
