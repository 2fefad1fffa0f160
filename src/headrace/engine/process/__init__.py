"""Workers that are processes: how they start, what they say, and how all of them end.

It decides how a ticket gets to a process and an outcome back. It knows nothing of which worker does what: that is the
supervisor's. Read `executor.py` first, `worker_main.py` for the worker and `warden_server.py` for who ends it.
"""
