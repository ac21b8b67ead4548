"""Histories built on Spark: what loops would give, however tables are cut, and nobody left out."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from narrowcast.errors import ParameterError, TableError
from narrowcast.model.interest import Interest
from narrowcast.spark import histories as build
from narrowcast.spark.planning.interest_rows import flows_of, rows_of
from narrowcast.spark.stages.histories import Histories, _cut, _Numbers
from narrowcast.spark.stages.interest import InterestFrames, from_matches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "tariq2012_histories_sims.json").read_text())
START = datetime(2026, 1, 1, tzinfo=UTC)


def matches_in(spark: SparkSession, given_: dict[int, list[int]], kind: str = "bigint") -> DataFrame:
    rows = sorted(given_.items())
    return spark.createDataFrame(rows, f"event_id {kind}, subscription_ids array<{kind}>")


def people_in(spark: SparkSession, ids: Any, names: Any = None, kind: str = "string") -> DataFrame:
    names = [f"s{each}" for each in ids] if names is None else names
    rows = list(zip(ids, names, strict=True))
    return spark.createDataFrame(rows, f"subscription_id bigint, subscriber {kind}")


def lists_in(found: Histories) -> dict[Any, list[int]]:
    table = found.table()
    assert table.columns == [found.name, "history"]
    assert table.dtypes[1] == ("history", "array<bigint>")
    rows = [tuple(row) for row in table.collect()]
    assert len({name for name, _ in rows}) == len(rows)
    return dict(rows)


def by_hand(
    matches: dict[int, list[int]],
    owner: dict[int, Any],
    times: dict[int, int | None] | None,
    last: int | None,
    window: int | None,
    recent: int | None,
) -> dict[Any, list[int]]:
    """The histories, by loops."""
    events = sorted(matches if times is None else times)
    if times is not None:
        events.sort(key=lambda event: (-1 if times[event] is None else times[event], event))
    if window is not None:
        assert times is not None
        known = [time for time in times.values() if time is not None]
        events = [e for e in events if (t := times[e]) is not None and t > max(known) - window]
    if recent is not None:
        events = [event for event in events if matches.get(event)][-recent:]
    found: dict[Any, list[int]] = {name: [] for name in owner.values()}
    for event in events:
        for name in {owner[each] for each in matches.get(event, []) if each in owner}:
            found[name].append(event)
    return {name: events[-last:] if last else events for name, events in found.items()}


# ---------------------------------------------------------------------------------------------- exact cases


def test_histories_of_the_vector(spark: SparkSession) -> None:
    low, high, points = (np.array(GOLDEN[name]) for name in ("lo", "hi", "events"))
    inside = np.asarray(((low[:, None] <= points) & (points <= high[:, None])).all(axis=2))
    matches = {event: np.flatnonzero(inside[:, event]).tolist() for event in range(len(points))}
    found = build(
        matches_in(spark, matches).repartition(3), people_in(spark, range(len(low))), last=GOLDEN["m"]
    )
    assert lists_in(found) == dict(enumerate(GOLDEN["histories"]))


MATCHES = {10: [1, 2], 11: [2, 3, 99], 12: [2], 13: [1], 14: [], 15: [99]}
TIMES = {10: 7, 11: 7, 12: 0, 13: None, 14: 8, 15: 9, 16: 3}
PEOPLE = {1: "ann", 2: "bob", 3: "bob", 4: "cid"}


def events_in(spark: SparkSession, times: dict[int, int | None]) -> DataFrame:
    rows = [(e, None if t is None else START + timedelta(seconds=t)) for e, t in times.items()]
    return spark.createDataFrame(rows, "event_id bigint, time timestamp")


@pytest.mark.slow
def test_windows_and_last_events(spark: SparkSession) -> None:
    matches, people = matches_in(spark, MATCHES), people_in(spark, PEOPLE, PEOPLE.values())
    events = events_in(spark, TIMES)
    assert lists_in(build(matches, people)) == {1: [10, 13], 2: [10, 11, 12], 3: [11], 4: []}
    assert lists_in(build(matches, people, last=1)) == {1: [13], 2: [12], 3: [11], 4: []}
    # What has no time comes first, and of two at one time that with the lesser number.
    assert lists_in(build(matches, people, events)) == {1: [13, 10], 2: [12, 10, 11], 3: [11], 4: []}
    assert lists_in(build(matches, people, events, last=1)) == {1: [10], 2: [11], 3: [11], 4: []}
    # The window ends at second 9 and its start is left out; of events that match anything, 15 is the last.
    assert lists_in(build(matches, people, events, window=2)) == {1: [], 2: [], 3: [], 4: []}
    assert lists_in(build(matches, people, events, window=2.5)) == {1: [10], 2: [10, 11], 3: [11], 4: []}
    assert lists_in(build(matches, people, events, recent=2)) == {1: [], 2: [11], 3: [11], 4: []}
    assert build(matches, people, events, recent=2).events.tolist() == [11, 15]


def test_of_subscribers(spark: SparkSession) -> None:
    matches, events = matches_in(spark, MATCHES, "int"), events_in(spark, TIMES)
    people = people_in(spark, PEOPLE, PEOPLE.values())
    found = build(matches, people, events, last=2, of="subscriber", block=2)
    assert lists_in(found) == {"ann": [13, 10], "bob": [10, 11], "cid": []}
    assert repr(found).startswith("Histories(")
    numbers = people_in(spark, PEOPLE, [7, -3, -3, 2], "int")
    found = build(matches, numbers, events, of="subscriber")
    assert lists_in(found) == {7: [13, 10], -3: [12, 10, 11], 2: []}
    assert found.table().dtypes[0] == ("subscriber", "int")


def test_nothing_at_all(spark: SparkSession) -> None:
    matches, people = matches_in(spark, {}), people_in(spark, [5, 9])
    assert lists_in(build(matches, people)) == {5: [], 9: []}
    assert lists_in(build(matches_in(spark, MATCHES), people, events_in(spark, {}), window=3)) == {
        5: [],
        9: [],
    }
    assert lists_in(build(matches_in(spark, MATCHES), people_in(spark, []))) == {}
    assert lists_in(build(matches_in(spark, MATCHES), people_in(spark, []), of="subscriber")) == {}


def test_one_event_that_all_match(spark: SparkSession) -> None:
    ids = list(range(0, 6000, 2))  # not one after the other
    found = build(matches_in(spark, {-4: ids}), people_in(spark, ids), block=1000)
    assert lists_in(found) == {each: [-4] for each in ids}
    packed = {row.block: row for row in found.packed.collect()}
    assert {block: row.pairs for block, row in packed.items()} == {0: 1000, 1: 1000, 2: 1000}
    assert packed[1].label == ids[1000:2000]


# ------------------------------------------------------------------------------------ the same as by loops

IDS = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 9)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    ids = draw(st.lists(IDS, unique=True, max_size=9))
    known = st.sampled_from(ids) | IDS if ids else IDS
    times = draw(st.none() | st.dictionaries(IDS, st.none() | st.integers(0, 9), max_size=12))
    event = st.sampled_from(sorted(times)) | IDS if times else IDS
    timed = times is not None
    return {
        "matches": draw(st.dictionaries(event, st.lists(known, unique=True, max_size=9), max_size=12)),
        "owner": {each: draw(st.integers(0, 3)) for each in ids},
        "times": times,
        "last": draw(st.none() | st.integers(1, 4)),
        "window": draw(st.none() | st.integers(1, 9)) if timed else None,
        "recent": draw(st.none() | st.integers(1, 6)),
    }


@settings(
    max_examples=6,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(case=cases(), block=st.sampled_from([1, 3, 4096]), partitions=st.integers(1, 3), each=st.booleans())
def test_equal_to_loops(
    spark: SparkSession, case: dict[str, Any], block: int, partitions: int, each: bool
) -> None:
    owner = case.pop("owner")
    matches, times = case["matches"], case["times"]
    people = people_in(spark, owner, list(owner.values()), "bigint")
    whose = {one: one for one in owner} if each else owner
    chosen = {name: case[name] for name in ("last", "window", "recent")}
    found = build(
        matches_in(spark, matches).repartition(partitions),
        people.repartition(partitions),
        None if times is None else events_in(spark, times).repartition(partitions),
        of="subscription" if each else "subscriber",
        block=block,
        **chosen,
    )
    assert lists_in(found) == by_hand(owner=whose, **case)


def test_pieces_of_bounded_size(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    matches = {event: list(range(event % 5, 40)) for event in range(30)}
    known = _Numbers(np.arange(40), None, np.arange(30), np.arange(30, dtype=np.int32), 8, 40)
    numbers = spark.sparkContext.broadcast(known)
    rows = pa.table({"event_id": list(matches), "subscription_ids": list(matches.values())})
    whole = list(_cut(iter(rows.to_batches()), numbers))
    monkeypatch.setattr(sys.modules[_cut.__module__], "_HELD", 100)  # the function hides its module
    several = list(_cut(iter(rows.to_batches(max_chunksize=2)), numbers))
    assert (len(whole), len(several)) == (1, 8)
    assert sum(batch.num_rows for batch in several) == 8 * whole[0].num_rows == 40


# ------------------------------------------------------------------------------------------ what uses them


def some(spark: SparkSession, n: int = 120) -> tuple[DataFrame, DataFrame]:
    inside = np.random.default_rng(5).random((40, n)) < 0.1
    inside[:, 7] = False
    matches = {event * 3: np.flatnonzero(row).tolist() for event, row in enumerate(inside)}
    return matches_in(spark, matches), people_in(spark, range(n))


def as_interest(frames: InterestFrames) -> Interest:
    return Interest.from_tables(frames.interests.toArrow(), frames.rates.toArrow())


def test_the_interest_is_that_of_matches(spark: SparkSession) -> None:
    matches, people = some(spark)
    found = build(matches, people, of="subscriber", last=3, block=50).frames()
    expected = from_matches(matches, people, last=3)
    assert as_interest(found) == as_interest(expected)
    assert found.flow_space == "events"
    assert found.subscribers is not None
    assert sorted(row[0] for row in found.subscribers.collect()) == sorted(f"s{i}" for i in range(120))


@pytest.mark.slow
def test_rows_are_those_of_pairs(spark: SparkSession) -> None:
    matches, people = some(spark)
    found = build(matches, people, of="subscriber", block=50)
    frames = found.frames()
    loose = replace(frames, histories=None)
    flows, rate = flows_of(frames)
    assert flows.equals(flows_of(loose)[0])
    assert rate.tolist() == flows_of(loose)[1].tolist()
    shared = spark.sparkContext.broadcast(flows)
    for everybody in (False, True):
        rows = rows_of(frames, shared, everybody=everybody)
        expected = rows_of(loose, shared, everybody=everybody)
        assert rows.dtypes == expected.dtypes
        assert sorted(map(tuple, rows.collect())) == sorted(map(tuple, expected.collect()))
    rows = found.rows(shared)
    assert "Exchange" not in rows._jdf.queryExecution().executedPlan().toString().split("FlatMapGroups")[0]


# ----------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"last": 0}, "last is 0; give a whole number of at least 1"),
        ({"recent": True}, "recent is True; give a whole number of at least 1"),
        ({"block": 0}, "block is 0; give a whole number of at least 1"),
        ({"block": 65_537}, "block is 65537; places in a block have two bytes, so give at most 65536"),
        ({"of": "topic"}, "of is 'topic'; give one of subscription, subscriber"),
        ({"window": 0.0}, "window is 0.0; give a positive number of seconds"),
    ],
)
def test_bad_options(spark: SparkSession, options: dict[str, Any], message: str) -> None:
    events = events_in(spark, TIMES)
    with pytest.raises(ParameterError, match=message):
        build(matches_in(spark, MATCHES), people_in(spark, PEOPLE), events, **options)


def test_bad_tables(spark: SparkSession) -> None:
    matches, people, events = matches_in(spark, MATCHES), people_in(spark, PEOPLE), events_in(spark, TIMES)
    with pytest.raises(TableError, match="a window needs events with a column 'time'"):
        build(matches, people, window=1)
    with pytest.raises(TableError, match="a window needs events with a column 'time'"):
        build(matches, people, events.drop("time"), window=1)
    with pytest.raises(TableError, match="matches has no column 'subscription_ids'"):
        build(matches.drop("subscription_ids"), people)
    with pytest.raises(TableError, match="subscriptions has no column 'subscriber'"):
        build(matches, people.drop("subscriber"), of="subscriber")
    with pytest.raises(TableError, match="subscription_id 1 has two rows or more"):
        build(matches, people.unionByName(people))
    with pytest.raises(TableError, match="an event_id has two rows or more"):
        build(matches, people, events.unionByName(events))
