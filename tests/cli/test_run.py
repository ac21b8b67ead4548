from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner, Result

from narrowcast import Interest, Matches, SubscriptionSet, read_plan
from narrowcast.cli import run as module
from narrowcast.cli.run import run
from narrowcast.errors import FilterError, NarrowcastError, ParameterError, TableError
from narrowcast.report import CHARTS
from narrowcast.workloads import Stocks
from narrowcast.workloads.stocks import SCHEMA

app = typer.Typer(rich_markup_mode="markdown")
app.command()(run)

SMALL = ["--set", "n_subscriptions=60", "--set", "n_events=80"]
PICTURES = {f"{name}.{kind}" for name in CHARTS for kind in ("png", "svg")}
TABLES = {"subscriptions.parquet", "events.parquet", "matches.parquet"}
FILES = PICTURES | TABLES | {"plan", "report.html", "summary.json"}


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def summary_of(*arguments: str | Path) -> dict[str, Any]:
    found = call(*arguments, "--json")
    assert found.exit_code == 0, found.exception
    assert found.stderr == ""
    summary: dict[str, Any] = json.loads(found.stdout)
    return summary


@pytest.fixture
def no_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the drawing, which takes most of the time."""
    monkeypatch.setattr(module, "_draw", lambda *_: [])


@pytest.fixture
def own(tmp_path: Path) -> Callable[..., list[str | Path]]:
    """Write subscriptions and events as CSV, and return the options that name them."""

    def write(subscriptions: dict[str, list[Any]] | None = None, **events: list[Any]) -> list[str | Path]:
        subscriptions = subscriptions or {
            "subscription_id": [9, 4, 2, 7],
            "subscriber": ["ann", "bob", "ann", "eve"],
            "filter": ["price > 10", "price > 20", "price > 5 OR name = 'x'", "prize > 1"],
        }
        events = events or {"event_id": [5, 6, 8], "price": [30.0, 1.0, 12.0], "name": ["x", "y", "z"]}
        pc.write_csv(pa.table(subscriptions), tmp_path / "s.csv")
        pc.write_csv(pa.table(events), tmp_path / "e.csv")
        return ["--subscriptions", tmp_path / "s.csv", "--events", tmp_path / "e.csv"]

    return write


# --------------------------------------------------------------------------------------------- everything


def test_everything_is_written_and_says_the_same(tmp_path: Path) -> None:
    out = tmp_path / "out"
    summary = summary_of("--out", out, *SMALL, "--seed", "3", "--channels", "4")
    assert {file.name for file in out.iterdir()} == FILES
    assert json.loads((out / "summary.json").read_text()) == summary
    stocks = Stocks(n_subscriptions=60, n_events=80, seed=3)
    for name, table in stocks.tables().items():
        assert pq.read_table(out / f"{name}.parquet").equals(table)

    lo, hi = stocks.boxes()
    slow = {
        event: [s for s in range(60) if (lo[s] < point).all() and (point <= hi[s]).all()]
        for event, point in enumerate(stocks.points())
    }
    matches = pq.read_table(out / "matches.parquet")
    assert matches.schema == pa.schema([("event_id", pa.int64()), ("subscription_ids", pa.list_(pa.int64()))])
    found = {row["event_id"]: row["subscription_ids"] for row in matches.to_pylist()}
    assert found == {event: ids for event, ids in slow.items() if ids}

    pairs = sum(map(len, slow.values()))
    assert pairs > 50
    names = stocks.subscribers().to_pylist()
    wanted = sum(len({names[s] for s in ids}) for ids in slow.values())
    n_subscribers = len(set(names))
    known = {
        key: summary[key] for key in ("subscriptions", "boxes", "rejected", "reasons", "events", "matches")
    }
    assert known == {
        "subscriptions": 60,
        "boxes": 60,
        "rejected": 0,
        "reasons": {},
        "events": 80,
        "matches": pairs,
    }
    assert summary["subscribers"] == n_subscribers
    assert summary["matches_per_event"] == pairs / 80
    assert summary["flows"] == len(found)
    assert summary["unmatched_share"] == (80 - len(found)) / 80
    assert summary["source"] == {
        "workload": "stocks",
        "parameters": {"n_subscriptions": 60, "n_events": 80, "modes": 1},
    }
    waste = {name: cost["waste"] for name, cost in summary["costs"].items()}
    assert waste["unicast"] == waste["per-flow"] == 0
    assert waste["broadcast"] == n_subscribers * len(found) - wanted
    assert 0 < waste["hash"] <= waste["broadcast"]
    assert summary["costs"]["per-flow"]["channels"] == len(found)
    stages = summary["stages"]
    assert list(stages) == ["generate", "compile", "match", "plan", "evaluate", "write", "draw"]
    assert stages["match"]["rate"] == pytest.approx(80 / stages["match"]["seconds"])

    plan, info = read_plan(out / "plan")
    assert (info.method, info.seed, info.channels, info.flow_space) == ("hash", 3, 4, "events")
    assert info.costs == {"waste": waste["hash"]}
    assert set(info.inputs) == {"subscriptions", "events"}
    pairs_table = pa.table(
        {
            "subscriber": [names[s] for ids in slow.values() for s in ids],
            "flow": [event for event, ids in slow.items() for _ in ids],
        }
    )
    plan.validate(Interest.from_tables(pairs_table))

    page = (out / "report.html").read_text()
    assert page.count("<svg") == 3
    assert f"<tr><th>matches</th><td>{pairs:,}</td></tr>" in page


@pytest.mark.usefixtures("no_charts")
def test_the_tables_say_the_same(tmp_path: Path) -> None:
    found = call("--out", tmp_path / "out", *SMALL)
    assert found.exit_code == 0
    assert found.stderr == ""
    rows = [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in found.stdout.splitlines()
        if "│" in line
    ]
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert ["subscriptions", "60"] in rows
    assert ["matches", f"{summary['matches']:,}"] in rows
    assert ["matches per event", f"{summary['matches_per_event']:.1f}"] in rows
    assert ["events that match nobody", f"{100 * summary['unmatched_share']:.1f} %"] in rows
    [hashed] = (row for row in rows if row[0] == "hash")
    cost = summary["costs"]["hash"]
    assert hashed[1:4] == ["16", *(f"{cost[key] / summary['flows']:,.1f}" for key in ("wanted", "wasted"))]
    assert f"report: {tmp_path}/out/report.html" in found.stdout.splitlines()


@pytest.mark.usefixtures("no_charts")
@pytest.mark.parametrize(
    ("method", "name", "channels"),
    [("unicast", "unicast", 0), ("broadcast", "broadcast", 1), ("per-flow", "per-flow, limited", 3)],
)
def test_methods(method: str, name: str, channels: int, tmp_path: Path) -> None:
    summary = summary_of("--out", tmp_path / "out", *SMALL, "--method", method, "--channels", "3")
    _, info = read_plan(tmp_path / "out" / "plan")
    assert (info.method, info.channels) == (method, channels)
    assert (summary["method"], summary["channels"]) == (method, channels)
    assert info.costs["waste"] == summary["costs"][name]["waste"]
    assert summary["costs"]["per-flow"]["channels"] > 3


# --------------------------------------------------------------------------------------------- own tables


@pytest.mark.usefixtures("no_charts")
def test_own_tables_and_rejected_rows(own: Callable[..., list[str | Path]], tmp_path: Path) -> None:
    out = tmp_path / "out"
    summary = summary_of("--out", out, *own())
    reason = "unknown attribute 'prize'; there are: price, name"
    assert (summary["subscriptions"], summary["subscribers"], summary["boxes"]) == (3, 2, 4)
    assert (summary["rejected"], summary["reasons"]) == (1, {reason: 1})
    assert summary["source"] == {
        "subscriptions": str(tmp_path / "s.csv"),
        "events": str(tmp_path / "e.csv"),
    }
    assert next(iter(summary["stages"])) == "read"
    assert pq.read_table(out / "rejected.parquet").to_pylist() == [
        {"subscription_id": 7, "subscriber": "eve", "filter": "prize > 1", "reason": reason}
    ]
    # Ids ascend though the rows that they come from do not.
    assert pq.read_table(out / "matches.parquet").to_pylist() == [
        {"event_id": 5, "subscription_ids": [2, 4, 9]},
        {"event_id": 8, "subscription_ids": [2, 9]},
    ]
    assert pq.read_table(out / "subscriptions.parquet").num_rows == 4
    assert "unknown attribute &#x27;prize&#x27;" in (out / "report.html").read_text()
    assert f"  {reason}" in call("--out", out, *own()).stdout


def test_strict(own: Callable[..., list[str | Path]], tmp_path: Path) -> None:
    found = call("--out", tmp_path / "out", "--strict", *own())
    assert isinstance(found.exception, FilterError)
    assert "row 4, subscription_id 7: unknown attribute 'prize'" in str(found.exception)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("what", ["events", "subscriptions"])
def test_none_of_either(what: str, tmp_path: Path) -> None:
    summary = summary_of("--out", tmp_path / "out", "--set", f"n_{what}=0")
    assert summary[what] == summary["matches"] == summary["matches_per_event"] == summary["flows"] == 0
    assert summary["unmatched_share"] == (what == "subscriptions")
    assert {file.name for file in (tmp_path / "out").iterdir()} == FILES
    assert pq.read_table(tmp_path / "out" / "matches.parquet").num_rows == 0
    assert all(cost["waste"] == 0 for cost in summary["costs"].values())


# ------------------------------------------------------------------------------------------- what is there


@pytest.mark.usefixtures("no_charts")
def test_an_earlier_run_is_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    summary_of("--out", out, *SMALL)
    (out / "rejected.parquet").write_text("of the earlier run")
    assert summary_of("--out", out, *SMALL, "--seed", "5")["seed"] == 5
    assert not (out / "rejected.parquet").exists()
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("content", [None, "not json", "[1]", '{"command": "bench"}', "3"])
def test_anything_else_stays(content: str | None, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("mine")
    if content is not None:
        (out / "summary.json").write_text(content)
    for place in (out, out / "mine"):
        found = call("--out", place, *SMALL)
        assert isinstance(found.exception, TableError)
        wanted = "is not an earlier run's; name another" if place == out else "is a file; name a folder"
        assert wanted in str(found.exception)
    assert (out / "mine").read_text() == "mine"


def test_what_others_put_beside_an_earlier_run_stays(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (tmp_path / "link").symlink_to(out)
    assert call("--out", tmp_path / "link", *SMALL).exit_code == 0  # an empty folder, through a link
    assert (tmp_path / "link").is_symlink()
    assert (out / "summary.json").exists()
    assert call("--out", out, *SMALL).exit_code == 0
    (out / "notes.txt").write_text("mine")
    found = call("--out", out, *SMALL)
    assert isinstance(found.exception, TableError)
    assert "also holds 'notes.txt', which no run wrote; move it" in str(found.exception)
    assert (out / "notes.txt").read_text() == "mine"


def test_a_failure_keeps_the_earlier_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(module, "_draw", lambda *_: [])
        summary_of("--out", out, *SMALL)

    def fail(*_: object) -> None:
        raise NarrowcastError("on purpose")

    monkeypatch.setattr(module, "_draw", fail)
    assert str(call("--out", out, *SMALL, "--seed", "5").exception) == "on purpose"
    assert json.loads((out / "summary.json").read_text())["seed"] == 0
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


# ----------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "hsh"], "unknown method 'hsh'; did you mean 'hash'?"),
        (["--channels", "0"], "channels is 0; give a whole number of at least 1"),
        (["--workload", "stock"], "unknown workload 'stock'; did you mean 'stocks'?"),
        (["--set", "modes=5"], "modes is '5'; give one of 1, 4, 9"),
        (["--seed", "-2"], "seed is -2; give a whole number of at least 0"),
        (["--events", "e.csv"], "--events is given without --subscriptions; give both"),
        (["--subscriptions", "s.csv"], "--subscriptions is given without --events; give both"),
        (
            ["--subscriptions", "s.csv", "--events", "e.csv", "--set", "modes=4"],
            "--set makes a workload; leave it out with --subscriptions and --events",
        ),
        (
            ["--subscriptions", "s.csv", "--events", "e.csv", "--workload", "stocks"],
            "--workload makes a workload; leave it out",
        ),
    ],
)
def test_bad_options(arguments: list[str], message: str, tmp_path: Path) -> None:
    found = call("--out", tmp_path / "out", *arguments)
    assert isinstance(found.exception, ParameterError)
    assert message in str(found.exception)
    assert "\n" not in str(found.exception)
    assert found.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"event_id": [1, 2, 1], "price": [1, 2, 3]}, "event_id 1 is used by two events; give each its own"),
        ({"price": [1, 2, 3]}, "e.csv has no column 'event_id'; it has 'price'"),
        ({"event_id": [1], "price": [1], "PRICE": [1]}, "names ignore case"),
    ],
)
def test_bad_events(
    tables: dict[str, list[Any]], message: str, own: Callable[..., list[str | Path]], tmp_path: Path
) -> None:
    found = call("--out", tmp_path / "out", *own(**tables))
    assert isinstance(found.exception, NarrowcastError)
    assert message in str(found.exception)
    assert not (tmp_path / "out").exists()


def test_missing_tables(own: Callable[..., list[str | Path]], tmp_path: Path) -> None:
    options = own({"subscription_id": [1], "filter": ["price > 1"]})
    found = call("--out", tmp_path / "out", *options)
    assert isinstance(found.exception, TableError)
    assert "s.csv has no column 'subscriber'; it has 'subscription_id', 'filter'" in str(found.exception)
    options[1] = tmp_path / "nothing.csv"
    assert "nothing.csv does not exist" in str(call("--out", tmp_path / "out", *options).exception)


def test_usage() -> None:
    found = call("--help")
    assert found.exit_code == 0
    assert "narrowcast run --out out --workload stocks" in found.stdout
    assert call().exit_code == 2
    assert call("--out", "x", "--channels", "many").exit_code == 2


# ------------------------------------------------------------------------------------------------- pieces


def test_interest_and_matches_equal_a_loop() -> None:
    rng = np.random.default_rng(1)
    n_events, n_subscriptions = 30, 12
    names = [f"n{i}" for i in rng.integers(0, 5, n_subscriptions)]
    ids = rng.permutation(100)[:n_subscriptions]
    ends = np.zeros((n_subscriptions, 4)), np.ones((n_subscriptions, 4))
    subscriptions = SubscriptionSet.from_boxes(SCHEMA, names, *ends, subscription_id=ids)
    event, index = np.nonzero(rng.random((n_events, n_subscriptions)) < 0.1)
    matches = Matches.from_pairs(event, index, n_events)
    event_id = rng.permutation(1000)[:n_events]

    lists = {int(event_id[e]): sorted(int(ids[s]) for s in matches[e]) for e in range(n_events)}
    table = matches.to_arrow(event_id, subscriptions.subscription_id)
    assert {row["event_id"]: row["subscription_ids"] for row in table.to_pylist()} == {
        each: found for each, found in lists.items() if found
    }
    recent = [e for e in range(n_events) if len(matches[e])][-7:]
    interest = Interest.of_events(matches, event_id, subscriptions, last=7)
    assert interest.flows.to_pylist() == [int(event_id[e]) for e in recent]
    assert interest.subscribers.to_pylist() == sorted(set(names))
    assert interest.wants.toarray().tolist() == [
        [any(names[s] == name for s in matches[e]) for e in recent] for name in sorted(set(names))
    ]
    assert (interest.rate == 1).all()
