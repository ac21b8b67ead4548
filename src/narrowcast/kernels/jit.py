"""Compilation of kernels, and two machine instructions that numba does not provide."""

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
    """Compile on first use, cache the machine code on disk, and release Python's lock while running.

    Processes share the cache. Numba numbers the files without a lock, so two processes that compile for
    different types at once could overwrite each other's code; therefore each file gets a unique name.
    """
    made = numba.njit(nogil=True, cache=True, boundscheck=False)(function)
    kept: Any = getattr(getattr(made, "_cache", None), "_cache_file", None)
    if kept is not None:  # there is none if numba's compiler is disabled
        name = kept._index_name.removesuffix(".nbi")
        kept._data_name = lambda _number: f"{name}.{uuid4().hex}.nbc"
    return cast("F", made)


def _lowest(_typing: Any, _word: Any) -> Any:
    """Return the position of the lowest set bit of a 64-bit word; 64 if none is set."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        kind, flag = ir.IntType(64), ir.IntType(1)
        count = builder.module.declare_intrinsic("llvm.cttz", [kind], ir.FunctionType(kind, [kind, flag]))
        return builder.call(count, [args[0], ir.Constant(flag, 0)])

    return types.int64(types.uint64), generate


def _population(_typing: Any, _word: Any) -> Any:
    """Return the number of set bits of a 64-bit word (population count)."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        kind = ir.IntType(64)
        count = builder.module.declare_intrinsic("llvm.ctpop", [kind], ir.FunctionType(kind, [kind]))
        return builder.call(count, [args[0]])

    return types.int64(types.uint64), generate


lowest = cast("Callable[[Any], int]", intrinsic(_lowest))
population = cast("Callable[[Any], int]", intrinsic(_population))
