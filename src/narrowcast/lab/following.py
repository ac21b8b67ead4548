"""Replay a log of changes to an online planner, and record the cost of its plan window by window."""

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
    """A log of changes that is replayed to online planners, window by window.

    At the end of each window the plan is scored with the rates in force then, whether or not the planner
    knows them. The cost of one channel per flow is recorded beside it (Scribe, in tamara2007).

    Parameters
    ----------
    interest
        Interest and rates before the first change.
    changes
        Table of changes (time, subscriber, flow, action).
    rates
        Table of rate changes (flow, rate, time); None if rates are constant.
    windows
        Number of windows of equal length that the time is divided into.
    seconds
        Duration of the replay (default: from the first change to the last).
    model
        Cost of channels and events.
    observed
        Whether events are drawn at random and the planner counts them; if not, it knows the initial rates
        only.
    seed
        Seed of the events.
    overlay
        A ring on which each channel is a multicast tree. Tree costs are then recorded beside the model's, and
        `churn` nodes of the ring fail in each window. None: no trees.

    Examples
    --------
    >>> import dataclasses
    >>> from narrowcast.planning.topics.tamara import Tamara
    >>> from narrowcast.workloads.feeds import Feeds
    >>> feeds = Feeds(n_subscribers=60, days=4.0)
    >>> start = Interest(np.zeros((60, 120)), feeds.interest().rate)
    >>> following = Following(interest=start, changes=feeds.tables()["changes"], windows=4)
    >>> rows = following.lead(Tamara(period=following.window).fit(start))
    >>> [row["window"] for row in rows], rows[-1]["cost"] < rows[-1]["per_flow"]
    ([1, 2, 3, 4], True)

    On a ring, where 2 of 60 nodes fail in each window:

    >>> following = dataclasses.replace(following, overlay=OverlayRing(churn=2))
    >>> row = following.lead(Tamara(period=following.window).fit(start))[-1]
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
            raise ParameterError(parameter="seconds", value=self.seconds, limit="a finite number above 0")
        if self.window <= 0:
            raise ParameterError(
                "seconds is missing: all changes have the same time; set the duration of the replay",
                parameter="seconds",
                value=self.seconds,
                limit="a finite number above 0",
            )
        at, (_, last) = _seconds(self.changes), self._ends()
        if len(at) and at.max() > last:
            span = at.max() - at.min()
            raise ParameterError(
                parameter="seconds",
                value=self.seconds,
                limit=f"at least {span:g}, the time between the first and the last change",
            )
        if self.overlay is not None:
            if not isinstance(self.overlay, OverlayRing):
                raise ParameterError(parameter="overlay", value=self.overlay, limit="an OverlayRing or None")
            self.overlay.ring(self.interest.n_subscribers)  # refuses one that is too small

    @property
    def window(self) -> float:
        """Seconds of a window."""
        first, last = self._ends()
        return (last - first) / self.windows

    def lead(self, planner: OnlinePlanner) -> Rows:
        """Replay the changes to a planner fitted to the initial interest; return a row per window.

        Each row has `window`, `seconds` since the beginning, `cost` with its terms `maintenance` and
        `dissemination`, `per_flow` (the cost of one channel per flow), and the number of `clusters` (channels
        of two or more flows), the mean number of flows `per_cluster`, and the number of channels with one
        flow, `direct`. For planners that count messages the row has the messages in this window by kind, and
        `adapting`: all but those of subscribing itself, per interval of the cost model. In a window without
        changes, time passes by a call of `advance`.

        With an overlay the rows also have the costs and messages of the trees: see `Charged.window`. Each
        window begins with churn. The planner's own counts do not change: in them a subscriber that joins a
        channel sends one message, in the trees one for each hop.
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
        """Yield the changes of each window, and the interest after them with the rates at its end."""
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
        """Return the cost of a plan and of one channel per flow, and the number and size of clusters."""
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
        """Return the times at which the replay begins and ends, in seconds."""
        at = _seconds(self.changes)
        first = float(at.min()) if len(at) else 0.0
        if self.seconds is not None:
            return first, first + self.seconds
        return first, float(at.max()) if len(at) else first

    def _rates_at(self, interest: Interest, time: float) -> Doubles:
        """Return the rate of each flow at a time: the last one set before or at it."""
        rate = np.array(interest.rate)
        if self.rates is None:
            return rate
        times = _seconds(self.rates)
        order = np.argsort(times, kind="stable")
        order = order[times[order] <= time]
        flow = positions("flow", labels_in(self.rates, "flow", "rates"), interest.flows)[order]
        rate[flow[flow >= 0]] = numbers_in(self.rates, "rate", "rates")[order][flow >= 0]
        return rate


def _seconds(table: pa.Table) -> Doubles:
    """Return the column `time` as seconds."""
    return seconds_of(column_of(table, "time", "table"))
