"""Figure 7: the paper's methods compared, and the product's own (section 5.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from narrowcast.lab.papers.base import Experiment, Outcome, ResultRow
from narrowcast.lab.papers.tock2005.setting import (
    METRIC,
    PAPER,
    SMALL,
    caption_of,
    interest_of,
    printed,
    share_of,
    size_note,
)
from narrowcast.lab.sweep import Sweep
from narrowcast.planning.base import PLANNERS

if TYPE_CHECKING:
    from narrowcast.lab.papers.base import Study
    from narrowcast.lab.sweep import Record
    from narrowcast.model.interest import Interest

#: The paper's methods, and its names for them.
METHODS = {
    "hierarchical-sf": "SF",
    "hierarchical-gf": "GF",
    "hierarchical-it": "IT",
    "hierarchical-rra": "RRA",
}
#: The product's own methods.
OWN = "joint"
#: The numbers of groups of the paper's figure, and the ends of its axis.
GROUPS, AXIS = 50, (0.14, 0.32)
#: Methods that differ by less than this, in per cent, are considered equal.
ALIKE = 5.0


def planned(interest: Interest, *, method: str, groups: int, sessions: int, seed: int, sweeps: int) -> Any:
    """Return the plan of a method for alpha = beta = 1."""
    more = {"sweeps": sweeps} if method == OWN else {}
    return PLANNERS[method](channels=groups, sessions=sessions, seed=seed, **more).fit(interest).plan_


def _share(interest: Interest, *, groups: int, sessions: int, **given: Any) -> list[Record]:
    """Return the remaining share of flooding of a plan."""
    if groups > sessions:
        return []
    chosen = {name: given[name] for name in ("method", "seed", "sweeps")}
    return [{METRIC: share_of(interest, planned(interest, groups=groups, sessions=sessions, **chosen))}]


def _figure_7(study: Study) -> Outcome:
    """Run all methods over numbers of sessions."""
    params = dict(study.params)
    grid = {"groups": params.pop("groups"), "sessions": params.pop("sessions"), "method": (*METHODS, OWN)}
    found: dict[tuple[str, int, int], list[float]] = {}
    for row in study.run(Sweep(_share, grid, study.seeds, params, setup=interest_of)).rows:
        at: Any = row["method"], row["groups"], row["sessions"]
        share: Any = row[METRIC]
        found.setdefault(at, []).append(share)
    order = [*METHODS, OWN]
    keys = sorted(found, key=lambda at: (at[1], order.index(at[0]), at[2]))
    rows = [ResultRow.of(f"{at[0]}/{at[1]}", at[2], METRIC, found[at]) for at in keys]
    records: list[dict[str, Any]] = [
        {"kind": "method", "method": METHODS.get(name, "joint, our own"), "groups": groups, "sessions": n,
         "share": row.measured, "low": row.measured - row.spread, "high": row.measured + row.spread}
        for (name, groups, n), row in zip(keys, rows, strict=True)
    ]  # fmt: skip
    caption = f"{caption_of(params, len(study.seeds))}, alpha = beta = 1"
    if printed(params, 1) is not None and any(groups == GROUPS for _, groups, _ in keys):
        records.append({"kind": "axis", "groups": GROUPS, "low": AXIS[0], "high": AXIS[1]})
        caption += "; grey: the paper's axis"
    value = {at: row.measured for at, row in zip(keys, rows, strict=True)}
    notes = [each for groups in sorted({at[1] for at in keys}) for each in _claims(value, groups)]
    none = "The paper prints curves and no numbers, so there are none to hold ours against."
    return Outcome(rows, {"tock2005-figure-7": (records, caption)}, [*notes, none, *size_note(params)])


def _claims(value: dict[tuple[str, int, int], float], groups: int) -> list[str]:
    """Return notes that compare the paper's claims on a number of groups with the results."""
    sessions = sorted({at[2] for at in value if at[1] == groups})
    many = sessions[-1]
    last = {name: value[name, groups, many] for name in METHODS}
    sf, gf, it, rra = last.values()
    apart = {}
    for n in sessions[:2]:
        some = [value[name, groups, n] for name in METHODS]
        apart[n] = 100 * (max(some) / min(some) - 1) if min(some) > 0 else 0.0

    def verdict(yes: bool) -> str:
        return "reproduced" if yes else "not reproduced"

    own = [value[OWN, groups, n] for n in sessions]
    least = [min(value[name, groups, n] for name in METHODS) for n in sessions]
    less = [100 * (1 - mine / other) for mine, other in zip(own, least, strict=True) if other > 0] or [0.0]
    few = " and ".join(f"{part:.1f} % at {n:,} sessions" for n, part in apart.items())
    one = ", where a group is a session and SF, GF and IT are one method" * (sessions[0] == groups)
    alike = (
        f"With {groups} groups. The paper: hardly any difference with few sessions. Here the worst of the "
        f"four is above the best by {few}{one}: {verdict(max(apart.values()) < ALIKE)}."
    )
    clear = (
        "The paper: GF has a clear advantage over SF with many sessions. Here "
        f"{gf:.3f} and {sf:.3f} at {many:,}: {verdict(sf - gf > 0.05 * gf)}."
    )
    best = (
        f"The paper: IT and RRA are best. Here IT has {it:.3f} and RRA {rra:.3f}, GF {gf:.3f}: "
        f"{verdict(max(it, rra) <= min(sf, gf))}. Minor differences between the two: RRA is "
        f"{100 * (rra / it - 1):+.1f} % off IT at {many:,} sessions, {verdict(abs(rra / it - 1) < 0.02)}."
    )
    ours = (
        f"joint, our own, is {min(less):.1f} to {max(less):.1f} % below the best of the four; at {many:,} "
        f"sessions {own[-1]:.3f} beside {min(last.values()):.3f}."
    )
    return [alike, clear, best, ours]


FIGURE_7 = Experiment(
    "the paper's methods and the product's own, compared",
    _figure_7,
    {**PAPER, "groups": [GROUPS], "sessions": [50, 100, 200, 500, 1000], "sweeps": 10_000},
    {**SMALL, "groups": [10], "sessions": [10, 20, 50, 100], "sweeps": 300},
)
