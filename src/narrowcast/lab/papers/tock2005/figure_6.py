"""Figure 6: the effect of hierarchy, over numbers of sessions and groups (section 5.4)."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from narrowcast.lab.papers.base import Experiment, Outcome, ResultRow
from narrowcast.lab.papers.tock2005.setting import (
    METRIC,
    PAPER,
    SMALL,
    caption_of,
    interest_of,
    share_of,
    size_note,
)
from narrowcast.lab.sweep import Sweep
from narrowcast.planning.sessions.hierarchical import GroupsFirst

if TYPE_CHECKING:
    from narrowcast.lab.papers.base import Study
    from narrowcast.lab.sweep import Record
    from narrowcast.model.interest import Interest

#: Cost of a message in its group (alpha) and in its session (beta), for three panels.
PRICES = ((0.1, 1.9), (1.0, 1.0), (1.6, 0.4))
#: Value of `groups` that means: the same number as sessions.
AS_SESSIONS = "sessions"
#: The paper's claim on each panel.
SAID = (
    "adding sessions is almost\nas effective as adding groups",
    "the typical case: hierarchy\nsignificantly reduces the load",
    "adding sessions\nbecomes less effective",
)


def series_of(groups: str, alpha: float, beta: float) -> str:
    """Return the name of a curve; it includes alpha and beta unless both are 1.

    Examples
    --------
    >>> series_of("50", 1.0, 1.0), series_of("sessions", 0.1, 1.9)
    ('hierarchical-gf/50', 'hierarchical-gf/sessions/0.1/1.9')
    """
    prices = "" if (alpha, beta) == (1, 1) else f"/{alpha:g}/{beta:g}"
    return f"hierarchical-gf/{groups}{prices}"


def _shares(interest: Interest, *, groups: str, sessions: int, seed: int, **_: Any) -> list[Record]:
    """Return the remaining share of flooding of one plan under all prices, which the method ignores."""
    n_groups = sessions if groups == AS_SESSIONS else int(groups)
    if n_groups > sessions:
        return []
    plan = GroupsFirst(channels=n_groups, sessions=sessions, seed=seed).fit(interest).plan_
    return [{"alpha": a, "beta": b, METRIC: share_of(interest, plan, alpha=a, beta=b)} for a, b in PRICES]


def _figure_6(study: Study) -> Outcome:
    """Run the groups-first method over numbers of sessions and groups."""
    params = dict(study.params)
    groups, sessions = params.pop("groups"), params.pop("sessions")
    grid = {"sessions": sessions, "groups": [*map(str, sorted(groups)), AS_SESSIONS]}
    found: dict[tuple[str, float, float, int], list[float]] = {}
    for row in study.run(Sweep(_shares, grid, study.seeds, params, setup=interest_of)).rows:
        at: Any = row["groups"], row["alpha"], row["beta"], row["sessions"]
        share: Any = row[METRIC]
        found.setdefault(at, []).append(share)
    keys = sorted(
        found, key=lambda at: (PRICES.index(at[1:3]) != 1, PRICES.index(at[1:3]), _order(at[0]), at[3])
    )
    rows = [ResultRow.of(series_of(*at[:3]), at[3], METRIC, found[at]) for at in keys]
    value = {at: row.measured for at, row in zip(keys, rows, strict=True)}
    records = [
        {"panel": PRICES.index((a, b)), "prices": f"alpha {a:g}, beta {b:g}", "groups": name,
         "sessions": n, "share": share, "said": f"paper: {SAID[PRICES.index((a, b))]}"}
        for (name, a, b, n), share in value.items()
    ]  # fmt: skip
    caption = f"{caption_of(params, len(study.seeds))}; circles: no hierarchy; the paper's axes end at 0.5"
    return Outcome(rows, {"tock2005-figure-6": (records, caption)}, [*_claims(value), *size_note(params)])


def _order(groups: str) -> int:
    """Return the sort key of a number of groups."""
    return 1 << 31 if groups == AS_SESSIONS else int(groups)


def _claims(value: dict[tuple[str, float, float, int], float]) -> list[str]:
    """Return notes that compare the paper's claims with the results."""
    names = sorted({at[0] for at in value}, key=_order)
    sessions = sorted({at[3] for at in value})
    more_sessions = [
        value[name, a, b, two] < value[name, a, b, one]
        for name in names
        for a, b in PRICES
        for one, two in pairwise(n for n in sessions if (name, a, b, n) in value)
    ]
    more_groups = [
        value[two, a, b, n] < value[one, a, b, n]
        for n in sessions
        for a, b in PRICES
        for one, two in pairwise(name for name in names if (name, a, b, n) in value)
        if not (two == AS_SESSIONS and one == str(n))  # the same
    ]
    apart = max(
        abs(value[AS_SESSIONS, a, b, n] - value[AS_SESSIONS, 1.0, 1.0, n])
        for a, b in PRICES
        for n in sessions
    )
    order = (
        "The paper: more sessions cost less for a given number of groups, and more groups for a given number "
        f"of sessions. Here {sum(more_sessions)} of {len(more_sessions)} steps to more sessions and "
        f"{sum(more_groups)} of {len(more_groups)} to more groups do, over all prices."
    )
    flat = (
        "The paper: with as many groups as sessions, alpha + beta alone counts. Here the three curves differ "
        f"by {apart:.1g} at most."
    )
    none = (
        "The paper prints curves and no numbers, so there are none to hold ours against, but for the axes, "
        f"which end at 0.5. Here the largest is {max(value.values()):.3f}."
    )
    return [order, flat, *_won(value, names, sessions[-1]), none]


def _won(value: dict[tuple[str, float, float, int], float], names: list[str], last: int) -> list[str]:
    """Return notes on how much of the benefit of more groups more sessions give."""
    base = [name for name in names if name != AS_SESSIONS and (name, 1.0, 1.0, int(name)) in value]
    if not base or int(base[-1]) >= last:
        return []
    middle = base[len(base) // 2]
    won = []
    for a, b in PRICES:
        before = value[middle, a, b, int(middle)]
        won.append((before - value[middle, a, b, last]) / (before - value[AS_SESSIONS, a, b, last]))
    parts = (f"{100 * part:.0f} % with {a:g} and {b:g}" for part, (a, b) in zip(won, PRICES, strict=True))
    verdict = "Reproduced" if won[0] > won[1] > won[2] else "Not reproduced"
    note = (
        "The paper: adding sessions is almost as effective as adding groups where beta is much larger than "
        "alpha, and less effective where it is smaller. Here, from "
        f"{middle} groups and as many sessions, {last:,} sessions alone win of what as many groups would: "
        f"{', '.join(parts)} for alpha and beta. {verdict}."
    )
    return [note]


FIGURE_6 = Experiment(
    "effect of hierarchy: the groups-first method over numbers of sessions and groups",
    _figure_6,
    {**PAPER, "groups": [10, 20, 50, 100], "sessions": [10, 20, 50, 100, 200, 500, 1000]},
    {**SMALL, "groups": [5, 10, 20], "sessions": [5, 10, 20, 50, 100]},
)
