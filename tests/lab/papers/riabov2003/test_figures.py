"""The experiments of riabov2003: small, but through the command and with all that it writes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from narrowcast.cli.options import show
from narrowcast.errors import ParameterError
from narrowcast.lab.papers import PAPERS, Outcome, ResultRow, Study
from narrowcast.lab.papers.base import Experiment, check_seeds
from narrowcast.lab.papers.riabov2003.figure_6 import THRESHOLDS, _claims
from narrowcast.lab.study import tables_of
from support.command import call, document, refusal
from support.errors import refused

if TYPE_CHECKING:
    from pathlib import Path

SMALL = ["--set", "learn=1500", "--set", "events=400", "--set", "subscriptions=300"]


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, float | None], float]:
    """Return what figure 6 comes to at a small size."""
    params = PAPERS["riabov2003"]["figure-6"].settings(
        "paper", {"modes": "9", "learn": "4000", "groups": "11"}
    )
    progress: list[tuple[str, int, int]] = []
    study = Study((5, 6), params, lambda *report: progress.append(report))
    outcome = PAPERS["riabov2003"]["figure-6"].run(study)
    assert [report[1:] for report in progress] == [(done, 10) for done in range(10)]
    assert progress[4][0] == "modes 9, seed 5, groups 11, method partial"
    assert len(outcome.notes) == 5
    return {(row.series, row.x): row.measured for row in outcome.rows}


def test_the_order_of_methods(rows: dict[tuple[str, float | None], float]) -> None:
    at = {method: rows[f"{method}/9/11", 0.15] for method in ("forgy", "macqueen", "pairwise", "mst")}
    assert at["pairwise"] > at["forgy"]
    assert at["macqueen"] >= at["forgy"] - 0.5
    assert at["pairwise"] == max(at.values())
    assert rows["partial/9/11", None] > at["pairwise"] + 5
    assert abs(at["pairwise"] - 57) < 6  # the mean of many seeds is 57, and they differ by 2


def test_the_break_even_is_as_good_as_a_sweep(rows: dict[tuple[str, float | None], float]) -> None:
    for method in ("forgy", "macqueen", "pairwise", "mst"):
        best = max(rows[f"{method}/9/11", t] for t in THRESHOLDS)
        assert rows[f"{method}/9/11/break-even", None] >= best - 0.5


def test_tables_and_sentences_at_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of series break between words, and what the numbers say is no table."""
    monkeypatch.setenv("COLUMNS", "80")
    places = (0.0, 0.1, 0.2, 0.3, 0.4)
    rows = [ResultRow.of("macqueen/9/61/break-even", x, "improvement_pct", [55.5, 66.6]) for x in places]
    tables = tables_of("figure-6", Outcome(rows, notes=["The first. " * 9, "The second."]))
    show({}, tables, as_json=False)
    shown = capsys.readouterr().out
    words = {word for line in shown.splitlines() if "│" in line for word in line.split("│")[1].split()}
    assert words == {"macqueen,", "9,", "61,", "break-even"}
    lines = shown.splitlines()
    assert lines[lines.index("figure-6: what it says") + 1].startswith("The first. The first.")
    assert lines[-1] == "The second."


def test_every_curve_counts_for_the_claim_on_15_per_cent() -> None:
    """All but MST are best at 15 %, with one mode; with nine they all are."""
    rows = []
    for method in ("forgy", "macqueen", "pairwise", "mst"):
        for modes in (1, 9):
            peak = 0.1 if (method, modes) == ("mst", 1) else 0.15
            points = {t: 60.0 - 100 * abs(t - peak) for t in THRESHOLDS}
            rows += [
                ResultRow.of(f"{method}/{modes}/11", t, "improvement_pct", [y]) for t, y in points.items()
            ]
            rows.append(ResultRow.of(f"{method}/{modes}/11/break-even", None, "improvement_pct", [60.0]))
    rows += [ResultRow.of(f"partial/{modes}/11", None, "improvement_pct", [70.0]) for modes in (1, 9)]
    first, *_ = _claims(rows, {"modes": [1, 9], "groups": [11]})
    assert first == (
        "The paper: a threshold of 15 % is best: within half a point of the best in 7 of 8 curves here, "
        "2 of forgy, 2 of macqueen, 2 of pairwise, 1 of mst."
    )


