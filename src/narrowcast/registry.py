"""Strategies by name: how `--method pairwise` finds its class."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from narrowcast.errors import ParameterError

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """A named set of strategies of one kind.

    Parameters
    ----------
    kind
        What is registered, as a user would call it; it appears in errors.

    Examples
    --------
    >>> greetings = Registry("greeting")
    >>> @greetings.register("plain")
    ... def plain(): return "hello"
    >>> greetings["plain"]()
    'hello'
    >>> greetings["plane"]
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: unknown greeting 'plane'; did you mean 'plain'? known: plain
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._items: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that puts what it decorates under a name; a name is used once."""

        def put(item: T) -> T:
            if name in self._items:
                raise ParameterError(f"{self._kind} {name!r} is registered already")
            self._items[name] = item
            return item

        return put

    def __getitem__(self, name: str) -> T:
        try:
            return self._items[name]
        except KeyError:
            close = difflib.get_close_matches(str(name), self._items, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            known = ", ".join(sorted(self._items))
            raise ParameterError(f"unknown {self._kind} {name!r}; {hint}known: {known}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._items

    def get(self, name: str, default: Any = None) -> Any:
        """Return the strategy of that name, or the default: Mapping's own would meet our error."""
        return self._items.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._items))

    def __len__(self) -> int:
        return len(self._items)
