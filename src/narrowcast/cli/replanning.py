"""What `narrowcast plan` starts from, and the way from there: an earlier plan, and flows that are pinned."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa

from narrowcast.cli import options
from narrowcast.errors import ParameterError
from narrowcast.files import read_table
from narrowcast.model.artefact import read_plan
from narrowcast.model.labels import labels_in, positions
from narrowcast.model.migration import ACTIONS, migration, peak
from narrowcast.model.ownership import placed
from narrowcast.model.plan import ChannelPlan
from narrowcast.planning.base import PLANNERS, capabilities_of, planners
from narrowcast.planning.fit_report import SuccessionStep
from narrowcast.report.charts import save_chart
from narrowcast.spark.planning.planner_parameters import parameters_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from narrowcast.planning.fit_report import Succession
    from narrowcast.spark.planning.plan import PlanResult

#: The way from the plan before.
WAY = "migration.parquet"
#: Points of the curve that the terminal shows at most.
_SHOWN = 12
#: Costs that differ by no more than this share are the same.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class EarlierPlan:
    """An earlier plan to go on from, and flows that have their channel.

    Parameters
    ----------
    start, pinned
        What was read, where there is one.
    names
        Their files, as plans name them.
    space
        What the earlier plan's flows are.
    by
        What clusters are of: `subscriber`, or `subscription`.
    """

    start: ChannelPlan | None
    pinned: pa.Table | None
    names: dict[str, str]
    space: str = "topics"
    by: str = "subscriber"

    @classmethod
    def read(cls, start: Path | None, pinned: Path | None, method: str, by: str = "subscriber") -> Self:
        """Read both, for a method that takes them."""
        known = PLANNERS[method].capabilities
        fix = f"method {method!r} does not take it; leave it out, or take joint"
        if start is not None and known.warm_start == "none":
            *others, last = planners(clusters="subscribers", warm_start="optional")
            raise ParameterError(f"--from is given, and {fix}, or of clusters {', '.join(others)} or {last}")
        if pinned is not None and not known.limits:
            raise ParameterError(f"--pinned is given, and {fix}")
        names = {name: str(path) for name, path in (("from", start), ("pinned", pinned)) if path is not None}
        before, space = None, "topics"
        if start is not None:
            before, info = read_plan(start)
            space = info.flow_space
            if known.clusters != "subscribers" and space != "topics":
                raise ParameterError(
                    f"{start} is a plan of {space}, others each time; --from takes one of topics"
                    + (", and of clusters with --method direct" if _of_clusters(info.method) else "")
                )
            if (by == "subscription") != (before.subscriptions is not None):
                which = ("subscribers", "subscriptions")
                has, asked = which if by == "subscription" else which[::-1]
                fix = "leave out" if by == "subscription" else "give"
                raise ParameterError(
                    f"{start} puts {has} into clusters, and here {asked} are; {fix} --by subscription"
                )
        pins = None if pinned is None else read_table(pinned, ("flow", "channel"))
        return cls(before, pins, names, space, by)

    def check_space(self, space: str) -> None:
        """Refuse an earlier plan whose flows are of another kind than those that are planned for."""
        if self.start is not None and self.space != space:
            raise ParameterError(
                f"{self.names['from']} is a plan of {self.space}, and these inputs are of {space}; --from "
                "takes one of the same kind"
            )

    @property
    def params(self) -> dict[str, Any]:
        """What the method is given: its rows are what clusters are of."""
        start = self.start
        if start is not None and self.by == "subscription":
            start = placed(start)
        return {
            name: value for name, value in (("start", start), ("pinned", self.pinned)) if value is not None
        }

    def fitting(self, *, text: bool) -> Self:
        """Return it with flows named by text, if others name them so: CSV reads digits as numbers."""
        if self.pinned is None or not text:
            return self
        place = self.pinned.column_names.index("flow")
        flows = self.pinned["flow"].cast(pa.string())
        return replace(self, pinned=self.pinned.set_column(place, "flow", flows))

    def files(self, planned: PlanResult) -> dict[str, pa.Table | bytes]:
        """Return what is written beside the plan: the way to it, and what less or more of it would save."""
        if self.start is None:
            return {}
        report = planned.report
        plans = self.start, planned.plan
        if self.space == "events":  # which are others each time: only who listens where is to be changed
            plans = _listeners(plans[0]), _listeners(plans[1])
        way = migration(*plans, memberships=report.memberships, interest=planned.interest)
        if report.curve is None:
            return {WAY: way}
        curve = [step._asdict() for step in report.curve]
        with tempfile.TemporaryDirectory() as folder:
            records = [step | {"chosen": step["moves"] == report.moves} for step in curve]
            picture, _ = save_chart("moves", records, folder)
            return {
                WAY: way,
                "moves.parquet": pa.Table.from_pylist(curve),
                "moves.png": picture.read_bytes(),
            }

    def tables(
        self, planned: PlanResult, files: Mapping[str, pa.Table | bytes]
    ) -> dict[str, list[tuple[str, ...]]]:
        """Return what the terminal shows: what is saved after so many changes, and what they are in all."""
        if self.start is None:
            return {}
        of = ", by subscriber" if self.by == "subscription" else ""
        way: list[tuple[str, ...]] = [(f"in the migration{of}", "number")]
        way += [(name, f"{n:,}") for name, n in _counts(files).items()]
        way += [("groups of a subscriber at most, on the way", f"{self._peak(files):,}")]
        report = planned.report
        if (found := report.succession) is not None:
            return {f"From the plan before, {self._moved(found)}": way, **self._received(found, files)}
        if (curve := report.curve) is None:
            return {"From the plan before": way}
        first = curve[0].cost if curve else 0.0
        direct = any(step.direct for step in curve)
        rows: list[tuple[str, ...]] = [("moves", "filtered", "saved", *["sent directly"] * direct)]
        for step in some_of(curve, report.moves):
            saved = 100 * (1 - step.cost / first) if first else 0.0
            mark = " <" if step.moves == report.moves else ""
            cells = [f"{step.moves:,}", options.number(step.cost), f"{saved:.2f} %"]
            cells += [f"{step.direct:,}"] * direct
            rows.append((*cells[:-1], cells[-1] + mark))
        title = "Moves: groups joined and left beyond what new wants ask for"
        return {"From the plan before": way, title: rows}

    def facts(self, planned: PlanResult, files: Mapping[str, pa.Table | bytes]) -> dict[str, Any]:
        """Return what `--json` says of it."""
        if self.start is None:
            return {}
        way = {"migration": _counts(files), "memberships_on_the_way": self._peak(files)}
        report = planned.report
        if (found := report.succession) is not None:
            return {"moved": found.moved, "succession": found._asdict(), **way}
        if report.curve is None:
            return way
        return {"moves": report.moves, "curve": [list(step) for step in report.curve], **way}

    def notes(self, planned: PlanResult) -> list[str]:
        """Return what is said below: that moving does not pay, which only some methods look at."""
        found = planned.report.succession
        if found is None or found.cost <= found.kept * (1 + _ROUNDING):
            return []
        more = "" if not found.kept else f"{100 * (found.cost / found.kept - 1):.2f} % "
        method = planned.method
        said = f"clusters get {more}more than if nobody moved: {method} does not make that small; keep the "
        return [said + "plan before, or take direct, which never costs more"]

    def unwanted(self, planned: PlanResult) -> list[Any]:
        """Return the flows that are pinned, and that nobody wants: no channel carries them."""
        if self.pinned is None:
            return []
        carried = planned.plan.flows.take(np.flatnonzero(np.diff(planned.plan.carries.indptr)))
        flows = labels_in(self.pinned, "flow", "pinned")
        found: list[Any] = flows.take(np.flatnonzero(positions("flow", flows, carried) < 0)).to_pylist()
        return found

    def _moved(self, found: Succession) -> str:
        """Return how many are in another cluster than before."""
        return f"{found.moved:,} of {found.known:,} {self.by}s moved"

    def _received(
        self, found: Succession, files: Mapping[str, pa.Table | bytes]
    ) -> dict[str, list[tuple[str, ...]]]:
        """Return what moving saves, as a table; subscribers join and leave, whatever clusters are of."""
        saved = 100 * (1 - found.cost / found.kept) if found.kept else 0.0
        counts = _counts(files)
        changes = sum(counts.get(name, 0) for name in ("join", "leave"))
        finer = self.by == "subscription"
        rows: list[tuple[str, ...]] = [
            ("messages that clusters get" + (", by subscription" if finer else ""), "number"),
            ("if nobody moved", options.number(found.kept)),
            ("now", options.number(found.cost)),
            ("saved", f"{saved:.2f} %"),
        ]
        return {f"For {changes:,} groups joined and left" + (" by subscribers" if finer else ""): rows}

    def _peak(self, files: Mapping[str, pa.Table | bytes]) -> int:
        """Return the most groups that a subscriber is in at any time of the migration."""
        way = files[WAY]
        assert self.start is not None
        assert isinstance(way, pa.Table)
        return peak(self.start, way)


def _listeners(plan: ChannelPlan) -> ChannelPlan:
    """Return a plan's channels with who listens to them, and no flows."""
    nothing = np.zeros((0, plan.n_channels))
    return ChannelPlan(nothing, plan.listens, plan.parent, subscribers=plan.subscribers, flows=plan.flows[:0])


