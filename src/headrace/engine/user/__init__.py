"""What user code and the engine exchange: the job, what a worker may ask and tell, and how functions travel.

It decides what can be carried to a worker. It knows nothing of processes, memory or events. Read `job.py` first.
"""
