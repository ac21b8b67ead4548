"""The experiments of tock2005: small, but through the command and with all that it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from narrowcast.costs.filtering import Filtering
from narrowcast.costs.multicast_loopback import AGGREGATION
from narrowcast.errors import ParameterError
from narrowcast.lab.papers import PAPERS, Study
from narrowcast.lab.papers.tock2005.baselines import hybrid_plan
from narrowcast.lab.papers.tock2005.figure_6 import PRICES, series_of
from narrowcast.lab.papers.tock2005.setting import PAPER, interest_of, share_of
from narrowcast.lab.spark.sweep import run_sweep
from narrowcast.model.interest import Interest
from narrowcast.planning import PLANNERS
from support.command import document, refusal
from support.errors import refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXPERIMENTS = PAPERS["tock2005"]
Rows = dict[tuple[str, float | None, str], Any]
TINY = [
    "flows=400",
    "users=30",
    "markets=3",
    "share=0.1",
    "groups=3",
    "sessions=3,6,12",
    "sweeps=20",
    "h=1,40",
]


def run(name: str, seeds: tuple[int, ...] = (0, 1), scale: Any = "small", **given: str) -> tuple[Rows, Any]:
    """Return the rows of an experiment by series, place and metric, and all that came of it."""
    experiment = EXPERIMENTS[name]
    outcome = experiment.run(Study(seeds, experiment.settings(scale, given)))
    return {(row.series, row.x, row.metric): row for row in outcome.rows}, outcome


def test_the_command(tmp_path: Path) -> None:
    words = [word for each in TINY for word in ("--set", each)]
    result, _ = document(
        "reproduce", "tock2005", "--scale", "small", "--seeds", "0", *words, "--out", tmp_path / "out"
    )
    assert list(result["experiments"]) == [
        "workload",
        "figure-4",
        "figure-5",
        "figure-6",
        "figure-7",
        "baselines",
    ]
    found = {path.name for path in (tmp_path / "out").iterdir()}
    names = ("figure-4", "figure-5", "figure-6", "figure-7", "baselines")
    pictures = {f"tock2005-{name}.{kind}" for name in names for kind in ("png", "svg")}
    assert found == {"results.json", "report.html", *pictures}
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == result
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    series = {row["series"] for row in result["experiments"]["figure-6"]["rows"]}
    assert series == {
        f"hierarchical-gf/{groups}{prices}"
        for groups in (3, "sessions")
        for prices in ("", "/0.1/1.9", "/1.6/0.4")
    }
    assert {row["metric"] for row in result["experiments"]["figure-7"]["rows"]} == {"cx_over_cf"}
    of_measured = result["experiments"]["figure-5"]
    assert of_measured["params"]["h"] == [1, 40]
    # No number of the paper stands beside one of a smaller workload, but for what does not hang on it.
    for name, experiment in result["experiments"].items():
        printed = {row["series"] for row in experiment["rows"] if row["paper"] is not None}
        assert printed <= ({"alpha", "beta"} if name == "figure-5" else set()), name


@pytest.mark.slow
@pytest.mark.spark
def test_the_same_on_spark(spark: SparkSession) -> None:
    given = dict(each.split("=") for each in TINY)
    for name in ("workload", "figure-6", "figure-7", "baselines"):
        experiment = EXPERIMENTS[name]
        params = experiment.settings("small", given)
        here = experiment.run(Study((0, 1), params))
        there = experiment.run(
            Study((0, 1), params, runner=lambda sweep, tell: run_sweep(spark, sweep, tell=tell))
        )
        assert there == here, name


def test_the_workload_at_the_papers_size() -> None:
    rows, outcome = run("workload", scale="paper")
    users = {metric: rows["users", None, f"symbols_{metric}"] for metric in ("mean", "max", "min")}
    assert [row.paper for row in users.values()] == [68.85, 102, 15]
    assert users["mean"].measured == pytest.approx(67.3, abs=4)
    assert users["max"].measured == 102
    assert 15 <= users["min"].measured <= 17
    assert rows["symbols", None, "top_tenth_pct"].measured == pytest.approx(55, abs=0.1)
    zipf, flat = (rows[f"unicast/{law}", None, "copies_per_message"] for law in ("zipf", "flat"))
    assert (zipf.paper, flat.paper) == (10.1, 10.1)
    assert zipf.measured == pytest.approx(9.93, abs=1)
    assert flat.measured == pytest.approx(7.49, abs=0.6)
    goodput = rows["flooding/zipf", None, "goodput_pct"]
    assert goodput.paper == 2
    assert goodput.measured == pytest.approx(100 * zipf.measured / 500)
    assert rows["symbols", None, "distinct_audiences"].measured < rows["symbols", None, "wanted"].measured
    assert "a calibration, not a derivation" in outcome.notes[1]
    assert len(outcome.notes) == 2
    assert "not of the paper's size" in run("workload")[1].notes[2]


def test_figure_4_counts_every_wish() -> None:
    rows, outcome = run("figure-4", seeds=(3,), flows="1001", users="101", markets="1")
    records, caption = outcome.charts["tock2005-figure-4"]
    squares = [each for each in records if each["panel"] == "interest"]
    # 1001 flows in columns of five, 101 users in rows of two.
    wishes = sum(each["wanted"] / 100 * 5 * 2 for each in squares)
    assert wishes == pytest.approx(rows["workload", None, "wishes"].measured)
    interest = interest_of(
        seed=3, **EXPERIMENTS["figure-4"].settings("small", {"flows": "1001", "users": "101", "markets": "1"})
    )
    assert rows["workload", None, "wishes"].measured == interest.n_wants
    assert [each["name"] for each in records if each["panel"] == "market"] == ["market 1"]
    assert max(each["rate"] for each in records if each["panel"] == "rate") == 1000
    assert "seed 3" in caption


def test_figure_5_is_measured() -> None:
    rows, outcome = run("figure-5", seeds=(0, 1), seconds="0.6", h="1,8,40")
    assert rows["alpha", 8, "us_per_message"].paper == 1
    assert rows["alpha", 1, "us_per_message"].paper is None
    assert rows["alpha", 1, "us_per_message"].measured > 3 * rows["alpha", 40, "us_per_message"].measured > 0
    packet, fixed = rows["alpha/packet", None, "us_per_packet"], rows["alpha/message", None, "us_per_message"]
    assert packet.measured > fixed.measured >= 0
    assert rows["packets", None, "lost_pct"].measured >= 0
    records, _ = outcome.charts["tock2005-figure-5"]
    assert {"kind": "paper", "cost": "paper", "h": 8, "value": 1.0} in records
    assert len([each for each in records if each["kind"] == "measured"]) == 6
    assert EXPERIMENTS["figure-5"].params["h"] == list(AGGREGATION)


def test_figure_6_has_the_costs_of_plans() -> None:
    given = {"sessions": "5,20", "groups": "5"}
    rows, outcome = run("figure-6", (4,), **given)
    params = EXPERIMENTS["figure-6"].settings("small", given)
    interest = interest_of(seed=4, **params)
    plan = PLANNERS["hierarchical-gf"](channels=5, sessions=20, seed=4).fit(interest).plan_
    for alpha, beta in PRICES:
        model = Filtering(alpha=alpha, beta=beta)
        share = model.score(interest, plan).terms["excess"] / model.flooding(interest)
        assert rows[series_of("5", alpha, beta), 20, "cx_over_cf"].measured == pytest.approx(share)
        # As many groups as sessions: alpha + beta alone counts.
        flat = rows[series_of("sessions", alpha, beta), 20, "cx_over_cf"].measured
        assert flat == pytest.approx(rows["hierarchical-gf/sessions", 20, "cx_over_cf"].measured)
        assert rows[series_of("5", alpha, beta), 5, "cx_over_cf"].measured == pytest.approx(
            rows[series_of("sessions", alpha, beta), 5, "cx_over_cf"].measured
        )
    assert len(rows) == 3 * 4
    assert any("Reproduced" in note for note in outcome.notes)
    only = run("figure-6", (4,), sessions="5", groups="10")[
        0
    ]  # fewer sessions than groups: there is no such plan
    assert {series for series, _, _ in only} == {series_of("sessions", *prices) for prices in PRICES}


def test_figure_7_keeps_the_order_of_methods() -> None:
    rows, outcome = run("figure-7", (0, 1), sessions="100", sweeps="300")
    at = {name: rows[f"{name}/10", 100, "cx_over_cf"].measured for name in
          ("hierarchical-sf", "hierarchical-gf", "hierarchical-it", "hierarchical-rra", "joint")}  # fmt: skip
    assert max(at, key=at.__getitem__) == "hierarchical-sf"
    assert at["hierarchical-it"] <= at["hierarchical-rra"] <= at["hierarchical-gf"]
    assert at["joint"] <= 1.01 * at["hierarchical-it"]
    records, caption = outcome.charts["tock2005-figure-7"]
    assert {each["kind"] for each in records} == {"method"}  # the paper's axis is of its own size
    assert "grey" not in caption


def test_baselines() -> None:
    rows, outcome = run("baselines", (0,))
    interest = interest_of(seed=0, **EXPERIMENTS["baselines"].settings("small", {}))
    copies = rows["unicast", None, "copies_per_message"].measured
    assert copies == pytest.approx(Filtering.multiplicity(interest))
    assert rows["flooding", None, "goodput_pct"].measured == pytest.approx(100 * Filtering.goodput(interest))
    assert rows["unicast", None, "cx_over_cf"].measured == 0
    assert rows["flooding", None, "cx_over_cf"].measured == 1
    audience = interest.audience()
    single = 100 * np.count_nonzero(audience == 1) / np.count_nonzero(audience)
    assert rows["single-reader", None, "flows_pct"].measured == pytest.approx(single)
    for name in ("hierarchical-gf/10", "joint/10"):
        plain, both = (rows[f"{way}{name}", 50, "cx_over_cf"].measured for way in ("", "hybrid/"))
        assert 0 < both < plain < 1
        # What has one reader is one copy either way.
        assert rows[f"hybrid/{name}", 50, "copies_per_message"].measured == pytest.approx(1)
        assert rows[f"hybrid/{name}", 50, "goodput_pct"].measured > rows[name, 50, "goodput_pct"].measured
    assert len(outcome.notes) == 5


def test_a_hybrid_plan_reaches_all_readers() -> None:
    rng = np.random.default_rng(6)
    interest = Interest(rng.random((20, 60)) < 0.06, rng.random(60))
    plan = hybrid_plan(interest, method="joint", groups=2, sessions=4, seed=0, sweeps=20)
    plan.validate(interest)
    audience = interest.audience()
    assert plan.unicast.nnz == np.count_nonzero(audience == 1)
    assert np.array_equal(np.diff(plan.carries.indptr) > 0, audience > 1)
    empty = Interest(np.zeros((2, 3)))
    assert hybrid_plan(empty, method="hierarchical-gf", groups=2, sessions=2, seed=0, sweeps=1).n_groups == 0


@pytest.mark.parametrize("rates", [[0.0, 0.0], [1.0, 0.0]])
def test_flows_without_messages_have_a_share(rates: list[float]) -> None:
    interest = Interest([[1, 1], [1, 0], [0, 1]], rates)
    plan = PLANNERS["hierarchical-gf"](channels=1, sessions=1, seed=0).fit(interest).plan_
    assert share_of(interest, plan) == (1.0 if any(rates) else 0.0)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("flows=0", "'0'"),
        ("share=0", "0.0"),
        ("share=2", "2.0"),
        ("rates=steep", "'steep'"),
        ("groups=x", "'x'"),
        ("groups=10,10", "[10, 10]"),
        ("columns=3", "'columns'"),
    ],
)
def test_bad_words(word: str, value: str, tmp_path: Path) -> None:
    given = ["--set", word]
    chosen = ["--experiment", "figure-7", "--scale", "small", "--seeds", "0"]
    message = refusal("reproduce", "tock2005", *chosen, *given, "--out", tmp_path / "out")
    assert word.partition("=")[0] in message
    assert value in message
    assert list(tmp_path.iterdir()) == []


def test_bad_settings_of_a_measurement() -> None:
    with refused(ParameterError, parameter="seconds", value=0.0):
        run("figure-5", seconds="0.0")
    with refused(ParameterError, 1000, 327):
        run("figure-5", h="1,1000")


# ---------------------------------------------------------------------------------------------- the targets


SEEDS = (10, 11, 12, 13, 14)


@pytest.mark.slow
@pytest.mark.paper
def test_groups_first_at_the_papers_size() -> None:
    rows, _ = run("figure-6", SEEDS, "paper")
    for series, n, printed in (("50", 50, 0.294), ("50", 1000, 0.161), ("100", 1000, 0.113)):
        assert rows[f"hierarchical-gf/{series}", n, "cx_over_cf"].measured == pytest.approx(printed, rel=0.05)


@pytest.mark.slow
@pytest.mark.paper
def test_methods_at_the_papers_size() -> None:
    rows, _ = run("figure-7", SEEDS, "paper", sessions="50,100,1000")
    at = {(series.split("/")[0], n): row.measured for (series, n, _), row in rows.items()}
    assert at["hierarchical-sf", 1000] >= at["hierarchical-gf", 1000] + 0.02
    assert at["hierarchical-it", 1000] <= 0.155
    for n, most in ((50, 0.273), (100, 0.233), (1000, 0.148)):
        assert at["joint", n] <= most
    assert PAPER["flows"] == 20_000
