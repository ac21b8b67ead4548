"""Partitioning schemes as an experiment: the numbers of each scheme, and the targets at a small size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from narrowcast.errors import ParameterError
from narrowcast.lab.papers import PAPERS, Study
from narrowcast.lab.papers.cobas2009.partitioning import (
    FOUND,
    LOST,
    OTHERS,
    PANELS,
    SERIES,
    _made,
    lost_matches,
)
from narrowcast.lab.papers.cobas2009.setting import COPIES, REPLICATION, WORK
from narrowcast.planning.ranges.partitioning import scheme
from support.command import document
from support.errors import refused

EXPERIMENT = PAPERS["cobas2009"]["partitioning"]


def test_the_command(tmp_path: Path) -> None:
    result, _ = document(
        "reproduce", "cobas2009", "--scale", "small", "--seeds", "0", "--set", "subscriptions=800", "--set",
        "events=1500", "--set", "parts=16", "--experiment", "partitioning", "--out", tmp_path / "out",
    )  # fmt: skip
    rows = {
        (row["series"], row["metric"]): row["measured"]
        for row in result["experiments"]["partitioning"]["rows"]
    }
    assert {series for series, _ in rows} == {*SERIES, *OTHERS}
    assert {metric for _, metric in rows} == set(FOUND)
    assert all(rows[series, LOST] == 0 for series in SERIES)
    assert rows["broadcast", REPLICATION] == rows["hash", COPIES] == 16
    assert rows["broadcast", COPIES] == rows["hash", REPLICATION] == rows["hilbert", REPLICATION] == 1
    assert all(rows[series, WORK] >= 1 for series in (*SERIES, *OTHERS))
    for kind in ("png", "svg"):
        assert (tmp_path / "out" / f"cobas2009-partitioning.{kind}").stat().st_size > 10_000


def test_all_metrics_are_reported() -> None:
    """At so small a size events that were not seen are not as even as those that were."""
    found = EXPERIMENT.run(
        Study((1,), EXPERIMENT.settings("small", {"subscriptions": "3000", "events": "5000"}))
    )
    mean = {(row.series, row.metric): row.measured for row in found.rows}
    for series, replication, balance in (("kd/1", 20, 1.7), ("kd/4", 6.5, 1.4), ("selective/4", 3.5, 1.6)):
        assert mean[series, REPLICATION] <= replication
        assert mean[series, WORK] <= balance
    assert mean["cobas/central", WORK] > 40
    assert len(found.charts["cobas2009-partitioning"][0]) == len(PANELS) * (len(SERIES) + len(OTHERS))
    assert "0 have not exactly one part in common" in found.notes[0]
    assert sum("at most: " in note for note in found.notes) == 3


@pytest.mark.parametrize("parts", ["1", "12"])
def test_parts_that_rows_do_not_divide_are_refused(parts: str) -> None:
    study = Study((0,), EXPERIMENT.settings("small", {"parts": parts}))
    with refused(ParameterError, 8, parameter="parts", value=int(parts)):
        EXPERIMENT.run(study)


def test_lost_matches_are_counted() -> None:
    load = _made(seed=0, subscriptions=300, events=200, attributes=4)
    parts = scheme("kd", parts=8, copies=2).fit(load.filters, load.known)
    position, part = parts.parts_of_subscriptions(load.filters)
    assert load.matches.n_pairs > 100
    assert lost_matches(parts, load, position, part) == 0
    some = part != np.bincount(part).argmax()
    assert lost_matches(parts, load, position[some], part[some]) > 0
