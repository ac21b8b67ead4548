"""Quotes of a table as events, and people who follow them."""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest

from narrowcast import EventBatch, Scan, Schema, compile_filters
from narrowcast.errors import ParameterError, TableError
from narrowcast.workloads import Quotes, make_workload, origin_of
from narrowcast.workloads.quotes import COLUMNS, KINDS, PRICES, read_quotes
from support.command import document, refusal
from support.errors import refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Real quotes: in the folder that the environment names, or beside the project.
DATA = os.environ.get("NARROWCAST_DATA") or Path(__file__).parents[3] / "shared" / "data"
REAL = Path(DATA, "stock_quotes.parquet")
WHOLE = ["--set", "n_subscriptions=40", "--set", "n_events=200", "--seed", "3"]


def made_up(n: int = 600, symbols: int = 12, seed: int = 1) -> pa.Table:
    """Make a table of quotes up: symbols have prices and volumes of their own, the first the most."""
    rng = np.random.default_rng(seed)
    code = np.arange(n) % symbols
    close = (code + 1) * 10 * rng.uniform(0.9, 1.1, n)
    columns: dict[str, Any] = {
        "symbol": [f"S{i:02}" for i in code],
        "open": close * rng.uniform(0.98, 1.02, n),
        "high": close * 1.05,
        "low": close * 0.95,
        "close": close,
        "volume": (rng.uniform(500, 1500, n) * (symbols - code) ** 4 / (code + 1)).astype(np.int64),
        "date": pa.array(np.datetime64("1999-09-24") + np.arange(n) // symbols),
    }
    return pa.table(columns).take(rng.permutation(n))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("quotes") / "quotes.parquet"
    pq.write_table(made_up(), file)
    return str(file)


def one(**other: Any) -> dict[str, Any]:
    """Return a good row but for some values."""
    day = date(1999, 9, 24)
    return dict(zip(COLUMNS, ("IBM", 9.0, 10.0, 8.0, 9.5, 700, day), strict=True)) | other


def write(folder: Path, *rows: dict[str, Any]) -> str:
    pq.write_table(pa.Table.from_pylist(list(rows)), folder / "q.parquet")
    return str(folder / "q.parquet")


# -------------------------------------------------------------------------------------------------- events


def test_events_are_the_last_by_time(path: str) -> None:
    events = Quotes(path=path, n_events=50).tables()["events"]
    kinds = {"time": pa.timestamp("us", "UTC"), "symbol": pa.string()}
    kinds |= dict.fromkeys(PRICES, pa.float64()) | {"volume": pa.int64()}
    assert events.schema == pa.schema([("event_id", pa.int64()), *kinds.items()])
    expected = sorted(made_up().to_pylist(), key=lambda row: (row["date"], row["symbol"]))[-50:]
    assert events["event_id"].to_pylist() == list(range(550, 600))
    for name in ("symbol", *PRICES, "volume"):
        assert events[name].to_pylist() == [row[name] for row in expected]
    first = expected[0]["date"]
    assert events["time"][0].as_py() == datetime(first.year, first.month, first.day, tzinfo=UTC)
    assert Quotes(path=path, n_events=9999).tables()["events"].num_rows == 600


def test_csv_is_the_same(path: str, tmp_path: Path) -> None:
    table = made_up()
    pcsv.write_csv(table, tmp_path / "q.csv")
    ours, theirs = Quotes(path=str(tmp_path / "q.csv")).tables(), Quotes(path=path).tables()
    assert ours["events"].equals(theirs["events"])
    assert ours["subscriptions"].equals(theirs["subscriptions"])


@pytest.mark.parametrize(
    "when",
    [
        date(1999, 9, 24),
        datetime(1999, 9, 24),
        datetime(1999, 9, 24, tzinfo=UTC),
        "1999-09-24",
        "1999-09-24 00:00:00",
    ],
)
def test_times(when: Any, tmp_path: Path) -> None:
    table, _ = read_quotes(write(tmp_path, one(date=when)))
    assert table["time"].to_pylist() == [datetime(1999, 9, 24, tzinfo=UTC)]


def test_bad_rows_are_counted(tmp_path: Path) -> None:
    nan, inf = float("nan"), float("inf")
    bad: list[dict[str, Any]] = [
        {"close": None},
        {"symbol": None},
        {"date": None},
        {"volume": None},
        {"open": nan},
        {"high": inf},
    ]
    bad += [{"low": -1.0}, {"close": 0.0}, {"volume": -5}, {"close": None, "volume": -5}]
    path = write(tmp_path, one(), *(one(**other) for other in bad))
    quotes = Quotes(path=path, n_subscriptions=5)
    assert quotes.tables()["events"].num_rows == 1
    said = quotes.origin()
    assert said["left_out"] == {"null": 5, "price not above 0": 4, "volume below 0": 1}
    assert said["rows"] == 11
    assert len(said["sha256"]) == 64
    # A volume of doubles, as other tools write it, may be NaN for none.
    rows = [one(volume=700.0), one(volume=nan)]
    table, left_out = read_quotes(write(tmp_path, *rows))
    assert (table["volume"].to_pylist(), left_out["null"]) == ([700], 1)


# ------------------------------------------------------------------------------------------- subscriptions


def test_subscriptions_are_filters_that_match(path: str) -> None:
    tables = Quotes(path=path, n_subscriptions=800, n_events=600, seed=5).tables()
    table = tables["subscriptions"]
    assert table.column_names == ["subscription_id", "subscriber", "filter"]
    schema = Schema.from_arrow(tables["events"].schema)
    compiled = compile_filters(schema, table, strict=True).subscriptions
    found = Scan().fit(compiled).match(EventBatch.from_arrow(tables["events"]))
    per = np.bincount(found.index, minlength=800)
    texts = table["filter"].to_pylist()
    # Prices and volumes are those of the symbol, so nearly all subscriptions match; bands are of its own.
    assert (per > 0).mean() > 0.9
    for text, count in zip(texts, per.tolist(), strict=True):
        if re.fullmatch(r"symbol = 'S\d\d'", text):
            assert count == 50
        elif band := re.fullmatch(r"symbol = 'S(\d\d)' AND close BETWEEN ([\d.]+) AND ([\d.]+)", text):
            low, high = float(band[2]), float(band[3])
            own = 10 * (int(band[1]) + 1)
            assert 0.89 * own < low <= high < 1.11 * own
            assert 4 <= count <= 27  # a tenth to a half of its fifty days
    shapes = [re.sub(r"'S\d\d'(, 'S\d\d')*|[\d.]+", "_", text) for text in texts]
    share = {shape: shapes.count(shape) / 800 for shape in set(shapes)}
    assert share["symbol = _"] == pytest.approx(KINDS["symbol"], abs=0.05)
    assert share["symbol IN (_)"] == pytest.approx(KINDS["list"], abs=0.05)
    assert share["symbol = _ AND close BETWEEN _ AND _"] == pytest.approx(KINDS["band"], abs=0.05)
    assert share["symbol = _ AND volume > _"] == pytest.approx(KINDS["volume"], abs=0.05)
    assert share["symbol IN (_) AND volume > _ AND close > open"] == pytest.approx(KINDS["rise"], abs=0.05)
    assert share["close BETWEEN _ AND _ AND volume > _"] == pytest.approx(KINDS["screen"], abs=0.04)
    alerts = share["symbol = _ AND high >= _"] + share["symbol = _ AND low <= _"]
    assert alerts == pytest.approx(KINDS["alert"], abs=0.05)
    assert sum(KINDS.values()) == pytest.approx(1)


def test_popularity_is_zipfs(path: str) -> None:
    table = Quotes(path=path, n_subscriptions=20_000, seed=2).tables()["subscriptions"]
    alone = pc.utf8_slice_codeunits(
        table.filter(pc.match_substring_regex(table["filter"], "^symbol = '...'$"))["filter"], 10, 13
    )
    counts = {each["values"]: each["counts"] for each in alone.value_counts().to_pylist()}
    # S00 is traded most, by far; the law is 1 / rank.
    for rank in range(1, 13):
        assert counts[f"S{rank - 1:02}"] == pytest.approx(counts["S00"] / rank, rel=0.3)
    people = sorted((each["counts"] for each in table["subscriber"].value_counts().to_pylist()), reverse=True)
    assert people[0] == pytest.approx(20_000 / (np.log(6666) + 0.58), rel=0.1)


def test_seeds_and_sizes(path: str) -> None:
    def filters(**parameters: Any) -> list[str]:
        table = Quotes(path=path, **parameters).tables()["subscriptions"]
        found: list[str] = table["filter"].to_pylist()
        return found

    assert filters(seed=1) == filters(seed=1) != filters(seed=2)
    assert filters(n_subscriptions=0) == []
    assert len(filters(n_subscriptions=1)) == 1


def test_odd_symbols_are_quoted(tmp_path: Path) -> None:
    names = ["O'N", 'a"b', "back\\slash", "é"]
    path = write(tmp_path, *(one(symbol=name, close=0.00123) for name in names))
    tables = Quotes(path=path, n_subscriptions=200).tables()
    schema = Schema.from_arrow(tables["events"].schema)
    compiled = compile_filters(schema, tables["subscriptions"], strict=True).subscriptions
    found = Scan().fit(compiled).match(EventBatch.from_arrow(tables["events"]))
    assert set(found.rows().tolist()) == {0, 1, 2, 3}
    assert any("0.00123" in text for text in tables["subscriptions"]["filter"].to_pylist())


def test_one_symbol_has_no_lists(tmp_path: Path) -> None:
    texts = Quotes(path=write(tmp_path, one())).tables()["subscriptions"]["filter"].to_pylist()
    assert not any(" IN " in text for text in texts)


# ------------------------------------------------------------------------------------------------ bad input


def test_unusable_tables(tmp_path: Path) -> None:
    with refused(ParameterError, parameter="path", value=""):
        Quotes()
    with refused(TableError, "none.parquet"):
        make_workload("quotes", [f"path={tmp_path / 'none.parquet'}"])
    bad: list[tuple[list[dict[str, Any]], list[str]]] = [
        ([{k: v for k, v in one().items() if k != "close"}], ["'close'", "'symbol'", "'open'"]),
        ([one(close=-1.0), one(volume=-1)], ["price not above 0 in 1", "volume below 0 in 1"]),
        ([one(close="dear")], ["'close'", "string", "double", "dear"]),
        ([one(volume=1.5)], ["'volume'", "double", "int64"]),
        ([one(date=19990924)], ["'date'", "int64", "1999-09-24"]),
        ([one(date="yesterday")], ["'date'", "string", "timestamp"]),
    ]
    for rows, shown in bad:
        path = write(tmp_path, *rows)
        with refused(TableError, path, *shown):
            Quotes(path=path).tables()
    pq.write_table(made_up().slice(0, 0), tmp_path / "q.parquet")
    with refused(TableError, "q.parquet"):
        Quotes(path=str(tmp_path / "q.parquet")).tables()
    with refused(ParameterError, 1, parameter="n_events", value=0):
        Quotes(path=write(tmp_path, one()), n_events=0)
    with refused(ParameterError, parameter="n_subscriptions", value=-1):
        Quotes(path=write(tmp_path, one()), n_subscriptions=-1)


# ------------------------------------------------------------------------------------------------- commands


def test_generate_says_what_was_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, one(), one(close=None))
    words: list[str | Path] = [
        "quotes",
        "--set",
        f"path={path}",
        "--set",
        "n_subscriptions=3",
        "--out",
        tmp_path / "out",
    ]
    said, _ = document("generate", *words)
    assert said["rows"] == {"subscriptions": 3, "events": 1}
    assert said["origin"]["left_out"] == {"null": 1, "price not above 0": 0, "volume below 0": 0}
    assert json.loads((tmp_path / "out" / "workload.json").read_text()) == said
    assert origin_of(make_workload("stocks")) == {}
    assert "path" in refusal("generate", "quotes", "--out", tmp_path / "more")


