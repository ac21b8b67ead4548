"""What happened, as tables that the pipeline reads: events, their routes, and changes of subscriptions."""

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

#: Events of a file, and seconds until it is written, at most.
ROWS, SECONDS = 100_000, 60.0
_METHODS = pa.array([method.label for method in RouteMethod])
_TIME = pa.timestamp("us", tz="UTC")


class ActivityLog:
    """Writes tables below a folder, a file at a time, each of which appears whole.

    `events` has `event_id`, `time` and a column for each attribute that filters name; `routes` has
    `event_id`, `method`, `channels` and `unicast`, who was sent to directly; `changes` has `time`,
    `subscription_id`, `subscriber`, `filter` and `action`; `subscriptions.parquet` has all subscriptions as
    they were when the last file was written.

    Parameters
    ----------
    folder
        Where; what is there stays.
    share
        The share of the events that are written, drawn at random.
    rows, seconds
        When a file is full.
    seed
        Of what is drawn.

    Examples
    --------
    >>> ActivityLog("somewhere", share=2)
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: share is 2; give the share of events to write, from 0 to 1
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
            raise ParameterError(f"share is {share}; give the share of events to write, from 0 to 1")
        if rows < 1 or not seconds > 0:
            raise ParameterError(f"rows is {rows} and seconds {seconds}; give at least 1 row and some time")
        self.folder = Path(folder)
        self._share, self._rows, self._seconds = share, rows, seconds
        self._draw = np.random.default_rng(seed)
        # From the clock, so that no event of an earlier start has the same.
        self._next = time.time_ns()
        self._events: list[pa.Table] = []
        self._routes: list[pa.Table] = []
        self._changes: list[dict[str, Any]] = []
        self._held = 0
        #: Events that could not be written.
        self.lost = 0
        self._since = time.monotonic()

    def add(self, events: EventBatch, sent: Deliveries, names: list[str]) -> None:
        """Take up a batch of events and where they went."""
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
        people = pa.array(names, pa.string())
        self._routes.append(
            pa.table(
                {
                    "event_id": ids,
                    "method": _METHODS.take(pa.array(sent.method[rows])),
                    "channels": _lists(sent.channels, rows, None),
                    "unicast": _lists(sent.unicast, rows, people),
                }
            )
        )
        self._held += len(rows)

    def change(self, action: str, rows: dict[int, tuple[str, str]]) -> None:
        """Take up subscriptions that came or went."""
        now = datetime.now(UTC)
        self._changes += [
            {"time": now, "subscription_id": number, "subscriber": who, "filter": text, "action": action}
            for number, (who, text) in rows.items()
        ]

    @property
    def full(self) -> bool:
        """Whether it is time to write."""
        waited = time.monotonic() - self._since > self._seconds
        return self._held >= self._rows or (waited and bool(self._held or self._changes))

    def write(self, interests: SubscriptionIndex) -> None:
        """Write what there is, and all subscriptions as they are now.

        What cannot be written is given up and counted in `lost`: a disk that is full holds up no event.
        """
        self._since, held = time.monotonic(), self._held
        try:
            self._write(interests)
        except OSError as error:
            self.lost += held
            log.error("%s events are not recorded: %s", f"{held:,}", first_line(error))
        self._events, self._routes, self._changes, self._held = [], [], [], 0

    def _write(self, interests: SubscriptionIndex) -> None:
        """Write what there is, and all subscriptions as they are now."""
        name = f"{time.time_ns():020d}.parquet"
        if self._events:
            # Attributes that came to be known meanwhile are null before.
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
                    "subscriber": pa.array([who for who, _ in held.values()], pa.string()),
                    "filter": pa.array([text for _, text in held.values()], pa.string()),
                }
            ),
            "subscriptions.parquet",
        )

    def _put(self, table: pa.Table, name: str) -> None:
        """Write a file aside, and then put it in place."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.part")
        pq.write_table(table, aside)
        aside.replace(path)


def _lists(found: Matches, rows: NDArray[np.int64], names: pa.Array | None) -> pa.ListArray:
    """Return the places of some events, by number or by name."""
    some = found.take(rows)
    values = pa.array(some.index) if names is None else names.take(pa.array(some.index))
    return pa.ListArray.from_arrays(pa.array(some.indptr.astype(np.int32)), values)
