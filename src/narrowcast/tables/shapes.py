"""Table shapes: the columns of each input table, the kinds of their values, and the unique keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["id", "text", "label", "amount", "time", "action"]

#: Values of a column of each kind, in words.
CONTENTS: dict[Kind, str] = {
    "id": "integers",
    "text": "strings",
    "label": "integers or strings",
    "amount": "numbers",
    "time": "timestamps",
    "action": "strings",
}

#: Values of the column `action` of changes.
ACTIONS = ("subscribe", "unsubscribe")


@dataclass(frozen=True, slots=True)
class TableShape:
    """Required and optional columns of a table.

    Parameters
    ----------
    columns
        Required columns, which must not have nulls.
    optional
        Optional columns.
    unique
        Columns that together must be unique.
    either
        Columns of which exactly one must be set in each row.
    """

    columns: dict[str, Kind]
    optional: dict[str, Kind] = field(default_factory=dict)
    unique: tuple[str, ...] = ()
    either: tuple[str, ...] = ()

    @property
    def kinds(self) -> dict[str, Kind]:
        """Kinds of all columns that the table defines."""
        return {**self.columns, **self.optional}


#: The tables that can be read, by name.
TABLES: dict[str, TableShape] = {
    "subscriptions": TableShape(
        {"subscription_id": "id", "subscriber": "text", "filter": "text"}, unique=("subscription_id",)
    ),
    "events": TableShape({"event_id": "id"}, unique=("event_id",)),
    "interests": TableShape({"subscriber": "label", "flow": "label"}),
    "rates": TableShape({"flow": "label", "rate": "amount"}, {"time": "time"}, ("flow", "time")),
    "topology": TableShape({"a": "label", "b": "label", "cost": "amount"}),
    "locations": TableShape(
        {"node": "label"},
        {"subscriber": "label", "publisher": "label"},
        ("subscriber", "publisher"),
        ("subscriber", "publisher"),
    ),
    "publishers": TableShape({"event_id": "id", "node": "label"}, unique=("event_id",)),
    "changes": TableShape({"time": "time", "subscriber": "label", "flow": "label", "action": "action"}),
}