def _of_clusters(method: str) -> bool:
    """Return whether plans of a method are clusters of subscribers."""
    return capabilities_of(method).clusters == "subscribers"


def some_of(curve: Sequence[SuccessionStep], chosen: int) -> list[SuccessionStep]:
    """Return some steps of a curve: its ends, about evenly between them, and that of the plan.

    Parameters
    ----------
    curve
        By moves, ascending.
    chosen
        The moves of the plan.

    Examples
    --------
    >>> [step.moves for step in some_of([SuccessionStep(n, 9.0 - n) for n in range(30)], 11)]
    [0, 3, 5, 8, 11, 13, 16, 18, 21, 24, 26, 29]
    >>> 12 in [step.moves for step in some_of([SuccessionStep(n, 9.0 - n) for n in range(30)], 12)]
    True
    """
    last = len(curve) - 1
    some = {round(i * last / (_SHOWN - 1)) for i in range(_SHOWN)} if curve else set()
    some |= {i for i, step in enumerate(curve) if step.moves == chosen}
    return [curve[i] for i in sorted(some)]


def _counts(files: Mapping[str, pa.Table | bytes]) -> dict[str, int]:
    """Return how many rows of each kind the migration has."""
    way = files[WAY]
    assert isinstance(way, pa.Table)
    counts = {row["values"]: row["counts"] for row in way["action"].value_counts().to_pylist()}
    return {name: counts[name] for name in ACTIONS if name in counts}


