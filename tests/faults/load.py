"""Events, filters and plans of a run, all made from a seed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from narrowcast.broker.clients.subscriber import LIMIT
from narrowcast.broker.security.users import User, Users
from support.broker import SCHEMA, some_events, some_filters, wanted, write_plan_of

#: A price that is in no filter.
UNWANTED = -1
#: Different events; each is published again and again.
POOL = 1_009
#: Ways to plan that need nothing but who wants what, the two ends among them.
METHODS = ("direct", "hash", "broadcast", "ncut", "unicast")
#: The operator, and a user without subscriptions, where there are users.
OPERATOR, STRANGER = "operator", "eve"


@dataclass(frozen=True)
class Load:
    """Subscribers with overlapping filters, and events of which each wants a part.

    An event follows from its number alone, so that the acknowledged numbers tell what each subscriber should
    get.

    Parameters
    ----------
    seed
        Seed of everything.
    people, publishers
        Numbers of subscribers and publishers.
    rate
        Events per second of each publisher.
    window
        Events that a subscriber may receive before it acknowledges some.
    limit
        Events that may wait at a subscriber; dropped ones are replayed later.
    together
        Maximum events between two flushes.
    rare
        One in this number of events can be wanted by a subscriber.
    channels
        Channels of each plan.
    guarded
        Whether all clients are users with tokens and permissions.
    """

    seed: int = 1
    people: int = 8
    publishers: int = 2
    rate: float = 200.0
    window: int = 256
    limit: int = LIMIT
    together: int = 40
    rare: int = 1
    channels: int = 4
    guarded: bool = False

    @cached_property
    def filters(self) -> dict[str, list[str]]:
        """Filters of each subscriber."""
        rng = np.random.default_rng([self.seed, 1])
        return {f"s{i}": some_filters(rng, 1 + i % 3) for i in range(self.people)}

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """Attributes of the events."""
        some = some_events(np.random.default_rng([self.seed, 2]), POOL)
        return [event if i % self.rare == 0 else {"price": UNWANTED} for i, event in enumerate(some)]

    @cached_property
    def _wanted(self) -> dict[str, NDArray[np.bool_]]:
        rows = wanted(self.filters, self.events)
        return {who: np.isin(np.arange(POOL), own) for who, own in rows.items()}

    def event(self, number: int, now: float) -> dict[str, Any]:
        """Return the event with a number."""
        return self.events[number % POOL] | {"n": number, "t": now}

    def wants(self, who: str, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which events a subscriber wants, by their numbers."""
        return self._wanted[who][numbers % POOL]

    @property
    def names(self) -> list[str]:
        """Names of all publishers."""
        return [f"p{i}" for i in range(self.publishers)]

    def token(self, name: str) -> str:
        """Return the token of a user."""
        return hashlib.sha256(f"{self.seed} {name}".encode()).hexdigest()

    def login(self, name: str) -> dict[str, Any]:
        """Return the login options of a client."""
        return (
            {"user": name, "password": self.token(name), "inbox": f"nc.answer.{name}"} if self.guarded else {}
        )

    @property
    def bearer(self) -> dict[str, str]:
        """HTTP headers of the operator."""
        return {"Authorization": f"Bearer {self.token(OPERATOR)}"} if self.guarded else {}

    def write_users(self, path: Path) -> Path:
        """Write the file of users."""
        roles = dict.fromkeys([*self.filters, STRANGER], "subscriber") | dict.fromkeys(
            self.names, "publisher"
        )
        roles[OPERATOR] = "operator"
        Users.of(User(name, (role,), self.token(name)) for name, role in roles.items()).write(path)
        return path

    def write_schema(self, path: Path) -> Path:
        """Write the types of attributes."""
        path.write_text(json.dumps(SCHEMA.to_dict()))
        return path

    def write_plans(self, folder: Path) -> list[Path]:
        """Write a plan by each method."""
        folder.mkdir(parents=True, exist_ok=True)
        return [
            Path(write_plan_of(folder / method, self.filters, method, self.channels, self.seed))
            for method in METHODS
        ]
