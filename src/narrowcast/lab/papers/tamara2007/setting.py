"""Common parts of the experiments: the workload, the methods, and the run of a method through the changes."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from narrowcast.costs.overall import Overall
from narrowcast.lab.following import Following
from narrowcast.model.interest import Interest
from narrowcast.model.plan import ChannelPlan
from narrowcast.planning import PLANNERS
from narrowcast.planning.topics.tamara import Tamara, TamaraTidy
from narrowcast.workloads.feeds import Feeds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pyarrow as pa

    from narrowcast.lab.sweep import Record

#: The paper's benchmark (section 5.2), and a small one. How interests are drawn is our interpretation.
PAPER: dict[str, Any] = {
    "users": 3000, "topics": 120, "p_in": 0.9, "home": 2, "function": "linear", "windows": 100,
}  # fmt: skip
SMALL: dict[str, Any] = {"users": 300, "topics": 60, "windows": 20}
#: Number of groups of topics with clustered interests.
GROUPS = 10
#: Models of frequencies, by the paper's names.
MODELS = ["average", "frequent", "infrequent"]
#: Methods that adapt to changes, by their names here, and methods that plan again from scratch.
ONLINE = ("tamara", "tamara-tidy", "static")
OFFLINE = ("kmeans", "giant", "frequency-threshold", "cover")
METHODS = ("per-flow", *ONLINE, *OFFLINE)
#: Names of methods in pictures.
NAMES = {
    "per-flow": "Scribe: a channel each", "tamara": "Tamara", "tamara+": "Tamara+, with adapting",
    "tamara-tidy": "tidy", "static": "static clusters", "kmeans": "k-means", "giant": "one giant cluster",
    "frequency-threshold": "frequency threshold", "cover": "cover",
}  # fmt: skip
#: Numbers of the paper's simulator, by their names in a row of a history, and the prefixes of names that
#: count by kind.
STATISTICS = {"clusters": "clusters", "per_cluster": "topics_per_cluster", "direct": "direct_topics"}
COUNTS = ("messages_", "updates_")
#: Metric: the total cost of adapting, for methods that adapt.
OVERHEAD = "overhead_pct"
#: The share of arrivals after which `static` stops adapting its clusters.
STATIC_SHARE = 0.1
#: Number of times at which methods plan from scratch; `cover` only at the last.
CHECKPOINTS = 5

_DAY = 86_400.0


def workload(
    *,
    seed: int,
    model: str,
    users: int,
    topics: int,
    p_in: float,
    home: int,
    days: float = 61.0,
    interests: str = "clustered",
    shift: str = "none",
    **_: Any,
) -> Feeds:
    """Return the paper's workload for a seed.

    Examples
    --------
    >>> workload(seed=1, model="average", **PAPER).n_flows
    120
    """
    kinds: Any = {"model": model, "interests": interests, "shift": shift}
    wanted = 25.0 * topics / PAPER["topics"]
    return Feeds(
        n_subscribers=users, n_flows=topics, p_in=p_in, home=home, groups=GROUPS, wanted=wanted, days=days,
        seed=seed, **kinds,
    )  # fmt: skip


def history(*, method: str, **given: Any) -> list[Record]:
    """Return the costs of a method's plans, window by window; results of a run are cached."""
    return [dict(row) for row in _history(method, tuple(sorted(given.items())))]


@lru_cache(maxsize=1024)
def _history(method: str, given: tuple[tuple[str, Any], ...]) -> list[Record]:
    params = dict(given)
    feeds = workload(**params)
    first, tables = feeds.interest(), feeds.tables()
    start = None
    if feeds.shift == "none":
        first = Interest(np.zeros(first.wants.shape), first.rate, first.subscribers, first.flows)
    else:
        start = planted(feeds, first)
    return follow_changes(
        method,
        first,
        tables["changes"],
        start=start,
        seconds=feeds.days * _DAY,
        model=model_of(params["function"]),
        windows=params["windows"],
        seed=params["seed"],
    )


def model_of(function: str, interval: float = 360.0) -> Overall:
    """Return the cost model with one function of channel size for maintenance and for events."""
    return Overall(cost_m=function, cost_d=function, interval=interval)


def planted(feeds: Feeds, interest: Interest) -> ChannelPlan:
    """Return clusters that match the interests perfectly, without subscribers."""
    carries = feeds.planted()[:, None] == np.arange(GROUPS)
    no_subscribers = np.zeros((0, GROUPS))
    return ChannelPlan(carries, no_subscribers, subscribers=interest.subscribers[:0], flows=interest.flows)


