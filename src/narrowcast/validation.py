"""Checks of single parameters."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from narrowcast.errors import ParameterError

if TYPE_CHECKING:
    from collections.abc import Iterable


def check_channels(channels: int | None, *, required: str = "") -> None:
    """Refuse a number of channels below 1 or not an integer.

    Parameters
    ----------
    channels
        The number; None means no limit.
    required
        The name of a method that needs a number.
    """
    if channels is None and not required:
        return
    if channels is None:
        raise ParameterError(
            f"channels is missing: {required} needs an integer of at least 1",
            parameter="channels",
            value=None,
            limit="an integer of at least 1",
        )
    check_whole("channels", channels)


def check_seed(seed: int) -> None:
    """Refuse a seed below 0 or not an integer."""
    check_whole("seed", seed, least=0)


def check_whole(name: str, value: int, *, least: int = 1) -> None:
    """Refuse a parameter that is not an integer, or too small."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ParameterError(parameter=name, value=value, limit=f"an integer of at least {least}")


def check_number(name: str, value: float, *, least: float, most: float = math.inf, limit: str) -> None:
    """Refuse a parameter that is not a finite number in a range; `limit` describes the range."""
    if not is_number(value) or not least <= value <= most or not math.isfinite(value):
        raise ParameterError(parameter=name, value=value, limit=limit)


def check_flag(name: str, value: bool) -> None:
    """Refuse a parameter that is neither true nor false."""
    if not isinstance(value, bool | np.bool_):
        raise ParameterError(parameter=name, value=value, limit="true or false")


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """Refuse a parameter that is not one of several names."""
    known = list(choices)
    if value not in known:
        raise ParameterError(parameter=name, value=value, limit=f"one of {', '.join(known)}")


def is_number(value: Any) -> bool:
    """Return whether a value is a number, which a boolean is not."""
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)