@pytest.mark.spark
@pytest.mark.slow
def test_the_whole_job(spark: SparkSession, path: str, tmp_path: Path) -> None:
    words: list[str | Path] = [
        "run",
        "--workload",
        "quotes",
        "--set",
        f"path={path}",
        *WHOLE,
        "--out",
        tmp_path / "out",
    ]
    summary, _ = document(*words)
    tables = Quotes(path=path, n_subscriptions=40, n_events=200, seed=3).tables()
    schema = Schema.from_arrow(tables["events"].schema)
    compiled = compile_filters(schema, tables["subscriptions"], strict=True).subscriptions
    found = Scan().fit(compiled).match(EventBatch.from_arrow(tables["events"]))
    rows = pq.read_table(tmp_path / "out" / "matches.parquet").to_pylist()
    assert sum(len(row["subscription_ids"]) for row in rows) == found.n_pairs > 100
    ids = tables["events"]["event_id"].to_pylist()
    assert {row["event_id"]: sorted(row["subscription_ids"]) for row in rows} == {
        ids[i]: sorted(found[i].tolist()) for i in range(200) if len(found[i])
    }
    assert summary["source"]["origin"]["rows"] == 600
    assert "finished earlier: read" in document(*words)[1]


def test_a_replaced_table_is_detected(tmp_path: Path) -> None:
    """A run goes on from an earlier one's stages only where this is the same."""
    said = [origin_of(Quotes(path=write(tmp_path, one(close=close)))) for close in (9.5, 9.5, 9.25)]
    assert said[0] == said[1] != said[2]


@pytest.mark.skipif(
    not REAL.exists(), reason=f"no real quotes: set NARROWCAST_DATA to a folder that has {REAL.name}"
)
def test_real_quotes() -> None:
    quotes = Quotes(path=str(REAL), n_subscriptions=500, n_events=5000)
    tables = quotes.tables()
    assert quotes.origin()["rows"] == 168_388
    assert not any(quotes.origin()["left_out"].values())
    assert tables["events"]["event_id"][-1].as_py() == 168_387
    schema = Schema.from_arrow(tables["events"].schema)
    compiled = compile_filters(schema, tables["subscriptions"], strict=True).subscriptions
    found = Scan().fit(compiled).match(EventBatch.from_arrow(tables["events"]))
    assert 4 < found.n_pairs / 5000 < 16
    assert (np.bincount(found.index, minlength=500) > 0).mean() > 0.95
