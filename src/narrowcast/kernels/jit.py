"""How every kernel is compiled, and two machine instructions that numba has no name for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast
from uuid import uuid4

import numba
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile on first use, keep the machine code on disk, and let other threads run meanwhile.

    Processes share what is kept. Numba numbers the files without a lock, so that two which compile for other
    types at once could take each other's machine code; so each file has a name that no other gets.
    """
    made = numba.njit(nogil=True, cache=True, boundscheck=False)(function)
    kept: Any = getattr(getattr(made, "_cache", None), "_cache_file", None)
    if kept is not None:  # there is none where numba is told not to compile
        name = kept._index_name.removesuffix(".nbi")
        kept._data_name = lambda _number: f"{name}.{uuid4().hex}.nbc"
    return cast("F", made)


def _lowest(_typing: Any, _word: Any) -> Any:
    """Return the position of the lowest set bit of a word of 64; 64 where none is set."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        kind, flag = ir.IntType(64), ir.IntType(1)
        count = builder.module.declare_intrinsic("llvm.cttz", [kind], ir.FunctionType(kind, [kind, flag]))
        return builder.call(count, [args[0], ir.Constant(flag, 0)])

    return types.int64(types.uint64), generate


def _population(_typing: Any, _word: Any) -> Any:
    """Return how many bits of a word of 64 are set."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        kind = ir.IntType(64)
        count = builder.module.declare_intrinsic("llvm.ctpop", [kind], ir.FunctionType(kind, [kind]))
        return builder.call(count, [args[0]])

    return types.int64(types.uint64), generate


lowest = cast("Callable[[Any], int]", intrinsic(_lowest))
population = cast("Callable[[Any], int]", intrinsic(_population))