class PlanningProgress:
    """What a planner tells while it works, as a line: what its plan costs, and the least it has cost."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._least = say, float("inf")

    def __call__(self, cost: float) -> None:
        """Say what it costs."""
        self._least = min(cost, self._least)
        now, least = options.number(cost), options.number(self._least)
        self._say(f"cost {now}" + (f", at best {least}" if now != least else ""))


def method_for(
    method: str,
    params: Collection[str],
    given: Sequence[object],
    cost: str | None,
    before: str | None = None,
) -> str:
    """Return the method that is meant: `joint` for `auto` where it is that, or only that takes what is given.

    An earlier plan of clusters, or one for false positives, is one that `direct` goes on from.

    Parameters
    ----------
    method
        As it was asked for.
    params
        Names of parameters that are given.
    given
        Options that `auto` has not, an earlier plan first; None where one is left out.
    cost
        What to plan for, where it is said.
    before
        The method of the earlier plan.

    Examples
    --------
    >>> method_for("auto", ["memberships"], [], None), method_for("auto", ["beta"], [None], "waste")
    ('joint', 'auto')
    >>> method_for("auto", ["moves"], ["plan", None, None], "false-positives", "joint")
    'direct'
    >>> method_for("auto", [], ["plan", None, None], None, "ncut")
    'direct'
    """
    start, *others = given or (None,)
    clusters = cost == "false-positives" or (
        before is not None and _of_clusters(before) and cost != "filtering"
    )
    if method == "auto" and clusters and start is not None and not any(others):
        return "direct"
    own = parameters_of("joint").keys() - parameters_of("auto").keys() - {"alpha", "beta"}
    asked = any(each is not None for each in given) or cost == "filtering" or own & set(params)
    return "joint" if method == "auto" and asked else method
