"""Schema inference from filters alone, by the literals that attributes are compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from narrowcast.errors import FilterError
from narrowcast.filters.limits import FilterLimits
from narrowcast.filters.parser import Shape, parse, tokenize
from narrowcast.filters.syntax import AttributeReference, Constant, Like, Slot, Truth, operands, predicates
from narrowcast.model.schema import Schema

if TYPE_CHECKING:
    from collections.abc import Iterable

_TYPES = {"integer": "bigint", "decimal": "double", "float": "double"}


def infer_schema(filters: Iterable[str], limits: FilterLimits | None = None) -> Schema:
    """Infer a schema under which as many of the filters as possible are valid.

    A number makes an attribute a bigint, or a double when any of its numbers has a point or an exponent. On
    other disagreements the first filter wins. An attribute that is never compared with a literal is a double,
    unless it is the prefix of another attribute's path.

    Examples
    --------
    >>> infer_schema(["price > 75 AND name = 'IBM'", "price < 80.5", "day >= DATE '2024-01-01'"]).to_dict()
    {'price': 'double', 'name': 'string', 'day': 'date'}
    """
    limits = limits or FilterLimits()
    seen: set[Shape] = set()
    names: dict[str, str] = {}
    types: dict[str, str] = {}
    for text in filters:
        try:
            tokens = tokenize(text, limits)
            if tokens.shape in seen:
                continue
            seen.add(tokens.shape)
            tree = parse(tokens, limits)
        except FilterError:
            continue
        for predicate in predicates(tree):
            sides = operands(predicate)
            kinds = {s.kind for s in sides if isinstance(s, Slot)}
            found = [_TYPES.get(kind, kind) for kind in sorted(kinds)]
            if isinstance(predicate, Like):
                found = ["string"]
            elif isinstance(predicate, Truth) or any(
                isinstance(s, Constant) and s.value is not None for s in sides
            ):
                found.append("boolean")
            for side in sides:
                if not isinstance(side, AttributeReference):
                    continue
                name = side.name.lower()
                names.setdefault(name, side.name)
                for dtype in found:
                    known = types.setdefault(name, dtype)
                    if known == "bigint" and dtype == "double":
                        types[name] = dtype
    structs = {path.rpartition(".")[0] for path in names}
    return Schema.of(
        {spelt: "struct" if name in structs else types.get(name, "double") for name, spelt in names.items()}
    )
