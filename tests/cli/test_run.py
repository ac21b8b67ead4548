"""The whole job as a command: what comes out, what is not done twice, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

import narrowcast as nc
from narrowcast.costs.false_positives import FalsePositives
from narrowcast.costs.filtering import Filtering
from narrowcast.errors import NarrowcastError
from narrowcast.report import run_report
from narrowcast.report.run_report import PICTURES as CHARTS
from narrowcast.spark.checkpoint import RECORDS, staging_folder
from narrowcast.workloads import Stocks
from support.command import call, document, refusal, shows, table_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL = ["--set", "n_subscriptions=60", "--set", "n_events=80", "--seed", "3"]
PICTURES = {f"{name}.{kind}" for name in CHARTS for kind in ("png", "svg")}
TABLES = {"subscriptions", "events", "compiled", "unreadable", "matches", "interests", "rates"}
NETWORK = {"topology", "locations"}
FILES = (
    PICTURES
    | {f"{name}.parquet" for name in TABLES | NETWORK}
    | {"plan", "report.html", "summary.json", RECORDS}
)
STAGES = ["read", "compile", "match", "interest", "plan", "evaluate"]


def without_times(summary: dict[str, Any]) -> dict[str, Any]:
    assert list(summary["stages"]) == STAGES
    assert all(stage["seconds"] > 0 for stage in summary["stages"].values())
    return {key: value for key, value in summary.items() if key != "stages"}


def inodes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_ino for path in folder.rglob("*") if path.is_file()}


def matches_in(folder: Path) -> dict[int, list[int]]:
    rows = pq.read_table(folder / "matches.parquet").to_pylist()
    return {row["event_id"]: row["subscription_ids"] for row in rows}


@pytest.fixture(scope="module")
def first(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    """A run, its summary, and what it said; in a folder whose name would do as a pattern."""
    out = tmp_path_factory.mktemp("run") / "out [1]{a}*"
    return out, *document("run", "--out", out, *SMALL, "--channels", "4")


@pytest.fixture
def again(first: tuple[Path, dict[str, Any], str], tmp_path: Path) -> Path:
    """A copy of that run's output."""
    return Path(shutil.copytree(first[0], tmp_path / "out"))


@pytest.fixture
def own(tmp_path: Path) -> Callable[..., list[str | Path]]:
    """Write subscriptions and events as CSV, and return the options that name them."""

    def write(subscriptions: dict[str, list[Any]] | None = None, **events: list[Any]) -> list[str | Path]:
        subscriptions = subscriptions or {
            "subscription_id": [9, 4, 2],
            "subscriber": ["ann", "bob", "ann"],
            "filter": ["price > 10", "price > 20", "price > 5 OR name = 'x'"],
        }
        events = events or {"event_id": [5, 6, 8], "price": [30.0, 1.0, 12.0], "name": ["x", "y", "z"]}
        pc.write_csv(pa.table(subscriptions), tmp_path / "s.csv")
        pc.write_csv(pa.table(events), tmp_path / "e.csv")
        return ["--subscriptions", tmp_path / "s.csv", "--events", tmp_path / "e.csv"]

    return write


# --------------------------------------------------------------------------------------------- everything


