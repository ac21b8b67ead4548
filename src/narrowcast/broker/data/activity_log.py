"""A log of events, their routes and subscription changes, as Parquet tables."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from narrowcast.errors import ParameterError
from narrowcast.files import first_line
from narrowcast.routing import RouteMethod

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.broker.control.subscription_index import SubscriptionIndex
    from narrowcast.model.events import EventBatch
    from narrowcast.model.matches import Matches
    from narrowcast.routing import Deliveries

log = logging.getLogger(__name__)

#: Default maximum events of a file, and default maximum seconds until it is written.
ROWS, SECONDS = 100_000, 60.0
_METHODS = pa.array([method.label for method in RouteMethod])
_TIME = pa.timestamp("us", tz="UTC")


class ActivityLog:
    """Writes tables below a folder, one file at a time; each file appears complete or not at all.

    - `events`: `event_id`, `time` and a column for each attribute that filters name.
    - `routes`: `event_id`, `method`, `channels`, and `unicast`, the subscribers reached by direct messages.
    - `changes`: `time`, `subscription_id`, `subscriber`, `filter` and `action`.
    - `subscriptions.parquet`: all subscriptions at the time of the last write.

    Parameters
    ----------
    folder
        The folder; existing files stay.
    share
        Share of the events to write, drawn at random: from 0 to 1 (default 1).
    rows, seconds
        A file is written after so much: events (default 100,000) or seconds (default 60).
    seed
        Seed of the random draw.

    Examples
    --------
    >>> ActivityLog("somewhere", share=2)
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: share=2: must be from 0 to 1
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        share: float = 1.0,
        rows: int = ROWS,
        seconds: float = SECONDS,
        seed: int = 0,
    ) -> None:
        if not 0 <= share <= 1:
            raise ParameterError(parameter="share", value=share, limit="from 0 to 1")
        if rows < 1:
            raise ParameterError(parameter="rows", value=rows, limit="at least 1")
        if not seconds > 0:
            raise ParameterError(parameter="seconds", value=seconds, limit="above 0")
        self.folder = Path(folder)
        self._share, self._rows, self._seconds = share, rows, seconds
        self._draw = np.random.default_rng(seed)
        # From the clock, so that ids are not reused after a restart.
        self._next = time.time_ns()
        self._events: list[pa.Table] = []
        self._routes: list[pa.Table] = []
        self._changes: list[dict[str, Any]] = []
        self._held = 0
        #: Events dropped because writing failed.
        self.lost = 0
        self._since = time.monotonic()

    def add(self, events: EventBatch, sent: Deliveries, names: list[str]) -> None:
        """Add a batch of events and their routes.

        Parameters
        ----------
        events
            The events.
        sent
            The route of each.
        names
            Names of the subscribers, by the positions used in `sent.unicast`.
        """
        n = len(events)
        rows = np.arange(n) if self._share == 1 else np.flatnonzero(self._draw.random(n) < self._share)
        if not len(rows):
            return
        ids = pa.array(self._next + np.arange(len(rows)))
        self._next += len(rows)
        when = pa.array(np.full(len(rows), time.time_ns() // 1000), _TIME)
        table = events.to_arrow().drop_columns(["event_id"])
        if "time" not in [name.lower() for name in table.column_names]:
            table = table.add_column(0, "time", pa.nulls(n, _TIME)).take(pa.array(rows))
            table = table.set_column(0, "time", when)
        else:
            table = table.take(pa.array(rows))
        self._events.append(table.add_column(0, "event_id", ids))
        subscribers = pa.array(names, pa.string())
        self._routes.append(
            pa.table(
                {
                    "event_id": ids,
                    "method": _METHODS.take(pa.array(sent.method[rows])),
                    "channels": _lists(sent.channels, rows, None),
                    "unicast": _lists(sent.unicast, rows, subscribers),
                }
            )
        )
        self._held += len(rows)

    def change(self, action: str, rows: dict[int, tuple[str, str]]) -> None:
        """Add changes of subscriptions.

        Parameters
        ----------
        action
            `subscribe` or `unsubscribe`.
        rows
            Subscriber and filter by subscription id.
        """
        now = datetime.now(UTC)
        self._changes += [
            {"time": now, "subscription_id": number, "subscriber": name, "filter": text, "action": action}
            for number, (name, text) in rows.items()
        ]

    @property
    def full(self) -> bool:
        """Whether a file is due: enough events are buffered, or enough time has passed."""
        waited = time.monotonic() - self._since > self._seconds
        return self._held >= self._rows or (waited and bool(self._held or self._changes))

    def write(self, interests: SubscriptionIndex) -> None:
        """Write the buffered rows, and a table of all current subscriptions.

        When writing fails, for example on a full disk, the rows are dropped and their events counted in
        `lost`, so that events are not delayed.

        Parameters
        ----------
        interests
            The current subscriptions.
        """
        self._since, held = time.monotonic(), self._held
        try:
            self._write(interests)
        except OSError as error:
            self.lost += held
            log.error("%s events are not recorded: %s", f"{held:,}", first_line(error))
        self._events, self._routes, self._changes, self._held = [], [], [], 0

    def _write(self, interests: SubscriptionIndex) -> None:
        name = f"{time.time_ns():020d}.parquet"
        if self._events:
            # An attribute that was learned meanwhile is null in earlier batches.
            events = pa.concat_tables(self._events, promote_options="permissive")
            self._put(events, f"events/{name}")
            self._put(pa.concat_tables(self._routes), f"routes/{name}")
        if self._changes:
            self._put(pa.Table.from_pylist(self._changes), f"changes/{name}")
        held = interests.rows(-1, len(interests))
        self._put(
            pa.table(
                {
                    "subscription_id": pa.array(list(held), pa.int64()),
                    "subscriber": pa.array([name for name, _ in held.values()], pa.string()),
                    "filter": pa.array([text for _, text in held.values()], pa.string()),
                }
            ),
            "subscriptions.parquet",
        )

    def _put(self, table: pa.Table, name: str) -> None:
        """Write a file under a temporary name, then rename it."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.part")
        pq.write_table(table, temporary)
        temporary.replace(path)


def _lists(found: Matches, rows: NDArray[np.int64], names: pa.Array | None) -> pa.ListArray:
    """Return the channels or subscribers of some events as lists: numbers, or names if given."""
    taken = found.take(rows)
    values = pa.array(taken.index) if names is None else names.take(pa.array(taken.index))
    return pa.ListArray.from_arrays(pa.array(taken.indptr.astype(np.int32)), values)
