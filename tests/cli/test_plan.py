"""Planning as a command, from every kind of input, and the evaluation of what it wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

import narrowcast as nc
from narrowcast.cli.set_option import parameters
from narrowcast.costs.false_positives import FalsePositives
from narrowcast.costs.filtering import Filtering
from narrowcast.errors import ParameterError
from narrowcast.model.ownership import by_subscriber, by_subscription
from narrowcast.planning.base import plan_of_subscribers
from narrowcast.spark.stages.interest_collection import to_interest
from narrowcast.spark.streaming.interest_state import InterestState
from support.command import call, document, refusal, shows, table_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PAIRS = pa.table(
    {"subscriber": ["ann", "ann", "bob", "bob", "eve", "eve"], "flow": ["x", "y", "y", "z", "z", "z"]}
)
RATES = pa.table({"flow": ["x", "y", "unused"], "rate": [2.0, 0.5, 7.0]})
TEXTS = ["price > 10", "price > 20 AND price < 50", "price <= 12 OR volume > 6", "volume BETWEEN 2 AND 4"]
TEXTS += ["price >"]
N = 40
EVENTS = pa.table(
    {
        "event_id": range(N),
        "time": pa.array([i * 500_000 for i in range(N)], pa.timestamp("us", "UTC")),
        "price": pa.array([(i * 7) % 60 / 1.0 for i in range(N)]),
        "volume": pa.array([i % 9 for i in range(N)]),
    }
)


@pytest.fixture(scope="module")
def topics(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("topics")
    pq.write_table(PAIRS, folder / "i.parquet")
    pc.write_csv(RATES, folder / "r.csv")
    return ["--interests", str(folder / "i.parquet"), "--rates", str(folder / "r.csv")]


@pytest.fixture(scope="module")
def content(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("content")
    rows = [{"subscription_id": i, "subscriber": f"s{i % 3}", "filter": text} for i, text in enumerate(TEXTS)]
    (folder / "s.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(EVENTS, folder / "e.parquet")
    return ["--subscriptions", str(folder / "s.jsonl"), "--events", str(folder / "e.parquet")]


def history(last: int | None = None, by: str = "subscriber") -> nc.Interest:
    """The interest in the events, computed in this process."""
    schema = nc.Schema.from_arrow(EVENTS.schema)
    names = [f"s{i % 3 if by == 'subscriber' else i}" for i in range(4)]
    rows = {"subscription_id": range(4), "subscriber": names, "filter": TEXTS[:4]}
    subscriptions = nc.compile_filters(schema, pa.table(rows), strict=True).subscriptions
    events = nc.EventBatch.from_arrow(EVENTS, schema)
    return nc.Interest.of_events(
        nc.Scan().fit(subscriptions).match(events), events.event_id, subscriptions, last=last
    )


def waste(found: dict[str, Any], method: str) -> float:
    total: float = found["methods"][method]["costs"]["waste"]["total"]
    return total


# ------------------------------------------------------------------------------------------------- topics


@pytest.mark.slow
def test_topics(topics: list[str], tmp_path: Path) -> None:
    out = tmp_path / "plan"
    words = ("--method", "hash", "--channels", "2", "--seed", "4", "--out", out)
    facts, said = document("plan", *topics, *words)
    interest = nc.Interest.from_tables(PAIRS, RATES)
    plan, info = nc.read_plan(out)
    plan.validate(interest)
    cost = nc.Waste().score(interest, plan)
    assert facts == {
        "command": "plan",
        "out": str(out),
        "method": "hash",
        "path": "driver",
        "rejected": 0,
        "reasons": {},
        "wants": 5,
        "flows": 4,
        "subscribers": 3,
        "channels": plan.n_groups,
        "sessions": None,
        "direct": 0,
        "balance": 1.0,  # all who listen are in one of them
        "costs": {
            "false-positives": FalsePositives().score(interest, plan).total,
            "filtering": Filtering().score(interest, plan).total,
            "forwarding": nc.Forwarding().score(interest, plan).total,
            "overall": nc.Overall().score(interest, plan).total,
            "waste": cost.total,
        },
    }
    assert (info.method, info.seed, info.flow_space, info.params) == ("hash", 4, "topics", {"channels": 2})
    assert info.costs == facts["costs"]
    assert set(info.inputs) == {"interests", "rates"}
    assert said == ""

    found, said = document("evaluate", out, *topics)
    assert said == ""
    assert (found["name"], found["pairs"], found["command"]) == ("hash", 5, "evaluate")
    assert waste(found, "hash") == pytest.approx(cost.total)
    assert waste(found, "ideal") == waste(found, "per-flow") == waste(found, "unicast") == 0
    table = call("evaluate", out, *topics)
    rows = table_of(table.stdout)
    [mine] = (row for row in rows if row[0] == "hash")
    share = Filtering.share(Filtering().score(interest, plan), 3)
    overall = nc.Overall().score(interest, plan).total
    assert mine[1:4] == [f"{plan.n_groups}", f"{overall:,.6g}", f"{cost.total:,.6g}"]
    assert mine[-1] == f"{100 * share:.1f}"
    assert found["methods"]["hash"]["excess_share"] == pytest.approx(share)
    assert max(map(len, table.stdout.splitlines())) <= 80
    alone = call("evaluate", out, *topics, "--cost", "filtering")
    [heads] = (line for line in alone.stdout.splitlines() if "sessions" in line)
    assert [each.strip() for each in heads.strip("┃").split("┃")][2:] == [
        *("filtering", "groups", "sessions", "direct", "excess %"),
    ]
    assert table.stdout.startswith(f"Costs of {out}\n")

    # Other rates are other inputs: that is said, and the costs are those of what is given.
    found, said = document("evaluate", out, *topics[:2])
    assert said == "the inputs differ from those that the plan was made from\n"
    assert waste(found, "hash") == pytest.approx(nc.Waste().score(nc.Interest.from_tables(PAIRS), plan).total)


def test_a_plan_that_leaves_somebody_out_is_refused(topics: list[str], tmp_path: Path) -> None:
    few = PAIRS.slice(0, 3)
    interest = nc.Interest.from_tables(few)
    plan = nc.PerFlow().fit(interest).plan_
    nc.write_plan(plan, tmp_path / "plan", method="per-flow")
    said = refusal("evaluate", tmp_path / "plan", *topics)
    assert shows(said, "2 5 'bob' 'z'")


def test_the_wrong_kind_of_input(topics: list[str], content: list[str], tmp_path: Path) -> None:
    plan = nc.PerFlow().fit(nc.Interest.from_tables(PAIRS)).plan_
    nc.write_plan(plan, tmp_path / "topics", method="per-flow")
    nc.write_plan(plan, tmp_path / "events", method="per-flow", flow_space="events")
    said = refusal("evaluate", tmp_path / "topics", *content)
    assert shows(said, "topics --interests")
    said = refusal("evaluate", tmp_path / "events", *topics)
    assert shows(said, "flows events --subscriptions --events")
    assert "none" in refusal("evaluate", tmp_path / "none", *topics)


# ------------------------------------------------------------------------------------- filters and events


def test_events(content: list[str], tmp_path: Path) -> None:
    out = tmp_path / "plan"
    words = ("--method", "hash", "--channels", "3", "--recent", "12", "--out", out)
    facts, said = document("plan", *content, *words)
    interest = history(last=12)
    plan, info = nc.read_plan(out)
    plan.validate(interest)
    assert sorted(plan.flows.to_pylist()) == interest.flows.to_pylist()
    cost = nc.Waste().score(interest, plan).total
    assert (facts["flows"], facts["wants"], facts["rejected"]) == (12, interest.wants.nnz, 1)
    filtering = Filtering().score(interest, plan).total
    overall = nc.Overall().score(interest, plan).total
    false = FalsePositives().score(interest, plan).total
    totals = {"false-positives": false, "filtering": filtering, "overall": overall, "waste": cost}
    totals["forwarding"] = nc.Forwarding().score(interest, plan).total
    assert facts["costs"] == info.costs == totals
    assert (info.flow_space, info.params) == ("events", {"channels": 3, "recent": 12})
    assert said.startswith("40 events against 4 subscriptions: about ")

    found, said = document("evaluate", out, *content)  # of the same events, without being told
    assert "inputs differ" not in said
    assert waste(found, "hash") == pytest.approx(cost)
    assert found["flows"] == 12
    said = refusal("evaluate", out, *content, "--recent", "30")
    assert "wanted pairs" in said


@pytest.mark.slow
def test_by_subscription(content: list[str], tmp_path: Path) -> None:
    """Who has several subscriptions is in the clusters of all, and events go to those that they match."""
    out = tmp_path / "plan"
    words = ("--method", "direct", "--channels", "3", "--recent", "30", "--cost", "false-positives")
    facts, _ = document("plan", *content, *words, "--by", "subscription", "--out", out)
    plan, info = nc.read_plan(out)
    assert info.params == {"channels": 3, "recent": 30, "by": "subscription"}
    assert plan.subscriptions is not None
    assert plan.subscriptions.subscription_id.tolist() == [0, 1, 2, 3]
    assert plan.subscribers.to_pylist() == ["s0", "s1", "s2"]
    pairs = {(f"s{i % 3}", int(plan.subscriptions.channel[i])) for i in range(4)}
    listens = pq.read_table(out / "listens.parquet").to_pylist()
    assert {(row["subscriber"], row["channel"]) for row in listens} == pairs
    assert (facts["by"], facts["memberships"]) == ("subscription", len(pairs))

    # The same plan as in this process, for the subscriptions by themselves.
    interest, finer = history(last=30), history(last=30, by="subscription")
    by_hand = nc.Direct(channels=3).fit(finer).plan_
    assert by_subscription(plan, range(4), [f"s{i % 3}" for i in range(4)]).listens.toarray().tolist() == (
        by_hand.listens.toarray().tolist()
    )
    plan.validate(interest)
    assert facts["costs"] == info.costs == {"false-positives": FalsePositives().score(interest, plan).total}

    found, said = document("evaluate", out, *content, "--router", "channels")
    assert "inputs differ" not in said
    totals = {
        "subscriber": FalsePositives().score(interest, plan).total,
        "subscription": FalsePositives().score(finer, by_hand).total,
    }
    assert totals["subscription"] > 0  # four of them are in three clusters
    assert found["false_positives_per_event"] == {by: total / 30 for by, total in totals.items()}
    # All 40 events are sent, of which the plan was made from the last 30 that somebody wanted.
    sent = found["replay"]["plan"]
    every = nc.Interest(history(by="subscription").wants)
    again = plan_of_subscribers(every, by_hand.listens.indices.astype(np.int64), 3)
    assert sent["false_positives"]["subscription"] == FalsePositives().score(every, again).total
    coarse = by_subscriber(again, [f"s{i % 3}" for i in range(4)])
    cost = FalsePositives().score(history(), coarse)
    assert sent["false_positives"]["subscriber"] == cost.total
    assert sent["received_over_channels"] == cost.terms["receptions"] + cost.terms["repeated"]
    assert found["replay"]["unicast"]["false_positives"] == {"subscriber": 0, "subscription": 0}

    # In another cluster than the plan carries its events to, a subscription would miss some.
    table = pq.read_table(out / "subscriptions.parquet")
    moved = table.set_column(1, "channel", pa.array(np.roll(plan.subscriptions.channel, 1)))
    pq.write_table(moved, out / "subscriptions.parquet")
    assert "subscription " in refusal("evaluate", out, *content)


@pytest.mark.slow
def test_cells(content: list[str], tmp_path: Path) -> None:
    out = tmp_path / "plan"
    words = ("--flows", "cells", "--cells", "3", "--method", "per-flow", "--out", out)
    facts, said = document("plan", *content, *words)
    assert said == ""
    plan, info = nc.read_plan(out)
    assert info.flow_space == "cells"
    assert set(info.params["grid"]) == {"price", "volume"}
    assert [len(edges) for edges in info.params["grid"].values()] == [2, 2]
    assert (facts["flows"], facts["channels"]) == (plan.n_flows, plan.n_channels)
    assert facts["flows"] <= 9
    cells = pq.read_table(out / "cells.parquet")
    assert cells["flow"].to_pylist() == sorted(plan.flows.to_pylist())
    assert {len(ends) for name in ("lo", "hi") for ends in cells[name].to_pylist()} == {2}
    # Every wanted event lies in a cell that its subscribers listen to.
    listens, carries = plan.listens.toarray(), plan.carries.toarray()
    who, what = plan.subscribers.to_pylist(), plan.flows.to_pylist()
    wanted = history()
    for s, f in zip(*wanted.wants.nonzero(), strict=True):
        event = EVENTS.slice(wanted.flows[f].as_py(), 1).to_pylist()[0]
        point = [event[name] for name in info.params["grid"]]
        [cell] = (
            row["flow"]
            for row in cells.to_pylist()
            if all(lo < x <= hi for x, lo, hi in zip(point, row["lo"], row["hi"], strict=True))
        )
        name = wanted.subscribers[s].as_py()
        assert (listens[who.index(name)] & carries[what.index(cell)]).any()
    found, said = document("evaluate", out, *content)
    assert said == ""
    assert (found["flows"], waste(found, "per-flow")) == (facts["flows"], 0)

    top, _ = document("plan", *content, *words[:-1], tmp_path / "top", "--top", "2")
    assert top["flows"] == 2
    found, _ = document("evaluate", tmp_path / "top", *content)
    assert found["flows"] == 2


# ------------------------------------------------------------------------------------- a stream's state


SEEN = [("x", ["ann"]), ("y", ["ann", "bob"]), ("z", ["bob", "eve"]), ("quiet", [])]
DELIVERIES = "flow string, subscribers array<string>"


@pytest.mark.slow
def test_state(spark: SparkSession, tmp_path: Path) -> None:
    folder, out = str(tmp_path / "state"), tmp_path / "plan"
    state = InterestState(spark, folder, half_life=60, every=2)
    words = ("--state", folder, "--method", "hash", "--channels", "2")
    said = refusal("plan", *words, "--out", out)
    assert str(folder) in said
    for batch in range(3):
        state.add(spark.createDataFrame(SEEN, DELIVERIES), batch)
    facts, said = document("plan", *words, "--out", out)
    assert said == ""
    assert (facts["flows"], facts["wants"], facts["subscribers"], facts["rejected"]) == (4, 5, 3, 0)
    plan, info = nc.read_plan(out)
    plan.validate(to_interest(state.frames()))
    assert sorted(plan.flows.to_pylist()) == ["quiet", "x", "y", "z"]
    assert (info.flow_space, info.params, set(info.inputs)) == ("topics", {"channels": 2}, {"state"})
    # Folding changes the files, not what the plan was made from.
    state.fold()
    found, said = document("evaluate", out, "--state", folder)
    assert said == ""
    assert waste(found, "hash") == pytest.approx(info.costs["waste"])
    state.add(spark.createDataFrame([("x", ["ann"])], DELIVERIES), 3)
    _, said = document("evaluate", out, "--state", folder)
    assert said == "the inputs differ from those that the plan was made from\n"


@pytest.mark.slow
def test_state_of_cells(spark: SparkSession, tmp_path: Path) -> None:
    schema, edges = nc.Schema.of({"price": "int"}), {"price": [10, 20]}
    for name, types in (("typed", schema), ("plain", None)):
        folder, out = str(tmp_path / name), tmp_path / f"{name}-plan"
        state = InterestState(spark, folder, space="cells", grid=edges, schema=types)
        rows = [("0", ["ann"]), ("2", ["ann", "bob"])]
        state.add(spark.createDataFrame(rows, DELIVERIES), 0)
        document("plan", "--state", folder, "--method", "per-flow", "--out", out)
        plan, info = nc.read_plan(out)
        assert (info.flow_space, plan.flows.to_pylist()) == ("cells", [0, 2])
        assert info.params == {"channels": None, "top": None, "grid": edges}
        assert (out / "cells.parquet").exists() == (types is not None)
        found, said = document("evaluate", out, "--state", folder)
        assert (said, waste(found, "per-flow")) == ("", 0)
    other = str(tmp_path / "other")
    InterestState(spark, other, space="cells", grid={"price": [10]})
    assert "price" in refusal("evaluate", out, "--state", other)
    topics = InterestState(spark, str(tmp_path / "topics"))
    topics.add(spark.createDataFrame(SEEN, DELIVERIES), 0)
    said = refusal("evaluate", out, "--state", topics.folder)
    assert shows(said, "cells topics")
    nc.write_plan(plan, tmp_path / "events", method="per-flow", flow_space="events")
    assert "--state" in refusal("evaluate", tmp_path / "events", "--state", other)
    words = ("--method", "hash", "--channels", "2", "--out", tmp_path / "p")
    said = refusal("plan", "--state", tmp_path / "no", *words)
    assert str(tmp_path / "no") in said


# ---------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ([], "--interests subscriptions events"),
        (["--events", "e"], "events"),
        (["--interests", "i", "--events", "e"], "interests events"),
        (["--subscriptions", "s", "--events", "e", "--rates", "r"], "rates"),
        (["--subscriptions", "s", "--events", "e", "--flows", "x"], "flows x"),
        (["--state", "s", "--interests", "i"], "interests state"),
        (["--state", "s", "--events", "e"], "events state"),
        (
            ["--state", "s", "--recent", "3"],
            "recent",
        ),
        (["--state", "s", "--flows", "cells"], "flows"),
        (["--interests", "i", "--recent", "0"], "recent 0"),
        (["--interests", "i", "--last", "-1"], "last -1 1"),
        (["--interests", "i", "--cells", "0"], "cells 0"),
        (["--interests", "i", "--window", "0"], "window 0"),
        (["--interests", "i", "--window", "nan"], "window nan"),
        (["--interests", "i", "--set", "moves"], "set moves"),
        (["--interests", "i", "--strategy", "x"], "strategy x"),
        (["--interests", "i", "--method", "hsh"], "method hsh"),
        (["--interests", "i", "--by", "flow"], "by flow"),
        (
            ["--interests", "i", "--by", "subscription"],
            "by subscription interests",
        ),
        (
            ["--subscriptions", "s", "--events", "e", "--by", "subscription", "--channels", "2"],
            "by subscription hash",
        ),
    ],
)
def test_bad_options(words: list[str], shown: str, tmp_path: Path) -> None:
    if "--method" not in words:
        words = [*words, "--method", "hash"]
    assert shows(refusal("plan", *words, "--out", tmp_path / "plan"), shown)
    assert list(tmp_path.iterdir()) == []


def test_what_is_found_out_on_spark(topics: list[str], tmp_path: Path) -> None:
    out = tmp_path / "plan"
    for words, shown in (
        (["--channels", "0"], "channels 0"),
        (["--set", "moves=3"], "moves"),
        ([], "channels hash"),
        (["--interests", "nothing.parquet", "--channels", "2"], "nothing.parquet"),
    ):
        assert shows(refusal("plan", *topics, "--method", "hash", "--out", out, *words), shown)
    assert not out.exists()
    out.mkdir()
    assert str(out) in refusal("plan", *topics, "--method", "hash", "--out", out)
    assert list(out.iterdir()) == []


def test_parameters() -> None:
    read = parameters(["a=1", "b=0.5", "c=x", "d=true", "e=[1]", "f=", "g=a=b"])
    assert read == {"a": 1, "b": 0.5, "c": "x", "d": True, "e": [1], "f": "", "g": "a=b"}
    with pytest.raises(ParameterError, match="--set '=3'"):
        parameters(["=3"])