@pytest.mark.spark
def test_everything_is_what_one_process_computes(first: tuple[Path, dict[str, Any], str]) -> None:
    out, summary, said = first
    assert {file.name for file in out.iterdir()} == FILES
    assert [file.name for file in out.parent.iterdir()] == [out.name]
    assert json.loads((out / "summary.json").read_text()) == summary
    stocks = Stocks(n_subscriptions=60, n_events=80, seed=3)
    tables = stocks.tables()
    for name in ("subscriptions", "events"):
        table = tables[name]
        assert pq.read_table(out / f"{name}.parquet").sort_by(table.column_names[0]).equals(table)

    schema = nc.Schema.from_arrow(tables["events"].schema)
    subscriptions = nc.compile_filters(schema, tables["subscriptions"]).subscriptions
    events = nc.EventBatch.from_arrow(tables["events"], schema)
    matches = nc.Scan().fit(subscriptions).match(events)
    expected = matches.to_arrow(events.event_id, subscriptions.subscription_id).to_pylist()
    assert matches_in(out) == {row["event_id"]: row["subscription_ids"] for row in expected}
    assert matches.n_pairs > 50

    interest = nc.Interest.of_events(matches, events.event_id, subscriptions)
    known = without_times(summary)
    costs = known.pop("costs")
    assert known == {
        "command": "run",
        "version": nc.__version__,
        "source": {
            "workload": "stocks",
            "parameters": {
                "n_subscriptions": 60,
                "n_events": 80,
                "modes": 1,
                "edges": "levels",
                "drift": 0.0,
                "nodes": 600,
            },
        },
        "seed": 3,
        "method": "partial",
        "subscriptions": 60,
        "subscribers": len(set(stocks.subscribers().to_pylist())),
        "boxes": 60,
        "rejected": 0,
        "reasons": {},
        "events": 80,
        "matches": matches.n_pairs,
        "matches_per_event": matches.n_pairs / 80,
        "unmatched": 80 - len(expected),
        "unmatched_share": (80 - len(expected)) / 80,
        "flows": len(expected),
        "wants": interest.wants.nnz,
        "channels": 4,
        "plan": "partial",
    }
    plan, info = nc.read_plan(out / "plan")
    plan.validate(interest)
    found = nc.Waste().score(interest, plan)
    links = nc.Topology.from_table(tables["topology"])
    for name in NETWORK:
        assert pq.read_table(out / f"{name}.parquet").equals(tables[name])
    network = nc.Network(links, locations=nc.Locations.from_table(tables["locations"], links))
    paid, filtering = network.score(interest, plan), Filtering().score(interest, plan)
    overall = nc.Overall().score(interest, plan).total
    false = FalsePositives().score(interest, plan).total
    sent = nc.Forwarding().score(interest, plan).total
    everybody = len(set(stocks.subscribers().to_pylist()))  # also those who matched nothing
    own = nc.Partial(channels=4, seed=3, topology=links, locations=network.locations)
    kept = nc.Interest.from_tables(
        *(pq.read_table(out / f"{name}.parquet") for name in ("interests", "rates"))
    )
    assert plan == own.fit(kept).plan_
    assert costs["partial"] == {
        "channels": 4,
        "waste": found.total,
        **found.terms,
        "network": pytest.approx(paid.total),
        "improvement_pct": pytest.approx(paid.terms["improvement_pct"]),
        "filtering": pytest.approx(filtering.total),
        "excess_share": pytest.approx(Filtering.share(filtering, everybody)),
        "overall": pytest.approx(overall),
        "false-positives": pytest.approx(false),
        "forwarding": pytest.approx(sent),
    }
    assert (costs["unicast"]["improvement_pct"], costs["ideal"]["improvement_pct"]) == (0, 100)
    assert list(costs) == ["partial", "unicast", "broadcast", "per-flow", "hash", "ideal"]
    wanted = interest.wants.nnz
    assert costs["broadcast"]["waste"] == everybody * len(expected) - wanted
    assert costs["unicast"]["unicast"] == costs["per-flow"]["deliveries"] == wanted
    assert costs["ideal"]["deliveries"] == costs["ideal"]["wanted"] == wanted
    assert costs["per-flow"]["channels"] == len(expected)
    assert (info.method, info.seed, info.channels, info.flow_space) == ("partial", 3, 4, "events")
    assert info.params == {"channels": 4, "recent": 10_000}
    assert info.costs == {
        "false-positives": pytest.approx(false),
        "filtering": pytest.approx(filtering.total),
        "forwarding": pytest.approx(sent),
        "waste": found.total,
        "network": pytest.approx(paid.total),
        "overall": pytest.approx(overall),
    }
    assert set(info.inputs) == {"subscriptions", "events"}

    page = (out / "report.html").read_text()
    assert "<tr><th>workload</th><td>stocks</td></tr>" in page
    assert "<tr><th>seed</th><td>3</td></tr>" in page
    assert page.count("<svg") == 4
    assert f"<tr><th>matches</th><td>{matches.n_pairs:,}</td></tr>" in page
    assert all((out / name).stat().st_size > 1000 for name in PICTURES)
    lines = said.splitlines()
    assert lines[0] == f"80 events against 60 subscriptions: about {matches.n_pairs} matches, 0 MB of ids"
    assert lines[1].startswith("-> broadcast: 1.0 copies of an event, 2.0 of a subscription, ")
    assert lines[2].startswith("   partitioned: ")
    assert len(lines) == 3, "no bar where there is no terminal"


@pytest.mark.spark
def test_a_second_run_changes_nothing(again: Path, first: tuple[Path, dict[str, Any], str]) -> None:
    before = inodes(again)
    summary, said = document("run", "--out", again, *SMALL, "--channels", "4", "--strategy", "partitioned")
    assert summary == first[1]
    assert said == f"finished earlier: {', '.join([*STAGES, 'report'])}\n"
    assert inodes(again) == before
    assert [path.name for path in again.parent.iterdir()] == ["out"]


