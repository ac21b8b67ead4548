"""The earlier plan and pinned flows of `narrowcast plan`, and the migration from that plan."""

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

#: File of the migration from the earlier plan.
MIGRATION = "migration.parquet"
#: Maximum number of points of a curve that are printed.
_SHOWN = 12
#: Relative difference up to which two costs count as equal.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class EarlierPlan:
    """An earlier plan to start from, and flows whose channel is fixed.

    Parameters
    ----------
    start, pinned
        The earlier plan and the table of pinned flows; None where not given.
    names
        Their paths, by the names that `plan.json` has for them.
    space
        Kind of the earlier plan's flows.
    by
        What is clustered: `subscriber` or `subscription`.
    """

    start: ChannelPlan | None
    pinned: pa.Table | None
    names: dict[str, str]
    space: str = "topics"
    by: str = "subscriber"

    @classmethod
    def read(cls, start: Path | None, pinned: Path | None, method: str, by: str = "subscriber") -> Self:
        """Read both, after checking that the method takes them."""
        known = PLANNERS[method].capabilities
        fix = f"method {method!r} does not take it; leave it out, or use joint"
        if start is not None and known.warm_start == "none":
            *more, last = planners(clusters="subscribers", warm_start="optional")
            raise ParameterError(
                f"--from={str(start)!r}: {fix}, or to cluster subscribers {', '.join(more)} or {last}",
                parameter="start",
                value=start,
            )
        if pinned is not None and not known.limits:
            raise ParameterError(f"--pinned={str(pinned)!r}: {fix}", parameter="pinned", value=pinned)
        names = {name: str(path) for name, path in (("from", start), ("pinned", pinned)) if path is not None}
        before, space = None, "topics"
        if start is not None:
            before, info = read_plan(start)
            space = info.flow_space
            if known.clusters != "subscribers" and space != "topics":
                raise ParameterError(
                    f"--from={str(start)!r}: its flows are {space}, which differ between plans; must be a "
                    "plan of "
                    + ("topics, or use --method direct" if _clusters_subscribers(info.method) else "topics"),
                    parameter="start",
                    value=start,
                )
            if (by == "subscription") != (before.subscriptions is not None):
                kinds = ("subscribers", "subscriptions")
                has, _ = kinds if by == "subscription" else kinds[::-1]
                fix = "leave out" if by == "subscription" else "give"
                raise ParameterError(
                    f"--from={str(start)!r}: clusters {has}; {fix} --by subscription",
                    parameter="start",
                    value=start,
                )
        pins = None if pinned is None else read_table(pinned, ("flow", "channel"))
        return cls(before, pins, names, space, by)

    def check_space(self, space: str) -> None:
        """Refuse an earlier plan whose flows are of another kind than those of the inputs."""
        if self.start is not None and self.space != space:
            raise ParameterError(
                f"--from={self.names['from']!r}: its flows are {self.space}, those of the inputs {space}; "
                "must be "
                "the same kind",
                parameter="start",
                value=self.names["from"],
            )

    @property
    def params(self) -> dict[str, Any]:
        """Parameters of the method; the rows of `start` are subscribers or subscriptions, as `by` says."""
        start = self.start
        if start is not None and self.by == "subscription":
            start = placed(start)
        return {
            name: value for name, value in (("start", start), ("pinned", self.pinned)) if value is not None
        }

    def fitting(self, *, text: bool) -> Self:
        """Return a copy with pinned flows as text, if `text`: CSV reads digits as numbers."""
        if self.pinned is None or not text:
            return self
        place = self.pinned.column_names.index("flow")
        flows = self.pinned["flow"].cast(pa.string())
        return replace(self, pinned=self.pinned.set_column(place, "flow", flows))

    def files(self, planned: PlanResult) -> dict[str, pa.Table | bytes]:
        """Return the files written beside the plan: the migration, and the cost by number of moves."""
        if self.start is None:
            return {}
        report = planned.report
        plans = self.start, planned.plan
        if self.space == "events":  # flows differ between plans: only memberships migrate
            plans = _listeners(plans[0]), _listeners(plans[1])
        way = migration(*plans, memberships=report.memberships, interest=planned.interest)
        if report.curve is None:
            return {MIGRATION: way}
        curve = [step._asdict() for step in report.curve]
        with tempfile.TemporaryDirectory() as folder:
            records = [step | {"chosen": step["moves"] == report.moves} for step in curve]
            picture, _ = save_chart("moves", records, folder)
            return {
                MIGRATION: way,
                "moves.parquet": pa.Table.from_pylist(curve),
                "moves.png": picture.read_bytes(),
            }

    def tables(
        self, planned: PlanResult, files: Mapping[str, pa.Table | bytes]
    ) -> dict[str, list[tuple[str, ...]]]:
        """Return tables of the migration's steps, and of the cost by number of moves."""
        if self.start is None:
            return {}
        of = ", by subscriber" if self.by == "subscription" else ""
        way: list[tuple[str, ...]] = [(f"steps{of}", "number")]
        way += [(name, f"{n:,}") for name, n in _counts(files).items()]
        way += [("groups of a subscriber at most", f"{self._peak(files):,}")]
        report = planned.report
        if (found := report.succession) is not None:
            return {
                f"Migration from the earlier plan; {self._moved(found)}": way,
                **self._received(found, files),
            }
        if (curve := report.curve) is None:
            return {"Migration from the earlier plan": way}
        first = curve[0].cost if curve else 0.0
        direct = any(step.direct for step in curve)
        rows: list[tuple[str, ...]] = [("moves", "filtered", "saved", *["sent directly"] * direct)]
        for step in some_of(curve, report.moves):
            saved = 100 * (1 - step.cost / first) if first else 0.0
            mark = " <" if step.moves == report.moves else ""
            cells = [f"{step.moves:,}", options.number(step.cost), f"{saved:.2f} %"]
            cells += [f"{step.direct:,}"] * direct
            rows.append((*cells[:-1], cells[-1] + mark))
        title = "Cost by moves: groups joined and left beyond those that new interest needs"
        return {"Migration from the earlier plan": way, title: rows}

    def facts(self, planned: PlanResult, files: Mapping[str, pa.Table | bytes]) -> dict[str, Any]:
        """Return the facts of `--json` about the migration."""
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
        """Return a note when the moves cost more than they save, which not every method minimizes."""
        found = planned.report.succession
        if found is None or found.cost <= found.kept * (1 + _ROUNDING):
            return []
        share = "" if not found.kept else f"{100 * (found.cost / found.kept - 1):.2f} % "
        note = (
            f"clusters receive {share}more messages than without moves: {planned.method} does not minimize "
            "that; keep the earlier plan, or use direct, which never costs more"
        )
        return [note]

    def unwanted(self, planned: PlanResult) -> list[Any]:
        """Return the pinned flows that no subscriber wants, and so no channel carries."""
        if self.pinned is None:
            return []
        carried = planned.plan.flows.take(np.flatnonzero(np.diff(planned.plan.carries.indptr)))
        flows = labels_in(self.pinned, "flow", "pinned")
        found: list[Any] = flows.take(np.flatnonzero(positions("flow", flows, carried) < 0)).to_pylist()
        return found

    def _moved(self, found: Succession) -> str:
        return f"{found.moved:,} of {found.known:,} {self.by}s moved"

    def _received(
        self, found: Succession, files: Mapping[str, pa.Table | bytes]
    ) -> dict[str, list[tuple[str, ...]]]:
        """Return a table of what the moves save; it is subscribers that join and leave, whatever `by` is."""
        saved = 100 * (1 - found.cost / found.kept) if found.kept else 0.0
        counts = _counts(files)
        changes = sum(counts.get(name, 0) for name in ("join", "leave"))
        finer = self.by == "subscription"
        rows: list[tuple[str, ...]] = [
            ("messages received by clusters" + (", by subscription" if finer else ""), "number"),
            ("without moves", options.number(found.kept)),
            ("now", options.number(found.cost)),
            ("saved", f"{saved:.2f} %"),
        ]
        return {f"Saved by {changes:,} groups joined and left" + (" by subscribers" if finer else ""): rows}

    def _peak(self, files: Mapping[str, pa.Table | bytes]) -> int:
        """Return the most groups that a subscriber is in at any time of the migration."""
        way = files[MIGRATION]
        assert self.start is not None
        assert isinstance(way, pa.Table)
        return peak(self.start, way)


