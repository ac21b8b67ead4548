from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from narrowcast.errors import NarrowcastError, TableError
from narrowcast.model.interest import Interest
from narrowcast.model.relation import relation_of
from narrowcast.planning.sessions.clusters import FlowPoints
from narrowcast.spark.planning.packed_interest import PackedInterest, packed, points_of
from narrowcast.spark.stages.interest import InterestFrames

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SQL = {pa.int64(): "bigint", pa.int32(): "int", pa.string(): "string"}


def frames_of(
    spark: SparkSession, interests: pa.Table, rates: pa.Table, *, partitions: int | None = None
) -> InterestFrames:
    """An interest as Spark has it, cut as asked."""
    subscriber, flow = (SQL[interests.schema.field(name).type] for name in ("subscriber", "flow"))
    pairs = spark.createDataFrame(interests, f"subscriber {subscriber}, flow {flow}")
    rated = spark.createDataFrame(rates, f"flow {SQL[rates.schema.field('flow').type]}, rate double")
    if partitions:
        pairs, rated = pairs.repartition(partitions), rated.repartition(partitions)
    return InterestFrames(pairs, rated, "topics", None)


def kinds_of(interest: Interest) -> dict[tuple[object, ...], tuple[float, list[object]]]:
    """The sets of subscribers that want a flow, each with the sum of its rates and its flows."""
    points, flows = FlowPoints.of(Interest(interest.wants, interest.rate))
    collapsed, kind = points.collapsed()
    who = interest.wants.tocsc()
    found: dict[tuple[object, ...], tuple[float, list[object]]] = {}
    for k in range(len(collapsed)):
        some = flows[kind == k]
        users = who.indices[who.indptr[some[0]] : who.indptr[some[0] + 1]]
        names = tuple(interest.subscribers.take(np.sort(users)).to_pylist())
        found[names] = float(collapsed.rate[k]), interest.flows.take(some).to_pylist()
    return found


def taken(found: PackedInterest, n: int) -> Any:
    """The first kinds as an interest in which they are flows, and as kernels read them."""
    start, who, rate = found.part(0, n)
    kind = np.repeat(np.arange(n), np.diff(start))
    return Interest(relation_of(who, kind, (len(found.subscribers), n)), rate, found.subscribers), (
        start,
        who,
        rate,
    )


def unpacked(found: PackedInterest) -> dict[tuple[object, ...], tuple[float, list[object]]]:
    """The same from what was packed, with all that it says elsewhere checked."""
    interest, (start, who, rate) = taken(found, len(found))
    assert np.array_equal(rate, found.rate)
    assert np.array_equal(np.diff(start), found.size)
    assert interest.n_wants == found.entries == len(who[start[0] : start[-1]])
    flows = found.flows()
    kind, labels = flows["kind"].to_numpy(), flows["flow"].to_pylist()
    assert labels == sorted(labels)
    kinds = {}
    for k in range(len(found)):
        users = who[start[k] : start[k + 1]]
        assert (np.diff(users) > 0).all()
        names = tuple(found.subscribers.take(users).to_pylist())
        assert names not in kinds
        kinds[names] = float(rate[k]), [labels[i] for i in np.flatnonzero(kind == k)]
    return kinds


def same(one: dict, other: dict) -> None:  # type: ignore[type-arg]
    assert {names: flows for names, (_, flows) in one.items()} == {
        names: flows for names, (_, flows) in other.items()
    }
    for names, (rate, _) in one.items():
        assert rate == pytest.approx(other[names][0], rel=1e-9, abs=1e-12)


WANTS = st.lists(st.lists(st.integers(0, 6), max_size=5), min_size=1, max_size=12)


