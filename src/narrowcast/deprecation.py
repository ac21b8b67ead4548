"""Deprecated names of public objects: importable for one version, with a warning that gives the new name."""

from __future__ import annotations

import functools
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")
C = TypeVar("C", bound=type)


def renamed(module: str, name: str, new_names: dict[str, str]) -> Any:
    """Return the object with a deprecated name, and warn.

    Call it from the module's ``__getattr__``.

    Parameters
    ----------
    module
        The module's ``__name__``.
    name
        The requested attribute.
    new_names
        The new name of each old name, as ``module:name`` or as a name in the same module.

    Raises
    ------
    AttributeError
        When the module never had that name.

    Examples
    --------
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     renamed("narrowcast.matching", "Old", {"Old": "fractions:Fraction"}).__name__
    'Fraction'
    >>> str(caught[0].message)
    'narrowcast.matching.Old is now fractions.Fraction'
    """
    if name not in new_names:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    place, _, attribute = new_names[name].rpartition(":")
    place = place or module
    warnings.warn(f"{module}.{name} is now {place}.{attribute}", DeprecationWarning, stacklevel=3)
    return getattr(import_module(place), attribute)


def renamed_parameters(**new_names: str) -> Callable[[F], F]:
    """Return a decorator that accepts old names of keyword parameters, with a warning.

    Decorates a function, a method, or a class for its constructor. The new name is given for each old one.

    Examples
    --------
    >>> @renamed_parameters(hear="callback")
    ... def subscribe(*, callback): return callback
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     subscribe(hear=3)
    3
    >>> str(caught[0].message)
    "parameter 'hear' of subscribe is now 'callback'"
    """

    def decorate(target: F) -> F:
        if isinstance(target, type):
            target.__init__ = renamed_parameters(**new_names)(target.__init__)  # type: ignore[misc]
            return target
        name = target.__qualname__.removesuffix(".__init__")

        @functools.wraps(target)
        def call(*args: Any, **given: Any) -> Any:
            for old, new in new_names.items():
                if old in given:
                    warnings.warn(
                        f"parameter {old!r} of {name} is now {new!r}", DeprecationWarning, stacklevel=2
                    )
                    given[new] = given.pop(old)
            return target(*args, **given)

        return cast("F", call)

    return decorate


def renamed_members(**new_names: str) -> Callable[[C], C]:
    """Return a class decorator that adds old names of attributes and methods, with a warning.

    Examples
    --------
    >>> @renamed_members(got="counts")
    ... class Reader: counts = 3
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     Reader().got
    3
    >>> str(caught[0].message)
    'Reader.got is now Reader.counts'
    """

    def decorate(target: C) -> C:
        for old, new in new_names.items():

            def get(self: Any, old: str = old, new: str = new) -> Any:
                name = target.__name__
                warnings.warn(f"{name}.{old} is now {name}.{new}", DeprecationWarning, stacklevel=2)
                return getattr(self, new)

            setattr(target, old, property(get))
        return target

    return decorate
