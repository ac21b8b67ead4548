"""Deprecated names of public objects: importable for one version, with a warning that gives the new name."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any


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
