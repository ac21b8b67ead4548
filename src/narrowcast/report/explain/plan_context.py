"""A plan together with the tables that explain it: filters, events, interests and rates."""

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

#: Number of filters that attribute types are inferred from if neither events nor a schema are given.
SAMPLE = 2_000
#: Candidate types of the ends of a grid if no type is known; the keys of narrower types are the same.
_TYPES = ("double", "bigint", "date", "timestamp")


class PlanContext:
    """A plan and the tables that explain it; a table is read when it is first needed.

    Parameters
    ----------
    folder
        Folder of the plan.
    subscriptions
        Table of filters: they determine the subscribers interested in an event and, for a plan of cells or
        events, the interest.
    events
        Table of events: they determine the types of attributes and, for a plan of cells or events, the rates
        of flows.
    interests, rates
        Table of the flows that each subscriber wants, and of the rate of each flow.
    schema
        File with the types of attributes; not with `events`, which have types.
    event
        The event to explain; its values help to infer types.

    Raises
    ------
    PlanError
        When the folder has no plan, or one for partitioning.
    ParameterError
        When both `events` and `schema` are given.
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
            raise PlanError(f"{folder}: the plan has ranges for partitioning; give a plan with channels")
        if events is not None and schema is not None:
            raise ParameterError(
                parameter="schema",
                value=str(schema),
                limit="omitted if events are given, because events have types",
            )
        self._subscriptions, self._events, self._schema = subscriptions, events, schema
        self._interests, self._rates, self._event = interests, rates, event or {}

    @property
    def flow_space(self) -> str:
        """What a flow of the plan is: `topics`, `cells` or `events`."""
        return self.info.flow_space

    @cached_property
    def filters(self) -> pa.Table | None:
        """The table of subscriptions, unchanged."""
        return None if self._subscriptions is None else read_table(self._subscriptions, COLUMNS)

    @property
    def compiled(self) -> CompiledTable | None:
        """The compiled subscriptions and the rejected rows."""
        return self._read[1]

    @property
    def schema(self) -> Schema:
        """The types of attributes: given, or inferred from the filters, the event and the plan's grid."""
        return self._read[0]

    @cached_property
    def _read(self) -> tuple[Schema, CompiledTable | None]:
        """The types of attributes, and the subscriptions compiled with these types."""
        types = None
        if self._schema is not None:
            types = Schema.read(self._schema)
        elif self.events is not None:
            types = Schema.from_arrow(self.events.schema)
        if self.filters is None:
            return self._fit_to_grid(types or Schema((), ())), None
        if types is not None:
            types = self._fit_to_grid(types)
            return types, compile_filters(types, self.filters)
        n = self.filters.num_rows
        sample = self.filters.take(pa.array(np.arange(0, n, -(-n // SAMPLE) or 1)))
        found = self._infer(sample, self.filters)
        # Types of a sample usually suffice for all: an integer and a double type compare alike.
        if found[1].rejected.num_rows and sample.num_rows < n:
            found = self._infer(self.filters, self.filters)
        return found

    def _infer(self, sample: pa.Table, filters: pa.Table) -> tuple[Schema, CompiledTable]:
        """Return the types that a sample of filters implies, and all filters compiled with them."""
        texts = sample["filter"].drop_null().to_pylist()
        types = infer_schema(text for text in texts if isinstance(text, str))
        types = self._fit_to_grid(_with_fractions(types, self._event))
        return types, compile_filters(types, filters)

    @cached_property
    def reasons(self) -> dict[tuple[Any, Any], str]:
        """Reasons of rejected subscriptions, by id and filter."""
        if self.compiled is None:
            return {}
        rows = self.compiled.rejected.select(["subscription_id", "filter", "reason"]).to_pylist()
        return {(row["subscription_id"], row["filter"]): row["reason"] for row in rows}

    @cached_property
    def events(self) -> pa.Table | None:
        """The table of events, unchanged."""
        return None if self._events is None else read_table(self._events, (EVENT_ID,))

    @cached_property
    def cells(self) -> pa.Table | None:
        """The table of the plan's cells with their ends (`flow`, `lo`, `hi`); None if the plan has none."""
        path = self.folder / "cells.parquet"
        return read_table(path, ("flow", "lo", "hi")) if path.exists() else None

    @cached_property
    def grid(self) -> CellGrid | None:
        """The grid that divides the event space, for a plan of cells."""
        return None if self._edges is None else CellGrid.of_keys(self.schema, self._edges)

    @cached_property
    def _planned_rates(self) -> list[float | None]:
        table = read_table(self.folder / "channels.parquet").sort_by("channel")
        found: list[float | None] = table["rate"].cast(pa.float64()).to_pylist()
        return found

    def planned_rate(self, channel: int) -> float | None:
        """Return the rate of a channel stored in the plan, in messages per second; None if not stored."""
        return self._planned_rates[channel]

    @cached_property
    def interest(self) -> Interest | None:
        """The interest in the plan's flows, with labels of the plan's types; None if no table gives it."""
        if self._interests is not None:
            return self._interest_of_tables()
        if self._rates is not None and self.flow_space == "topics":
            raise ParameterError(
                parameter="rates", value=str(self._rates), limit="given together with interests"
            )
        if self.filters is None or self.flow_space == "topics":
            return None
        if self.flow_space == "cells":
            return self._interest_in_cells()
        return None if self.events is None else self._interest_in_events(self.events)

    @cached_property
    def wants(self) -> Relation:
        """The interest restricted to the subscribers and flows of the plan, by position."""
        interest, plan = self.interest, self.plan
        assert interest is not None
        row = positions("subscriber", interest.subscribers, plan.subscribers)[rows_of(interest.wants)]
        column = positions("flow", interest.flows, plan.flows)[interest.wants.indices]
        in_plan = (row >= 0) & (column >= 0)
        return relation_of(row[in_plan], column[in_plan], (plan.n_subscribers, plan.n_flows))

    @property
    def alike(self) -> bool:
        """Whether the rates of flows are unknown, so that each flow has rate 1."""
        counted = self._events is not None and self.flow_space == "cells" and self._interests is None
        return self._rates is None and self.flow_space != "events" and not counted

    def flow(self, position: int) -> dict[str, Any]:
        """Return a flow of the plan as JSON values: its label and, for a cell, its ends."""
        label = self.plan.flows[position].as_py()
        return {"flow": label} | ({} if self._edges is None else {"cell": self.ends(label)})

    def ends(self, cell: int) -> dict[str, list[float | None]]:
        """Return the ends (lo, hi] of a cell by attribute; None for an infinite end."""
        assert self.grid is not None
        lo, hi = self.grid.bounds([cell])
        return {
            name: [end if np.isfinite(end) else None for end in (lo[0, i].item(), hi[0, i].item())]
            for i, name in enumerate(self.grid.attributes)
        }

    @cached_property
    def _edges(self) -> dict[str, list[int]] | None:
        """Sorted keys of the boundaries between cells, by attribute; None for a plan without cells."""
        if self.flow_space != "cells":
            return None
        found = self.info.params.get("grid")
        if not isinstance(found, dict):
            raise PlanError(f"{self.folder}: the plan of cells has no grid; compute the plan again")
        return found

    def _fit_to_grid(self, types: Schema) -> Schema:
        """Return a schema whose types turn the keys of the plan's grid into the ends of its cells."""
        named = dict(zip(types.names, types.types, strict=True))
        for i, (name, keys) in enumerate((self._edges or {}).items()):
            spelling = next((each for each in named if each.lower() == name.lower()), name)
            given = [named[spelling]] if spelling in named else []
            cell_ends = self._ends_along(i)
            fitting = [t for t in (*given, *map(DataType, _TYPES)) if cell_ends <= _ends(t, keys)]
            if not fitting or (given and fitting[0] != given[0] and self._has_types):
                raise SchemaError(
                    f"attribute {name!r} of type {given[0] if given else 'unknown'}: does not fit the cells "
                    f"of {self.folder}; give the schema of the events that the plan was computed from",
                    parameter="schema",
                    value=str(given[0]) if given else None,
                )
            named[spelling] = fitting[0]
        return Schema(tuple(named), tuple(named.values()))

    @property
    def _has_types(self) -> bool:
        """Whether the user gave types, by a schema or by events."""
        return self._schema is not None or self._events is not None

    def _ends_along(self, axis: int) -> set[float]:
        """Return the finite ends of the plan's cells along the attribute of an index."""
        if self.cells is None:
            return set()
        ends = [row[axis] for side in ("lo", "hi") for row in self.cells[side].to_pylist()]
        return {end for end in ends if np.isfinite(end)}

    def _interest_of_tables(self) -> Interest:
        """Read the interest from the tables of interests and rates."""
        assert self._interests is not None
        interests = read_table(self._interests, ("subscriber", "flow"))
        rates = None if self._rates is None else read_table(self._rates, ("flow", "rate"))
        interests = self._cast_labels(interests, "subscriber", "interests")
        interests = self._cast_labels(interests, "flow", "interests")
        return Interest.from_tables(interests, rates and self._cast_labels(rates, "flow", "rates"))

    def _cast_labels(self, table: pa.Table, name: str, table_name: str) -> pa.Table:
        """Cast the labels of a column to the plan's type, so that 7 and "7" are equal."""
        like = self.plan.subscribers if name == "subscriber" else self.plan.flows
        found = cast_labels(labels_in(table, name, table_name), like, f"column {name!r} of {table_name}")
        return table.set_column(table.column_names.index(name), name, found)

    def _interest_in_cells(self) -> Interest:
        """Return the interest in the plan's cells: a subscriber wants the cells that its boxes intersect."""
        assert self.grid is not None
        assert self.compiled is not None
        flows = np.asarray(self.plan.flows, np.int64)
        valid = self.grid.rounded(self.compiled.subscriptions)
        matches = matcher_for(len(valid), len(flows)).fit(valid).match(self.grid.points(flows))
        rate = np.ones(len(flows))
        if self._rates is not None:
            rates = self._cast_labels(read_table(self._rates, ("flow", "rate")), "flow", "rates")
            place = positions("flow", rates["flow"].combine_chunks(), self.plan.flows)
            rate[place[place >= 0]] = rates["rate"].to_numpy()[place >= 0]
        elif self.events is not None:
            cell = self.grid.cell_of(EventBatch.from_arrow(self.events, self.schema))
            found, count = np.unique(cell, return_counts=True)
            rate = np.zeros(len(flows))
            place = positions("flow", pa.array(flows), pa.array(found))
            rate[place >= 0] = count[place[place >= 0]] / len(cell)
        wants = relation_of(
            valid.subscriber[matches.index], matches.rows(), (valid.n_subscribers, len(flows))
        )
        names = cast_labels(valid.subscribers, self.plan.subscribers, "subscribers")
        return Interest(wants, rate, names, self.plan.flows)

    def _interest_in_events(self, events: pa.Table) -> Interest:
        """Return the interest in the plan's events, as far as the table has them."""
        assert self.compiled is not None
        batch = EventBatch.from_arrow(events, self.schema)
        place = positions("flow", pa.array(batch.event_id), self.plan.flows.cast(pa.int64()))
        batch = EventBatch.from_arrow(events.take(pa.array(np.flatnonzero(place >= 0))), self.schema)
        valid = self.compiled.subscriptions
        matches = matcher_for(len(valid), len(batch)).fit(valid).match(batch)
        wants = relation_of(
            valid.subscriber[matches.index], matches.rows(), (valid.n_subscribers, len(batch))
        )
        names = cast_labels(valid.subscribers, self.plan.subscribers, "subscribers")
        return Interest(wants, None, names, pa.array(batch.event_id).cast(self.plan.flows.type))


def cast_labels(labels: Labels, like: Labels, name: str) -> Labels:
    """Cast labels to the type of other labels, integers or text; `name` is for the error message."""
    try:
        return labels.cast(like.type)
    except pa.ArrowInvalid:
        raise TableError(
            f"{name}: labels of type {labels.type} do not fit the plan, which has {like.type}; give the "
            "table that the plan was computed from, or a similar one"
        ) from None


def place_of(kind: str, text: str, labels: Labels) -> int:
    """Return the position of a label that is given as text, or raise an error that suggests similar labels.

    Parameters
    ----------
    kind
        What the label names, such as `subscriber`; for the error message.
    text
        The label as text, also if the labels are integers.
    labels
        All labels.

    Raises
    ------
    ParameterError
        When there is no such label.

    Examples
    --------
    >>> place_of("subscriber", "7", pa.array([5, 7]))
    1
    >>> place_of("subscriber", "amn", pa.array(["ann", "bob"]))
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: unknown subscriber 'amn'; did you mean 'ann'?
    """
    found: int = pc.index(labels.cast(pa.string()), text).as_py()
    if found >= 0:
        return found
    if len(labels) == 0:
        hint = f"there are no {kind}s"
    elif pa.types.is_integer(labels.type):
        ends = pc.min_max(labels).as_py()
        hint = f"known: integers from {ends['min']} to {ends['max']}"
    else:
        names = labels.to_pylist()
        close = difflib.get_close_matches(text, names, 3)
        examples = ", ".join(map(repr, close or names[:3]))
        hint = f"did you mean {examples}?" if close else f"known: {len(names):,}, such as {examples}"
    raise ParameterError(f"unknown {kind} {text!r}; {hint}", parameter=kind, value=text)


def row_of(pairs: Relation, row: int) -> Positions:
    """Return the columns that a row of a relation is paired with; an empty array for row -1."""
    some = slice(*pairs.indptr[row : row + 2]) if row >= 0 else slice(0)
    return pairs.indices[some].astype(np.int64)


def any_of(pairs: Relation, columns: Positions) -> NDArray[np.bool_]:
    """Return for each row of a relation whether it is paired with at least one of the columns."""
    return np.asarray(pairs[:, columns].sum(axis=1)).ravel() > 0


def first_labels(labels: Labels, places: Positions, most: int) -> list[Any]:
    """Return the labels at the first `most` of the given positions."""
    found: list[Any] = labels.take(pa.array(places[:most], pa.int64())).to_pylist()
    return found


def _with_fractions(types: Schema, event: Mapping[str, Any]) -> Schema:
    """Return a schema in which integer attributes are doubles if the event has a float for them."""
    given = {name.lower(): value for name, value in event.items()}
    kinds = (
        DataType("double") if t.family == "integer" and isinstance(given.get(name.lower()), float) else t
        for name, t in zip(types.names, types.types, strict=True)
    )
    return Schema(types.names, tuple(kinds))


def _ends(kind: DataType, keys: list[int]) -> set[float]:
    """Return the values of grid keys in a type; an empty set for a type without grid keys."""
    try:
        grid = CellGrid.of_keys(Schema(("x",), (kind,)), {"x": keys})
        return set(grid.bounds(np.arange(len(keys)))[1].ravel().tolist())
    except SchemaError:
        return set()
