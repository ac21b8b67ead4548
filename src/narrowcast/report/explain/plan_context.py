"""What is known beside a plan: who wants what, from tables like those that it was made from."""

from __future__ import annotations

import difflib
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.errors import ParameterError, PlanError, SchemaError, TableError
from narrowcast.files import read_table
from narrowcast.filters.subscriptions import COLUMNS, CompiledTable, compile_filters
from narrowcast.filters.type_inference import infer_schema
from narrowcast.matching import matcher_for
from narrowcast.model.artefact import read_plan
from narrowcast.model.cells import CellGrid
from narrowcast.model.events import EventBatch
from narrowcast.model.interest import Interest
from narrowcast.model.labels import labels_in, positions
from narrowcast.model.relation import relation_of, rows_of
from narrowcast.model.schema import EVENT_ID, Schema
from narrowcast.model.types import DataType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from narrowcast.model.labels import Labels
    from narrowcast.model.relation import Positions, Relation

#: Filters that types are taken from, where nothing else tells them.
SAMPLE = 2_000
#: Types that the ends of a grid may be of, where nothing else tells; keys of other widths are the same.
_TYPES = ("double", "bigint", "date", "timestamp")


class PlanContext:
    """A plan, and what tables say of those that it serves; each is read when it is asked for.

    Parameters
    ----------
    folder
        The plan.
    subscriptions
        Table of filters: who is interested in an event; for a plan of cells or events also who wants what.
    events
        Table of events: their types, and for a plan of cells or events how often they happen.
    interests, rates
        Tables that say who wants which flow, and how often each has an event.
    schema
        The types of events, where `events` are not given.
    event
        The one that is asked about: it may tell types where nothing else does.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        subscriptions: str | Path | None = None,
        events: str | Path | None = None,
        interests: str | Path | None = None,
        rates: str | Path | None = None,
        schema: str | Path | None = None,
        event: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.plan, self.info = read_plan(folder)
        if self.info.flow_space == "ranges":
            raise PlanError("the plan's flows are ranges of a partitioner; give one that has channels")
        if events is not None and schema is not None:
            raise ParameterError("give --schema or --events, not both: the events carry their own types")
        self._subscriptions, self._events, self._schema = subscriptions, events, schema
        self._interests, self._rates, self._event = interests, rates, event or {}

    @property
    def flow_space(self) -> str:
        """What the plan's flows are."""
        return self.info.flow_space

    @cached_property
    def filters(self) -> pa.Table | None:
        """The subscriptions as they are in their table."""
        return None if self._subscriptions is None else read_table(self._subscriptions, COLUMNS)

    @property
    def compiled(self) -> CompiledTable | None:
        """The subscriptions, ready to be matched, and the rows that are bad."""
        return self._read[1]

    @property
    def schema(self) -> Schema:
        """The types of events: as they are given, or such as filters, the event and the grid go with."""
        return self._read[0]

    @cached_property
    def _read(self) -> tuple[Schema, CompiledTable | None]:
        """The types of events, and the subscriptions by these types."""
        types = None
        if self._schema is not None:
            types = Schema.read(self._schema)
        elif self.events is not None:
            types = Schema.from_arrow(self.events.schema)
        if self.filters is None:
            return self._fitting(types or Schema((), ())), None
        if types is not None:
            types = self._fitting(types)
            return types, compile_filters(types, self.filters)
        n = self.filters.num_rows
        some = self.filters.take(pa.array(np.arange(0, n, -(-n // SAMPLE) or 1)))
        found = self._inferred(some, self.filters)
        # Types that serve some serve most; what is whole in these and a fraction in others compares alike.
        if found[1].rejected.num_rows and some.num_rows < n:
            found = self._inferred(self.filters, self.filters)
        return found

    def _inferred(self, some: pa.Table, filters: pa.Table) -> tuple[Schema, CompiledTable]:
        """Return the types that some filters ask for, and all filters by these types."""
        texts = some["filter"].drop_null().to_pylist()
        types = infer_schema(text for text in texts if isinstance(text, str))
        types = self._fitting(_widened(types, self._event))
        return types, compile_filters(types, filters)

    @cached_property
    def reasons(self) -> dict[tuple[Any, Any], str]:
        """Why subscriptions are bad, by id and filter."""
        if self.compiled is None:
            return {}
        rows = self.compiled.rejected.select(["subscription_id", "filter", "reason"]).to_pylist()
        return {(row["subscription_id"], row["filter"]): row["reason"] for row in rows}

    @cached_property
    def events(self) -> pa.Table | None:
        """The events as they are in their table."""
        return None if self._events is None else read_table(self._events, (EVENT_ID,))

    @cached_property
    def cells(self) -> pa.Table | None:
        """The ends of the plan's cells."""
        path = self.folder / "cells.parquet"
        return read_table(path, ("flow", "lo", "hi")) if path.exists() else None

    @cached_property
    def grid(self) -> CellGrid | None:
        """What divides the event space, for a plan of cells."""
        return None if self._edges is None else CellGrid.of_keys(self.schema, self._edges)

    @cached_property
    def _rates_said(self) -> list[float | None]:
        table = read_table(self.folder / "channels.parquet").sort_by("channel")
        found: list[float | None] = table["rate"].cast(pa.float64()).to_pylist()
        return found

    def said_rate(self, channel: int) -> float | None:
        """Return what the plan says of the messages in a channel, None where it does not."""
        return self._rates_said[channel]

    @cached_property
    def interest(self) -> Interest | None:
        """Who wants which of the plan's flows, labelled as the plan is; None where nothing tells."""
        if self._interests is not None:
            return self._told()
        if self._rates is not None and self.flow_space == "topics":
            raise ParameterError("--rates is given without --interests; give both, or neither")
        if self.filters is None or self.flow_space == "topics":
            return None
        if self.flow_space == "cells":
            return self._in_cells()
        return None if self.events is None else self._in_events(self.events)

    @cached_property
    def wants(self) -> Relation:
        """Who wants what, among the plan's own subscribers and flows."""
        interest, plan = self.interest, self.plan
        assert interest is not None
        row = positions("subscriber", interest.subscribers, plan.subscribers)[rows_of(interest.wants)]
        column = positions("flow", interest.flows, plan.flows)[interest.wants.indices]
        known = (row >= 0) & (column >= 0)
        return relation_of(row[known], column[known], (plan.n_subscribers, plan.n_flows))

    @property
    def alike(self) -> bool:
        """Whether nothing tells how often flows have events, so that each counts 1."""
        counted = self._events is not None and self.flow_space == "cells" and self._interests is None
        return self._rates is None and self.flow_space != "events" and not counted

    def flow(self, position: int) -> dict[str, Any]:
        """Return one of the plan's flows as JSON has it: its label, and for a cell its ends."""
        label = self.plan.flows[position].as_py()
        return {"flow": label} | ({} if self._edges is None else {"cell": self.ends(label)})

    def ends(self, cell: int) -> dict[str, list[float | None]]:
        """Return the ends (lo, hi] of a cell by attribute; None for a side that is open."""
        assert self.grid is not None
        lo, hi = self.grid.bounds([cell])
        return {
            name: [end if np.isfinite(end) else None for end in (lo[0, i].item(), hi[0, i].item())]
            for i, name in enumerate(self.grid.attributes)
        }

    @cached_property
    def _edges(self) -> dict[str, list[int]] | None:
        """The keys that part the cells of the plan's grid, by attribute."""
        if self.flow_space != "cells":
            return None
        found = self.info.params.get("grid")
        if not isinstance(found, dict):
            raise PlanError(f"{self.folder} is a plan of cells without its grid; make it again")
        return found

    def _fitting(self, types: Schema) -> Schema:
        """Return a schema in which the keys of the grid, if any, are the ends that the plan's cells have."""
        named = dict(zip(types.names, types.types, strict=True))
        for i, (name, keys) in enumerate((self._edges or {}).items()):
            spelt = next((each for each in named if each.lower() == name.lower()), name)
            given = [named[spelt]] if spelt in named else []
            told = self._ends_along(i)
            fitting = [t for t in (*given, *map(DataType, _TYPES)) if told <= _ends(t, keys)]
            if not fitting or (given and fitting[0] != given[0] and self._typed):
                raise SchemaError(
                    f"attribute {name!r} is {given[0] if given else 'of no known type'}, which the cells of "
                    f"{self.folder} are not; give the types of the events that it was made from: --schema"
                )
            named[spelt] = fitting[0]
        return Schema(tuple(named), tuple(named.values()))

    @property
    def _typed(self) -> bool:
        return self._schema is not None or self._events is not None

    def _ends_along(self, axis: int) -> set[float]:
        """Return the finite ends of the plan's cells along an attribute."""
        if self.cells is None:
            return set()
        ends = [row[axis] for side in ("lo", "hi") for row in self.cells[side].to_pylist()]
        return {end for end in ends if np.isfinite(end)}

    def _told(self) -> Interest:
        """Return the interest of the tables."""
        assert self._interests is not None
        interests = read_table(self._interests, ("subscriber", "flow"))
        rates = None if self._rates is None else read_table(self._rates, ("flow", "rate"))
        interests = self._labelled(interests, "subscriber", "interests")
        interests = self._labelled(interests, "flow", "interests")
        return Interest.from_tables(interests, rates and self._labelled(rates, "flow", "rates"))

    def _labelled(self, table: pa.Table, name: str, where: str) -> pa.Table:
        """Return a table whose labels are of the plan's type: 7 and "7" are the same."""
        like = self.plan.subscribers if name == "subscriber" else self.plan.flows
        found = alike(labels_in(table, name, where), like, f"column {name!r} of {where}")
        return table.set_column(table.column_names.index(name), name, found)

    def _in_cells(self) -> Interest:
        """Return the interest in the plan's cells: whose boxes meet them."""
        assert self.grid is not None
        assert self.compiled is not None
        flows = np.asarray(self.plan.flows, np.int64)
        good = self.grid.rounded(self.compiled.subscriptions)
        met = matcher_for(len(good), len(flows)).fit(good).match(self.grid.points(flows))
        rate = np.ones(len(flows))
        if self._rates is not None:
            rates = self._labelled(read_table(self._rates, ("flow", "rate")), "flow", "rates")
            place = positions("flow", rates["flow"].combine_chunks(), self.plan.flows)
            rate[place[place >= 0]] = rates["rate"].to_numpy()[place >= 0]
        elif self.events is not None:
            cell = self.grid.cell_of(EventBatch.from_arrow(self.events, self.schema))
            found, count = np.unique(cell, return_counts=True)
            rate = np.zeros(len(flows))
            place = positions("flow", pa.array(flows), pa.array(found))
            rate[place >= 0] = count[place[place >= 0]] / len(cell)
        wants = relation_of(good.subscriber[met.index], met.rows(), (good.n_subscribers, len(flows)))
        names = alike(good.subscribers, self.plan.subscribers, "subscribers")
        return Interest(wants, rate, names, self.plan.flows)

    def _in_events(self, events: pa.Table) -> Interest:
        """Return the interest in those of the plan's events that the table has."""
        assert self.compiled is not None
        batch = EventBatch.from_arrow(events, self.schema)
        ours = positions("flow", pa.array(batch.event_id), self.plan.flows.cast(pa.int64()))
        batch = EventBatch.from_arrow(events.take(pa.array(np.flatnonzero(ours >= 0))), self.schema)
        good = self.compiled.subscriptions
        met = matcher_for(len(good), len(batch)).fit(good).match(batch)
        wants = relation_of(good.subscriber[met.index], met.rows(), (good.n_subscribers, len(batch)))
        names = alike(good.subscribers, self.plan.subscribers, "subscribers")
        return Interest(wants, None, names, pa.array(batch.event_id).cast(self.plan.flows.type))


def alike(labels: Labels, like: Labels, what: str) -> Labels:
    """Return labels as others are, integers or text."""
    try:
        return labels.cast(like.type)
    except pa.ArrowInvalid:
        raise TableError(
            f"{what} has labels of type {labels.type}, and the plan {like.type}; give a table like the one "
            "that it was made from"
        ) from None


def place_of(what: str, text: str, labels: Labels) -> int:
    """Return where a label stands, however it is typed; one that is not there is an error with its like.

    Examples
    --------
    >>> place_of("subscriber", "7", pa.array([5, 7]))
    1
    >>> place_of("subscriber", "amn", pa.array(["ann", "bob"]))
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: there is no subscriber 'amn'; did you mean 'ann'?
    """
    found: int = pc.index(labels.cast(pa.string()), text).as_py()
    if found >= 0:
        return found
    if len(labels) == 0:
        hint = "there are none"
    elif pa.types.is_integer(labels.type):
        ends = pc.min_max(labels).as_py()
        hint = f"they are numbers from {ends['min']} to {ends['max']}"
    else:
        names = labels.to_pylist()
        close = difflib.get_close_matches(text, names, 3)
        some = ", ".join(map(repr, close or names[:3]))
        hint = f"did you mean {some}?" if close else f"there are {len(names):,}, such as {some}"
    raise ParameterError(f"there is no {what} {text!r}; {hint}")


def row_of(pairs: Relation, row: int) -> Positions:
    """Return the columns of a row; none for a row of -1."""
    some = slice(*pairs.indptr[row : row + 2]) if row >= 0 else slice(0)
    return pairs.indices[some].astype(np.int64)


def any_of(pairs: Relation, columns: Positions) -> NDArray[np.bool_]:
    """Return which rows have any of some columns."""
    return np.asarray(pairs[:, columns].sum(axis=1)).ravel() > 0


def first_labels(labels: Labels, which: Positions, most: int) -> list[Any]:
    """Return the first of some labels."""
    found: list[Any] = labels.take(pa.array(which[:most], pa.int64())).to_pylist()
    return found


def _widened(types: Schema, event: Mapping[str, Any]) -> Schema:
    """Return a schema in which a whole number may have a fraction where the event's has one."""
    given = {name.lower(): value for name, value in event.items()}
    kinds = (
        DataType("double") if t.family == "integer" and isinstance(given.get(name.lower()), float) else t
        for name, t in zip(types.names, types.types, strict=True)
    )
    return Schema(types.names, tuple(kinds))


def _ends(kind: DataType, keys: list[int]) -> set[float]:
    """Return the values that keys stand for in a type; none where it has no numbers."""
    try:
        grid = CellGrid.of_keys(Schema(("x",), (kind,)), {"x": keys})
        return set(grid.bounds(np.arange(len(keys)))[1].ravel().tolist())
    except SchemaError:
        return set()
