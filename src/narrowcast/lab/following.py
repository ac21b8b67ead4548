"""Planners that follow their users, watched: what each stretch of time costs, and what adapting takes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from narrowcast.costs.overall import Overall
from narrowcast.errors import ParameterError
from narrowcast.lab.overlay import Charged, OverlayRing
from narrowcast.model.interest import Interest
from narrowcast.model.labels import column_of, labels_in, numbers_in, positions
from narrowcast.planning.baselines.simple import PerFlow
from narrowcast.planning.replanner import changed, seconds_of
from narrowcast.validation import check_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from narrowcast.model.plan import ChannelPlan
    from narrowcast.planning.base import OnlinePlanner

    Doubles: TypeAlias = NDArray[np.float64]
    Rows: TypeAlias = list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """A log of changes that planners are led through, window by window.

    At the end of each window the plan is scored with the rates that hold by then, whatever the planner
    believes; beside it what a channel for each flow would cost (Scribe, in the paper).

    Parameters
    ----------
    interest
        Who wants what at the beginning; rates are those at the beginning.
    changes
        Table of changes (time, subscriber, flow, action).
    rates
        Table of rates with a time (flow, rate, time), where they change on the way.
    windows
        How many stretches the time is cut into.
    seconds
        How long it all takes; from the first change to the last where left out.
    model
        What channels and events cost.
    observed
        Whether events are drawn at random and the planner counts them; if not, it knows the first rates only.
    seed
        Of these events.
    overlay
        The ring whose trees channels are, beside the model, so that what they cost is counted; and how many
        of its nodes fail on the way.

    Examples
    --------
    >>> import dataclasses
    >>> from narrowcast.planning.topics.tamara import Tamara
    >>> from narrowcast.workloads.feeds import Feeds
    >>> feeds = Feeds(n_subscribers=60, days=4.0)
    >>> nobody = Interest(np.zeros((60, 120)), feeds.interest().rate)
    >>> following = Following(interest=nobody, changes=feeds.tables()["changes"], windows=4)
    >>> rows = following.lead(Tamara(period=following.window).fit(nobody))
    >>> [row["window"] for row in rows], rows[-1]["cost"] < rows[-1]["per_flow"]
    ([1, 2, 3, 4], True)

    On a ring, where 2 of 60 nodes fail in each window:

    >>> following = dataclasses.replace(following, overlay=OverlayRing(churn=2))
    >>> row = following.lead(Tamara(period=following.window).fit(nobody))[-1]
    >>> row["tree_cost"] > row["cost"], row["tree_cost"] < row["tree_per_flow"]
    (True, True)
    """

    interest: Interest
    changes: pa.Table
    rates: pa.Table | None = None
    windows: int = 100
    seconds: float | None = None
    model: Overall = Overall()  # noqa: RUF009  # it does not change
    observed: bool = False
    seed: int = 0
    overlay: OverlayRing | None = None

    def __post_init__(self) -> None:
        check_whole("windows", self.windows)
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise ParameterError(f"seconds is {self.seconds!r}; give how long it takes: a number above 0")
        if self.window <= 0:
            raise ParameterError("the changes take no time; give seconds, how long it is to take")
        at, (_, last) = _seconds(self.changes), self._ends()
        if len(at) and at.max() > last:
            raise ParameterError(
                f"seconds is {self.seconds!r} and the changes take {at.max() - at.min():g}; give as many at "
                "least, or fewer changes"
            )
        if self.overlay is not None:
            if not isinstance(self.overlay, OverlayRing):
                raise ParameterError(f"overlay is {self.overlay!r}; give an Overlay, or None for none")
            self.overlay.ring(self.interest.n_subscribers)  # refuses one that is too small

    @property
    def window(self) -> float:
        """Seconds of a window."""
        first, last = self._ends()
        return (last - first) / self.windows

    def lead(self, planner: OnlinePlanner) -> Rows:
        """Lead a planner that has been fitted to the first interest through the changes.

        Each row has `window`, `seconds` since the beginning, `cost`, `maintenance` and `dissemination` of the
        plan, `per_flow`, what a channel for each flow costs, and how many `clusters` there are, flows
        `per_cluster` and flows with a `direct` channel. Of planners that count messages there are these, by
        kind, in this window, and `adapting`: those beyond what subscribing takes anyway, for each interval.
        In a window without changes a planner that can is told that time passes, by `advance`.

        With an overlay the rows also have what trees cost, and the messages of these: see `Charged.window`.
        Each window begins with churn. What the planner counts stays beside it: there a subscriber who joins a
        channel sends one message, here one for each hop.
        """
        found: Rows = []
        before = dict(planner.messages_)
        rng, (first, _) = np.random.default_rng(self.seed), self._ends()
        charged = None
        if self.overlay is not None:
            charged = Charged(self.overlay, self.model, self.interest, planner.plan_, seconds=self.window)
        for i, (batch, interest) in enumerate(self.states(), 1):
            planner.update(batch)
            if not batch.num_rows:
                planner.advance(first + i * self.window)
            if self.observed:
                events = rng.poisson(interest.rate * self.window).astype(np.float64)
                planner.observe(pa.table({"flow": interest.flows, "events": events}), self.window)
            row: dict[str, Any] = {"window": i, "seconds": i * self.window}
            plan = planner.plan_
            row |= self.scored(interest, plan)
            if charged is not None:
                row |= charged.window(interest, plan)
            if before:
                now = planner.messages_
                row |= {kind: count - before[kind] for kind, count in now.items()}
                adapting = sum(row[kind] for kind in now if kind != "base")
                row["adapting"] = adapting / (self.window / self.model.interval)
                before = dict(now)
            found.append(row)
        return found

    def states(self) -> Iterator[tuple[pa.Table, Interest]]:
        """Yield the changes of each window, and the interest that they lead to, with the rates by then."""
        first, last = self._ends()
        ends = first + (last - first) * np.arange(1, self.windows + 1) / self.windows
        at = _seconds(self.changes)
        order = np.argsort(at, kind="stable")
        changes, cut = self.changes.take(pa.array(order)), np.searchsorted(at[order], ends, side="left")
        cut[-1] = len(at)
        interest = self.interest
        for i, end in enumerate(ends):
            batch = changes.slice(cut[i - 1] if i else 0, cut[i] - (cut[i - 1] if i else 0))
            interest = changed(interest, batch)
            rate = self._rates_at(interest, end)
            yield batch, Interest(interest.wants, rate, interest.subscribers, interest.flows)

    def scored(self, interest: Interest, plan: ChannelPlan) -> dict[str, Any]:
        """Return what a plan costs, and what it is like."""
        cost = self.model.score(interest, plan)
        alone = self.model.score(interest, PerFlow().fit(interest).plan_)
        flows = np.bincount(plan.carries.indices, minlength=plan.n_channels)
        many = flows >= 2
        return {
            "cost": cost.total,
            "maintenance": cost.terms["maintenance"],
            "dissemination": cost.terms["dissemination"],
            "per_flow": alone.total,
            "per_flow_maintenance": alone.terms["maintenance"],
            "per_flow_dissemination": alone.terms["dissemination"],
            "clusters": int(many.sum()),
            "per_cluster": float(flows[many].mean()) if many.any() else 0.0,
            "direct": int((flows == 1).sum()),
        }

    def _ends(self) -> tuple[float, float]:
        """Return when it begins and ends."""
        at = _seconds(self.changes)
        first = float(at.min()) if len(at) else 0.0
        if self.seconds is not None:
            return first, first + self.seconds
        return first, float(at.max()) if len(at) else first

    def _rates_at(self, interest: Interest, time: float) -> Doubles:
        """Return the rate of each flow at a time: the last one that was said."""
        rate = np.array(interest.rate)
        if self.rates is None:
            return rate
        said = _seconds(self.rates)
        order = np.argsort(said, kind="stable")
        order = order[said[order] <= time]
        flow = positions("flow", labels_in(self.rates, "flow", "rates"), interest.flows)[order]
        rate[flow[flow >= 0]] = numbers_in(self.rates, "rate", "rates")[order][flow >= 0]
        return rate


def _seconds(table: pa.Table) -> Doubles:
    """Return the column `time` as seconds."""
    return seconds_of(column_of(table, "time", "table"))
