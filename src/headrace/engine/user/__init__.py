"""What user code and the engine exchange: the job, the calls for user code in workers, and how functions are sent.

It decides what can be carried to a worker. It knows nothing of processes, memory or events. Read `job.py` first.
"""
