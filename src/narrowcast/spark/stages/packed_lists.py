"""Lists of numbers packed into bytes: as bit flags or as the numbers themselves, whichever is smaller."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from scipy.sparse import csr_array

from narrowcast.model.relation import relation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.model.relation import Relation

    Ints: TypeAlias = NDArray[np.int64]
    Numbers: TypeAlias = NDArray[np.int32]

#: The header: bytes of a number (0 for flags), bytes of a length, number of lists, upper bound of the
#: numbers, and count of all numbers.
_HEAD = np.dtype("<i8")
_N_HEAD = 5
#: Maximum number of flags that are unpacked at once.
_CELLS = 1 << 24


def pack_lists(length: Ints, number: Numbers, width: int) -> bytes:
    """Pack lists of non-negative numbers into bytes, for `unpack_lists`.

    Parameters
    ----------
    length
        Number of elements of each list.
    number
        The elements of all lists, concatenated. Duplicates within a list may be removed by packing.
    width
        Upper bound: all numbers are less than this.

    Examples
    --------
    >>> packed = pack_lists(np.array([2, 0, 1]), np.array([3, 7, 5], np.int32), 9)
    >>> [part.tolist() for part in unpack_lists(packed)]
    [[2, 0, 1], [3, 7, 5]]
    """
    n, of_length, of_number = len(length), _size(int(length.max(initial=0))), _size(width - 1)
    as_flags = n * (-(-width // 8)) < n * of_length + len(number) * of_number
    if as_flags:
        of_number = 0
        body = _flags(length, number, width)
    else:
        body = _small(length, of_length) + _small(number, of_number)
    return np.array([of_number, of_length, n, width, len(number)], _HEAD).tobytes() + body


def unpack_lists(packed: bytes | memoryview) -> tuple[Ints, Numbers]:
    """Return the lengths and the concatenated numbers of packed lists; they ascend if packed as flags."""
    of_number, of_length, n, width, total = np.frombuffer(packed, _HEAD, _N_HEAD).tolist()
    start = _N_HEAD * _HEAD.itemsize
    if of_number:
        length = np.frombuffer(packed, f"<u{of_length}", n, start).astype(np.int64)
        number = np.frombuffer(packed, f"<u{of_number}", total, start + n * of_length)
        return length, number.astype(np.int32)
    row = -(-width // 8)
    flags = np.frombuffer(packed, np.uint8, n * row, start).reshape(n, row)
    length, number, at = np.zeros(n, np.int64), np.empty(total, np.int32), 0
    for low, high in _steps(n, 8 * row):
        here, found = np.nonzero(np.unpackbits(flags[low:high], axis=1, bitorder="little"))
        length[low:high] = np.bincount(here, minlength=high - low)
        number[at : at + len(found)] = found
        at += len(found)
    return length, number[:at]


def relation_in(packed: bytes | memoryview) -> Relation:
    """Return packed lists as a sparse boolean matrix of lists x numbers."""
    length, number = unpack_lists(packed)
    width = int(np.frombuffer(packed, _HEAD, _N_HEAD)[3])
    parts = (np.ones(len(number), np.bool_), number, np.append(0, np.cumsum(length)))
    return relation(csr_array(parts, shape=(len(length), width)))


def _flags(length: Ints, number: Numbers, width: int) -> bytes:
    """Pack lists of numbers as bit flags: one row of `width` bits for each list."""
    start, parts = np.append(0, np.cumsum(length)), []
    for low, high in _steps(len(length), width):
        flags = np.zeros((high - low, width), np.bool_)
        row = np.repeat(np.arange(high - low), length[low:high])
        flags[row, number[start[low] : start[high]]] = True
        parts.append(np.packbits(flags, axis=1, bitorder="little").tobytes())
    return b"".join(parts)


def _steps(n: int, width: int) -> list[tuple[int, int]]:
    """Return ranges of lists whose flags, unpacked, number at most `_CELLS`, but at least one list each."""
    step = max(1, _CELLS // max(1, width))
    return [(low, min(low + step, n)) for low in range(0, n, step)]


def _size(most: int) -> int:
    """Return the bytes of an unsigned integer that can hold numbers up to `most`."""
    return 1 if most < 1 << 8 else 2 if most < 1 << 16 else 4


def _small(numbers: NDArray[np.integer], size: int) -> bytes:
    return numbers.astype(f"<u{size}").tobytes()