@pytest.mark.slow
@pytest.mark.parametrize("edges", ["levels", "hops", "nested"])
def test_the_figure_at_the_papers_size(edges: str) -> None:
    experiment = PAPERS["riabov2003"]["figure-6"]
    outcome = experiment.run(Study((0, 1, 2, 3, 4), experiment.settings("paper", {"edges": edges})))
    value = {(row.series, row.x): row.measured for row in outcome.rows}
    for (series, x), even in value.items():
        if series.endswith("/break-even"):
            assert x is None
            best = max(value[series.removesuffix("/break-even"), t] for t in THRESHOLDS)
            assert even >= best - 0.5, series
    if edges == "levels":
        asked = {"1/11": 72, "4/11": 54, "9/11": 57, "1/61": 80, "4/61": 70, "9/61": 64}
        for setting, printed in asked.items():
            assert abs(value[f"pairwise/{setting}", 0.15] - printed) <= (6 if setting == "4/11" else 4)
        for setting, least in {"9/11": 70, "9/61": 81, "1/61": 86}.items():
            assert value[f"partial/{setting}", None] >= least


def test_the_command(tmp_path: Path) -> None:
    words = ["riabov2003", "--scale", "small", "--seeds", "0", *SMALL]
    words += ["--experiment", "figure-6", "--experiment", "figure-3"]
    result, _ = document("reproduce", *words, "--out", tmp_path / "out")
    assert (result["paper"], result["seeds"], result["scale"]) == ("riabov2003", [0], "small")
    figure = result["experiments"]["figure-6"]
    assert figure["params"]["learn"] == 1500
    series: set[Any] = {row["series"] for row in figure["rows"]}
    assert {"pairwise/9/11", "pairwise/9/11/break-even", "partial/1/11"} <= series
    assert {row["metric"] for row in figure["rows"]} == {"improvement_pct"}
    assert set(figure["rows"][0]) == {"series", "x", "metric", "paper", "measured", "spread"}
    found = {path.name for path in (tmp_path / "out").iterdir()}
    pictures = {f"riabov2003-figure-{n}.{kind}" for n in (3, 6) for kind in ("png", "svg")}
    assert found == {"results.json", "report.html", *pictures}
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == result
    shown = call("reproduce", "riabov2003", "--experiment", "figure-3", "--out", tmp_path / "again")
    assert shown.exit_code == 0
    assert "transit_nodes" in shown.stdout


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["riabov2004"], ["'riabov2004'", "'riabov2003'"]),
        (["riabov2003", "--experiment", "figure-7"], ["'figure-7'"]),
        (["riabov2003", "--seeds", "a"], ["seeds", "'a'"]),
        (["riabov2003", "--seeds", "1,1"], ["seeds", "'1,1'"]),
        (["riabov2003", "--scale", "huge"], ["--scale", "'huge'"]),
        (["riabov2003", "--set", "modes"], ["'modes'"]),
        (["riabov2003", "--set", "mode=9"], ["'mode'"]),
        (["riabov2003", "--set", "modes=x"], ["modes", "'x'"]),
        (["riabov2003", "--set", "multicast=wide", "--experiment", "figure-6"], ["multicast", "'wide'"]),
        (["riabov2003", "--set", "edges=none"], ["edges", "'none'"]),
    ],
)
def test_bad_words(words: list[str], shown: list[str], tmp_path: Path) -> None:
    message = refusal("reproduce", *words, "--out", tmp_path / "out")
    assert all(value in message for value in shown), message
    assert list(tmp_path.iterdir()) == []


def test_rows_and_settings() -> None:
    row = ResultRow.of("a", None, "m", [1.0, 3.0], paper=2.5)
    assert (row.measured, row.spread, row.paper) == (2.0, 1.0, 2.5)
    experiment = Experiment("", lambda _: Outcome([]), {"n": 5, "k": [1, 2]}, {"n": 2})
    assert experiment.settings("small", {"k": "7,8", "other": "x"}) == {"n": 2, "k": [7, 8]}
    with refused(ParameterError, parameter="scale", value="none"):
        experiment.settings("none", {})  # type: ignore[arg-type]
    with refused(ParameterError, parameter="seed", value=-1):
        check_seeds("-1")
