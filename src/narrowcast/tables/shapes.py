"""What each table must hold: its columns, what they are made of, and which of them name a row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["id", "text", "label", "amount", "time", "action"]

#: What a column of each kind is made of.
CONTENTS: dict[Kind, str] = {
    "id": "integers",
    "text": "strings",
    "label": "integers or strings",
    "amount": "numbers",
    "time": "timestamps",
    "action": "strings",
}

#: What a row of changes can do.
ACTIONS = ("subscribe", "unsubscribe")


@dataclass(frozen=True, slots=True)
class TableShape:
    """What a table must hold.

    Parameters
    ----------
    columns
        The columns that must be there, without nulls.
    optional
        Columns that may be there.
    unique
        Columns that together name one row.
    either
        Columns of which each row has exactly one.
    """

    columns: dict[str, Kind]
    optional: dict[str, Kind] = field(default_factory=dict)
    unique: tuple[str, ...] = ()
    either: tuple[str, ...] = ()

    @property
    def kinds(self) -> dict[str, Kind]:
        """All columns that the table defines."""
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
