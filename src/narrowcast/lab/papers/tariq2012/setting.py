"""Common parts of figures 3(k) and 3(l): the stream of a seed, the methods and the policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.lab.clusters import ClusteringMethod, Load, Policy, SubscriptionStream, lives
from narrowcast.validation import check_whole
from narrowcast.workloads.hotspots import Hotspots

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from narrowcast.lab.clusters import Window

    Bools = NDArray[np.bool_]

#: Common parameters at the paper's size, as far as it is given (section 6). `history` is per subscription, as
#: in
#: the paper; `recent` is the number of events it is taken from, which other methods use.
PAPER: dict[str, Any] = {
    "subscriptions": 1000,
    "clusters": 50,
    "attributes": 3,
    "zipf": 2.0,
    "history": 20,
    "recent": 1000,
    "events": 6000,
    "groups": 8,
    "landmarks": 0.3,
    "window": 50,
    "stretch": 200,
    "deviation": 0.6,
    "horizon": 1000,
    "heartbeat": 500,
}
SMALL: dict[str, Any] = {
    "subscriptions": 200,
    "clusters": 10,
    "recent": 300,
    "events": 1200,
    "groups": 2,
    "landmarks": 0.5,
    "stretch": 100,
    "horizon": 300,
}
#: Planner and parameters by their names in series: the paper's two in groups of two
#: levels, by the last few events of each; normalised cut with one table of landmarks and all recent events;
#: the product's own; and the methods that the paper compares with.
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "rassoc": ("rassoc", {"levels": 2, "similarity": "jaccard", "clustering": "hierarchical"}),
    "ncut": (
        "ncut",
        {"levels": 2, "similarity": "jaccard", "kernel": "distance", "clustering": "hierarchical"},
    ),
    "ncut-table": ("ncut", {"levels": 2, "table": True}),
    "direct": ("direct", {}),
    "centroid": ("centroid", {}),
    "r-tree": ("r-tree", {}),
}
#: Names of methods in pictures.
NAMES = {
    "rassoc": "RAssoc, in groups",
    "ncut": "NCut, in groups",
    "ncut-table": "NCut, one table of landmarks",
    "direct": "direct, our own",
    "centroid": "CK: centroids",
    "r-tree": "OV-RTree",
}
#: The paper's own methods, the method it compares with, and its numbers (section 6.3): by how
#: many per cent less they cost, without filters inside clusters and with them.
PUBLISHED, BASELINE = ("rassoc", "ncut"), "r-tree"
SAVED = {"flooding": 18.0, "forwarding": 34.0}
#: Policies: whether clusters are computed again.
POLICIES = ("followed", "kept")


def stream_of(
    *,
    seed: int,
    subscriptions: int,
    attributes: int,
    zipf: float,
    recent: int,
    events: int,
    moves: int = 0,
    slide: float = 0.0,
    churn: float = 0.0,
    step: int = 0,
    **_: Any,
) -> SubscriptionStream:
    """Return uniform boxes and events around hotspots, with recent events before those that are counted.

    Parameters
    ----------
    seed, subscriptions, attributes, zipf
        Of the workload; each subscription is a peer.
    recent, events
        Number of events before the counted ones, and of counted events.
    moves
        Number of events after which hotspots are drawn again; 0 for never.
    slide
        Per cent of the events at the end that are around other hotspots than those of their time; it grows
        evenly from 0.
    churn, step
        Per cent of the peers that leave, and are replaced by others, after each `step` events.

    Examples
    --------
    >>> stream_of(seed=1, step=500, churn=10.0, **PAPER).n_subscriptions
    2100
    """
    check_whole("recent", recent)
    check_whole("events", events)
    for name, share in (("churn", churn), ("slide", slide)):
        if not 0 <= share <= 100:
            raise ParameterError(parameter=name, value=share, limit="a percentage from 0 to 100")
    if not zipf >= 0:
        raise ParameterError(parameter="zipf", value=zipf, limit="an exponent of at least 0")
    n_events = recent + events
    comes, leaves = lives(
        subscriptions, n_events, churn=churn / 100, step=step or n_events, seed=seed, start=recent
    )
    known: Any = {"attributes": attributes, "exponent": zipf, "seed": seed}
    still = Hotspots(n_subscriptions=len(comes), n_events=n_events, **known)
    moving = Hotspots(n_subscriptions=len(comes), n_events=events, moves=moves, **known)
    lo, hi = still.ends()
    # Recent events are around the first hotspots as well, and are not counted.
    points = np.concatenate([still.values()[events:], moving.values()])
    if slide:
        away = Hotspots(n_subscriptions=0, n_events=2 * n_events, moves=n_events, **known).values()[n_events:]
        due = slide / 100 * np.maximum(np.arange(n_events) - recent, 0) / events
        late = np.random.default_rng([seed, events]).random(n_events) < due
        points[late] = away[late]
    return SubscriptionStream(
        matched(points, lo, hi), comes=comes, leaves=leaves, boxes=(lo, hi), points=points
    )


def matched(points: NDArray[np.int64], lo: NDArray[np.float64], hi: NDArray[np.float64]) -> Bools:
    """Return which boxes (lo, hi] contain which points: points x boxes.

    Examples
    --------
    >>> matched(np.array([[1], [2]]), np.array([[0.0], [1.0]]), np.array([[1.0], [9.0]])).tolist()
    [[True, False], [False, True]]
    """
    inside = np.ones((len(points), len(lo)), np.bool_)
    for i in range(points.shape[1]):
        inside &= (points[:, i, None] > lo[:, i]) & (points[:, i, None] <= hi[:, i])
    return inside


def run_method(
    stream: SubscriptionStream,
    *,
    seed: int,
    method: str,
    policy: str,
    period: int | None = None,
    drift: float | None = None,
    mild: float = 0.0,
    **params: Any,
) -> list[Window]:
    """Return the traffic of a method, window by window.

    Parameters
    ----------
    stream
        The events.
    seed
        Seed of the method's random choices.
    method, policy
        One of `METHODS`, and of `POLICIES`. New clusters of spectral methods are installed by the paper's
        test, the movement of centres; those of other methods if that pays.
    period, drift, mild
        When clusters are computed again, or coordinates of spectral methods refreshed (0 for never): see
        `Policy`.
    params
        As in `PAPER`.
    """
    planner, options = METHODS[method]
    options = dict(options)
    spectral = planner in ("rassoc", "ncut")
    if spectral:
        options |= {"groups": params["groups"], "landmarks": params["landmarks"]}
    if method in PUBLISHED:
        options["history"] = params["history"]
    follows = policy == "followed"
    when = Policy(
        history=params["recent"],
        period=period if follows else None,
        drift=drift if follows else None,
        mild=mild if follows and spectral and mild else None,
        stretch=params["stretch"],
        deviation=params["deviation"] if spectral else None,
        horizon=None if spectral else params["horizon"],
    )
    load = Load(
        stream=stream,
        method=ClusteringMethod(name=planner, clusters=params["clusters"], seed=seed, options=options),
        policy=when,
        start=params["recent"],
        window=params["window"],
        heartbeat=params["heartbeat"],
    )
    return load.windows()


def caption_of(params: Mapping[str, Any], seeds: int) -> str:
    """Return the subtitle of a chart: sizes of the workload and number of seeds."""
    caption = (
        f"{params['subscriptions']:,} peers, {params['clusters']} clusters, {params['events']:,} events, "
    )
    return f"{caption}{seeds} {'seed' if seeds == 1 else 'seeds'}, all messages counted"


def size_note(params: Mapping[str, Any]) -> list[str]:
    """Return a warning if the workload is not of the paper's size."""
    alike = all(params[name] == PAPER[name] for name in ("subscriptions", "events", "attributes", "zipf"))
    if alike and not params.get("slide"):
        return []
    return ["The workload here is not of the paper's size: its numbers are of another one."]
