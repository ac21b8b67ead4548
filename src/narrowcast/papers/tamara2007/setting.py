"""What the experiments have in common: the workload, the methods, and how each is led through the changes."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from narrowcast.costs.overall import Overall
from narrowcast.model.interest import Interest
from narrowcast.model.plan import ChannelPlan
from narrowcast.planning import PLANNERS
from narrowcast.planning.tamara import Tamara, TamaraTidy
from narrowcast.sim.following import Following
from narrowcast.workloads.feeds import Feeds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pyarrow as pa

    from narrowcast.sim.sweep import Record

#: The paper's benchmark (section 5.2), and a small one of its kind. How interests are drawn is our reading.
PAPER: dict[str, Any] = {
    "users": 3000, "topics": 120, "p_in": 0.9, "home": 2, "function": "linear", "windows": 100,
}  # fmt: skip
SMALL: dict[str, Any] = {"users": 300, "topics": 60, "windows": 20}
#: Groups of topics that interests come in.
GROUPS = 10
#: Models of frequencies, as the paper calls them.
MODELS = ["average", "frequent", "infrequent"]
#: Methods that follow changes, by how they are called here, and those that plan again from scratch.
ONLINE = ("tamara", "tamara-tidy", "static")
OFFLINE = ("kmeans", "giant", "frequency-threshold", "cover")
METHODS = ("per-flow", *ONLINE, *OFFLINE)
#: How methods are called in pictures.
NAMES = {
    "per-flow": "Scribe: a channel each", "tamara": "Tamara", "tamara+": "Tamara+, with adapting",
    "tamara-tidy": "tidy", "static": "static clusters", "kmeans": "k-means", "giant": "one giant cluster",
    "frequency-threshold": "frequency threshold", "cover": "cover",
}  # fmt: skip
#: After this share of arrivals, `static` keeps the clusters that there are.
KEPT = 0.1
#: Places along the time at which plans are made from scratch; `cover` only at the last.
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
    """Return the paper's workload.

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
    """Return what a method's plans cost window by window; the same again is not run again."""
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
    return led(
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
    """Return the cost model with one function of size for upkeep and for events."""
    return Overall(cost_m=function, cost_d=function, interval=interval)


def planted(feeds: Feeds, interest: Interest) -> ChannelPlan:
    """Return clusters that match the interests perfectly; who joins them is left open."""
    carries = feeds.planted()[:, None] == np.arange(GROUPS)
    nobody = np.zeros((0, GROUPS))
    return ChannelPlan(carries, nobody, subscribers=interest.subscribers[:0], flows=interest.flows)


def led(
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
    """Return what the plans of a method cost, window by window, while interests change.

    Parameters
    ----------
    method
        Its name.
    first, changes
        The interest at the beginning, and how it changes.
    start
        The clusters at the beginning, where there are some.
    seconds, windows
        How long it takes, and into how many windows that is cut.
    model
        What channels and events cost.
    seed
        Of what the method leaves to chance.
    """
    following = Following(interest=first, changes=changes, windows=windows, seconds=seconds, model=model)
    costs = {"cost_m": model.cost_m, "cost_d": model.cost_d, "interval": model.interval, "seed": seed}
    if method == "tamara-tidy":
        tidy = TamaraTidy(start=start, period=following.window, **costs).fit(first)
        return _counted(following.lead(tidy), tidy)
    if method == "tamara" or (method == "static" and start is not None):
        plain = Tamara(start=start, period=following.window, adapt=method == "tamara", **costs).fit(first)
        return _counted(following.lead(plain), plain)
    if method == "static":
        return _kept(following, costs)
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


def _counted(rows: list[dict[str, Any]], planner: Tamara) -> list[Record]:
    """Return rows of which the last has the updates of clusters, by kind."""
    rows[-1] |= {f"updates_{kind}": count for kind, count in planner.updates_.items()}
    return rows


def _kept(following: Following, costs: Mapping[str, Any]) -> list[Record]:
    """Return what clusters cost that are made while the first come, and then stay as they are."""
    adapting = Tamara(period=following.window, **costs).fit(following.interest)
    static, rows = adapting, []
    for window, (batch, interest) in enumerate(following.states(), 1):
        static.update(batch)
        if window == max(1, round(KEPT * following.windows)):
            static = Tamara(start=static.plan_, adapt=False, **costs).fit(interest)
        row = {"window": window, "seconds": window * following.window}
        rows.append({**row, **following.scored(interest, static.plan_)})
    return rows


def change_pct(row: Mapping[str, Any], what: str) -> float:
    """Return by how many per cent a cost is above that of a channel for each flow."""
    name = "per_flow" if what == "cost" else f"per_flow_{what}"
    return 100 * (row[what] / row[name] - 1) if row[name] else 0.0


def overhead_pct(rows: Iterable[Mapping[str, Any]]) -> float:
    """Return what adapting takes in all, in per cent of what channels and events cost meanwhile."""
    rows = list(rows)
    cost = sum(row["cost"] for row in rows)
    return 100 * sum(row.get("adapting", 0.0) for row in rows) / cost if cost else 0.0


def is_paper(params: Mapping[str, Any]) -> bool:
    """Return whether a workload is the paper's."""
    return all(params[name] == value for name, value in PAPER.items() if name != "windows")


def said_of(params: Mapping[str, Any], seeds: int) -> str:
    """Return what the numbers are of, for the line below a title."""
    said = f"{params['users']:,} users, {params['topics']} topics, costs {params['function']}"
    return f"{said}, {seeds} {'seed' if seeds == 1 else 'seeds'}"


def size_note(params: Mapping[str, Any]) -> list[str]:
    """Return a warning where the workload is not the paper's."""
    if is_paper(params):
        return []
    return ["The workload here is not the paper's: its numbers and curves are of another one."]
