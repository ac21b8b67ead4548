"""Errors by class and fields; their wording is free."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from narrowcast.errors import NarrowcastError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def refused(
    kind: type[NarrowcastError], *shown: object, **fields: Any
) -> Iterator[pytest.ExceptionInfo[NarrowcastError]]:
    """Expect an error of a class with certain fields, whose one-line message shows certain values.

    Parameters
    ----------
    kind
        The class of the error.
    shown
        Values (names, numbers, paths) that the message must contain; not phrases.
    fields
        Expected `parameter`, `value` and `limit`.
    """
    with pytest.raises(kind) as caught:
        yield caught
    message = str(caught.value)
    assert "\n" not in message
    for value in shown:
        assert str(value) in message, message
    for name, value in fields.items():
        assert getattr(caught.value, name) == value, (name, message)
