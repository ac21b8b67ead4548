from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowcast import EventBatch, Scan, Schema, SubscriptionSet, compile_filters
from narrowcast.errors import ParameterError
from narrowcast.model.topology import Locations, Topology
from narrowcast.workloads import WORKLOADS, Stocks, make_workload
from narrowcast.workloads.base import box_filters, zipf
from narrowcast.workloads.stocks import NAME_CENTRES, SCHEMA
from narrowcast.workloads.topologies import Edges, transit_stub
from support.errors import refused

ROOT = Path(__file__).parents[2]
SEEDS = range(5)
#: A box and an event of seed 3.
LO_17 = [1.0, 14.982956461333355, 9.271044603348436, 8.192614713204701]
HI_17 = [2.0, 15.982956461333355, math.inf, math.inf]
POINT_99 = [1.9936856007224644, 13.899914359542453, 11.140484171421821, 5.7545647905076605]


def blocks_of(stocks: Stocks) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The block of each subscription, from 0, read from its subscriber's name."""
    return np.array([int(name[1]) - 1 for name in stocks.subscribers().to_pylist()], np.int64)


def assert_same_boxes(compiled: SubscriptionSet, given: SubscriptionSet) -> None:
    one, other = compiled.boxes, given.boxes
    for name in ("owner", "indptr", "attribute", "lo", "hi", "exact"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


# ------------------------------------------------------------------------------------------------ filters


@pytest.mark.parametrize("seed", SEEDS)
def test_filters_compile_to_the_very_boxes(seed: int) -> None:
    stocks = Stocks(n_subscriptions=2000, n_events=0, seed=seed)
    compiled = compile_filters(SCHEMA, stocks.tables()["subscriptions"], strict=True).subscriptions
    given_boxes = SubscriptionSet.from_boxes(SCHEMA, stocks.subscribers(), *stocks.boxes())
    assert_same_boxes(compiled, given_boxes)
    assert compiled.check.null_count == len(compiled) == 2000
    assert compiled.subscribers.equals(given_boxes.subscribers)
    np.testing.assert_array_equal(compiled.subscriber, given_boxes.subscriber)
    np.testing.assert_array_equal(compiled.subscription_id, np.arange(2000))


ends = st.floats(allow_nan=False)


@settings(max_examples=200)
@given(st.lists(st.tuples(ends, ends, ends, ends), min_size=1, max_size=5))
def test_any_box_survives_being_written_as_a_filter(rows: list[tuple[float, ...]]) -> None:
    schema = Schema.of({"a": "double", "b": "double"})
    lo, hi = np.array(rows)[:, :2], np.array(rows)[:, 2:]
    # No number is above an infinite low end, and none is at or below an infinite high end of the wrong sign.
    lo[lo == np.inf], hi[hi == -np.inf] = -np.inf, np.inf
    texts = box_filters(schema.names, lo, hi).to_pylist()
    assert_same_boxes(
        compile_filters(schema, texts, strict=True).subscriptions,
        SubscriptionSet.from_boxes(schema, [str(i) for i in range(len(rows))], lo, hi),
    )


def test_filters_read_well() -> None:
    inf = math.inf
    lo = np.array([[0.0, -inf], [0.1, 3.0], [-inf, -inf], [-1.5, 1e-7]])
    hi = np.array([[1.0, inf], [inf, 4.25], [inf, inf], [2.0, 1e22]])
    assert box_filters(["bst", "quote"], lo, hi).to_pylist() == [
        "bst > 0 AND bst <= 1",
        "bst > 0.1 AND quote > 3 AND quote <= 4.25",
        "TRUE",
        "bst > -1.5 AND bst <= 2 AND quote > 1e-7 AND quote <= 1e+22",
    ]


def test_matches_are_those_of_a_literal_loop() -> None:
    stocks = Stocks(n_subscriptions=200, n_events=100, modes=9)
    tables = stocks.tables()
    compiled = compile_filters(SCHEMA, tables["subscriptions"], strict=True).subscriptions
    found = Scan().fit(compiled).match(EventBatch.from_arrow(tables["events"]))
    lo, hi = (end.tolist() for end in stocks.boxes())
    slow = [
        [
            s
            for s in range(200)
            if all(low < x <= high for low, x, high in zip(lo[s], event, hi[s], strict=True))
        ]
        for event in stocks.points().tolist()
    ]
    assert [found[event].tolist() for event in range(100)] == slow
    assert sum(map(len, slow)) > 200


# ---------------------------------------------------------------------------------------------- the table


def test_tables_have_the_columns_of_the_interface() -> None:
    tables = Stocks(n_subscriptions=10, n_events=20).tables()
    assert list(tables) == ["subscriptions", "events", "topology", "locations"]
    assert tables["subscriptions"].schema == pa.schema(
        [("subscription_id", pa.int64()), ("subscriber", pa.string()), ("filter", pa.string())]
    )
    attributes = [(name, pa.float64()) for name in ("bst", "name", "quote", "volume")]
    assert tables["events"].schema == pa.schema([("event_id", pa.int64()), *attributes])
    assert tables["events"]["event_id"].to_pylist() == list(range(20))
    links = [("a", pa.string()), ("b", pa.string()), ("cost", pa.float64())]
    assert tables["topology"].schema == pa.schema(links)
    assert tables["locations"].schema == pa.schema([("subscriber", pa.string()), ("node", pa.string())])


def test_the_network_is_that_of_the_seed_and_has_all_subscribers() -> None:
    stocks = Stocks(n_events=0, seed=5)
    tables = stocks.tables()
    assert Topology.from_table(tables["topology"]).n_nodes == 600
    assert tables["topology"].equals(transit_stub(5).topology.to_table())
    subscribers = tables["subscriptions"]["subscriber"].unique()
    node = Locations.from_table(tables["locations"], stocks.network().topology).of(subscribers)
    assert stocks.network().topology.nodes.take(node).equals(subscribers)
    assert tables["locations"].num_rows == len(subscribers)


@pytest.mark.parametrize("nodes", [6, 50, 3000])
def test_the_network_can_be_of_any_size(nodes: int) -> None:
    tables = Stocks(n_events=5, seed=5, nodes=nodes).tables()
    assert tables["topology"].equals(transit_stub(5, nodes=nodes).topology.to_table())
    Locations.from_table(tables["locations"], Topology.from_table(tables["topology"]))
    assert tables["subscriptions"]["filter"].equals(Stocks(seed=5).tables()["subscriptions"]["filter"])
    assert tables["locations"].num_rows <= nodes


def test_the_cost_of_links_changes_nothing_else() -> None:
    tables = {edges: Stocks(n_events=5, seed=5, edges=edges).tables() for edges in get_args(Edges)}
    for name in ("subscriptions", "events", "locations"):
        assert tables["levels"][name].equals(tables["nested"][name])
        assert tables["levels"][name].equals(tables["hops"][name])
    links = [each["topology"].select(["a", "b"]) for each in tables.values()]
    assert links[0].equals(links[1])
    assert links[0].equals(links[2])
    costs = [each["topology"]["cost"].to_numpy() for each in tables.values()]
    assert [len(np.unique(cost)) for cost in costs] == [len(costs[0]), len(costs[0]), 1]


def test_boxes_and_events_of_a_seed_stay_as_they_are() -> None:
    """What benchmarks and recorded figures were made from; the numbers are those of the first version."""
    stocks = Stocks(seed=3)
    lo, hi = stocks.boxes()
    assert lo[17].tolist() == LO_17
    assert hi[17].tolist() == HI_17
    assert stocks.points()[99].tolist() == POINT_99


def test_empty_tables() -> None:
    stocks = Stocks(n_subscriptions=0, n_events=0)
    tables = stocks.tables()
    assert [tables[name].num_rows for name in ("subscriptions", "events", "locations")] == [0, 0, 0]
    assert tables["subscriptions"].schema == Stocks(n_subscriptions=1).tables()["subscriptions"].schema
    assert stocks.density(*stocks.boxes()).shape == (0,)


def test_seeds() -> None:
    tables = Stocks(seed=3).tables()
    again = Stocks(seed=3).tables()
    other = Stocks(seed=4).tables()
    for name, table in tables.items():
        assert table.equals(again[name])
        for column in set(table.column_names) - {"subscription_id", "event_id"}:
            assert not table[column].equals(other[name][column])


def test_more_of_one_changes_nothing_of_the_other() -> None:
    few = Stocks(n_subscriptions=50, n_events=50).tables()
    more_events = Stocks(n_subscriptions=50, n_events=70).tables()
    assert more_events["subscriptions"].equals(few["subscriptions"])
    assert more_events["events"].slice(0, 50).equals(few["events"])
    assert Stocks(n_subscriptions=80, n_events=50).tables()["events"].equals(few["events"])
    modes = Stocks(n_subscriptions=50, n_events=50, modes=9).tables()
    assert modes["subscriptions"].equals(few["subscriptions"])
    assert not modes["events"].equals(few["events"])


# -------------------------------------------------------------------------------------------- the numbers


def test_density_equals_the_golden_vectors() -> None:
    golden = json.loads((ROOT / "tests" / "golden" / "riabov2003_density.json").read_text())
    boxes = np.array([[[float(end) for end in side] for side in box] for box in golden["boxes"]])
    assert boxes.shape == (5, 2, 4)
    for modes, wanted in golden["probability_by_modes"].items():
        found = Stocks(modes=int(modes)).density(boxes[:, 0], boxes[:, 1])  # type: ignore[arg-type]  # 1, 4, 9
        np.testing.assert_allclose(found, wanted, rtol=0, atol=5.1e-11)


@pytest.mark.parametrize("modes", [1, 4, 9])
def test_density_of_cells_adds_up_and_an_empty_box_has_none(modes: Any) -> None:
    stocks = Stocks(modes=modes)
    edges = np.array([-np.inf, 0, 4, 9, 14, np.inf])
    cell = np.stack(np.meshgrid(*[np.arange(5)] * 4, indexing="ij"), axis=-1)
    assert stocks.density(edges[cell], edges[cell + 1]).sum() == pytest.approx(1, abs=1e-12)
    assert stocks.density([0, 5, 5, 5], [1, 5, 6, 6]) == 0
    assert stocks.density([0, 7, 5, 5], [1, 5, 6, 6]) == 0


@pytest.mark.parametrize(("modes", "mean", "spread"), [(1, 35.6, 1.5), (4, 26.5, 1.8), (9, 27.3, 1.3)])
def test_matches_per_event_are_as_many_as_published(modes: Any, mean: float, spread: float) -> None:
    """An independent reading of the seed measured these means and spreads over five seeds."""
    means, unmatched = [], []
    for seed in SEEDS:
        stocks = Stocks(n_events=5000, modes=modes, seed=seed)
        lo, hi = stocks.boxes()
        subscriptions = SubscriptionSet.from_boxes(SCHEMA, stocks.subscribers(), lo, hi)
        events = EventBatch.from_arrow(stocks.tables()["events"], SCHEMA)
        counts = Scan().fit(subscriptions).match(events).counts()
        # What the density promises and what was drawn: about 0.45 is one standard error.
        assert counts.mean() == pytest.approx(stocks.density(lo, hi).sum(), abs=1.5)
        means.append(counts.mean())
        unmatched.append(np.mean(counts == 0))
    assert np.mean(means) == pytest.approx(mean, abs=spread)
    assert np.mean(unmatched) == pytest.approx(0.183, abs=0.007)
    # Many more seeds cost little when the density stands for the events.
    each = [stocks.density(*Stocks(seed=seed).boxes()).sum() for seed in range(100)]
    assert np.mean(each) == pytest.approx(mean, abs=0.45)
    assert np.std(each) == pytest.approx(spread, abs=0.5)


def test_shares_of_the_intervals() -> None:
    stocks = Stocks(n_subscriptions=40_000)
    lo, hi = stocks.boxes()
    sides = [np.mean(lo[:, 0] == side) for side in range(3)]
    assert sides == pytest.approx([0.4, 0.4, 0.2], abs=0.01)
    np.testing.assert_array_equal(hi[:, 0] - lo[:, 0], 1)
    for column, anything in ((2, 0.15), (3, 0.35)):
        low, high = np.isfinite(lo[:, column]), np.isfinite(hi[:, column])
        assert np.mean(~low & ~high) == pytest.approx(anything, abs=0.01)
        assert np.mean(low & ~high) == pytest.approx(0.1, abs=0.01)
        assert np.mean(~low & high) == pytest.approx(0.1, abs=0.01)
        assert np.mean(~low | ~high) == pytest.approx(anything + 0.2, abs=0.01)
        length = hi[low & high, column] - lo[low & high, column]
        assert length.min() == pytest.approx(4, abs=0.001)
        for x in (8, 16, 40):
            assert np.mean(length > x) == pytest.approx(4 / x, abs=0.01)
        for one in (lo[low & ~high, column], hi[~low & high, column]):
            assert (one.mean(), one.std()) == pytest.approx((9, 1), abs=0.05)
        # Without the longest, whose ends do not leave the centre its digits.
        centre = (lo[low & high, column] + length / 2)[length < 1e6]
        assert (centre.mean(), centre.std()) == pytest.approx((9, 2), abs=0.05)


def test_names_follow_the_block() -> None:
    stocks = Stocks(n_subscriptions=40_000)
    lo, hi = stocks.boxes()
    block = blocks_of(stocks)
    assert np.bincount(block).tolist() == [16_000, 12_000, 12_000]
    for number, centre in enumerate(NAME_CENTRES):
        found = (lo[block == number, 1] + hi[block == number, 1]) / 2
        assert (found.mean(), found.std()) == pytest.approx((centre, 4), abs=0.1)
    length = np.rint(hi[:, 1] - lo[:, 1]).astype(np.int64)
    np.testing.assert_allclose(hi[:, 1] - lo[:, 1], length, atol=1e-9)
    np.testing.assert_allclose(np.bincount(length, minlength=21)[1:] / 40_000, zipf(20), atol=0.01)


@pytest.mark.parametrize(
    ("n", "shares"), [(1000, [400, 300, 300]), (7, [3, 2, 2]), (2, [1, 0, 1]), (0, [0, 0, 0])]
)
def test_blocks_share_exactly(n: int, shares: list[int]) -> None:
    assert np.bincount(blocks_of(Stocks(n_subscriptions=n)), minlength=3).tolist() == shares


def test_subscribers_are_nodes() -> None:
    distinct = [len(Stocks(seed=seed).subscribers().unique()) for seed in range(40)]
    assert 315 <= np.mean(distinct) <= 345
    # The published range is that of five networks; blocks with few stubs give fewer.
    assert np.mean([315 <= count <= 345 for count in distinct]) > 0.6
    assert min(distinct) > 290
    assert max(distinct) < 365


def test_stubs_and_nodes_follow_zipf() -> None:
    stocks = Stocks(n_subscriptions=40_000)
    network, names = stocks.network(), stocks.subscribers().to_pylist()
    assert set(names) <= set(np.array(network.topology.nodes.to_pylist())[network.kind == "stub"])
    for number in range(3):
        here = [name.split(".")[1] for name in names if name[1] == str(number + 1)]
        stub, counts = np.unique(here, return_counts=True)
        share = np.sort(counts)[::-1] / len(here)
        np.testing.assert_allclose(share, zipf(network.n_stubs(number)), atol=0.02)
        most = f"b{number + 1}.{stub[counts.argmax()]}."
        nodes = np.unique([name for name in names if name.startswith(most)], return_counts=True)[1]
        chance = zipf(sum(name.startswith(most) for name in network.topology.nodes.to_pylist()))
        np.testing.assert_allclose(np.sort(nodes)[::-1] / nodes.sum(), chance, atol=0.03)


@pytest.mark.parametrize(("modes", "drift"), [(1, 0), (4, 0), (9, 0), (1, 0.7), (4, 0.35), (9, 1.2)])
def test_events_fall_where_the_density_says(modes: Any, drift: float) -> None:
    stocks = Stocks(n_events=40_000, modes=modes, drift=drift)
    points = stocks.points()
    for column in range(4):
        for start in range(-4, 24, 2):
            lo, hi = np.full(4, -np.inf), np.full(4, np.inf)
            lo[column], hi[column] = start, start + 2
            share = np.mean((points[:, column] > start) & (points[:, column] <= start + 2))
            assert share == pytest.approx(float(stocks.density(lo, hi)), abs=0.01)
    # Each attribute is drawn by itself.
    assert np.abs(np.corrcoef(points.T) - np.eye(4)).max() < 0.02


@given(st.floats(-5, 5), st.sampled_from([1, 4, 9]))
def test_peaks_move_and_turn_at_the_ends(drift: float, modes: Any) -> None:
    for i, (moved, start) in enumerate(
        zip(Stocks(modes=modes, drift=drift).mixtures(), Stocks(modes=modes).mixtures(), strict=True)
    ):
        np.testing.assert_array_equal(moved[0], start[0])
        np.testing.assert_array_equal(moved[2], start[2])
        for there, mean in zip(moved[1].tolist(), start[1].tolist(), strict=True):
            if i in (0, 3):
                assert there == mean
                continue
            wanted, step = mean, 20 * drift
            while not 0 <= wanted + step <= 20:  # go to the end, and turn
                end = 20.0 if step > 0 else 0.0
                step, wanted = -(step - (end - wanted)), end
            assert there == pytest.approx(wanted + step, abs=1e-9)


def test_drift_changes_nothing_but_the_peaks() -> None:
    start, moved = Stocks(n_events=50, modes=9), Stocks(n_events=50, modes=9, drift=0.1)
    tables, others = start.tables(), moved.tables()
    for name in ("subscriptions", "topology", "locations"):
        assert tables[name].equals(others[name])
    step = moved.points() - start.points()
    assert (step[:, [0, 3]] == 0).all()
    assert set(np.round(step[:, 2], 9)) == {2.0}  # no peak of the quotes turns, but one of the names: 18, 20
    assert set(np.round(step[:, 1], 9)) == {2.0}


# ------------------------------------------------------------------------------------- bad and text input


@pytest.mark.parametrize(
    ("params", "shown"),
    [
        ({"n_subscriptions": -1}, [0, 2147483647]),
        ({"n_events": 2**31}, [0, 2147483647]),
        ({"n_events": 1.5}, []),
        ({"n_events": True}, []),
        ({"modes": 3}, ["1, 4, 9"]),
        ({"edges": "long"}, ["levels", "nested", "hops"]),
        ({"drift": math.nan}, []),
        ({"drift": "far"}, []),
        ({"nodes": 5}, [6]),
        ({"nodes": 7.5}, []),
        ({"seed": -1}, [0]),
    ],
)
def test_bad_parameters(params: dict[str, Any], shown: list[Any]) -> None:
    name, value = next(iter(params.items()))
    with refused(ParameterError, repr(value), *shown, parameter=name):
        Stocks(**params)


def test_settings_are_read_by_type() -> None:
    made = make_workload("stocks", ["n_subscriptions=20", " n_events = 3", "modes=4", "edges=hops"], seed=9)
    assert made == Stocks(n_subscriptions=20, n_events=3, modes=4, edges="hops", seed=9)
    assert make_workload("stocks") == Stocks()
    assert "stocks" in WORKLOADS


def test_unknown_workload() -> None:
    with refused(ParameterError, "stock", "stocks"):
        make_workload("stock", ["modes=4"])


@pytest.mark.parametrize(
    ("settings", "parameter", "value", "shown"),
    [
        (["modes"], "settings", "modes", ["key=value", "n_subscriptions", "edges"]),
        (["mode=4"], "mode", "4", ["stocks", "did you mean 'modes'", "n_subscriptions"]),
        (["=4"], "", "4", ["stocks", "n_subscriptions", "modes"]),
        (["modes=3"], "modes", "3", ["1, 4, 9"]),
        (["modes="], "modes", "", ["1, 4, 9"]),
        (["edges=far"], "edges", "far", ["levels", "nested", "hops"]),
        (["n_events=many"], "n_events", "many", ["many"]),
        (["n_events=-5"], "n_events", -5, [-5, 0]),
        (["seed=4"], "settings", "seed=4", ["seed=4"]),
        (["n_events=5", "n_events=5"], "n_events", "5", ["5"]),
    ],
)
def test_bad_settings(settings: list[str], parameter: str, value: Any, shown: list[Any]) -> None:
    with refused(ParameterError, *shown, parameter=parameter, value=value):
        make_workload("stocks", settings)


def test_example_runs(tmp_path: Path) -> None:
    script = ROOT / "examples" / "stocks.py"
    done = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True, check=True)
    assert "matches per event" in done.stdout
    assert (tmp_path / "interest-matrix.svg").exists()
