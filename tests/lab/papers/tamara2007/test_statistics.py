"""What experiments tell besides costs: clusters, topics in them, messages and updates by kind."""

from __future__ import annotations

from typing import Any

import pytest

from narrowcast.lab.following import Following
from narrowcast.lab.papers import PAPERS, Study
from narrowcast.lab.papers.tamara2007.setting import METHODS, STATISTICS, history, planted, workload
from narrowcast.lab.papers.tamara2007.tables import CHANGES
from narrowcast.lab.study import tables_of
from narrowcast.model.interest import Interest
from narrowcast.planning.topics.tamara import Tamara

EXPERIMENTS = PAPERS["tamara2007"]
Rows = dict[tuple[str, float | None, str], Any]
#: As small as it gets with something to see.
TINY = {"users": "60", "topics": "30", "windows": "5"}
ONE = {"users": 60, "topics": 30, "windows": 5, "p_in": 0.9, "home": 2, "function": "linear"}
#: What is counted by kind, as the planner names it.
NEW = Tamara().fit(Interest([[1, 1], [1, 1]]))
MESSAGES = [f"messages_{kind}" for kind in NEW.messages_]
UPDATES = [f"updates_{kind}" for kind in NEW.updates_]
#: An experiment with a panel of it, and the same as parameters of a history.
SAME = {
    "table-2": ("average", {"shift": "none", "days": 61.0}),
    "table-3": ("average", {"shift": "clustered", "days": 61.0}),
    "figure-5": ("average", {"shift": "none", "days": 61.0}),
    "figure-6": ("14.0", {"shift": "none", "days": 14.0}),
    "figure-7": ("shift", {"shift": "uniform", "interests": "clustered", "days": 61.0}),
    "figure-8": ("average", {"shift": "clustered", "days": 61.0}),
}


def run(name: str, seeds: tuple[int, ...] = (0,), **given: Any) -> tuple[Rows, Any]:
    """Return the rows of an experiment by series, place and metric, and all that came of it."""
    experiment = EXPERIMENTS[name]
    outcome = experiment.run(Study(seeds, experiment.settings("small", {**TINY, **given})))
    found = {(row.series, row.x, row.metric): row for row in (*outcome.rows, *outcome.beside)}
    assert len(found) == len(outcome.rows) + len(outcome.beside)
    return found, outcome


@pytest.mark.slow
@pytest.mark.parametrize("name", SAME)
def test_every_run_has_the_statistics_of_the_simulator(name: str) -> None:
    panel, given = SAME[name]
    rows, _ = run(name, (0, 1))
    for method in METHODS:
        series = f"{method}/{panel}"
        ends: list[dict[str, Any]] = [
            history(method=method, model="average", seed=seed, **ONE, **given)[-1] for seed in (0, 1)
        ]
        last = max((x for one, x, _ in rows if one == series and x is not None), default=None)
        last_row = {metric: row for (one, x, metric), row in rows.items() if (one, x) == (series, last)}
        for short, metric in STATISTICS.items():
            assert last_row[metric].measured == pytest.approx(sum(end[short] for end in ends) / 2)
        by_kind = [metric for metric in last_row if metric.startswith(("messages_", "updates_"))]
        by_kind = [metric for metric in by_kind if metric != "messages_per_interval"]
        assert by_kind == (MESSAGES + UPDATES if method in ("tamara", "tamara-tidy", "static") else [])
        for metric in by_kind:
            assert last_row[metric].measured == pytest.approx(sum(end[metric] for end in ends) / 2)
        assert ("overhead_pct" in last_row) == method.startswith("tamara")


def test_packages() -> None:
    rows, _ = run("figure-9", hours="24")
    end = max(x for _, x, _ in rows if x is not None)
    assert end == 60
    for method in METHODS:
        assert rows[f"{method}/24.0", end, "direct_topics"].measured <= 30
    assert rows["per-flow/24.0", end, "clusters"].measured == 0
    assert rows["giant/24.0", end, "clusters"].measured <= 1
    assert rows["tamara/24.0", end, "updates_pair"].measured >= 1


def test_clusters_over_time() -> None:
    rows, _ = run("figure-5", model="average")
    places = sorted({x for series, x, _ in rows if series == "tamara/average" and x is not None})
    assert len(places) == 5
    for method in ("tamara", "tamara-tidy", "static", "per-flow"):
        assert all((f"{method}/average", at, "clusters") in rows for at in places)
    assert ("cover/average", places[0], "clusters") not in rows  # planned at the end only
    for kind in MESSAGES:
        sent = [rows["tamara/average", at, kind].measured for at in places]
        assert sent == sorted(sent)
    assert sent[-1] > 0


@pytest.mark.parametrize("adapt", [True, False])
def test_initialization_is_not_counted(adapt: bool) -> None:
    given: dict[str, Any] = {"model": "average", "seed": 3, **ONE, "days": 61.0, "shift": "clustered"}
    last_row = history(method="tamara" if adapt else "static", **given)[-1]
    feeds = workload(**given)
    first, changes = feeds.interest(), feeds.tables()["changes"]
    seconds = 61 * 86_400.0
    following = Following(interest=first, changes=changes, windows=5, seconds=seconds)
    planner = Tamara(start=planted(feeds, first), period=seconds / 5, adapt=adapt, seed=3).fit(first)
    sent, made = planner.messages_, planner.updates_
    assert min(made["join"], sent["resub"]) > 0
    for batch, _ in following.states():
        planner.update(batch)
    assert {name: last_row[name] for name in MESSAGES + UPDATES} == {
        **{f"messages_{kind}": count - sent[kind] for kind, count in planner.messages_.items()},
        **{f"updates_{kind}": count - made[kind] for kind, count in planner.updates_.items()},
    }


def test_static_clusters_report_the_messages_that_made_them() -> None:
    """Counting goes on from the planner that made them to the one that keeps them."""
    given: dict[str, Any] = {"model": "average", "seed": 3, **ONE, "windows": 10, "shift": "none"}
    made, kept = (history(method=method, days=61.0, **given) for method in ("tamara", "static"))
    for kind in MESSAGES:
        sent: list[Any] = [row[kind] for row in kept]
        assert sent == sorted(sent)
        assert sent[0] == made[0][kind]  # until then they are the same
    assert (
        kept[-1]["messages_survey"] == kept[0]["messages_survey"]
    )  # `static` stops asking after it stops adapting
    assert all(kept[-1][kind] != made[-1][kind] for kind in ("messages_survey", "updates_pair"))


@pytest.mark.parametrize(("name", "panels"), [("figure-6", ("1.0",)), ("figure-7", ("arrivals", "shift"))])
def test_several_models(name: str, panels: tuple[str, ...]) -> None:
    given: dict[str, Any] = {"days": "1.0"} if name == "figure-6" else {}
    rows, outcome = run(name, model="average,frequent", **given)
    ((records, caption),) = outcome.charts.values()
    assert "average, frequent events" in caption
    assert len({record["panel"] for record in records}) == 2 * len(panels)
    alone: Rows = {}
    for model, behind in (("average", ""), ("frequent", "/frequent")):
        one, _ = run(name, model=model, **given)
        assert {key[0].partition("/")[2] for key in one} == {panel + behind for panel in panels}
        assert any(model in note for note in outcome.notes)
        alone |= one
    assert rows == alone


def test_tables_of_text_stay_short() -> None:
    for name, metrics in (("figure-5", 1), ("table-2", len(CHANGES) + len(STATISTICS) + 1)):
        _, outcome = run(name, model="average")
        assert len(tables_of(name, outcome)) == metrics + 1  # and what it says
