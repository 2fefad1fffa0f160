"""The random numbers of a pipe.

Invariants: the numbers of an epoch follow from the seed and from how many epochs began since the seed was set, so that
epochs differ and a seed that is set again repeats them. Without a seed each epoch draws one from the operating system;
no global generator is read or written. `state` determines the next number, wherever it is taken.
"""

from __future__ import annotations

import secrets
from array import array
from random import Random
from typing import Any

from headrace.rng import derive_seed

_MERSENNE_VERSION = 3  # of `random.getstate`: 624 words and the position


class Draws:
    """The random numbers of one pipe: a generator for each epoch.

    Args:
        purpose: What the numbers are for; different purposes give different numbers.
        seed: The seed of all epochs; `None`: each epoch draws its own from the operating system.

    Attributes:
        generator: The generator of the current epoch.
    """

    def __init__(self, purpose: str, seed: int | None = None) -> None:
        self.generator = Random()  # noqa: S311 - no secret
        self._purpose = purpose
        self._seed = seed
        self._number = 0
        self._epoch = 0

    def set_seed(self, seed: int) -> None:
        """Restart with a seed: the next epoch is its first."""
        self._seed = int(seed)
        self._number = self._epoch = 0

    def set_number(self, number: int) -> None:
        """Set the epoch by an external counter; without a seed, seed 0 is used."""
        self._seed = self._seed or 0
        self._number, self._epoch = number, 0

    def fix_seed(self) -> None:
        """Draw a seed now if there is none, so that `state` determines the next numbers."""
        if self._seed is None:
            self._seed = secrets.randbits(63)

    def begin_epoch(self) -> None:
        """Go to the first number of the next epoch."""
        seed = secrets.randbits(63) if self._seed is None else fold_seed(self._seed)
        self.generator = Random(derive_seed(seed, self._purpose, epoch=self._number, occurrence=self._epoch))  # noqa: S311
        self._epoch += 1

    def state(self) -> dict[str, Any]:
        """Return the position in the random numbers."""
        _, words, _ = self.generator.getstate()
        return {
            "seed": self._seed,
            "number": self._number,
            "epoch": self._epoch,
            "generator": array("I", words).tobytes(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go to the position of a state."""
        words = array("I")
        words.frombytes(state["generator"])
        self._seed, self._number, self._epoch = state["seed"], state["number"], state["epoch"]
        self.generator.setstate((_MERSENNE_VERSION, tuple(words), None))


def draws_of(pipe: Any) -> dict[str, Draws]:
    """Return the generators of a pipe, by attribute; each counts its epochs."""
    return {name: value for name, value in vars(pipe).items() if isinstance(value, Draws)}


def state_of_draws(pipe: Any) -> dict[str, Any]:
    """Return the states of a pipe's generators, by attribute."""
    return {name: draws.state() for name, draws in draws_of(pipe).items()}


def restore_draws(pipe: Any, state: dict[str, Any]) -> None:
    """Set the generators of a pipe to the states that `state_of_draws` returned for another like it."""
    for name, of_draws in state.items():
        getattr(pipe, name).restore(of_draws)


def seeds_of(pipes: list[Any]) -> list[dict[str, Any]]:
    """Return the states of the generators of each pipe; an empty list if no pipe has any."""
    seeds = [state_of_draws(pipe) for pipe in pipes]
    return seeds if any(seeds) else []


def fold_seed(seed: int) -> int:
    """Wrap any integer into a signed 64-bit one, as `derive_seed` needs."""
    return (seed + 2**63) % 2**64 - 2**63
