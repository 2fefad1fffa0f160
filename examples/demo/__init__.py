"""The demonstration: converts the spoken numbers, reads epochs over them, trains, is killed and resumes.

Run it by `make demo`, or as `PYTHONPATH=examples python -m demo`. `__main__.py` has its course, `files.py` the part
with many files and a cache, `training.py` the training that is killed; `trainer.py` is the process that trains.
"""