def _listeners(plan: ChannelPlan) -> ChannelPlan:
    """Return the memberships of a plan without its flows."""
    nothing = np.zeros((0, plan.n_channels))
    return ChannelPlan(nothing, plan.listens, plan.parent, subscribers=plan.subscribers, flows=plan.flows[:0])


def _clusters_subscribers(method: str) -> bool:
    return capabilities_of(method).clusters == "subscribers"


def some_of(curve: Sequence[SuccessionStep], chosen: int) -> list[SuccessionStep]:
    """Return some steps of a curve: both ends, the plan's own step, and others at even distances.

    Parameters
    ----------
    curve
        Steps by ascending moves.
    chosen
        Moves of the plan.

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
    """Return the number of migration steps by action."""
    way = files[MIGRATION]
    assert isinstance(way, pa.Table)
    counts = {row["values"]: row["counts"] for row in way["action"].value_counts().to_pylist()}
    return {name: counts[name] for name in ACTIONS if name in counts}


class PlanningProgress:
    """Shows the current and the lowest cost while a planner works.

    Parameters
    ----------
    show
        Called with a line of text.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show, self._least = show, float("inf")

    def __call__(self, cost: float) -> None:
        """Show a cost."""
        self._least = min(cost, self._least)
        now, least = options.number(cost), options.number(self._least)
        self._show(f"cost {now}" + (f", lowest {least}" if now != least else ""))


def method_for(
    method: str,
    params: Collection[str],
    given: Sequence[object],
    cost: str | None,
    before: str | None = None,
) -> str:
    """Resolve `auto` where the options already decide the method.

    It is `direct` for an earlier plan of subscriber clusters or for false positives, and `joint` for
    filtering cost or for options that only `joint` takes.

    Parameters
    ----------
    method
        The method asked for.
    params
        Names of the parameters given.
    given
        Values of options that `auto` does not take, the earlier plan first; None for one that is not given.
    cost
        Cost model to plan for; None for the default.
    before
        Method of the earlier plan; None without one.

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
        before is not None and _clusters_subscribers(before) and cost != "filtering"
    )
    if method == "auto" and clusters and start is not None and not any(others):
        return "direct"
    own = parameters_of("joint").keys() - parameters_of("auto").keys() - {"alpha", "beta"}
    asked = any(each is not None for each in given) or cost == "filtering" or own & set(params)
    return "joint" if method == "auto" and asked else method
