"""What `narrowcast plan` starts from, and the way from there: an earlier plan, and flows that are pinned."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
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
from narrowcast.pipeline.plan import parameters_of
from narrowcast.planning.start import Step
from narrowcast.report.charts import save_chart

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from narrowcast.model.plan import ChannelPlan
    from narrowcast.pipeline.plan import Planned

#: The way from the plan before.
WAY = "migration.parquet"
#: Points of the curve that the terminal shows at most.
_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Onward:
    """An earlier plan to go on from, and flows that have their channel.

    Parameters
    ----------
    start, pinned
        What was read, where there is one.
    names
        Their files, as plans name them.
    """

    start: ChannelPlan | None
    pinned: pa.Table | None
    names: dict[str, str]

    @classmethod
    def read(cls, start: Path | None, pinned: Path | None, method: str) -> Self:
        """Read both, for a method that takes them."""
        for name, option, path in (("start", "--from", start), ("pinned", "--pinned", pinned)):
            if path is not None and name not in parameters_of(method):
                raise ParameterError(
                    f"{option} is given, and method {method!r} does not take it; leave it out, or take joint"
                )
        names = {name: str(path) for name, path in (("from", start), ("pinned", pinned)) if path is not None}
        before = None
        if start is not None:
            before, info = read_plan(start)
            if info.flow_space != "topics":
                raise ParameterError(
                    f"{start} is a plan of {info.flow_space}, others each time; --from takes one of topics"
                )
        return cls(before, None if pinned is None else read_table(pinned, ("flow", "channel")), names)

    @property
    def params(self) -> dict[str, Any]:
        """What the method is given."""
        return {
            name: value
            for name, value in (("start", self.start), ("pinned", self.pinned))
            if value is not None
        }

    def fitting(self, *, text: bool) -> Self:
        """Return it with flows named by text, if others name them so: CSV reads digits as numbers."""
        if self.pinned is None or not text:
            return self
        place = self.pinned.column_names.index("flow")
        flows = self.pinned["flow"].cast(pa.string())
        return type(self)(self.start, self.pinned.set_column(place, "flow", flows), self.names)

    def files(self, planned: Planned) -> dict[str, pa.Table | bytes]:
        """Return what is written beside the plan: the way to it, and what less or more of it would save."""
        if self.start is None or planned.planner is None:
            return {}
        most = getattr(planned.planner, "memberships", None)
        way = migration(self.start, planned.plan, memberships=most, interest=planned.interest)
        if not hasattr(planned.planner, "curve_"):
            return {WAY: way}
        curve = [step._asdict() for step in _curve(planned)]
        with tempfile.TemporaryDirectory() as folder:
            records = [step | {"chosen": step["moves"] == _moves(planned)} for step in curve]
            picture, _ = save_chart("moves", records, folder)
            return {
                WAY: way,
                "moves.parquet": pa.Table.from_pylist(curve),
                "moves.png": picture.read_bytes(),
            }

    def tables(
        self, planned: Planned, files: Mapping[str, pa.Table | bytes]
    ) -> dict[str, list[tuple[str, ...]]]:
        """Return what the terminal shows: what is saved after so many changes, and what they are in all."""
        if self.start is None:
            return {}
        way: list[tuple[str, ...]] = [("in the migration", "number")]
        way += [(name, f"{n:,}") for name, n in _counts(files).items()]
        way += [("groups of a subscriber at most, on the way", f"{self._peak(files):,}")]
        if not hasattr(planned.planner, "curve_"):
            return {"From the plan before": way}
        curve = _curve(planned)
        first = curve[0].cost if curve else 0.0
        direct = any(step.direct for step in curve)
        rows: list[tuple[str, ...]] = [("moves", "filtered", "saved", *["sent directly"] * direct)]
        for step in some_of(curve, _moves(planned)):
            saved = 100 * (1 - step.cost / first) if first else 0.0
            mark = " <" if step.moves == _moves(planned) else ""
            cells = [f"{step.moves:,}", options.number(step.cost), f"{saved:.2f} %"]
            cells += [f"{step.direct:,}"] * direct
            rows.append((*cells[:-1], cells[-1] + mark))
        title = "Moves: groups joined and left beyond what new wants ask for"
        return {"From the plan before": way, title: rows}

    def facts(self, planned: Planned, files: Mapping[str, pa.Table | bytes]) -> dict[str, Any]:
        """Return what `--json` says of it."""
        if self.start is None:
            return {}
        way = {"migration": _counts(files), "memberships_on_the_way": self._peak(files)}
        if not hasattr(planned.planner, "curve_"):
            return way
        return {"moves": _moves(planned), "curve": [list(step) for step in _curve(planned)], **way}

    def unwanted(self, planned: Planned) -> list[Any]:
        """Return the flows that are pinned, and that nobody wants: no channel carries them."""
        if self.pinned is None:
            return []
        carried = planned.plan.flows.take(np.flatnonzero(np.diff(planned.plan.carries.indptr)))
        flows = labels_in(self.pinned, "flow", "pinned")
        found: list[Any] = flows.take(np.flatnonzero(positions("flow", flows, carried) < 0)).to_pylist()
        return found

    def _peak(self, files: Mapping[str, pa.Table | bytes]) -> int:
        """Return the most groups that a subscriber is in at any time of the migration."""
        way = files[WAY]
        assert self.start is not None
        assert isinstance(way, pa.Table)
        return peak(self.start, way)


def some_of(curve: Sequence[Step], chosen: int) -> list[Step]:
    """Return some steps of a curve: its ends, about evenly between them, and that of the plan.

    Parameters
    ----------
    curve
        By moves, ascending.
    chosen
        The moves of the plan.

    Examples
    --------
    >>> [step.moves for step in some_of([Step(n, 9.0 - n) for n in range(30)], 11)]
    [0, 3, 5, 8, 11, 13, 16, 18, 21, 24, 26, 29]
    >>> 12 in [step.moves for step in some_of([Step(n, 9.0 - n) for n in range(30)], 12)]
    True
    """
    last = len(curve) - 1
    some = {round(i * last / (_SHOWN - 1)) for i in range(_SHOWN)} if curve else set()
    some |= {i for i, step in enumerate(curve) if step.moves == chosen}
    return [curve[i] for i in sorted(some)]


def _curve(planned: Planned) -> list[Step]:
    """Return what is filtered after so many moves."""
    found: list[Step] = getattr(planned.planner, "curve_", [])
    return found


def _counts(files: Mapping[str, pa.Table | bytes]) -> dict[str, int]:
    """Return how many rows of each kind the migration has."""
    way = files[WAY]
    assert isinstance(way, pa.Table)
    counts = {row["values"]: row["counts"] for row in way["action"].value_counts().to_pylist()}
    return {name: counts[name] for name in ACTIONS if name in counts}


class Watch:
    """What a planner tells while it works, as a line: what its plan costs, and the least it has cost."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._least = say, float("inf")

    def __call__(self, cost: float) -> None:
        """Say what it costs."""
        self._least = min(cost, self._least)
        now, least = options.number(cost), options.number(self._least)
        self._say(f"cost {now}" + (f", at best {least}" if now != least else ""))


def _moves(planned: Planned) -> int:
    """Return how many groups are joined and left for a plan."""
    return int(getattr(planned.planner, "moves_", 0))


def method_for(method: str, params: Collection[str], given: Collection[object], cost: str | None) -> str:
    """Return the method that is meant: `joint` for `auto` where it is that, or only that takes what is given.

    Parameters
    ----------
    method
        As it was asked for.
    params
        Names of parameters that are given.
    given
        Options that only `joint` has; None where one is left out.
    cost
        What to plan for, where it is said.

    Examples
    --------
    >>> method_for("auto", ["memberships"], [], None), method_for("auto", ["beta"], [None], "waste")
    ('joint', 'auto')
    """
    own = parameters_of("joint").keys() - parameters_of("auto").keys() - {"alpha", "beta"}
    asked = any(each is not None for each in given) or cost == "filtering" or own & set(params)
    return "joint" if method == "auto" and asked else method
