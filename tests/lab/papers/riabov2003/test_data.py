"""Figures 4 and 5 of riabov2003: laws that are found again, made-up and real quotes."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from narrowcast.errors import TableError
from narrowcast.lab.papers import PAPERS, Outcome, Study
from narrowcast.lab.papers.riabov2003.data import FILE, FOLDER, find_quotes, made_trades, real_trades
from narrowcast.lab.papers.riabov2003.laws import distance, fit_normal, fit_pareto, fit_zipf
from support.command import document, refusal
from support.errors import refused

EXPERIMENT = PAPERS["riabov2003"]["data"]
#: Real quotes: in the folder that the environment names, or beside the project.
QUOTES = Path(os.environ.get(FOLDER) or Path(__file__).parents[5] / "shared" / "data", FILE)


def run(quotes: str, seeds: tuple[int, ...] = (0,)) -> Outcome:
    return EXPERIMENT.run(Study(seeds, {"quotes": quotes}))


def values(outcome: Outcome) -> dict[tuple[str, str], float]:
    return {(row.series, row.metric): row.measured for row in outcome.rows}


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away where real quotes would be found."""
    monkeypatch.delenv(FOLDER, raising=False)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of quotes drawn from laws: symbols by Zipf, prices normal, amounts Pareto (4000, 1.5)."""
    rng = np.random.default_rng(5)
    n, symbols = 12_000, 20
    weight = 1 / np.arange(1, symbols + 1)
    symbol = rng.choice(symbols, n, p=weight / weight.sum())
    close = 50 * rng.normal(1, 0.02, n)
    volume = np.rint(4000 / (1 - rng.random(n)) ** (1 / 1.5) / close).astype(np.int64)
    table = pa.table(
        {
            "symbol": [f"S{i:02}" for i in symbol],
            "open": np.full(n, 50.0),
            "high": np.full(n, 60.0),
            "low": np.full(n, 40.0),
            "close": close,
            "volume": volume,
            "date": pa.array(np.datetime64("1999-09-24") + np.arange(n) // 100),
        }
    )
    path = tmp_path_factory.mktemp("quotes") / FILE
    pq.write_table(table, path)
    return path


# ---------------------------------------------------------------------------------------------------- laws


def test_laws_are_found_again() -> None:
    rng = np.random.default_rng(1)
    normal = fit_normal(rng.normal(7, 3, 20_000))
    assert (normal.mean, normal.sd) == pytest.approx((7, 3), abs=0.06)
    assert normal.ks < 1.5
    ranks = rng.choice(200, 50_000, p=(w := np.arange(1, 201) ** -1.3) / w.sum())
    zipf = fit_zipf(-np.sort(-np.bincount(ranks, minlength=200).astype(float)))
    assert zipf.exponent == pytest.approx(1.3, abs=0.02)
    assert zipf.ks < 1
    amounts = stats.pareto.rvs(2.5, scale=100, size=20_000, random_state=rng)
    assert fit_pareto(amounts, least=1)[:2] == pytest.approx((2.5, 100), rel=0.03)
    # A body of another law below is left out.
    law = fit_pareto(np.concatenate([amounts, rng.uniform(1, 100, 20_000)]))
    assert law.alpha == pytest.approx(2.5, rel=0.05)
    assert 85 < law.begin < 200
    assert law.ks < 2 < fit_pareto(np.concatenate([amounts, rng.uniform(1, 100, 20_000)]), least=1).ks


def test_fits_are_those_of_scipy() -> None:
    values = np.random.default_rng(2).lognormal(3, 1, 400)
    law = fit_pareto(values, least=1)
    alpha, _, begin = stats.pareto.fit(values, floc=0, fscale=values.min())
    assert (law.alpha, law.begin) == pytest.approx((alpha, begin), rel=1e-3)
    assert law.ks == pytest.approx(
        100 * stats.kstest(values, stats.pareto(law.alpha, scale=begin).cdf).statistic
    )


@settings(max_examples=50)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_distance_is_kolmogorovs(numbers: list[float]) -> None:
    found = distance(np.array(numbers), lambda x: x)
    assert found == pytest.approx(100 * stats.kstest(numbers, "uniform").statistic)


def test_no_law_of_one_amount() -> None:
    with refused(TableError, 3, 5, parameter="amounts", value=5.0):
        fit_pareto(np.full(3, 5.0))


# --------------------------------------------------------------------------------------------------- quotes


def test_made_up_stocks_have_the_laws_they_are_drawn_from(nowhere: None) -> None:
    outcome = run("", (3, 4))
    found = values(outcome)
    paper = {(row.series, row.metric): row.paper for row in outcome.rows if row.paper is not None}
    assert paper["price/all", "sd_pct"] == pytest.approx(22.2, abs=0.05)
    assert (paper["amount/all", "alpha"], paper["amount/all", "from"]) == (1, 4)
    for key in (("price/all", "sd_pct"), ("amount/all", "alpha"), ("amount/all", "from")):
        assert found[key] == pytest.approx(paper[key], rel=0.03)
    assert found["price/all", "ks_pct"] < 1
    assert found["amount/all", "ks_pct"] < 1.5
    assert outcome.notes[0].startswith("Synthetic: no table of quotes was given")
    assert all(caption.startswith("synthetic") for _, caption in outcome.charts.values())
    assert next(row for row in outcome.rows if row.metric == "alpha").spread > 0
    assert made_trades(3).popularity.sum() == 20_000


def test_laws_of_a_table_are_found(drawn: Path) -> None:
    outcome = run(str(drawn))
    found = values(outcome)
    assert found["price/all", "mean_pct"] == pytest.approx(100, abs=0.1)
    assert found["price/all", "sd_pct"] == pytest.approx(2, abs=0.1)
    assert found["price/all", "ks_pct"] < 2
    assert found["amount/all", "alpha"] == pytest.approx(1.5, abs=0.1)
    assert found["popularity", "exponent"] == pytest.approx(1, abs=0.2)
    assert {row.paper for row in outcome.rows} == {None}
    assert {row.spread for row in outcome.rows} == {0}
    assert "12,000 real quotes of 20 symbols, 1999 to 2000; 0 rows" in outcome.notes[0]
    assert "deviation 2.0" in outcome.notes[1]
    assert "close, " in outcome.notes[1]
    stocks = {mark["stock"] for mark in outcome.charts["riabov2003-figure-5"][0]}
    assert len(stocks) == 3
    assert {f"price/{stock}" for stock in stocks} < {row.series for row in outcome.rows}
    bars = [mark for mark in outcome.charts["riabov2003-figure-4"][0] if mark.get("x2")]
    assert 99 < sum(bar["y"] for bar in bars) <= 100


def test_where_quotes_are_found(drawn: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(FOLDER, str(drawn.parent))
    assert find_quotes("") == str(drawn)
    assert find_quotes("other.csv") == "other.csv"
    monkeypatch.setenv(FOLDER, str(tmp_path))
    assert find_quotes("") == ""
    monkeypatch.delenv(FOLDER)
    assert find_quotes("") == ""


def test_errors_of_typing_and_days_without_trade_are_left_out(drawn: Path, tmp_path: Path) -> None:
    rows = pq.read_table(drawn).slice(0, 50).to_pylist()
    rows[3]["open"] = 5000.0  # outside of its own day
    rows[4]["volume"] = 0
    rows[5]["close"] = None
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "q.parquet")
    trades, caption = real_trades(str(tmp_path / "q.parquet"))
    assert len(trades.price["all"]) == len(trades.amount["all"]) == 47
    assert caption.endswith("3 rows without a trade or in error left out")
    pq.write_table(pa.Table.from_pylist([rows[4]]), tmp_path / "one.parquet")
    with refused(TableError, "one.parquet", parameter="path"):
        run(str(tmp_path / "one.parquet"))


def test_a_price_that_never_moves_is_drawn(tmp_path: Path) -> None:
    days = pa.array(np.datetime64("1999-09-24") + np.arange(40))
    same = dict.fromkeys(("open", "high", "low", "close"), np.full(40, 5.0))
    table = pa.table({"symbol": ["A"] * 40, **same, "volume": np.arange(40) + 1, "date": days})
    pq.write_table(table, tmp_path / "q.parquet")
    words = ["--experiment", "data", "--set", f"quotes={tmp_path / 'q.parquet'}"]
    result, _ = document("reproduce", "riabov2003", *words, "--out", tmp_path / "out")
    rows = result["experiments"]["data"]["rows"]
    assert {row["measured"] for row in rows if row["metric"] == "sd_pct"} == {0}
    figures = {f"riabov2003-figure-{n}.{kind}" for n in (4, 5) for kind in ("png", "svg")}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"results.json", "report.html", *figures}


def test_a_table_that_is_not_there(tmp_path: Path) -> None:
    words = ["riabov2003", "--experiment", "data", "--set", f"quotes={tmp_path / 'none.csv'}"]
    assert "none.csv" in refusal("reproduce", *words, "--out", tmp_path / "out")


@pytest.mark.paper
@pytest.mark.skipif(not QUOTES.exists(), reason=f"no real quotes: set {FOLDER} to a folder that has {FILE}")
def test_real_quotes() -> None:
    found = values(outcome := run(str(QUOTES)))
    assert "real quotes of 66 symbols, 1984 to 2004" in outcome.notes[0]
    assert found["price/all", "mean_pct"] == pytest.approx(100.05, abs=0.05)
    # A bell for each of the most traded; of all together, too many days end where they began.
    assert all(found[f"price/{name}", "ks_pct"] < 5 for name in ("CSCO", "INTC", "MSFT"))
    assert found["price/all", "ks_pct"] > 5
    assert found["popularity", "exponent"] == pytest.approx(1.21, abs=0.02)
    assert found["amount/all", "lognormal_ks_pct"] < found["amount/all", "whole_ks_pct"]
