"""A keyed permutation of 0..N-1 that is computed, not stored: random access, O(1) memory, any N up to 2**62.

Small N (up to 4096) are sorted by a keyed hash, which is a uniform shuffle and a table of bounded size. Larger ones go
through a cipher on exactly that domain, as in J. Black and P. Rogaway, "Ciphers with Arbitrary Finite Domains" (CT-RSA
2002). Write the number as (L, R) with L in 0..a-1, R in 0..b-1, and a * b at least N but close to it. Alternately add a
keyed hash of one half to the other: an unbalanced Feistel network (Luby and Rackoff, 1988), of which each round can be
undone, whatever the hash. Where the result is N or more, encrypt again until it is not ("cycle walking"): a * b exceeds
N by less than sqrt(N) + 1, so less than one number in 64 needs a second walk. The hash is the finalizer of SplitMix64
(Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", 2014).

It shuffles well and hides nothing: this is not cryptography.

Invariant: the values of a key never change between releases, NumPy versions or machines; golden values pin them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.rng import derive_seed

_Numbers = NDArray[np.uint64]

MAX_SEQS = 2**62
_MAX_TABLE = 4096  # entries, 32 KiB; below it the halves of a cipher would be too small to mix well
_NUM_ROUNDS = 8  # 4 show in the differences of neighbours for N = 4225 (chi-square over 12000 keys), 6 do not
_CHUNK = 16_384  # numbers per step: with their temporaries they fit into the second-level cache
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


class Permutation:
    """A permutation of 0..size-1 that is a pure function of (size, seed).

    Args:
        size: From 0 to 2**62.
        seed: Any 64-bit signed integer; two seeds give unrelated permutations.

    Raises:
        ConfigError: `size` is out of range.

    Examples:
        >>> from headrace.order import Permutation
        >>> import numpy as np
        >>> permutation = Permutation(size=10, seed=1)
        >>> values = permutation.at(np.arange(10))
        >>> sorted(values.tolist()), permutation.position_of(values).tolist()
        ([0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    """

    def __init__(self, size: int, seed: int) -> None:
        if not 0 <= size <= MAX_SEQS:
            raise ConfigError(f"a permutation of {size} numbers is not possible, the size must be in 0..2**62")
        self.size = size
        keys = [derive_seed(seed, "permute", occurrence=number) for number in range(_NUM_ROUNDS)]
        self._cipher: _Table | _Feistel = (
            _Table(size, np.uint64(keys[0])) if size <= _MAX_TABLE else _Feistel(size, [np.uint64(key) for key in keys])
        )

    def at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the values at some positions, `int64[n]` -> `int64[n]`, all in 0..size-1."""
        return self._cipher.encrypt(positions)

    def position_of(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions of some values, the inverse of `at`."""
        return self._cipher.decrypt(values)


class _Table:
    """A stored permutation, for a small size."""

    def __init__(self, size: int, key: np.uint64) -> None:
        self._values = np.argsort(_hash(np.arange(size, dtype=np.uint64), key), kind="stable").astype(np.int64)
        self._positions = np.empty_like(self._values)
        self._positions[self._values] = np.arange(size)

    def encrypt(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        values: NDArray[np.int64] = self._values[numbers]
        return values

    def decrypt(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        positions: NDArray[np.int64] = self._positions[numbers]
        return positions


class _Feistel:
    """A Feistel network on pairs (L, R) in 0..a-1 x 0..b-1, a * b >= size, with cycle walking."""

    def __init__(self, size: int, keys: list[np.uint64]) -> None:
        left = math.isqrt(size - 1) + 1
        self._size = np.uint64(size)
        self._left = np.uint64(left)
        self._right = np.uint64(-(-size // left))
        self._keys = keys

    def encrypt(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._walk(numbers, self._encrypt_pairs)

    def decrypt(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._walk(numbers, self._decrypt_pairs)

    def _walk(self, numbers: NDArray[np.int64], step: Callable[[_Numbers], _Numbers]) -> NDArray[np.int64]:
        """Apply `step` until each number is inside the domain again, which it was at the start, so the walk ends."""
        results = np.array(numbers, dtype=np.uint64)
        for start in range(0, len(results), _CHUNK):
            part = results[start : start + _CHUNK]
            part[:] = step(part)
            outside = np.flatnonzero(part >= self._size)
            while len(outside) > 0:
                part[outside] = step(part[outside])
                outside = outside[part[outside] >= self._size]
        return results.view(np.int64)

    def _encrypt_pairs(self, numbers: _Numbers) -> _Numbers:
        left, right = self._split(numbers)
        for number, key in enumerate(self._keys):
            if number % 2 == 0:
                _add_modulo(left, _hash_below(right, key, self._left), self._left)
            else:
                _add_modulo(right, _hash_below(left, key, self._right), self._right)
        return self._join(left, right)

    def _decrypt_pairs(self, numbers: _Numbers) -> _Numbers:
        left, right = self._split(numbers)
        for number in reversed(range(_NUM_ROUNDS)):
            # adding (modulus - hash) undoes adding the hash
            if number % 2 == 0:
                _add_modulo(left, self._left - _hash_below(right, self._keys[number], self._left), self._left)
            else:
                _add_modulo(right, self._right - _hash_below(left, self._keys[number], self._right), self._right)
        return self._join(left, right)

    def _split(self, numbers: _Numbers) -> tuple[_Numbers, _Numbers]:
        left = numbers // self._right
        return left, numbers - left * self._right

    def _join(self, left: _Numbers, right: _Numbers) -> _Numbers:
        left *= self._right
        left += right
        return left


def _hash(numbers: _Numbers, key: np.uint64) -> _Numbers:
    """Return a 64-bit hash of each number under a key, `uint64[n]`."""
    hashes = numbers * _GAMMA
    hashes += key
    shifted = hashes >> np.uint64(30)
    hashes ^= shifted
    hashes *= _MIX_1
    np.right_shift(hashes, np.uint64(27), out=shifted)
    hashes ^= shifted
    hashes *= _MIX_2
    np.right_shift(hashes, np.uint64(31), out=shifted)
    hashes ^= shifted
    return hashes


def _hash_below(numbers: _Numbers, key: np.uint64, limit: np.uint64) -> _Numbers:
    """Return a hash in 0..limit-1; `limit` is at most 2**31, so the upper 33 bits times it stay within 64."""
    hashes = _hash(numbers, key)
    hashes >>= np.uint64(31)
    hashes *= limit
    hashes >>= np.uint64(33)
    return hashes


def _add_modulo(numbers: _Numbers, summands: _Numbers, modulus: np.uint64) -> None:
    """Add in place; numbers are below `modulus`, summands at most equal to it."""
    numbers += summands
    # below the modulus the subtraction wraps around to something huge, so the smaller one is the remainder
    np.subtract(numbers, modulus, out=summands)
    np.minimum(numbers, summands, out=numbers)
