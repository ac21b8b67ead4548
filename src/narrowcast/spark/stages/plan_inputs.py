"""What a plan is made from, or evaluated on: an interest, out of whatever tables are given."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from narrowcast.errors import ParameterError, TableError
from narrowcast.model.cells import NUMBERS, CellGrid
from narrowcast.planning.cells.grids import adaptive_grid
from narrowcast.spark.progress import watched
from narrowcast.spark.sources.rows import fingerprint, fingerprinted
from narrowcast.spark.sources.tables import ingest
from narrowcast.spark.spark_errors import plainly
from narrowcast.spark.stages.bounding_boxes import boxes_of
from narrowcast.spark.stages.cells import cell_rates, from_cells
from narrowcast.spark.stages.changes import from_changes, up_to
from narrowcast.spark.stages.estimate import sample_events, sample_subscriptions
from narrowcast.spark.stages.interest import InterestFrames, from_matches, from_topics
from narrowcast.spark.stages.match_inputs import MatchInputs, reasons_of
from narrowcast.spark.storage import size_of
from narrowcast.spark.streaming.interest_state import InterestState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession
    from rich.progress import Progress

    from narrowcast.model.schema import Schema
    from narrowcast.spark.stages.estimate import Estimate

#: What flows can be made of events and subscriptions.
FLOWS = ("events", "cells")


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """Tables, and what flows to make of them.

    Parameters
    ----------
    interests, rates
        Who wants which topic, and how often each sends.
    changes, until
        What was subscribed to and unsubscribed from since `interests`, or from nothing; and the last moment
        that counts, all of them where left out.
    subscriptions, events
        Filters and events instead.
    state
        The state of a stream instead of all tables: see `InterestState`.
    flows
        Of those: `events` that were matched, or `cells` of a grid over the event space.
    recent, last, window
        Which events: see `from_matches`.
    cells, top, grid
        How many cells to cut each attribute in, by how many events fall in them: as many as pays where left
        out (`adaptive_grid`). How many of them to keep. Or the edges of a grid by attribute, as keys, which
        those of a state have to be.
    schema, strict, strategy, memory, seed
        How to read and to match.
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
            if value is not None and value < 1:
                raise ParameterError(f"--{name} is {value}; give a whole number of at least 1")
        if self.window is not None and not 0 < self.window < math.inf:
            raise ParameterError(f"--window is {self.window}; give a positive number of seconds")
        events = [name for name, value in self.chosen.items() if value is not None]
        if self.until is not None and self.changes is None:
            raise ParameterError("--until says which changes count; give them by --changes, or leave it out")
        if self.state is not None:
            self._check_state(events)
        elif self.of_topics:
            name = "--interests" if self.changes is None else "--changes"
            if odd := self._of_content(events):
                raise ParameterError(f"{odd} goes with --subscriptions and --events, not with {name}")
            if self.subscriptions is not None or self.events is not None:
                raise ParameterError(f"{name} goes without --subscriptions and --events; give one or two")
        elif self.subscriptions is None or self.events is None:
            raise ParameterError("give --interests, or both --subscriptions and --events, or --state")
        elif self.rates is not None:
            raise ParameterError("--rates goes with --interests; rates of events are taken from the events")
        if self.flows not in FLOWS:
            raise ParameterError(f"--flows is {self.flows!r}; use one of {', '.join(FLOWS)}")
        if self.flows == "cells" and events:
            raise ParameterError(f"--{events[0]} chooses among events; leave it out with --flows cells")
        if self.flows == "events" and self.top is not None:
            raise ParameterError("--top chooses among cells; leave it out, or say --flows cells")
        if self.flows == "events" and self.cells is not None:
            raise ParameterError("--cells says how many cells; leave it out, or say --flows cells")

    def _check_state(self, events: list[str]) -> None:
        """Refuse what does not go with the state of a stream, which says all itself."""
        tables = [name for name in self.paths if name != "state"]
        if tables:
            raise ParameterError(f"--{tables[0]} goes without --state; give the tables, or the state")
        if odd := self._of_content(events):
            raise ParameterError(f"{odd} goes with --subscriptions and --events, not with --state")

    def _of_content(self, events: list[str]) -> str:
        """Return an option that says what flows to make of events, if one is given."""
        given = [f"--{name}" for name in events]
        given += ["--flows"] if self.flows != "events" else []
        given += [f"--{name}" for name in ("cells", "top") if getattr(self, name) is not None]
        return given[0] if given else ""

    @property
    def of_topics(self) -> bool:
        """Whether flows are topics that tables name: not made of events, nor a stream's."""
        return self.interests is not None or self.changes is not None

    @property
    def chosen(self) -> dict[str, Any]:
        """Which events flows are made of, as `from_matches` takes it."""
        return {"recent": self.recent, "last": self.last, "window": self.window}

    @property
    def paths(self) -> dict[str, str]:
        """The tables that are given, by name."""
        names = ("interests", "rates", "changes", "subscriptions", "events", "state")
        named = {name: getattr(self, name) for name in names}
        return {name: path for name, path in named.items() if path is not None}

    def size(self, spark: SparkSession) -> int:
        """Return how many bytes the tables have."""
        return sum(size_of(spark, path) for path in self.paths.values())


