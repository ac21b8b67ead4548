"""64-bit hashes of numbers and strings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from narrowcast.kernels.jit import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PRIME = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)


@kernel
def mix(value: np.uint64) -> np.uint64:
    """Return a 64-bit hash of a number, in which every bit depends on all of its bits."""
    value ^= value >> np.uint64(30)
    value *= _MIX
    value ^= value >> np.uint64(27)
    value *= _PRIME
    return value ^ (value >> np.uint64(31))


@kernel
def hash_strings(offsets: NDArray[np.int64], data: NDArray[np.uint8], least: int) -> NDArray[np.int64]:
    """Return a hash of at least `least` for the UTF-8 bytes of each string; collisions are rare."""
    n = len(offsets) - 1
    out = np.empty(n, np.int64)
    for i in range(n):
        value = np.uint64(offsets[i + 1] - offsets[i]) * _PRIME
        word = np.uint64(0)
        filled = 0
        for j in range(offsets[i], offsets[i + 1]):
            word |= np.uint64(data[j]) << np.uint64(8 * filled)
            filled += 1
            if filled == 8:
                value = mix(value ^ word)
                word = np.uint64(0)
                filled = 0
        found = np.int64(mix(value ^ word))
        out[i] = found if found > least else least
    return out
