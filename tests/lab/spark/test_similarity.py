"""Similarities on Spark: those of the driver, however rows are cut."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from narrowcast.errors import ParameterError
from narrowcast.lab.spark.similarity import _cut, _ranges, _TopPairs, similarities
from narrowcast.lab.spectral.similarity import SIMILARITIES, n_events, similarity
from narrowcast.model.relation import relation
from narrowcast.spark import histories
from support.errors import refused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from narrowcast.spark import Histories

pytestmark = pytest.mark.spark

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "tariq2012_histories_sims.json").read_text())
NAMES = {"russell-rao": "russell", "simple-matching": "smc"}
KINDS = sorted(SIMILARITIES)

Pairs = dict[tuple[int, int], float]


def histories_of(spark: SparkSession, flags: Any, block: int, partitions: int = 1) -> Histories:
    """Histories as Spark builds them: of rows, events in the order of columns."""
    rows = [(event, np.flatnonzero(flags[:, event]).tolist()) for event in range(flags.shape[1])]
    matches = spark.createDataFrame(rows, "event_id bigint, subscription_ids array<bigint>")
    people = spark.range(len(flags)).withColumnRenamed("id", "subscription_id")
    return histories(matches.repartition(partitions), people, block=block)


def pairs_in(table: DataFrame) -> Pairs:
    assert table.dtypes == [("subscription_id", "bigint"), ("other", "bigint"), ("similarity", "double")]
    rows = table.collect()
    found = {(row.subscription_id, row.other): row.similarity for row in rows}
    assert len(found) == len(rows)
    return found


def on_the_driver(flags: Any, kind: str) -> Pairs:
    """The pairs of two rows that share an event."""
    rows = relation(flags)
    alike = similarity(rows, kind=kind, events=n_events(rows)).toarray()
    shared = flags.astype(int) @ flags.T.astype(int) > 0
    np.fill_diagonal(shared, False)
    return {(int(i), int(j)): float(alike[i, j]) for i, j in np.argwhere(shared)}


@pytest.mark.slow
def test_similarities_of_the_vector(spark: SparkSession) -> None:
    width = 1 + max(max(row) for row in GOLDEN["histories"])
    flags = np.zeros((len(GOLDEN["histories"]), width), np.bool_)
    for i, row in enumerate(GOLDEN["histories"]):
        flags[i, row] = True
    built = histories_of(spark, flags, block=7)
    built.packed.persist()
    for kind in KINDS:
        found = pairs_in(similarities(built, kind=kind))
        assert found == on_the_driver(flags, kind)
        if kind != "cosine":
            golden = GOLDEN["sims"][NAMES.get(kind, kind)]
            assert all(abs(golden[i][j] - value) < 5.001e-7 for (i, j), value in found.items())
    built.packed.unpersist()


@settings(
    max_examples=6,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(
    flags=st.tuples(st.integers(0, 9), st.integers(0, 7)).flatmap(lambda shape: arrays(np.bool_, shape)),
    kind=st.sampled_from(KINDS),
    block=st.sampled_from([1, 4, 100]),
    partitions=st.integers(1, 3),
    least=st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    top=st.none() | st.integers(1, 3),
)
def test_equal_to_the_driver(
    spark: SparkSession, flags: Any, kind: str, block: int, partitions: int, least: float, top: int | None
) -> None:
    built = histories_of(spark, flags, block, partitions)
    expected = {pair: value for pair, value in on_the_driver(flags, kind).items() if value >= least}
    if top is not None:
        best: Pairs = {}
        for row in range(len(flags)):
            own = [(-value, pair) for pair, value in expected.items() if pair[0] == row]
            best |= {pair: -value for value, pair in sorted(own)[:top]}
        expected = best
    assert pairs_in(similarities(built, kind=kind, least=least, top=top)) == expected


def test_the_table_is_as_long_as_there_are_rows(spark: SparkSession) -> None:
    flags = np.ones((300, 3), np.bool_)  # events that all rows matched
    built = histories_of(spark, flags, block=128)
    found = pairs_in(similarities(built, top=2))
    first = {0: [1, 2], 1: [0, 2]}
    assert found == {(row, other): 1.0 for row in range(300) for other in first.get(row, [0, 1])}
    assert similarities(built, least=1.0).count() == 300 * 299


def test_of_subscribers(spark: SparkSession) -> None:
    matches = spark.createDataFrame(
        [(1, [1, 2]), (2, [3])], "event_id bigint, subscription_ids array<bigint>"
    )
    people = spark.createDataFrame(
        [(1, "a"), (2, "b"), (3, "b")], "subscription_id bigint, subscriber string"
    )
    found = similarities(histories(matches, people, of="subscriber"))
    assert found.columns == ["subscriber", "other", "similarity"]
    assert sorted(map(tuple, found.collect())) == [("a", "b", 0.5), ("b", "a", 0.5)]


def test_rows_of_a_task() -> None:
    rows = np.array([1000, 0, 300])
    for n_tasks in (1, 4, 10_000):
        pieces = _cut(rows, n_tasks)
        covered = [(block, row) for block, low, high in pieces for row in range(low, high)]
        assert covered == [(block, row) for block, n in enumerate(rows) for row in range(n)]
    assert len(_cut(rows, 1)) == 2
    assert max(high - low for _, low, high in _cut(rows, 10_000)) == 64
    assert _cut(np.zeros(0, np.int64), 8) == []


def test_what_is_looked_at_together_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[_ranges.__module__], "_MEETINGS", 10)
    flags = np.random.default_rng(2).random((20, 6)) < 0.5
    flags[3] = True
    rows = relation(flags)
    found = list(_ranges(rows, rows))
    assert [row for low, high in found for row in range(low, high)] == list(range(20))
    meetings = (flags * flags.sum(axis=0)).sum(axis=1)
    assert all(high == low + 1 or meetings[low:high].sum() <= 10 for low, high in found)


def test_the_best_while_there_are_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[_ranges.__module__], "_MEETINGS", 1)
    best, rng = _TopPairs(5, 3), np.random.default_rng(4)
    seen = []
    for block in range(20):
        row, alike = rng.integers(0, 5, 30), rng.integers(0, 4, 30) / 4
        best.add(row, np.arange(30), block, alike)
        seen += list(zip(row.tolist(), (-alike).tolist(), [block] * 30, range(30), strict=True))
    expected = [one for row in range(5) for one in sorted(each for each in seen if each[0] == row)[:3]]
    row, column, block_, alike = best.found()
    assert list(zip(row, -alike, block_, column, strict=True)) == expected


@pytest.mark.parametrize("options", [{"kind": "euclid"}, {"least": 1.5}, {"least": float("nan")}, {"top": 0}])
def test_bad_options(spark: SparkSession, options: dict[str, Any]) -> None:
    built = histories_of(spark, np.ones((2, 2), np.bool_), block=2)
    [(name, value)] = options.items()
    with refused(ParameterError, value, parameter=name):
        similarities(built, **options)