@pytest.mark.spark
@pytest.mark.parametrize("kind", [pa.int32(), pa.string()], ids=str)
@settings(max_examples=2, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(wants=WANTS, rates=st.lists(st.floats(0, 1e3), min_size=12, max_size=12))
def test_flows_of_the_same_users_are_one_kind(
    spark: SparkSession, kind: pa.DataType, wants: list[list[int]], rates: list[float]
) -> None:
    pairs = sorted({(user, flow) for flow, users in enumerate(wants) for user in users})
    interests = pa.table(
        {"subscriber": pa.array([u for u, _ in pairs], kind), "flow": pa.array([f for _, f in pairs], kind)}
        if kind != pa.string()
        else {
            "subscriber": pa.array([f"s{u}" for u, _ in pairs], kind),
            "flow": pa.array([f"f{f}" for _, f in pairs], kind),
        }
    )
    names = pa.array(range(10), kind) if kind != pa.string() else pa.array([f"f{f}" for f in range(10)])
    rated = pa.table({"flow": names, "rate": rates[:10]})  # the last flows have none
    with packed(frames_of(spark, interests, rated)) as found:
        same(unpacked(found), kinds_of(Interest.from_tables(interests, rated)))
        assert found.flows()["flow"].type == kind


@pytest.mark.spark
def test_numbers_do_not_hang_on_partitions(spark: SparkSession) -> None:
    rng = np.random.default_rng(0)
    pairs = np.unique(np.column_stack([rng.integers(0, 9, 900), rng.integers(0, 400, 900)]), axis=0)
    interests = pa.table({"subscriber": pairs[:, 0], "flow": pairs[:, 1]})
    rates = pa.table({"flow": np.arange(400), "rate": rng.random(400) * 10.0 ** rng.integers(-9, 9, 400)})
    seen = []
    for partitions in (1, 3, 7):
        with packed(frames_of(spark, interests, rates, partitions=partitions)) as found:
            interest, _ = taken(found, len(found))
            first, _ = taken(found, 5)
            assert np.array_equal(first.wants.toarray(), interest.wants.toarray()[:, :5])
            seen.append((interest, found.flows()))
    assert all(interest == seen[0][0] and flows == seen[0][1] for interest, flows in seen[1:])
    same(
        {tuple(np.flatnonzero(column)): (0.0, []) for column in seen[0][0].wants.toarray().T},
        {names: (0.0, []) for names in kinds_of(Interest.from_tables(interests))},
    )


@pytest.mark.spark
def test_a_flow_that_everyone_wants_and_one_that_nobody_does(spark: SparkSession) -> None:
    n = 20_000
    interests = pa.table({"subscriber": [*range(n)] + [0] * 50, "flow": [0] * n + [*range(1, 51)]})
    rates = pa.table({"flow": [0, 1, 99], "rate": [3.0, 0.5, 7.0]})
    with packed(frames_of(spark, interests, rates)) as found:
        assert sorted(zip(found.size.tolist(), found.rate.tolist(), strict=True)) == [
            (1, 49.5),
            (20_000, 3.0),
        ]
        flows_of = found.flows()
    assert flows_of["flow"].to_pylist() == list(range(51))
    assert flows_of["rate"].to_pylist()[:3] == [3.0, 0.5, 1.0]


@pytest.mark.spark
@pytest.mark.parametrize("kind", [pa.int64(), pa.string()], ids=str)
def test_nobody_and_one_user(spark: SparkSession, kind: pa.DataType) -> None:
    nothing = pa.array([], kind)
    rates = pa.table({"flow": pa.array([1, 2]).cast(kind), "rate": [1.0, 0.0]})
    with packed(frames_of(spark, pa.table({"subscriber": nothing, "flow": nothing}), rates)) as found:
        assert (len(found), found.entries, len(found.subscribers)) == (0, 0, 0)
        assert found.flows().num_rows == 0
        interest, points = taken(found, 0)
        assert (interest.n_flows, len(points[2])) == (0, 0)
    one = pa.table({"subscriber": pa.array([7, 7]).cast(kind), "flow": pa.array([2, 3]).cast(kind)})
    with packed(frames_of(spark, one, rates)) as found:
        assert (found.size.tolist(), found.rate.tolist()) == ([1], [1.0])
        assert found.subscribers.equals(pa.array([7]).cast(kind))


@pytest.mark.spark
def test_rates_of_any_size(spark: SparkSession) -> None:
    interests = pa.table({"subscriber": [1, 1, 1, 2], "flow": [1, 2, 3, 4]})
    for most in (0.0, 1e-250, 1.5e308):
        rates = pa.table({"flow": [1, 2, 3, 4], "rate": [0.0, 0.0, most, most / 2]})
        with packed(frames_of(spark, interests, rates)) as found:
            assert sorted(found.rate) == pytest.approx(sorted([most, most / 2]), rel=1e-12, abs=0)


@pytest.mark.spark
def test_bad_rates_are_refused(spark: SparkSession) -> None:
    interests = pa.table({"subscriber": [1], "flow": [1]})
    for rates, said in (
        (pa.table({"flow": [1], "rate": [-1.0]}), "a flow has rate -1.0"),
        (pa.table({"flow": [1, 1], "rate": [1.0, 2.0]}), "a flow has two rows or more in rates"),
    ):
        with pytest.raises(NarrowcastError, match=said), packed(frames_of(spark, interests, rates)):
            pass
    rates = pa.table({"flow": ["1"], "rate": [1.0]})
    with (
        pytest.raises(TableError, match="flow is bigint in interests and string in rates"),
        packed(frames_of(spark, interests, rates)),
    ):
        pass


def test_rows_of_a_slice() -> None:
    table = pa.table({"users": [[5], [1, 2], [], [7]], "rate": [1.0, 2.0, 3.0, 4.0]})
    start, who, rate = points_of(table.slice(1, 3))
    assert [who[start[k] : start[k + 1]].tolist() for k in range(3)] == [[1, 2], [], [7]]
    assert rate.tolist() == [2.0, 3.0, 4.0]


@pytest.mark.spark
def test_sets_of_one_hash_stay_apart(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql import functions as sf

    monkeypatch.setattr(
        "narrowcast.spark.planning.packed_interest._hash", lambda: sf.lit(-1).cast("bigint").alias("hash")
    )
    interests = pa.table({"subscriber": [1, 2, 1, 2, 2, 3], "flow": [1, 1, 2, 2, 3, 4]})
    rates = pa.table({"flow": [1, 2, 3], "rate": [2.0, 3.0, 5.0]})
    with packed(frames_of(spark, interests, rates)) as found:
        same(unpacked(found), {(1, 2): (5.0, [1, 2]), (2,): (5.0, [3]), (3,): (1.0, [4])})
