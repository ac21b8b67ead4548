"""Figure 9: updates of software packages, under three intervals of maintenance (section 5.3)."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from narrowcast.lab.papers.base import Experiment, Outcome
from narrowcast.lab.papers.tamara2007.figures import METRIC, lines, outcome, shown
from narrowcast.lab.papers.tamara2007.setting import follow_changes, model_of, seeds_of
from narrowcast.model.interest import Interest
from narrowcast.workloads.packages import Packages

if TYPE_CHECKING:
    import pyarrow as pa

    from narrowcast.lab.papers.base import Study
    from narrowcast.lab.sweep import Record

#: The environment variable with a folder, and the files in it with a real index of packages.
FOLDER, DEPENDS, SECTIONS = "NARROWCAST_DATA", "debian_depends.parquet", "debian_packages.parquet"
_DAY, _HOUR = 86_400.0, 3600.0


def index() -> tuple[str, str]:
    """Return the paths of a real index of packages, dependencies and sections; empty if there is none."""
    folder = os.environ.get(FOLDER, "")
    found = [Path(folder, name) for name in (DEPENDS, SECTIONS)]
    return (str(found[0]), str(found[1])) if folder and all(path.exists() for path in found) else ("", "")


@lru_cache(maxsize=4)
def _made(
    users: int, topics: int, depends: str, sections: str, seed: int
) -> tuple[Interest, pa.Table, float]:
    """Return the initial interest, the changes, and their duration in days."""
    made = Packages(n_subscribers=users, n_flows=topics, depends=depends, sections=sections, seed=seed)
    last = made.interest()
    empty = Interest(np.zeros(last.wants.shape), last.rate, last.subscribers, last.flows)
    return empty, made.tables()["changes"], made.days


def _costs(
    *, method: str, hours: float, users: int, topics: int, depends: str, sections: str, windows: int,
    function: str, seed: int,
) -> list[Record]:  # fmt: skip
    """Return the costs and statistics of a method as users arrive."""
    empty, changes, days = _made(users, topics, depends, sections, seed)
    rows = follow_changes(
        method, empty, changes, start=None, seconds=days * _DAY, model=model_of(function, hours * _HOUR),
        windows=windows, seed=seed,
    )  # fmt: skip
    return shown(rows, windows, users)


def _figure_9(study: Study) -> Outcome:
    """Run all methods while users arrive, for each interval of maintenance."""
    params = dict(study.params)
    hours = params.pop("hours")
    depends, sections = index()
    fixed = {**params, "depends": depends, "sections": sections}
    found = lines(study, _costs, {"hours": hours}, fixed, lambda row: str(row["hours"]))
    titles = {str(each): f"maintenance every {each:g} h" for each in hours}
    notes = []
    for each in titles:
        scribe, tamara, plus = (found[METRIC][name, each] for name in ("per-flow", "tamara", "tamara+"))
        end = max(tamara)
        times = [sum(scribe[end]) / sum(curve[end]) for curve in (tamara, plus)]
        dearer = [at for at in plus if at in scribe and sum(plus[at]) > sum(scribe[at])]
        notes.append(
            f"{titles[each]}: with all users Scribe costs {times[0]:.1f} times what Tamara does, "
            f"{times[1]:.1f} times with all messages of adapting; it pays off "
            + (f"after {max(dearer):g} users." if dearer else "from the first place on.")
        )
    notes.append(
        "The paper: cost effective from 250 users on even where maintenance is rare, and more than 4 times "
        "better with all thousand. Its users and rates of updates are not to be had; those here are made up, "
        "so this says nothing about its numbers."
    )
    kind = "packages of the Debian index" if depends else "made-up packages"
    caption = f"messages per interval against users; {params['users']:,} users, {kind}, "
    caption += f"costs {params['function']}, {seeds_of(len(study.seeds))}"
    return outcome(found, "tamara2007-figure-9", caption, notes, titles)


FIGURE_9 = Experiment(
    "updates of software packages, as users arrive",
    _figure_9,
    {"users": 1000, "topics": 3000, "windows": 100, "function": "linear", "hours": [2.0, 12.0, 24.0]},
    {"users": 100, "topics": 300, "windows": 20},
)
