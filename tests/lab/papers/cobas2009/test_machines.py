"""Figures 6(d), 7(a) and 7(b), and the day on PlanetLab: small, with all that is held against the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from narrowcast.errors import ParameterError
from narrowcast.lab.papers import PAPERS, Study
from narrowcast.lab.papers.cobas2009 import load, maintenance, planetlab
from narrowcast.lab.papers.cobas2009.latency import LATENCY
from narrowcast.lab.papers.cobas2009.maintenance import SERIES
from support.command import document, refusal
from support.errors import refused

EXPERIMENTS = PAPERS["cobas2009"]
Rows = dict[tuple[str, float | None, str], Any]
TINY = {"nodes": "24", "subscriptions": "500", "attributes": "3"}


def run(name: str, seeds: Any = (0,), **given: Any) -> tuple[Rows, Any]:
    """Return the rows of an experiment by series, place and metric, and all that came of it."""
    experiment = EXPERIMENTS[name]
    outcome = experiment.run(Study(seeds, experiment.settings("small", TINY | given)))
    return {(row.series, row.x, row.metric): row for row in (*outcome.rows, *outcome.beside)}, outcome


def test_the_command(tmp_path: Path) -> None:
    output, _ = document(
        "reproduce", "cobas2009", "--scale", "small", "--seeds", "0,1", "--set", "subscriptions=300",
        "--set", "filters=300", "--set", "hours=3", "--set", "nodes=12", "--experiment", "planetlab",
        "--out", tmp_path / "out",
    )  # fmt: skip
    assert list(output["experiments"]) == ["planetlab"]
    for kind in ("png", "svg"):
        assert (tmp_path / "out" / f"cobas2009-planetlab.{kind}").stat().st_size > 10_000
    rows = output["experiments"]["planetlab"]["rows"]
    assert {row["x"] for row in rows} == {0, 1, 2, 3}
    assert any(row["spread"] > 0 for row in rows)
    assert "How fast it goes is no result" in (tmp_path / "out" / "report.html").read_text()


def test_invalid_parameters(tmp_path: Path) -> None:
    words = ("reproduce", "cobas2009", "--scale", "small", "--out", tmp_path / "out", "--experiment")
    message = refusal(*words, "planetlab", "--set", "round_min=90")
    assert "round_min=90.0" in message
    assert not (tmp_path / "out").exists()
    for experiment, given, name, value in (
        ("planetlab", {"mbit": "0"}, "mbit", 0.0),
        ("figure-7a", {"copied": "0"}, "share", 0.0),
        ("figure-7a", {"kappa": "1"}, "kappa", 1.0),
        ("figure-7b", {"share": "60"}, "share", 60.0),
        ("figure-7b", {"share": "5,0"}, "share", 0.0),
        ("figure-7b", {"share": "1"}, "share", 1.0),
        ("figure-6d", {"recalled": "0"}, "recalled", "0"),
    ):
        with refused(ParameterError, name, value):
            run(experiment, **given)
    with refused(ParameterError, "share", 24, 500):
        run("figure-7b", share="1")


def test_figure_6d() -> None:
    rows, outcome = run("figure-6d", (0, 1), nodes="16,64", recalled="16")
    for system in ("multi-1d", "dr-tree", "cobas"):
        for x in (16, 64):
            plain, cached = (rows[f"{system}{way}", x, "hops"].measured for way in ("", "/cached"))
            assert 1 < cached < plain
            # Events that match little count as much as others here, so that it may be a little less.
            assert rows[system, x, "last_hops"].measured > plain - 0.1
            assert rows[system, x, "last_latency_s"].measured >= rows[system, x, "latency_s"].measured
            # A hop takes the time to send an event at least.
            assert rows[system, x, "latency_s"].measured > 0.2 * plain
            assert rows[system, x, "work_max_over_mean"].measured >= 1
        assert rows[system, 16, "hops"].measured < rows[system, 64, "hops"].measured
    assert {row.metric for row in outcome.rows} == set(LATENCY)
    assert len(outcome.charts["cobas2009-figure-6d"][0]) == 2 * 3 * 2 * 3
    assert sum("highest latency" in note for note in outcome.notes) == 4


def test_figure_7a() -> None:
    rows, outcome = run("figure-7a", (0, 1), kappa="4", copied="1.5")
    value = {(series, metric): row.measured for (series, _, metric), row in rows.items()}
    for what in load.LOADS:
        for state in load.STATES:
            series = f"{what}/{state}"
            nodes, share = value[series, load.OVER], value[series, load.OVER_LOAD]
            # Each of them has more than 4 times the mean.
            assert share >= 4 * nodes
            assert value[series, f"{what}_max_over_mean"] >= 1
    assert value["storage/balanced", load.OVER] <= value["storage/before", load.OVER]
    most = [value[f"matching/{state}", "matching_max_over_mean"] for state in ("balanced", "replicated")]
    assert most[1] <= most[0]
    # Copies are held besides, and no event is sent more often.
    assert value["balanced", "machines_per_event"] == value["replicated", "machines_per_event"] <= 24
    held = [value[state, "machines_per_filter"] for state in load.STATES]
    assert held[0] == pytest.approx(held[1])
    assert held[1] < held[2]
    upkeep = value["replicated", "copies_upkeep_gb_per_min"]
    assert upkeep == pytest.approx((held[2] - held[1]) * 1e7 * 12.8 / 1e9)
    assert value["balanced", "sampling_gb"] > 0
    marks, caption = outcome.charts["cobas2009-figure-7a"]
    assert {mark["state"] for mark in marks} == {"as wide ranges", "balanced", "balanced, with copies"}
    assert "24 machines" in caption
    assert all(row.paper is None for row in rows.values())  # it is not the paper's size


def test_figure_7b() -> None:
    rows, outcome = run("figure-7b", share="5,25")
    for series in SERIES:
        for share, machines, filters in ((5.0, 1, 25), (25.0, 6, 125)):
            row = {metric: rows[series, share, metric].measured for metric in ("gb", "kb_per_operation")}
            many = filters * 1e7 / 500 if series.startswith("filters") else machines
            if series == "nodes/rebalance":
                many = 2 * machines
            assert row["gb"] * 1e6 == pytest.approx(row["kb_per_operation"] * many)
    for series in ("filters/insert", "filters/delete", "nodes/join", "nodes/fail"):
        assert 0 < rows[series, 5.0, "gb"].measured < rows[series, 25.0, "gb"].measured
    assert rows["nodes/leave", 25.0, "gb"].measured < rows["nodes/fail", 25.0, "gb"].measured
    assert rows["filters/delete", 5.0, "gb"].measured < rows["filters/insert", 5.0, "gb"].measured
    assert rows["nodes/rebalance", 5.0, "machines_per_filter"].measured >= 1
    for share, machines in ((5.0, 1), (25.0, 6)):
        assert rows["nodes/join", share, "share_pct"].measured == pytest.approx(100 * machines / 24)
        assert rows["filters/insert", share, "share_pct"].measured == pytest.approx(share)
    assert "by the piece" in outcome.notes[0]
    assert outcome.notes[1] == "There are only whole machines: 5 % of machines are 4.17 %."
    assert {mark["series"] for mark in outcome.charts["cobas2009-figure-7b"][0]} <= set(SERIES.values())


def test_the_shares_at_which_machines_take_more_are_named() -> None:
    value = {
        (f"{kind}/{way}", x, metric): gb
        for kind, ways, gbs in (
            ("nodes", ("join", "fail"), (1.0, 5.0)),
            ("filters", ("insert", "delete"), (2.0, 3.0)),
        )
        for way in ways
        for x, gb in zip((1.0, 10.0), gbs, strict=True)
        for metric in (maintenance.GB, maintenance.EACH, maintenance.CHANGED, "links_gb", "rotations")
    }
    value |= {("nodes/join", x, maintenance.CHANGED): x for x in (1.0, 10.0)}
    value |= {("nodes/leave", 10.0, maintenance.GB): 1.0}
    more = (maintenance.GB, "sampling_gb", "machines_per_event", "machines_per_filter", "work_max_over_mean")
    value |= {("nodes/rebalance", 10.0, metric): 1.0 for metric in more}
    note = maintenance._claims(value, [1.0, 10.0])[0]
    assert "with 10 % of either, 10.00 GB against 6.00 GB" in note
    assert "Machines take more with 10 of 1, 10 %: not reproduced by the same share" in note


@pytest.mark.parametrize(("nodes", "kappa"), [("1", "10"), ("24", "inf"), ("24", "0")])
def test_where_none_can_have_too_much_there_is_nothing_to_compare(nodes: str, kappa: str) -> None:
    rows, outcome = run("figure-7a", nodes=nodes, kappa=kappa)
    assert all("nothing to compare" in note for note in outcome.notes[:3])
    assert not any("reproduced" in note for note in outcome.notes)
    assert rows["balanced", None, "machines_per_event"].measured <= int(nodes)
    assert ("1 machine," in outcome.charts["cobas2009-figure-7a"][1]) == (nodes == "1")


def test_planetlab() -> None:
    rows, outcome = run("planetlab", (0, 1), hours="6", filters="500", nodes="20")
    for metric in (planetlab.CONTENT, planetlab.FILTERS):
        for system in ("multi-1d", "dr-tree"):
            assert len({rows[system, float(hour), metric].measured for hour in range(7)}) == 1
    content = [rows["cobas", float(hour), planetlab.CONTENT].measured for hour in range(7)]
    assert content[-1] < content[0] / 2
    # A machine's heartbeats for 500 filters, in one piece each.
    assert rows["cobas", 0.0, planetlab.FILTERS].measured == pytest.approx(500 * 12.8 / 1e6)
    assert rows["cobas", 6.0, planetlab.FILTERS].measured > rows["cobas", 0.0, planetlab.FILTERS].measured
    for hour in (0.0, 3.0, 6.0):
        for system in ("multi-1d", "dr-tree", "cobas"):
            best, mean, worst = (
                rows[system, hour, metric].measured
                for metric in (planetlab.BEST, planetlab.MEAN, planetlab.WORST)
            )
            assert 0.2 < best < mean < worst
    for hour in range(7):
        copies = rows["cobas", float(hour), "copies_per_event"].measured
        assert content[hour] == pytest.approx(copies * 120 * 0.256)
        assert rows["cobas", float(hour), "work_max_over_mean"].measured >= 1
    assert rows["cobas", 0.0, "trees"].measured == 3
    assert rows["cobas", 1.0, "moved_mb_per_min"].measured > 0
    assert all(row.paper is None for row in rows.values())
    assert outcome.notes[-1].startswith("The setting here is not the paper's: nodes 20, filters 500")


def test_numbers_of_the_paper_are_in_their_rows() -> None:
    whole = EXPERIMENTS["planetlab"].settings("paper", {})
    assert {hour for _, hour, _ in planetlab.PRINTED} <= set(range(whole["hours"] + 1))
    assert {series for series, _ in load.PRINTED} <= {f"{a}/{b}" for a in load.LOADS for b in load.STATES}


@pytest.mark.slow
@pytest.mark.paper
def test_a_day_at_its_own_size() -> None:
    """Within a few per cent of what five other seeds gave; the paper's numbers are not what it is held to."""
    experiment = EXPERIMENTS["planetlab"]
    outcome = experiment.run(Study((100,), experiment.settings("paper", {"hours": "24"})))
    value = {(row.series, row.x, row.metric): row for row in outcome.rows}
    assert value["cobas", 0.0, planetlab.CONTENT].paper == 2354.6
    assert value["cobas", 0.0, planetlab.CONTENT].measured == pytest.approx(2255, rel=0.03)
    assert value["cobas", 24.0, planetlab.CONTENT].measured == pytest.approx(182, rel=0.06)
    assert value["cobas", 24.0, planetlab.MEAN].measured == pytest.approx(1.44, rel=0.08)
