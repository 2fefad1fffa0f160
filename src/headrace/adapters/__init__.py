"""Headrace in other frameworks: `headrace.adapters.torch`, `torch_ranks`, `jax`, `lhotse`, and trainers.

For trainers: `transformers`, `lightning`, `accelerate`, `ray_train`, `torchtitan`, over what is in `trainers`.

This room decides in which form a framework gets batches, and how they get to its devices, never what is in them. Import
each module by name. Each needs its framework installed, except `headrace.adapters.lhotse`. Nothing else in Headrace
imports a framework.
"""
