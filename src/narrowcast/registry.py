"""Registry of strategies by name, including those of other installed packages."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar, cast

from narrowcast.errors import ParameterError

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """Strategies of one kind by name: of narrowcast, of installed packages, and of the caller.

    Parameters
    ----------
    kind
        The kind of strategy, for error messages.
    places
        Definition of each strategy, as `module:attribute` by name. A module is imported when its strategy is
        first used.
    group
        The entry point group through which installed packages add strategies (default: no group).

    Examples
    --------
    >>> shapes = Registry("shape", {"pair": "fractions:Fraction"})
    >>> @shapes.register("single")
    ... def single(): return 1
    >>> shapes["pair"](1, 2), list(shapes)
    (Fraction(1, 2), ['pair', 'single'])
    >>> shapes["pear"]
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: unknown shape 'pear'; did you mean 'pair'? known: pair, single
    """

    def __init__(self, kind: str, places: Mapping[str, str] | None = None, group: str | None = None) -> None:
        self._kind = kind
        self._own = dict(places or {})
        self._group = group
        self._items: dict[str, T] = {}

    @cached_property
    def _places(self) -> dict[str, str]:
        """Definitions of narrowcast's own strategies and those of installed packages."""
        found = dict(self._own)
        for point in () if self._group is None else entry_points(group=self._group):
            if point.name in found:
                raise ParameterError(
                    f"{self._kind} {point.name!r} is registered twice, also as {point.value} of an installed "
                    "package; rename or uninstall one",
                    parameter=self._kind,
                    value=point.name,
                )
            found[point.name] = point.value
        return found

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that registers an object under a new name."""

        def put(item: T) -> T:
            if name in self:
                raise ParameterError(
                    f"{self._kind} {name!r} is registered already; use another name",
                    parameter=self._kind,
                    value=name,
                )
            self._items[name] = item
            return item

        return put

    def __getitem__(self, name: str) -> T:
        if name not in self:
            close = difflib.get_close_matches(str(name), self, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            known = ", ".join(self)
            raise ParameterError(
                f"unknown {self._kind} {name!r}; {hint}known: {known}", parameter=self._kind, value=name
            )
        if name not in self._items:
            module, _, attribute = self._places[name].partition(":")
            self._items[name] = cast("T", getattr(import_module(module), attribute))
        return self._items[name]

    def __contains__(self, name: object) -> bool:
        return name in self._items or name in self._places

    def get(self, name: str, default: Any = None) -> Any:
        """Return the strategy with that name, or the default (Mapping's own method expects a KeyError)."""
        return super().get(name, default) if name in self else default

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({**self._places, **self._items}))

    def __len__(self) -> int:
        return len({**self._places, **self._items})