def follow_changes(
    method: str,
    first: Interest,
    changes: pa.Table,
    *,
    start: ChannelPlan | None,
    seconds: float,
    model: Overall,
    windows: int,
    seed: int,
) -> list[Record]:
    """Return the costs of a method's plans, window by window, while interests change.

    Parameters
    ----------
    method
        Its name.
    first, changes
        The initial interest, and its changes.
    start
        The initial clusters, if any.
    seconds, windows
        Duration in seconds, and number of windows.
    model
        Costs of channels and events.
    seed
        Seed of the method's random choices.
    """
    following = Following(interest=first, changes=changes, windows=windows, seconds=seconds, model=model)
    costs = {"cost_m": model.cost_m, "cost_d": model.cost_d, "interval": model.interval, "seed": seed}
    if method == "tamara-tidy":
        tidy = TamaraTidy(start=start, period=following.window, **costs).fit(first)
        return _adaptive_rows(following, tidy)
    if method == "tamara" or (method == "static" and start is not None):
        plain = Tamara(start=start, period=following.window, adapt=method == "tamara", **costs).fit(first)
        return _adaptive_rows(following, plain)
    if method == "static":
        return _static_rows(following, costs)
    places = (
        {windows} if method == "cover" else {windows * (i + 1) // CHECKPOINTS for i in range(CHECKPOINTS)}
    )
    found: list[Record] = []
    for window, (_, interest) in enumerate(following.states(), 1):
        if method == "per-flow" or window in places:
            takes = {**costs, "channels": None} if method != "per-flow" else {"seed": seed}
            plan = PLANNERS[method](**takes).fit(interest).plan_
            row = {"window": window, "seconds": window * following.window, **following.scored(interest, plan)}
            found.append(row)
    return found


def _adaptive_rows(following: Following, planner: Tamara) -> list[Record]:
    """Run a planner; rows have the messages since the start, the last one also updates of clusters."""
    before, kinds = _updates(planner), list(planner.messages_)
    rows: list[Record] = following.lead(planner)
    sent: Counter[str] = Counter()
    for row in rows:
        sent.update({f"messages_{kind}": row[kind] for kind in kinds})
        row |= sent
    rows[-1] |= {name: count - before[name] for name, count in _updates(planner).items()}
    if planner.adapt:
        rows[-1][OVERHEAD] = overhead_pct(rows)
    return rows


def _messages(planner: Tamara) -> Counter[str]:
    """Return the number of messages that a planner has sent, by kind."""
    return Counter({f"messages_{kind}": count for kind, count in planner.messages_.items()})


def _updates(planner: Tamara) -> Counter[str]:
    """Return the number of times a planner has changed its clusters, by kind."""
    return Counter({f"updates_{kind}": count for kind, count in planner.updates_.items()})


def _static_rows(following: Following, costs: Mapping[str, Any]) -> list[Record]:
    """Return the costs of clusters that are made from the first arrivals and then stay the same."""
    planner = Tamara(period=following.window, **costs).fit(following.interest)
    rows: list[Record] = []
    # Earlier counts, without those of the initialization of the current planner.
    sent: Counter[str] = Counter()
    made: Counter[str] = Counter()
    for window, (batch, interest) in enumerate(following.states(), 1):
        planner.update(batch)
        if window == max(1, round(STATIC_SHARE * following.windows)):
            sent, made = _messages(planner), _updates(planner)
            planner = Tamara(start=planner.plan_, adapt=False, **costs).fit(interest)
            sent.subtract(_messages(planner))
            made.subtract(_updates(planner))
        row: Record = {"window": window, "seconds": window * following.window}
        row |= following.scored(interest, planner.plan_)
        rows.append(row | {name: count + sent[name] for name, count in _messages(planner).items()})
    rows[-1] |= {name: count + made[name] for name, count in _updates(planner).items()}
    return rows


def statistics(row: Mapping[str, Any]) -> Record:
    """Return the numbers of the paper's simulator in a row of a history, besides costs, by metric.

    Examples
    --------
    >>> statistics({"cost": 9.5, "clusters": 2, "per_cluster": 3.5, "direct": 4, "messages_survey": 12})
    {'clusters': 2, 'topics_per_cluster': 3.5, 'direct_topics': 4, 'messages_survey': 12}
    """
    named = {STATISTICS.get(name, name): value for name, value in row.items()}
    return {name: named[name] for name in statistics_of(named)}


def statistics_of(record: Mapping[str, Any]) -> list[str]:
    """Return the metrics of a record, besides costs."""
    others = [name for name in record if name == OVERHEAD or name.startswith(COUNTS)]
    return [*STATISTICS.values(), *others]


def change_pct(row: Mapping[str, Any], what: str) -> float:
    """Return how much a cost is above that of a channel for each flow, in per cent."""
    name = "per_flow" if what == "cost" else f"per_flow_{what}"
    return 100 * (row[what] / row[name] - 1) if row[name] else 0.0


def overhead_pct(rows: Iterable[Mapping[str, Any]]) -> float:
    """Return the total cost of adapting, in per cent of the cost of channels and events in the same time."""
    rows = list(rows)
    cost = sum(row["cost"] for row in rows)
    return 100 * sum(row.get("adapting", 0.0) for row in rows) / cost if cost else 0.0


def is_paper(params: Mapping[str, Any]) -> bool:
    """Return whether a workload is the paper's."""
    return all(params[name] == value for name, value in PAPER.items() if name != "windows")


def caption_of(params: Mapping[str, Any], seeds: int) -> str:
    """Return the subtitle of a chart: sizes of the workload and number of seeds."""
    caption = f"{params['users']:,} users, {params['topics']} topics, costs {params['function']}"
    return f"{caption}, {seeds_of(seeds)}"


def seeds_of(count: int) -> str:
    """Return a number of seeds in words."""
    return f"{count} {'seed' if count == 1 else 'seeds'}"


def size_note(params: Mapping[str, Any]) -> list[str]:
    """Return a warning if the workload is not the paper's."""
    if is_paper(params):
        return []
    return ["The workload here is not the paper's: its numbers and curves are of another one."]
