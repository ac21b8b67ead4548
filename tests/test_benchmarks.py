"""The matching benchmark: its workloads stay as they are, every peer is right, and all of it runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from narrowcast import Matches, Scan, SubscriptionSet
from narrowcast.matching import MATCHERS

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # benchmarks are not installed

from benchmarks import matching, peers, workloads  # noqa: E402
from benchmarks import run as runner  # noqa: E402

ALL = [(name, form) for name in workloads.NAMES for form in workloads.FORMS]

#: With 500 subscriptions and 200 events. A workload never changes: mend the code, not the sum.
CHECKSUMS = {
    ("R4", "int"): "bb520589801d1862",
    ("R4", "float"): "6509cca865653c03",
    ("S10", "int"): "faa7f7356b38b449",
    ("S10", "float"): "dfe812694124226f",
    ("C10", "int"): "86036bdf3d720de9",
    ("C10", "float"): "eb733168c63db02b",
}


@pytest.fixture(params=ALL, ids="-".join)
def work(request: pytest.FixtureRequest) -> workloads.Work:
    name, form = request.param
    return workloads.make(name, form, 500, 200)


def literal(work: workloads.Work, n_events: int) -> Matches:
    points = work.points[:n_events, None, :]
    event, index = np.nonzero(((work.lo < points) & (points <= work.hi)).all(axis=2))
    return Matches.from_pairs(event, index, n_events)


# ---------------------------------------------------------------------------------------------- workloads


def test_workloads_are_frozen(work: workloads.Work) -> None:
    assert work.checksum() == CHECKSUMS[work.name, work.form]


def test_more_leaves_what_was_there(work: workloads.Work) -> None:
    more = workloads.make(work.name, work.form, 700, 300)
    np.testing.assert_array_equal(more.points[:200], work.points)
    if work.name != "R4":  # there the shares of the blocks are exact
        np.testing.assert_array_equal(more.lo[:500], work.lo)
        np.testing.assert_array_equal(more.hi[:500], work.hi)


def test_subscriptions_and_events_are_the_boxes_and_points(work: workloads.Work) -> None:
    subscriptions, events = work.subscriptions(), work.events()
    assert {str(t) for t in events.schema.types} == {"bigint" if work.form == "int" else "double"}
    found = Scan().fit(subscriptions).match(events)
    assert found == literal(work, 200)
    assert found.n_pairs > 0
    part = work.subscriptions(100, 250)
    assert part.subscription_id.tolist() == list(range(100, 250))
    assert Scan().fit(part).match(events).n_pairs == ((found.index >= 100) & (found.index < 250)).sum()


def test_doubles_are_as_from_boxes(work: workloads.Work) -> None:
    if work.form == "int":
        assert (work.points == np.rint(work.points)).all()
        return
    made = work.subscriptions().boxes
    given = SubscriptionSet.from_boxes(work.schema, ["s"] * 500, work.lo, work.hi).boxes
    for name in ("owner", "indptr", "attribute", "lo", "hi", "exact"):
        np.testing.assert_array_equal(getattr(made, name), getattr(given, name))


@pytest.mark.parametrize("form", workloads.FORMS)
def test_uniform_boxes_are_as_described(form: str) -> None:
    work = workloads.make("S10", form, 5_000, 5_000)
    bounded = np.isfinite(work.lo)
    assert (bounded.sum(axis=1) == 3).all()
    assert 0.28 < bounded.mean(axis=0).min() <= bounded.mean(axis=0).max() < 0.32
    sides = (work.hi - work.lo)[bounded].reshape(-1, 3)
    assert np.ptp(sides, axis=1).max() < 1e-6
    decade = np.log10((sides / 10_000).prod(axis=1))
    assert np.quantile(decade, [0, 0.25, 0.5, 0.75, 1]) == pytest.approx(
        [-4, -3.75, -3.5, -3.25, -3], abs=0.02
    )
    assert work.lo[bounded].min() >= 0
    assert work.hi[bounded].max() <= 10_000
    assert 0 < work.points.min() <= work.points.max() <= 10_000
    assert work.points.mean() == pytest.approx(5_000, rel=0.02)


@pytest.mark.parametrize("form", workloads.FORMS)
def test_categories_follow_zipf(form: str) -> None:
    work = workloads.make("C10", form, 20_000, 20_000)
    top = 1 / (1 / np.arange(1, 1_001)).sum()
    for category in (work.hi[:, 0], work.points[:, 0]):
        assert category.min() == 1
        assert category.max() == 1_000
        assert (category == 1).mean() == pytest.approx(top, rel=0.05)
        assert (category == 2).mean() == pytest.approx(top / 2, rel=0.1)


# -------------------------------------------------------------------------------------------------- peers


@pytest.mark.parametrize("n_events", [1, 200])
def test_the_brute_force_finds_what_scan_finds(work: workloads.Work, n_events: int) -> None:
    brute = peers.Brute(work, n_events)
    expected = Scan().fit(work.subscriptions()).match(work.events(n_events))
    for _ in range(2):
        assert brute.run() == expected.n_pairs
        assert brute.matches() == expected


def test_the_brute_force_takes_more_ends_than_16_bits_hold() -> None:
    work = workloads.make("R4", "float", 40_000, 20)
    brute = peers.Brute(work, 20)
    assert brute.dtype is np.uint32
    brute.run()
    assert brute.matches() == Scan().fit(work.subscriptions()).match(work.events())


@pytest.mark.parametrize("peer", peers.PEERS)
def test_peers_find_what_scan_finds(work: workloads.Work, peer: str) -> None:
    done = peers.PEERS[peer](work, 150, 2)
    assert done.matches == Scan().fit(work.subscriptions()).match(work.events(150))
    assert len(done.times.wall) == len(done.times.cpu) == 2
    assert min(done.times.wall) > 0


def test_times_are_medians_with_their_spread() -> None:
    times = peers.Times(wall=[1.0, 4.0, 2.0], cpu=[1.0, 1.0, 1.0])
    assert times.median == 2
    assert times.spread_pct == 150


# -------------------------------------------------------------------------------------------------- whole


def test_helpers_are_no_benchmarks() -> None:
    assert {"filters", "matching"} <= set(runner.NAMES)
    assert not runner.HELPERS & set(runner.NAMES)
    assert all((ROOT / "benchmarks" / f"{name}.py").exists() for name in runner.HELPERS)


def test_a_wrong_result_stops_the_benchmark() -> None:
    one = Matches.from_pairs([0, 1, 1], [3, 1, 2], n_events=2)
    peers.check(one, Matches.from_pairs([0], [3], n_events=1), "same")
    with pytest.raises(RuntimeError, match="grid does not find what the brute force finds"):
        peers.check(one, Matches.from_pairs([0], [2], n_events=1), "grid")


@pytest.mark.slow
def test_the_benchmark_runs(tmp_path: Path) -> None:
    result = json.loads(json.dumps(matching.run(tmp_path, quick=True)))
    rows = {(r["workload"], r["form"], r["subscriptions"], r["matcher"]): r for r in result["rows"]}
    here = {label for label, (name, _) in matching.SERIES.items() if name in MATCHERS}
    for name, form in ALL:
        for n in (100, 1_000, 10_000):
            assert {(name, form, n, label) for label in ("auto", "brute")} <= set(rows)
            assert rows[name, form, n, "auto"]["times_brute"] > 0
        assert {(name, form, 1_000, label) for label in ("duckdb", "polars", "rtree")} <= set(rows)
        assert rows[name, form, 1_000, "auto"]["times_duckdb"] > 0
    measured = {row["matcher"] for row in result["rows"]}
    assert measured == here | {"brute", "duckdb", "polars", "rtree"}
    assert len(result["targets"]) == 16
    assert all(target["seen"] > 0 for target in result["targets"])
    assert [p["subscriptions"] for p in result["growth"]] == [100, 300, 1_000, 3_000, 10_000] * 3
    assert (tmp_path / "matching-growth.png").read_bytes()[:4] == b"\x89PNG"
    assert "<svg" in (tmp_path / "matching-growth.svg").read_text()
