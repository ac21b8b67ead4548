"""Validation of single parameters."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from narrowcast.errors import ParameterError

if TYPE_CHECKING:
    from collections.abc import Iterable


def check_channels(channels: int | None, *, required: str = "") -> None:
    """Refuse a number of channels that is not an integer of at least 1.

    Parameters
    ----------
    channels
        The number of channels; None means no limit.
    required
        Name of a method that needs a number; None is then refused.
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
    """Refuse a seed that is not an integer of at least 0."""
    check_whole("seed", seed, least=0)


def check_whole(name: str, value: int, *, least: int = 1) -> None:
    """Refuse a parameter that is not an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ParameterError(parameter=name, value=value, limit=f"an integer of at least {least}")


def check_number(name: str, value: float, *, least: float, most: float = math.inf, limit: str) -> None:
    """Refuse a parameter that is not a finite number from `least` to `most` (`limit` in words)."""
    if not is_number(value) or not least <= value <= most or not math.isfinite(value):
        raise ParameterError(parameter=name, value=value, limit=limit)


def check_flag(name: str, value: bool) -> None:
    """Refuse a parameter that is not a boolean."""
    if not isinstance(value, bool | np.bool_):
        raise ParameterError(parameter=name, value=value, limit="true or false")


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """Refuse a parameter that is not one of the given names."""
    known = list(choices)
    if value not in known:
        raise ParameterError(parameter=name, value=value, limit=f"one of {', '.join(known)}")


def is_number(value: Any) -> bool:
    """Return whether a value is a number; booleans are not."""
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)