@pytest.mark.spark
def test_other_channels_do_again_what_depends_on_them(
    again: Path, first: tuple[Path, dict[str, Any], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")  # the widest table in one piece
    before = inodes(again)
    found = call("run", "--out", again, *SMALL, "--method", "per-flow", "--channels", "3")
    assert found.exit_code == 0, found.exception
    assert found.stderr == "finished earlier: read, compile, match, interest\n"
    kept = {name for name, inode in inodes(again).items() if before.get(name) == inode}
    assert {name.split("/")[0] for name in kept} == {f"{name}.parquet" for name in TABLES | NETWORK}
    summary = json.loads((again / "summary.json").read_text())
    _, info = nc.read_plan(again / "plan")
    assert (info.method, info.channels, summary["channels"]) == ("per-flow", 3, 3)
    assert summary["plan"] == "per-flow, as planned"
    assert summary["matches"] == first[1]["matches"]

    rows = table_of(found.stdout)
    assert ["subscriptions", "60"] in rows
    assert ["matches", f"{summary['matches']:,}"] in rows
    assert ["matches per event", f"{summary['matches_per_event']:.1f}"] in rows
    share = f"{summary['unmatched']} ({100 * summary['unmatched_share']:.1f} %)"
    assert ["events without a match", share] in rows
    cost = summary["costs"]["hash"]
    per_event = [f"{cost[key] / summary['flows']:,.1f}" for key in ("wanted", "wasted", "unicast", "network")]
    assert ["hash", "3", *per_event, f"{cost['improvement_pct']:.1f}"] in rows
    assert [row[0] for row in rows if row[0] in STAGES] == STAGES
    assert found.stdout.endswith(f"report: {again}/report.html\n")
    assert [path.name for path in again.parent.iterdir()] == ["out"]


@pytest.mark.slow
@pytest.mark.spark
def test_a_fresh_run_and_other_strategy_give_the_same(
    again: Path, first: tuple[Path, dict[str, Any], str]
) -> None:
    before = inodes(again)
    words = ("--channels", "4", "--strategy", "partitioned", "--memory", "512m", "--fresh")
    summary, said = document("run", "--out", again, *SMALL, *words)
    assert "finished earlier" not in said
    assert "-> partitioned: " in said
    assert without_times(summary) == without_times(first[1])
    assert matches_in(again) == matches_in(first[0])
    assert not set(before.values()) & set(inodes(again).values())


# --------------------------------------------------------------------------------------------- own tables


@pytest.mark.slow
@pytest.mark.spark
def test_own_tables_and_rejected_rows(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "out"
    rows = [
        {"subscription_id": 9, "subscriber": "ann", "filter": "price > 10"},
        {"subscription_id": 4, "subscriber": "bob", "filter": "price > 20"},
        {"subscription_id": 2, "subscriber": "ann", "filter": "price > 5 OR name = 'x'"},
        {"subscription_id": 7, "subscriber": "eve", "filter": "prize > 1"},
        {"subscription_id": None, "subscriber": "eve", "filter": "price > 1"},
    ]
    (tmp_path / "s.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "e.csv").write_text("event_id,price,name\n5,30,x\n6,1,y\n8,12,z\n9,much,z\n")
    (tmp_path / "types.json").write_text('{"price": "decimal(9,2)", "name": "string"}')
    options: list[str | Path] = ["--subscriptions", tmp_path / "s.jsonl", "--events", tmp_path / "e.csv"]
    summary, _ = document("run", "--out", out, *options, "--schema", tmp_path / "types.json", "--recent", "1")
    assert [summary[name] for name in ("subscriptions", "subscribers", "boxes", "events")] == [3, 2, 4, 3]
    assert summary["rejected"] == sum(summary["reasons"].values()) == 3
    assert summary["reasons"]["subscriptions: unknown attribute 'prize'; known: price, name"] == 1
    assert summary["reasons"]["subscriptions: subscription_id is null"] == 1
    assert (summary["matches"], summary["unmatched"], summary["flows"], summary["wants"]) == (5, 1, 1, 1)
    assert summary["source"] == {
        "subscriptions": str(tmp_path / "s.jsonl"),
        "events": str(tmp_path / "e.csv"),
    }
    aside = pq.read_table(out / "rejected.parquet").sort_by("reason").to_pylist()
    assert [row["table"] for row in aside] == ["events", "subscriptions", "subscriptions"]
    assert "much" in aside[0]["reason"] + aside[0]["row"]
    assert json.loads(aside[2]["row"]) == rows[3]
    assert matches_in(out) == {5: [2, 4, 9], 8: [2, 9]}
    assert pq.read_table(out / "events.parquet")["price"].type == pa.decimal128(9, 2)
    assert "unknown attribute &#x27;prize&#x27;" in (out / "report.html").read_text()

    # The same rows in another file and order are the same; one that differs is not.
    lines = (tmp_path / "s.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "other.jsonl").write_text("".join(reversed(lines)))
    options[1] = tmp_path / "other.jsonl"
    _, said = document("run", "--out", out, *options, "--schema", tmp_path / "types.json", "--recent", "1")
    assert said.startswith("finished earlier: read, compile, match, interest, plan, evaluate")
    (tmp_path / "other.jsonl").write_text("".join(lines[:-1]))
    _, said = document("run", "--out", out, *options, "--schema", tmp_path / "types.json", "--recent", "1")
    assert "finished earlier" not in said
    assert pq.read_table(out / "rejected.parquet").num_rows == 2


@pytest.mark.spark
@pytest.mark.slow
def test_own_network(own: Callable[..., list[str | Path]], spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b,cost\nann,hub,2\nbob,hub,3\nfar,hub,9\n")
    (tmp_path / "p.csv").write_text("event_id,node\n5,far\n6,hub\n8,far\n")
    options = [*own(), "--topology", tmp_path / "t.csv", "--channels", "2"]
    summary, _ = document("run", "--out", tmp_path / "out", *options, "--publishers", tmp_path / "p.csv")
    # Both want one event and ann the other: from far 9 + 2 + 3 and 11, from the hub 5 and 2.
    assert summary["costs"]["ideal"]["network"] == pytest.approx((2 * (14 + 11) + 5 + 2) / 3)
    assert summary["method"] == "partial"
    assert (tmp_path / "out" / "publishers.parquet").exists()
    _, said = document("run", "--out", tmp_path / "out", *options, "--publishers", tmp_path / "p.csv")
    assert "evaluate" in said
    (tmp_path / "p.csv").write_text("node\nhub\n")
    summary, said = document("run", "--out", tmp_path / "out", *options, "--publishers", tmp_path / "p.csv")
    assert "finished earlier" not in said
    assert summary["costs"]["ideal"]["network"] == pytest.approx(5 + 2)
    summary, _ = document("run", "--out", tmp_path / "out", *own(), "--channels", "2")
    assert summary["method"] == "joint"
    assert "network" not in summary["costs"]["ideal"]
    assert not (tmp_path / "out" / "topology.parquet").exists()

    (tmp_path / "p.csv").write_text("node\nnowhere\n")
    said = refusal("run", "--out", tmp_path / "x", *options, "--publishers", tmp_path / "p.csv")
    assert shows(said, "p.csv 'nowhere'")
    (tmp_path / "p.csv").write_text("node\n")
    said = refusal("run", "--out", tmp_path / "x", *options, "--publishers", tmp_path / "p.csv")
    assert f"publishers={str(tmp_path / 'p.csv')!r}" in said
    said = refusal("run", "--out", tmp_path / "x", *own(), "--publishers", tmp_path / "p.csv")
    assert shows(said, "--publishers --topology")


@pytest.mark.slow
@pytest.mark.spark
def test_strict(own: Callable[..., list[str | Path]], spark: SparkSession, tmp_path: Path) -> None:
    texts = ["price >", "price > 1", "price <"]
    options = own({"subscription_id": [1, 2, 3], "subscriber": ["a", "b", "c"], "filter": texts})
    said = refusal("run", "--out", tmp_path / "out", "--strict", *options)
    assert said.startswith("there are 2 bad rows, one of them in subscriptions: does not parse: something ")
    assert "--strict" in said
    options = own(event_id=["5", "six"], price=[1, 2])
    said = refusal("run", "--out", tmp_path / "out", "--strict", *options)
    assert "events" in said
    assert "'six'" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("what", ["events", "subscriptions"])
def test_none_of_either(what: str, spark: SparkSession, tmp_path: Path) -> None:
    """Through a link to an empty folder, too."""
    other = {"events": "subscriptions", "subscriptions": "events"}[what]
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    summary, _ = document("run", "--out", tmp_path / "link", "--set", f"n_{what}=0", "--set", f"n_{other}=9")
    assert summary[what] == summary["matches"] == summary["matches_per_event"] == summary["flows"] == 0
    assert summary["unmatched_share"] == (what == "subscriptions")
    assert (tmp_path / "link").is_symlink()
    assert {file.name for file in (tmp_path / "real").iterdir()} == FILES
    assert matches_in(tmp_path / "real") == {}
    assert all(cost["waste"] == 0 for cost in summary["costs"].values())
    (tmp_path / "real" / "notes.txt").write_text("mine")
    said = refusal("run", "--out", tmp_path / "link", *SMALL)
    assert "'notes.txt'" in said
    assert (tmp_path / "real" / "notes.txt").read_text() == "mine"


# ------------------------------------------------------------------------------------------- what is there


@pytest.mark.spark
def test_a_failure_keeps_the_earlier_run_and_is_gone_on_with(
    again: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = inodes(again)

    def fail(*_: object, **__: object) -> None:
        raise NarrowcastError("on purpose")

    with monkeypatch.context() as patch:
        patch.setattr(run_report, "write_report", fail)
        assert refusal("run", "--out", again, *SMALL, "--channels", "2") == "on purpose"
    assert inodes(again) == before
    _, said = document("run", "--out", again, *SMALL, "--channels", "2")
    assert said == f"finished earlier: {', '.join(STAGES)}\n"
    assert json.loads((again / "summary.json").read_text())["channels"] == 2
    with staging_folder(again):
        assert str(again) in refusal("run", "--out", again, *SMALL)


@pytest.mark.parametrize("content", [None, "not json", "[1]", '{"command": "bench"}', "3"])
def test_anything_else_stays(content: str | None, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("mine")
    if content is not None:
        (out / "summary.json").write_text(content)
    assert str(out) in refusal("run", "--out", out, *SMALL)
    assert str(out / "mine") in refusal("run", "--out", out / "mine", *SMALL)
    assert (out / "mine").read_text() == "mine"


# ----------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--method", "hsh"], "method hsh"),
        (["--channels", "0"], "channels 0"),
        (["--workload", "stock"], "workload stock"),
        (["--set", "modes=5"], "modes 5"),
        (["--seed", "-2"], "seed -2"),
        (["--strategy", "fast"], "strategy fast"),
        (["--memory", "lots"], "lots"),
        (["--recent", "0"], "recent 0"),
        (["--schema", "nowhere.json"], "schema nowhere.json"),
        (["--events", "e.csv"], "events"),
        (["--subscriptions", "s.csv"], "subscriptions"),
        (
            ["--subscriptions", "s.csv", "--events", "e.csv", "--set", "modes=4"],
            "set subscriptions events",
        ),
        (
            ["--subscriptions", "s.csv", "--events", "e.csv", "--workload", "stocks"],
            "workload",
        ),
    ],
)
def test_bad_options(arguments: list[str], shown: str, tmp_path: Path) -> None:
    assert shows(refusal("run", "--out", tmp_path / "out", *arguments), shown)
    assert list(tmp_path.iterdir()) == []


def test_the_folder_one_is_in_cannot_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path / "in")
    for out in (".", "..", tmp_path / "in", "../in"):
        assert "--out" in refusal("run", "--out", out)
    assert [path.name for path in tmp_path.rglob("*")] == ["in"]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--conf", "spark.sql.ansi"], "conf spark.sql.ansi"),
        (["--conf", "=3"], "conf 3"),
        (["--conf", "spark.x=3"], "3"),
    ],
)
def test_bad_settings(words: list[str], shown: str, spark: SparkSession, tmp_path: Path) -> None:
    assert shows(refusal("run", "--out", tmp_path / "out", *SMALL, *words), shown)
    assert not (tmp_path / "out").exists()


@pytest.mark.spark
@pytest.mark.parametrize(
    ("tables", "shown"),
    [
        ({"price": [1, 2, 3]}, "price event_id"),
        ({"event_id": [1], "price": [1], "PRICE": [1]}, "names ignore case"),
    ],
)
def test_bad_events(
    tables: dict[str, list[Any]],
    shown: str,
    own: Callable[..., list[str | Path]],
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    assert shows(refusal("run", "--out", tmp_path / "out", *own(**tables)), shown)
    assert not (tmp_path / "out").exists()


@pytest.mark.spark
def test_missing_tables(own: Callable[..., list[str | Path]], spark: SparkSession, tmp_path: Path) -> None:
    options = own({"subscription_id": [1], "filter": ["price > 1"]})
    said = refusal("run", "--out", tmp_path / "out", *options)
    assert shows(said, "s.csv 'subscriber' 'subscription_id', 'filter'")
    options[1] = tmp_path / "nothing.csv"
    assert "nothing.csv" in refusal("run", "--out", tmp_path / "out", *options)


def test_usage() -> None:
    found = call("run", "--help")
    assert found.exit_code == 0
    assert "narrowcast run --out out --workload stocks" in found.stdout
    assert call("run").exit_code == 2
    assert call("run", "--out", "x", "--channels", "many").exit_code == 2
