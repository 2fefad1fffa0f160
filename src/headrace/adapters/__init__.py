"""Headrace for other frameworks: `headrace.adapters.torch`, `torch_ranks`, `jax`.

This room decides how batches appear to a framework and how they get to its devices. It never decides what is in them.
Each module needs its framework and is imported by name when it is wanted; nothing else in Headrace imports one.
"""
