"""Common parts of the experiments: the workload, and the share of flooding that remains with a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from narrowcast.costs.filtering import Filtering, receivers
from narrowcast.workloads.flows import Flows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from narrowcast.model.interest import Interest
    from narrowcast.model.plan import ChannelPlan

#: The paper's benchmark (section 5.1), and a small one of its kind. The law of the rates is our reading.
PAPER: dict[str, Any] = {"flows": 20_000, "users": 500, "markets": 10, "share": 0.01, "rates": "zipf"}
SMALL: dict[str, Any] = {"flows": 2000, "users": 100, "markets": 5, "share": 0.03}
#: Number of markets that a user is interested in.
MARKETS = 2
#: Metric: excess filtering as a share of that of flooding.
METRIC = "cx_over_cf"


def workload(
    *, seed: int, flows: int, users: int, markets: int, share: float, rates: str = "zipf", **_: Any
) -> Flows:
    """Return the paper's workload for a seed.

    Examples
    --------
    >>> workload(seed=1, **PAPER).sizes().tolist()
    [6828, 3414, 2276, 1707, 1366, 1138, 975, 854, 759, 683]
    """
    law: Any = rates
    return Flows(
        n_flows=flows,
        n_subscribers=users,
        markets=markets,
        per_subscriber=min(MARKETS, markets),
        share=share,
        rates=law,
        seed=seed,
    )


def interest_of(**given: Any) -> Interest:
    """Return the interest of the workload for a seed: the shared input of trials."""
    return workload(**given).interest()


def share_of(interest: Interest, plan: ChannelPlan, *, alpha: float = 1.0, beta: float = 1.0) -> float:
    """Return Cx / Cf of a plan, its excess filtering cost over that of flooding.

    0 is a group for each flow, 1 is flooding.
    """
    cost = Filtering(alpha=alpha, beta=beta).score(interest, plan)
    return Filtering.share(cost, receivers(interest))


def printed(params: Mapping[str, Any], value: float) -> float | None:
    """Return a number of the paper, or None if the workload is not the paper's.

    Examples
    --------
    >>> printed(PAPER, 10.1), printed(PAPER | {"users": 100}, 10.1)
    (10.1, None)
    """
    sizes = PAPER.keys() - {"rates"}
    return value if all(params[name] == PAPER[name] for name in sizes) else None


def size_note(params: Mapping[str, Any]) -> list[str]:
    """Return a warning if the workload is not the paper's."""
    if printed(params, 1) is not None:
        return []
    return ["The workload here is not of the paper's size: its numbers and curves are of another one."]


def caption_of(params: Mapping[str, Any], seeds: int = 0) -> str:
    """Return the subtitle of a chart: sizes of the workload and number of seeds."""
    caption = f"{params['flows']:,} flows of {params['markets']} markets, {params['users']:,} users"
    return caption + (f", {seeds} {'seed' if seeds == 1 else 'seeds'}" if seeds else "")
