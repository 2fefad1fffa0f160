"""Headrace for other frameworks: `headrace.adapters.torch`, `torch_ranks`, `jax`, `lhotse`.

This room decides how batches appear to a framework and how they get to its devices. It never decides what is in them.
Each module is imported by name when it is needed, and needs its framework; `headrace.adapters.lhotse` alone does not.
Nothing else in Headrace imports a framework.
"""