@dataclass(frozen=True, slots=True)
class LoadedInterest:
    """An interest, what was found on the way, and what it was made from.

    For cells there are the edges of their grid by attribute, as keys. Of filters and events there is the
    `content`, and for flows that are events their `matches`, which are kept on disk.
    """

    frames: InterestFrames
    facts: dict[str, Any]
    fingerprints: dict[str, str]
    rejected: DataFrame | None = field(default=None, repr=False)
    edges: dict[str, list[int]] | None = None
    content: MatchInputs | None = field(default=None, repr=False)
    matches: DataFrame | None = field(default=None, repr=False)


def take(
    spark: SparkSession, inputs: PlanInputs, progress: Progress, tell: Callable[[Estimate, str], None]
) -> LoadedInterest:
    """Make an interest out of the tables given; it is kept on disk for as long as Spark runs.

    Parameters
    ----------
    spark
        Where to.
    inputs
        From what.
    progress
        Where to show how far it is.
    tell
        Called with the estimate of matching before that starts.
    """
    if inputs.state is not None:
        taken = _state(spark, inputs, inputs.state, progress)
    elif inputs.of_topics:
        taken = _topics(spark, inputs, progress)
    else:
        taken = _content(spark, inputs, progress, tell)
    with watched(spark, progress, "interest"), plainly("make the interest"):
        facts = {"wants": taken.frames.interests.count(), "flows": taken.frames.rates.count()}
    return replace(taken, facts={**taken.facts, **facts})


def _topics(spark: SparkSession, inputs: PlanInputs, progress: Progress) -> LoadedInterest:
    """Read an interest in topics."""
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
            prints[name], counts[name] = fingerprinted(each)
        if "changes" in counts:
            facts |= {"changes": counts["changes"]}
    return LoadedInterest(_kept(frames), facts, prints, rejected=bad)


def _state(spark: SparkSession, inputs: PlanInputs, folder: str, progress: Progress) -> LoadedInterest:
    """Read an interest as a stream has left it, or has it now."""
    with watched(spark, progress, "read"), plainly(f"read the state in {folder}"):
        state = InterestState.read(spark, folder)
        if inputs.grid is not None and state.grid is not None and inputs.grid != state.grid:
            raise ParameterError(
                f"the cells of {folder} are of another grid, over {', '.join(state.grid)}; "
                "give a plan that was made from this state"
            )
        totals = state.totals()
        if totals.isEmpty():
            raise TableError(f"the state in {folder} has no flows yet; let the stream go on first")
        # Weights are rounded one way or another while tables are folded; what they are made from is not.
        prints = {"state": fingerprint(totals.drop("weight"))}
    frames = state.interest(totals)
    return LoadedInterest(_kept(frames), {"rejected": 0, "reasons": {}}, prints, edges=state.grid)


def _content(
    spark: SparkSession, inputs: PlanInputs, progress: Progress, tell: Callable[[Estimate, str], None]
) -> LoadedInterest:
    """Make an interest out of filters and events."""
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
        return LoadedInterest(_kept(frames), facts, prints, content.rejected, grid.keys(), content)
    matches = content.match(strategy=inputs.strategy, memory=inputs.memory, seed=inputs.seed, tell=tell)
    matches = matches.persist(StorageLevel.DISK_ONLY)
    with plainly("find the last events"):
        frames = from_matches(matches, content.owners, content.events, **inputs.chosen)
        if any(kind.family in NUMBERS for kind in content.schema.types):
            frames = replace(frames, boxes=boxes_of(content.compiled, content.schema))
    return LoadedInterest(
        _kept(frames), content.facts, prints, rejected=content.rejected, content=content, matches=matches
    )


def _grid(content: MatchInputs, inputs: PlanInputs) -> CellGrid:
    """Return the grid given, or one over the numbers that filters bound, cut by a sample of events."""
    # First of all: a CSV file without rows has no types, and so what comes next would speak of these.
    if not content.facts["events"]:
        raise TableError(f"{inputs.events} has no rows that are events; give at least one")
    schema = content.schema
    if inputs.grid is not None:
        return CellGrid.of_keys(schema, inputs.grid)
    if not content.facts["subscriptions"]:
        raise TableError(f"{inputs.subscriptions} has no rows that are subscriptions; give at least one")
    used = set(content.columns())
    names = [
        name
        for name, kind in zip(schema.names, schema.types, strict=True)
        if kind.family in NUMBERS and name.partition(".")[0] in used
    ]
    if not names:
        raise ParameterError("no filter bounds an attribute that is a number; use --flows events instead")
    sample = sample_events(content.events, content.facts["events"], schema, inputs.seed)
    if inputs.cells is not None:
        return CellGrid.quantiles(schema, sample, inputs.cells, attributes=names)
    packed, n = content.compiled.where("payload IS NOT NULL"), content.facts["subscriptions"]
    return adaptive_grid(sample, sample_subscriptions(packed, n, schema, inputs.seed), names, top=inputs.top)


def _kept(frames: InterestFrames) -> InterestFrames:
    """Return an interest that is computed once."""
    from pyspark import StorageLevel

    level = StorageLevel.DISK_ONLY

    def kept(frame: DataFrame) -> DataFrame:
        return frame.persist(level)

    return replace(
        frames,
        interests=kept(frames.interests),
        rates=kept(frames.rates),
        cells=None if frames.cells is None else kept(frames.cells),
        subscribers=None if frames.subscribers is None else kept(frames.subscribers),
    )
