"""Randomness: generators from keys, and what the process's own generators need around user code."""

from .keyed import derive_rng, derive_seed, wants_rng

__all__ = ["derive_rng", "derive_seed", "wants_rng"]
