"""The experiments of cobas2009: small, but through the command and with all that it writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from narrowcast.lab.papers import PAPERS, Study
from narrowcast.lab.papers.cobas2009.density import PRINTED, SKEWS
from narrowcast.lab.papers.cobas2009.setting import BESIDE, MAIN, NAMES, crossing, size_note
from support.command import document, refusal

EXPERIMENTS = PAPERS["cobas2009"]
Rows = dict[tuple[str, float | None, str], Any]
TINY = {"nodes": "16", "subscriptions": "400"}
GB = "gb_per_min"


def run(name: str, seeds: tuple[int, ...] = (0,), **given: Any) -> tuple[Rows, Any]:
    """Return the rows of an experiment by series, place and metric, and all that came of it."""
    experiment = EXPERIMENTS[name]
    outcome = experiment.run(Study(seeds, experiment.settings("small", TINY | given)))
    return {(row.series, row.x, row.metric): row for row in (*outcome.rows, *outcome.beside)}, outcome


def test_the_command(tmp_path: Path) -> None:
    result, _ = document(
        "reproduce", "cobas2009", "--scale", "small", "--seeds", "0,1", "--set", "subscriptions=300",
        "--set", "nodes=16,32", "--experiment", "figure-6c", "--out", tmp_path / "out",
    )  # fmt: skip
    assert list(result["experiments"]) == ["figure-6c"]
    for kind in ("png", "svg"):
        assert (tmp_path / "out" / f"cobas2009-figure-6c.{kind}").stat().st_size > 10_000
    rows = result["experiments"]["figure-6c"]["rows"]
    assert {row["x"] for row in rows} == {16, 32}
    assert {row["metric"] for row in rows} == {*MAIN, *BESIDE}
    assert any(row["spread"] > 0 for row in rows)
    assert "COBAS grows least" in (tmp_path / "out" / "report.html").read_text()


def test_invalid_parameters(tmp_path: Path) -> None:
    words = (
        "reproduce",
        "cobas2009",
        "--experiment",
        "figure-5",
        "--scale",
        "small",
        "--out",
        tmp_path / "out",
    )
    assert "occurrence='pro'" in refusal(*words, "--set", "occurrence=pro")
    assert "kappa=-1.0" in refusal(*words, "--set", "kappa=-1")
    assert not (tmp_path / "out").exists()


def test_figure_5() -> None:
    rows, outcome = run("figure-5", density="0,1.5", popularity="0,1.5")
    for occurrence in ("co", "anti"):
        for order in ("shuffle", "identity"):
            for popularity in ("0", "1.5"):
                for density in (0.0, 1.5):
                    where = f"{occurrence}/{order}/{popularity}"
                    cut = rows[f"cobas/{where}", density, GB]
                    assert cut.measured <= rows[f"undivided/{where}", density, GB].measured + 1e-9
                    assert cut.measured >= 4 * 2.56  # the lookup alone
                    assert cut.paper is None  # it is not the paper's size
    assert rows["cobas/anti/shuffle/1.5", 1.5, GB].measured < rows["cobas/anti/shuffle/0", 0.0, GB].measured
    marks, caption = outcome.charts["cobas2009-figure-5"]
    assert len(marks) == 16
    assert caption == "16 machines, 10,000,000 filters, 400 of them drawn, room for any number, 1 seed"
    assert len(outcome.notes) == 1 + 4 + 1


def test_numbers_of_the_paper_are_in_their_rows() -> None:
    assert {at for _, *both in PRINTED for at in both} <= set(SKEWS)
    whole = EXPERIMENTS["figure-5"].settings("paper", {})
    assert not size_note(whole, ("nodes", "filters"))
    assert size_note({**whole, "nodes": 7}, ("nodes",)) == ["The size here is not the paper's: nodes 7."]


def test_figure_6a() -> None:
    rows, outcome = run("figure-6a", attributes="1,3")
    for x in (1, 3):
        gb = {system: rows[system, x, GB].measured for system in NAMES}
        assert gb["cobas"] <= gb["no-merging"] + 1e-9
        assert rows["no-merging", x, "trees"].measured == rows["multi-1d", x, "trees"].measured == x
        assert rows["no-division", x, "machines_per_filter"].measured == 1
        for system in NAMES:
            assert rows[system, x, "work_max_over_mean"].measured >= 1
            copies = rows[system, x, "copies_per_event"].measured
            upkeep = rows[system, x, "upkeep_gb_per_min"].measured
            assert gb[system] == pytest.approx(2.56 * copies + upkeep)
    assert (
        rows["multi-1d", 3, "delivery_gb_per_min"].measured > rows["cobas", 3, "delivery_gb_per_min"].measured
    )
    assert len(outcome.charts["cobas2009-figure-6a"][0]) == 2 * 3 * len(NAMES)
    assert len(outcome.notes) == 3 + 1 + 1


def test_figure_6b() -> None:
    rows, outcome = run("figure-6b", (0, 1), attributes="4", filters="100000,10000000")
    for system in ("multi-1d", "dr-tree", "cobas"):
        assert rows[system, 10**5, GB].measured < rows[system, 10**7, GB].measured
        few, many = (rows[system, x, "upkeep_gb_per_min"].measured for x in (10**5, 10**7))
        assert few < many
    assert "reproduced" in outcome.notes[0]


def test_figure_6c_with_and_without_caching() -> None:
    rows, _ = run("figure-6c", nodes="8,64", attributes="4")
    for system in ("multi-1d", "dr-tree", "cobas"):
        for x in (8, 64):
            assert rows[f"{system}/cached", x, GB].measured < rows[system, x, GB].measured


@pytest.mark.parametrize("kappa", ["0", "inf"])
def test_one_place_has_nothing_to_compare(kappa: str) -> None:
    _, outcome = run("figure-6c", nodes="16", kappa=kappa)
    assert "nothing to compare by difference, nothing to compare by ratio" in outcome.notes[0]
    assert "room for any number" in outcome.charts["cobas2009-figure-6c"][1]
    _, outcome = run("figure-6b", filters="5000")
    assert "nothing to compare. The same filters" in outcome.notes[0]
    _, outcome = run("figure-5", density="1.0", popularity="1.0")
    assert all("nothing to compare" in note for note in outcome.notes[1:3])


def test_one_machine() -> None:
    _, outcome = run("figure-6c", nodes="1")
    assert not any("reproduced" in note for note in outcome.notes)
    assert "with 1 machine: " in outcome.notes[1]


def test_crossing() -> None:
    assert crossing([1, 2], [1.0, 2.0], [2.0, 3.0]) is None
    assert crossing([1, 2, 3, 4], [1.0, 3.0, 1.0, 3.0], [2.0] * 4) == (3, 4)
