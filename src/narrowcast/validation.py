"""Checks of single parameters: each refuses a bad value with its name, the value and the limit."""

from __future__ import annotations

import math

import numpy as np

from narrowcast.errors import ParameterError


def check_channels(channels: int | None, *, required: str = "") -> None:
    """Refuse a number of channels that is not a whole number of at least 1.

    Parameters
    ----------
    channels
        The number; None stands for as many as the method likes.
    required
        The name of a method that cannot do without.
    """
    if channels is None and not required:
        return
    if channels is None:
        raise ParameterError(f"channels is None; {required} needs a whole number of at least 1")
    check_whole("channels", channels)


def check_seed(seed: int) -> None:
    """Refuse a seed that is not a whole number of at least 0."""
    check_whole("seed", seed, least=0)


def check_whole(name: str, value: int, *, least: int = 1) -> None:
    """Refuse a parameter that is not a whole number, or too small."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ParameterError(f"{name} is {value!r}; give a whole number of at least {least}")


def check_number(name: str, value: float, *, least: float, most: float = math.inf, fix: str) -> None:
    """Refuse a parameter that is not a number, not finite, or out of range; `fix` says what to give."""
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not number or not least <= value <= most or not math.isfinite(value):
        raise ParameterError(f"{name} is {value!r}; {fix}")


def check_flag(name: str, value: bool) -> None:
    """Refuse a parameter that is neither true nor false."""
    if not isinstance(value, bool | np.bool_):
        raise ParameterError(f"{name} is {value!r}; give true or false")
