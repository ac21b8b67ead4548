"""Inputs of a plan: tables of topics, of changes, of filters and events, or a stream's state."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from narrowcast.errors import ParameterError, TableError
from narrowcast.model.cells import NUMBERS, CellGrid
from narrowcast.planning.cells.grids import adaptive_grid
from narrowcast.spark.progress import watched
from narrowcast.spark.sources.rows import fingerprint, fingerprint_and_count
from narrowcast.spark.sources.tables import ingest
from narrowcast.spark.spark_errors import plainly
from narrowcast.spark.stages.bounding_boxes import boxes_of
from narrowcast.spark.stages.cells import cell_rates, from_cells
from narrowcast.spark.stages.changes import from_changes, up_to
from narrowcast.spark.stages.estimate import sample_events, sample_subscriptions
from narrowcast.spark.stages.interest import InterestFrames, check_window, from_matches, from_topics
from narrowcast.spark.stages.match_inputs import MatchInputs, reasons_of
from narrowcast.spark.storage import size_of
from narrowcast.spark.streaming.interest_state import InterestState
from narrowcast.validation import check_choice, check_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession
    from rich.progress import Progress

    from narrowcast.model.schema import Schema
    from narrowcast.spark.stages.estimate import Estimate

#: The kinds of flows that can be made from filters and events.
FLOWS = ("events", "cells")


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """Paths of the tables that an interest is made from, and the parameters of its flows.

    Give `interests` or `changes` (or both), or `subscriptions` and `events`, or `state`.

    Parameters
    ----------
    interests, rates
        Tables of an interest in topics, and of the topics' rates.
    changes, until
        Log of subscribe and unsubscribe actions since `interests`, or from an empty interest; and the time
        up to which changes count. Default: all.
    subscriptions, events
        Tables of filters and of events.
    state
        Folder with the state of a stream: see `InterestState`.
    flows
        What a flow is when planning from filters and events: `events` (recent events) or `cells` (grid
        cells).
    recent, last, window
        Selection of events: see `from_matches`.
    cells
        Number of grid cells along each attribute, with equal numbers of events. Default: chosen by
        `adaptive_grid`.
    top
        Number of cells to keep: see `from_cells`. Default: all.
    grid
        Edges of an existing grid by attribute, as integer keys. Those of a state must be the same.
    schema, strict
        How to read the tables: see `MatchInputs`.
    strategy, memory
        How to match: see `match`.
    seed
        Seed of all samples.

    Raises
    ------
    ParameterError
        When parameters are out of range or do not go together.
    """

    interests: str | None = None
    rates: str | None = None
    changes: str | None = None
    until: datetime | None = None
    subscriptions: str | None = None
    events: str | None = None
    state: str | None = None
    flows: str = "events"
    recent: int | None = None
    last: int | None = None
    window: float | None = None
    cells: int | None = None
    top: int | None = None
    grid: Mapping[str, Sequence[int]] | None = None
    schema: Schema | None = None
    strict: bool = False
    strategy: str = "auto"
    memory: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("recent", "last", "cells", "top"):
            value = getattr(self, name)
            if value is not None:
                check_whole(name, value)
        check_window(self.window)
        selecting = [name for name, value in self.selection.items() if value is not None]
        if self.until is not None and self.changes is None:
            raise self._refused("until", "needs changes; give changes, or leave until out")
        if self.state is not None:
            self._check_state(selecting)
        elif self.of_topics:
            source = "interests" if self.changes is None else "changes"
            if name := self._of_content(selecting):
                raise self._refused(name, f"needs subscriptions and events, and must not be with {source}")
            if self.subscriptions is not None or self.events is not None:
                raise self._refused(source, "must not be with subscriptions or events; give one or the other")
        elif self.subscriptions is None or self.events is None:
            raise ParameterError(
                "the inputs are missing: give interests, or both subscriptions and events, or state",
                parameter=next(
                    (
                        missing
                        for given, missing in (("subscriptions", "events"), ("events", "subscriptions"))
                        if getattr(self, given) is not None
                    ),
                    "interests",
                ),
            )
        elif self.rates is not None:
            raise self._refused("rates", "needs interests; rates of events are computed from the events")
        check_choice("flows", self.flows, FLOWS)
        if self.flows == "cells" and selecting:
            raise self._refused(selecting[0], "needs flows='events'; leave it out with flows='cells'")
        for name in ("top", "cells"):
            if self.flows == "events" and getattr(self, name) is not None:
                raise self._refused(name, "needs flows='cells'; leave it out with flows='events'")

    def _check_state(self, selecting: list[str]) -> None:
        """Refuse parameters that cannot be combined with the state of a stream."""
        tables = [name for name in self.paths if name != "state"]
        if tables:
            raise self._refused(tables[0], "must not be with state; give tables or a state")
        if name := self._of_content(selecting):
            raise self._refused(name, "needs subscriptions and events, and must not be with state")

    def _of_content(self, selecting: list[str]) -> str:
        """Return the name of a given parameter that requires filters and events; empty if there is none."""
        names = list(selecting)
        names += ["flows"] if self.flows != "events" else []
        names += [name for name in ("cells", "top") if getattr(self, name) is not None]
        return names[0] if names else ""

    def _refused(self, name: str, problem: str) -> ParameterError:
        """Return the error for a parameter whose value cannot be used, with the name and the value."""
        value = getattr(self, name)
        shown = str(value) if name == "until" else repr(value)
        return ParameterError(f"{name}={shown}: {problem}", parameter=name, value=value)

    @property
    def of_topics(self) -> bool:
        """Whether flows are topics, from the tables `interests` or `changes`."""
        return self.interests is not None or self.changes is not None

    @property
    def selection(self) -> dict[str, Any]:
        """The selection of events, as keyword arguments of `from_matches`."""
        return {"recent": self.recent, "last": self.last, "window": self.window}

    @property
    def paths(self) -> dict[str, str]:
        """The paths of the given tables, by name."""
        names = ("interests", "rates", "changes", "subscriptions", "events", "state")
        named = {name: getattr(self, name) for name in names}
        return {name: path for name, path in named.items() if path is not None}

    def size(self, spark: SparkSession) -> int:
        """Return the total size of the given tables in bytes."""
        return sum(size_of(spark, path) for path in self.paths.values())


@dataclass(frozen=True, slots=True)
class LoadedInterest:
    """An interest loaded from tables, with its sources.

    Parameters
    ----------
    frames
        The interest.
    facts
        Counts of the tables' rows, of wanted pairs, flows and rejected rows, with reasons of rejection.
    fingerprints
        Fingerprint of each table, by name.
    rejected
        Rejected rows with their reasons; None when the interest was loaded from a state.
    edges
        For cells: the edges of their grid by attribute, as integer keys.
    content
        Filters and events, when the interest was made from these.
    matches
        Matches of the events, when flows are events; they are persisted on disk.
    """

    frames: InterestFrames
    facts: dict[str, Any]
    fingerprints: dict[str, str]
    rejected: DataFrame | None = field(default=None, repr=False)
    edges: dict[str, list[int]] | None = None
    content: MatchInputs | None = field(default=None, repr=False)
    matches: DataFrame | None = field(default=None, repr=False)


def load_interest(
    spark: SparkSession, inputs: PlanInputs, progress: Progress, on_estimate: Callable[[Estimate, str], None]
) -> LoadedInterest:
    """Load an interest from tables, and persist it on disk for as long as Spark runs.

    Parameters
    ----------
    spark
        The session to work in.
    inputs
        The tables, and the parameters of flows.
    progress
        Display of the progress.
    on_estimate
        Called with the estimate of matching and the chosen strategy before matching starts.
    """
    if inputs.state is not None:
        loaded = _from_state(spark, inputs, inputs.state, progress)
    elif inputs.of_topics:
        loaded = _from_topics(spark, inputs, progress)
    else:
        loaded = _from_content(spark, inputs, progress, on_estimate)
    with watched(spark, progress, "interest"), plainly("make the interest"):
        facts = {"wants": loaded.frames.interests.count(), "flows": loaded.frames.rates.count()}
    return replace(loaded, facts={**loaded.facts, **facts})


def _from_topics(spark: SparkSession, inputs: PlanInputs, progress: Progress) -> LoadedInterest:
    """Load an interest in topics from a table of interests, a log of changes, or both."""
    from pyspark.sql import DataFrame

    with watched(spark, progress, "read"), plainly("read the tables"):
        read = {name: ingest(spark, name, path) for name, path in inputs.paths.items()}
        bad = reduce(DataFrame.unionByName, (each.rejected for each in read.values()))
        facts = reasons_of(bad, strict=inputs.strict)
        rows = {name: each.rows for name, each in read.items()}
        for name in ("changes", "rates"):
            if name in rows:
                rows[name] = up_to(rows[name], inputs.until, name)
        if "changes" in rows:
            frames = from_changes(rows["changes"], rows.get("interests"), rows.get("rates"))
        else:
            frames = from_topics(rows["interests"], rows.get("rates"))
        prints, counts = {}, {}
        for name, each in rows.items():
            prints[name], counts[name] = fingerprint_and_count(each)
        if "changes" in counts:
            facts |= {"changes": counts["changes"]}
    return LoadedInterest(_persisted(frames), facts, prints, rejected=bad)


def _from_state(spark: SparkSession, inputs: PlanInputs, folder: str, progress: Progress) -> LoadedInterest:
    """Load the interest in the state of a stream, which may be running."""
    with watched(spark, progress, "read"), plainly(f"read the state in {folder}"):
        state = InterestState.read(spark, folder)
        if inputs.grid is not None and state.grid is not None and inputs.grid != state.grid:
            raise ParameterError(
                f"state={folder!r}: its grid, over {', '.join(state.grid)}, differs from that of the plan; "
                "give a plan that was made from this state",
                parameter="state",
                value=folder,
            )
        totals = state.totals()
        if totals.isEmpty():
            raise TableError(
                f"state={folder!r}: it has no flows yet; let the stream process events first",
                parameter="state",
                value=folder,
            )
        # Without weights: their rounding depends on when tables were folded.
        prints = {"state": fingerprint(totals.drop("weight"))}
    frames = state.interest(totals)
    return LoadedInterest(_persisted(frames), {"rejected": 0, "reasons": {}}, prints, edges=state.grid)


def _from_content(
    spark: SparkSession, inputs: PlanInputs, progress: Progress, on_estimate: Callable[[Estimate, str], None]
) -> LoadedInterest:
    """Make an interest from filters and events."""
    from pyspark import StorageLevel

    assert inputs.subscriptions is not None
    assert inputs.events is not None
    content = MatchInputs(
        spark,
        inputs.subscriptions,
        inputs.events,
        progress=progress,
        schema=inputs.schema,
        strict=inputs.strict,
    )
    prints = content.fingerprints()
    if inputs.flows == "cells":
        with watched(spark, progress, "cells"), plainly("make the cells"):
            grid = _grid(content, inputs)
            rates = cell_rates(content.events, grid).persist(StorageLevel.DISK_ONLY)
            frames = from_cells(None, content.compiled, grid, top=inputs.top, density=rates)
        facts = content.facts | {"cells": dict(zip(grid.attributes, grid.shape, strict=True))}
        return LoadedInterest(_persisted(frames), facts, prints, content.rejected, grid.keys(), content)
    matches = content.match(
        strategy=inputs.strategy, memory=inputs.memory, seed=inputs.seed, on_estimate=on_estimate
    )
    matches = matches.persist(StorageLevel.DISK_ONLY)
    with plainly("select the recent events"):
        frames = from_matches(matches, content.owners, content.events, **inputs.selection)
        if any(kind.family in NUMBERS for kind in content.schema.types):
            frames = replace(frames, boxes=boxes_of(content.compiled, content.schema))
    return LoadedInterest(
        _persisted(frames), content.facts, prints, rejected=content.rejected, content=content, matches=matches
    )


def _grid(content: MatchInputs, inputs: PlanInputs) -> CellGrid:
    """Return the given grid, or make one over the numeric attributes in filters from a sample of events."""
    # Checked first: a CSV file without rows has no types, and later errors would be about the types.
    if not content.facts["events"]:
        raise TableError(parameter="events", value=inputs.events, limit="a table with at least one valid row")
    schema = content.schema
    if inputs.grid is not None:
        return CellGrid.of_keys(schema, inputs.grid)
    if not content.facts["subscriptions"]:
        raise TableError(
            parameter="subscriptions",
            value=inputs.subscriptions,
            limit="a table with at least one valid row",
        )
    used = set(content.columns())
    names = [
        name
        for name, kind in zip(schema.names, schema.types, strict=True)
        if kind.family in NUMBERS and name.partition(".")[0] in used
    ]
    if not names:
        raise ParameterError(
            "flows='cells': needs a filter with a numeric attribute; use flows='events' instead",
            parameter="flows",
            value="cells",
        )
    sample = sample_events(content.events, content.facts["events"], schema, inputs.seed)
    if inputs.cells is not None:
        return CellGrid.quantiles(schema, sample, inputs.cells, attributes=names)
    packed, n = content.compiled.where("payload IS NOT NULL"), content.facts["subscriptions"]
    return adaptive_grid(sample, sample_subscriptions(packed, n, schema, inputs.seed), names, top=inputs.top)


def _persisted(frames: InterestFrames) -> InterestFrames:
    """Persist the tables of an interest on disk, so that each is computed once."""
    from pyspark import StorageLevel

    level = StorageLevel.DISK_ONLY

    def persist(frame: DataFrame) -> DataFrame:
        return frame.persist(level)

    return replace(
        frames,
        interests=persist(frames.interests),
        rates=persist(frames.rates),
        cells=None if frames.cells is None else persist(frames.cells),
        subscribers=None if frames.subscribers is None else persist(frames.subscribers),
    )
