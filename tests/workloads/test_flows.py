"""Symbols of several markets as flows, and the people who follow them."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowcast.costs.filtering import Filtering
from narrowcast.errors import ParameterError, TableError
from narrowcast.model.interest import Interest
from narrowcast.workloads import make_workload, origin_of
from narrowcast.workloads.flows import DECAY, HOTTEST, Flows, _distinct_ranks, _is_first
from support.command import document, refusal
from support.errors import refused

#: Real symbols: in the folder that the environment names, or beside the project.
DATA = os.environ.get("NARROWCAST_DATA") or Path(__file__).parents[3] / "shared" / "data"
REAL = Path(DATA, "symbols.parquet")


# --------------------------------------------------------------------------------------------- the paper's


def test_statistics_are_those_of_the_paper() -> None:
    found = []
    for seed in range(40, 50):
        interest = Flows(seed=seed).interest()
        each = np.diff(interest.wants.indptr)
        assert each.max() == 102
        assert 15 <= each.min() <= 17
        flat = Interest(interest.wants, Flows(seed=seed, rates="flat").tables()["rates"]["rate"].to_numpy())
        copies = [Filtering.multiplicity(every) for every in (interest, flat)]
        found.append((each.mean(), *copies, np.count_nonzero(interest.audience())))
    mean, zipf, flat_copies, wanted = np.mean(found, axis=0)
    # Each within three of the standard deviations that were measured over seeds, of a mean of ten.
    assert mean == pytest.approx(67.33, abs=3 * 1.21 / 10**0.5)
    assert zipf == pytest.approx(9.93, abs=3 * 0.29 * (2 / 10) ** 0.5)
    assert flat_copies == pytest.approx(7.49, abs=3 * 0.15 * (2 / 10) ** 0.5)
    assert wanted == pytest.approx(7454, abs=3 * 36 * (2 / 10) ** 0.5)


def test_sizes_are_exact() -> None:
    flows = Flows()
    assert flows.sizes().tolist() == [6828, 3414, 2276, 1707, 1366, 1138, 975, 854, 759, 683]
    tables = flows.tables()
    assert tables["interests"].schema == pa.schema({"subscriber": pa.int32(), "flow": pa.int32()})
    assert tables["rates"].schema == pa.schema({"flow": pa.int32(), "rate": pa.float64()})
    assert tables["rates"]["flow"].to_pylist() == list(range(20_000))
    # 1 % of the two markets that each follows, and nothing twice.
    one_percent = [68, 34, 23, 17, 14, 11, 10, 9, 8, 7]
    possible = {sum(two) for two in itertools.combinations(one_percent, 2)}
    interests = tables["interests"]
    assert set(interests["subscriber"].value_counts().field("counts").to_pylist()) <= possible
    assert interests.group_by(["subscriber", "flow"]).aggregate([]).num_rows == interests.num_rows
    start = np.append(0, np.cumsum(flows.sizes()))
    market = np.searchsorted(start, interests["flow"].to_numpy(), side="right") - 1
    each = interests["subscriber"].to_numpy() * 10 + market
    numbers, counts = np.unique(each, return_counts=True)
    assert len(numbers) == 2 * 500
    assert counts.tolist() == np.array(one_percent)[numbers % 10].tolist()


@given(st.integers(0, 300), st.integers(1, 12))
def test_sizes_add_up(n_flows: int, markets: int) -> None:
    sizes = Flows(n_flows=n_flows, markets=markets, per_subscriber=1, n_subscribers=0).sizes()
    assert sizes.sum() == n_flows
    exact = n_flows / np.arange(1, markets + 1) / (1 / np.arange(1, markets + 1)).sum()
    assert np.abs(sizes - exact).max() < 1


def test_rates_fall_with_the_rank_from_the_peak_of_the_market() -> None:
    sizes = Flows(n_flows=1100, markets=3).sizes()
    assert sizes.tolist() == [600, 300, 200]
    for law, peaks in {"zipf": (1000, 500, 1000 / 3), "flat": (1000, 1000, 1000)}.items():
        rate = make_workload("flows", ["n_flows=1100", "markets=3", f"rates={law}"]).tables()["rates"]["rate"]
        for part, peak in zip(np.split(rate.to_numpy(), [600, 900]), peaks, strict=True):
            expected = [peak * np.exp(-DECAY * r / len(part)) for r in range(len(part))]
            np.testing.assert_allclose(part, expected)
    assert np.exp(-DECAY * np.arange(1000) / 1000)[:100].sum() / np.exp(
        -DECAY * np.arange(1000) / 1000
    ).sum() == pytest.approx(0.55, abs=0.001)


def test_markets_are_chosen_one_after_the_other_by_zipf() -> None:
    n = 20_000
    interest = Flows(n_flows=60, markets=3, per_subscriber=2, share=1.0, n_subscribers=n, seed=5).interest()
    missing = np.array([n - interest.audience()[first] for first in (0, 33, 49)]) / n
    w = np.array([6, 3, 2]) / 11
    left = [
        sum(w[i] * w[j] / (1 - w[i]) for i, j in itertools.permutations(set(range(3)) - {k}))
        for k in range(3)
    ]
    np.testing.assert_allclose(missing, left, atol=4 * 0.5 / n**0.5)


# ---------------------------------------------------------------------------------------------- the choice


def literal_chance(size: int, count: int) -> np.ndarray[Any, Any]:
    """The chance that each rank is among `count` chosen one after the other, by going through all ways."""
    weight = np.exp(-DECAY * np.arange(size) / size)
    chance = np.zeros(size)
    for way in itertools.permutations(range(size), count):
        p, left = 1.0, weight.sum()
        for rank in way:
            p *= weight[rank] / left
            left -= weight[rank]
        chance[list(way)] += p
    return chance


@pytest.mark.parametrize("few", [0.0, 1.0])
def test_both_ways_to_choose_follow_the_law(few: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("narrowcast.workloads.flows._FEW", few)
    n = 40_000
    chosen = np.concatenate(list(_distinct_ranks(3, 0, 6, 3, n)))
    assert chosen.shape == (n, 3)
    assert (np.diff(np.sort(chosen, axis=1), axis=1) > 0).all()
    found = np.bincount(chosen.ravel(), minlength=6) / n
    np.testing.assert_allclose(found, literal_chance(6, 3), atol=4 * 0.5 / n**0.5)


@given(st.lists(st.lists(st.integers(0, 6), min_size=5, max_size=5), max_size=4))
def test_first_occurrences(rows: list[list[int]]) -> None:
    expected = [[value not in row[:i] for i, value in enumerate(row)] for row in rows]
    drawn = np.array(rows, np.int64).reshape(len(rows), 5)
    assert _is_first(drawn).tolist() == expected


@pytest.mark.parametrize("share", [0.01, 0.3, 1.0])
def test_more_subscribers_leave_those_before(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    less = Flows(n_flows=3000, n_subscribers=40, share=share, seed=8).tables()["interests"]
    more = Flows(n_flows=3000, n_subscribers=90, share=share, seed=8).tables()["interests"]
    assert more.slice(0, less.num_rows).equals(less)
    assert pc.max(more["subscriber"]).as_py() == 89
    monkeypatch.setattr("narrowcast.workloads.flows._BLOCK", 5000)  # nor does how much is done in one go
    assert Flows(n_flows=3000, n_subscribers=90, share=share, seed=8).tables()["interests"].equals(more)


def test_the_same_seed_gives_the_same(tmp_path: Path) -> None:
    one, two = Flows(seed=3), Flows(seed=3)
    assert one == two
    assert one.tables() == two.tables()
    other = Flows(seed=4).tables()
    assert other["rates"] == one.tables()["rates"]
    assert other["interests"] != one.tables()["interests"]
    facts, _ = document("generate", "flows", "--out", str(tmp_path / "f"), "--seed", "3")
    assert facts["parameters"]["per_subscriber"] == 2
    for name, table in one.tables().items():
        assert pq.read_table(tmp_path / "f" / f"{name}.parquet").equals(table)
        assert facts["rows"][name] == table.num_rows


def test_the_interest_is_that_of_the_tables() -> None:
    flows = Flows(n_flows=500, n_subscribers=30, share=0.1)
    tables = flows.tables()
    assert flows.interest() == Interest.from_tables(tables["interests"], tables["rates"])


@pytest.mark.parametrize("params", [{"n_subscribers": 0}, {"n_flows": 0}, {"n_flows": 3, "share": 0.01}])
def test_no_flows(params: dict[str, Any]) -> None:
    flows = Flows(**params)
    interests, rates = flows.tables()["interests"], flows.tables()["rates"]
    assert interests.num_rows == 0
    assert rates.num_rows == flows.n_flows == flows.interest().n_flows
    assert interests.schema.field("flow").type == pa.int32()


def test_share_of_one() -> None:
    interest = Flows(n_flows=20, n_subscribers=3, markets=1, per_subscriber=1, share=1).interest()
    assert interest.audience().tolist() == [3] * 20


def test_some_subscribers_want_nothing_and_some_flows_are_not_wanted() -> None:
    # Markets of 6, 3 and 2 symbols: a tenth of the first is one symbol, of the others none.
    flows = Flows(n_flows=11, n_subscribers=40, markets=3, per_subscriber=1, share=0.1, seed=2)
    interest, tables = flows.interest(), flows.tables()
    each = np.diff(interest.wants.indptr)
    assert set(each.tolist()) == {0, 1}
    assert set(np.flatnonzero(interest.audience()).tolist()) <= set(range(6))
    # They are in the interest; the table of interests has no row for them, and all flows have a rate.
    assert interest.n_subscribers == 40
    assert len(set(tables["interests"]["subscriber"].to_pylist())) == np.count_nonzero(each) < 40
    assert tables["rates"].num_rows == 11
    assert (interest.rate > 0).all()


def test_symbols_that_are_not_traded_have_rate_zero(tmp_path: Path) -> None:
    path = write(tmp_path, symbol=["a", "b", "c"], market=["m"] * 3, volume=[4.0, 0.0, None])
    flows = Flows(symbols=path, per_subscriber=1, share=1.0, n_subscribers=2)
    assert flows.tables()["rates"].to_pydict() == {"flow": ["a", "b"], "rate": [HOTTEST, 0.0]}
    assert Filtering.multiplicity(flows.interest()) == 2
    assert origin_of(flows)["origin"]["left_out"] == {"null": 1, "volume below 0": 0}


@pytest.mark.slow
def test_a_million_flows() -> None:
    table = Flows(n_flows=1_000_000, n_subscribers=10_000).tables()["interests"]
    assert 33e6 < table.num_rows < 34.5e6


# ------------------------------------------------------------------------------------------------- a table


def write(folder: Path, **columns: Any) -> str:
    pq.write_table(pa.table(columns), folder / "s.parquet")
    return str(folder / "s.parquet")


def test_symbols_of_a_table(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        symbol=["c", "a", "b", "x", "y", "n", "low", None],
        market=["big", "big", "big", "small", "small", None, "big", "big"],
        volume=[5.0, 10.0, 5.0, 1.0, 20.0, 1.0, -1.0, 1.0],
        other=[None] * 8,
    )
    flows = Flows(symbols=path, share=0.5, n_subscribers=4)
    assert flows.sizes().tolist() == [3, 2]
    # Of the largest market first, in it the most traded, of equals the first by name.
    rates = flows.tables()["rates"]
    assert rates["flow"].to_pylist() == ["a", "b", "c", "y", "x"]
    assert rates["rate"].to_pylist() == [HOTTEST / 2, HOTTEST / 4, HOTTEST / 4, HOTTEST, HOTTEST / 20]
    interests = flows.tables()["interests"]
    assert interests.num_rows == 4 * (2 + 1)  # half of three symbols is two
    assert set(interests["flow"].to_pylist()) <= set("abcxy")
    assert Interest.from_tables(interests, rates).n_flows == 5
    origin = origin_of(flows)["origin"]
    assert origin["rows"] == 8
    assert origin["left_out"] == {"null": 2, "volume below 0": 1}
    assert len(origin["sha256"]) == 64
    again = tmp_path / "again"
    again.mkdir()
    pq.write_table(pq.read_table(path).take([7, 3, 2, 4, 1, 0, 5, 6]), again / "s.parquet")
    assert Flows(symbols=str(again / "s.parquet"), share=0.5, n_subscribers=4).tables() == flows.tables()
    with refused(ParameterError, 2, parameter="per_subscriber", value=3):
        Flows(symbols=path, per_subscriber=3).tables()


@pytest.mark.skipif(not REAL.is_file(), reason="no table of real symbols")
def test_real_symbols() -> None:
    flows = Flows(symbols=str(REAL))
    interest, table = flows.interest(), pq.read_table(REAL, columns=["symbol", "market"])
    assert interest.n_flows == table.num_rows
    assert sorted(flows.sizes()) == sorted(table["market"].value_counts().field("counts").to_pylist())
    assert interest.rate.max() == HOTTEST
    assert sorted(interest.flows.to_pylist()) == sorted(table["symbol"].to_pylist())


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        ({"symbol": ["a"], "market": ["m"]}, "volume"),
        ({"symbol": ["a", "a"], "market": ["m", "n"], "volume": [1, 2]}, "symbol 'a'"),
        ({"symbol": ["a"], "market": ["m"], "volume": [0]}, "volume"),
        ({"symbol": ["a"], "market": ["m"], "volume": [float("inf")]}, "volume"),
        ({"symbol": ["a"], "market": ["m"], "volume": [float("nan")]}, "volume"),
        ({"symbol": ["a"], "market": ["m"], "volume": ["much"]}, "much"),
    ],
)
def test_unusable_tables(columns: dict[str, Any], shown: str, tmp_path: Path) -> None:
    path = write(tmp_path, **columns)
    with refused(TableError, path, shown):
        Flows(symbols=path, per_subscriber=1).tables()


# ---------------------------------------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    ("params", "shown"),
    [
        ({"n_flows": -1}, [0]),
        ({"n_subscribers": 1.5}, []),
        ({"markets": 0}, [1]),
        ({"per_subscriber": 0}, [1]),
        ({"per_subscriber": 11}, [10]),
        ({"share": 0}, [1]),
        ({"share": 1.01}, []),
        ({"share": float("nan")}, []),
        ({"share": True}, []),
        ({"share": "1%"}, []),
        ({"rates": "steep"}, ["zipf", "flat"]),
        ({"seed": -1}, [0]),
    ],
)
def test_bad_parameters(params: dict[str, Any], shown: list[Any]) -> None:
    name, value = next(iter(params.items()))
    with refused(ParameterError, repr(value), *shown, parameter=name):
        Flows(**params)


def test_missing_table() -> None:
    with refused(TableError, "nowhere.parquet"):
        Flows(symbols="nowhere.parquet")


def test_a_run_needs_subscriptions(tmp_path: Path) -> None:
    said = refusal("run", "--workload", "flows", "--out", str(tmp_path / "out"))
    assert "--workload='flows'" in said
    assert set(Flows.makes) == set(Flows(n_subscribers=1).tables())


def test_on_the_command_line(tmp_path: Path) -> None:
    out = str(tmp_path / "f")
    refused_rates = refusal("generate", "flows", "--out", out, "--set", "rates=x")
    assert all(word in refused_rates for word in ("rates", "'x'", "zipf", "flat"))
    path = write(tmp_path, symbol=["a", "b"], market=["m", "m"], volume=[1, 2])
    words = ["--set", f"symbols={path}", "--set", "per_subscriber=1", "--set", "share=1"]
    facts, _ = document("generate", "flows", "--out", out, *words, "--set", "n_subscribers=3")
    assert facts["rows"] == {"interests": 6, "rates": 2}
    assert facts["origin"]["rows"] == 2
    assert json.loads((tmp_path / "f" / "workload.json").read_text()) == facts
