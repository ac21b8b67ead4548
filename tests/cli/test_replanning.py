"""Plans that go on from others, with flows pinned and limits kept, as a command."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from narrowcast.model.artefact import read_plan, write_plan
from narrowcast.model.migration import ACTIONS, peak
from narrowcast.model.plan import ChannelPlan
from narrowcast.model.relation import rows_of
from narrowcast.workloads.flows import Flows
from support.command import call, document, refusal

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def data(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with interests, other interests, and a plan for the first."""
    folder = tmp_path_factory.mktemp("flows")
    for seed in (1, 2):
        tables = Flows(n_flows=800, n_subscribers=40, seed=seed).tables()
        pq.write_table(tables["interests"], folder / f"i{seed}.parquet")
        pq.write_table(tables["rates"], folder / "r.parquet")
    words = ["--channels", "8", "--sessions", "30", "--set", "sweeps=20"]
    document("plan", *inputs(folder, 1), *words, "--out", folder / "old")
    return folder


def inputs(folder: Path, seed: int) -> list[Any]:
    return ["--interests", folder / f"i{seed}.parquet", "--rates", folder / "r.parquet"]


@pytest.mark.slow
def test_limits_and_pinned_flows(data: Path, tmp_path: Path) -> None:
    flows = pq.read_table(data / "i1.parquet")["flow"].unique().to_pylist()[:2]
    wanted = set(pq.read_table(data / "i1.parquet")["flow"].to_pylist())
    idle = next(flow for flow in range(800) if flow not in wanted)
    (tmp_path / "p.csv").write_text(f"flow,channel\n{flows[0]},5\n{flows[1]},2\n{idle},3\n")
    found, said = document(
        "plan", *inputs(data, 1), "--channels", "8", "--set", "memberships=3", "--set", "sweeps=20",
        "--pinned", tmp_path / "p.csv", "--out", tmp_path / "plan",
    )  # fmt: skip
    assert (found["method"], found["path"], found["direct"]) == ("joint", "driver", 0)
    plan, info = read_plan(tmp_path / "plan")
    assert np.bincount(rows_of(plan.listens)).max() <= 3
    where = dict(zip(plan.flows.to_pylist(), plan.carries.indices.tolist(), strict=True))
    assert [where[flow] for flow in flows] == [5, 2]
    assert info.params["pinned"].endswith("p.csv")
    assert info.params["memberships"] == 3
    assert f"nobody wants 1 of the pinned flows, such as {idle}: no channel has them" in said


def test_going_on_from_a_plan(data: Path, tmp_path: Path) -> None:
    found, _ = document(
        "plan", *inputs(data, 2), "--from", data / "old", "--set", "moves=20", "--set", "sweeps=20",
        "--out", tmp_path / "next",
    )  # fmt: skip
    assert found["method"] == "joint"
    assert found["moves"] <= 20
    assert [found["moves"], found["costs"]["filtering"], 0] == pytest.approx(
        next(step for step in found["curve"] if step[0] == found["moves"])
    )
    plan, info = read_plan(tmp_path / "next")
    old, _ = read_plan(data / "old")
    assert plan.n_channels == old.n_channels
    assert info.params["moves"] == 20
    assert pq.read_table(tmp_path / "next" / "moves.parquet").num_rows == len(found["curve"])
    assert (tmp_path / "next" / "moves.png").read_bytes().startswith(b"\x89PNG")
    steps = pq.read_table(tmp_path / "next" / "migration.parquet")
    assert steps.column_names == ["step", "action", "subscriber", "flow", "channel", "parent"]
    done = steps["action"].to_pylist()
    assert found["migration"] == {name: done.count(name) for name in ACTIONS if name in done}
    assert found["migration"]["switch"] > 0
    assert found["sessions"] == np.count_nonzero(plan.used() & (plan.parent >= 0))
    assert found["channels"] == np.count_nonzero(plan.used() & (plan.parent < 0))
    assert found["memberships_on_the_way"] == peak(old, steps)
    text = call(
        "plan", *inputs(data, 2), "--from", data / "old", "--set", "sweeps=20", "--out", tmp_path / "any"
    )
    assert "groups joined and left beyond what new wants ask for" in text.stdout
    assert "groups of a subscriber at most, on the way" in text.stdout
    assert text.stdout.count(" <") == 1


@pytest.mark.slow
def test_a_limit_is_kept_on_the_way(data: Path, tmp_path: Path) -> None:
    words = ["--set", "memberships=3", "--set", "sweeps=20"]
    document("plan", *inputs(data, 1), "--channels", "8", "--sessions", "30", *words, "--out", tmp_path / "a")
    found, _ = document("plan", *inputs(data, 2), "--from", tmp_path / "a", *words, "--out", tmp_path / "b")
    way = pq.read_table(tmp_path / "b" / "migration.parquet")
    assert found["memberships_on_the_way"] == peak(read_plan(tmp_path / "a")[0], way) == 3
    assert found["curve"][-1][2] == found["direct"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--from", "{data}/none"], "none"),
        (["--sessions", 60], "--sessions is 60 and --channels is not given; give it"),
        (
            ["--channels", 3, "--set", "memberships=2", "--limit", 9],
            "memberships is given, which joint does without on Spark, and the interest has",
        ),
        (["--from", "{data}/old", "--limit", 9], "--from is given, which joint does without on Spark, and"),
        (["--method", "joint", "--channels", 3, "--set", "x=1"], "rate, moves; cost 'filtering' alpha, beta"),
        (
            ["--method", "pairwise", "--channels", 3, "--from", "{data}/old"],
            "--from is given, and method 'pairwise'",
        ),
        (
            ["--method", "auto", "--channels", 3, "--set", "moves=3"],
            "moves is 3 and there is no plan to start from",
        ),
        (
            ["--from", "{data}/old", "--channels", 2],
            "channels is 2, and the plan to start from has 8; give as many",
        ),
        (["--from", "{data}/events"], "is a plan of events, others each time; --from takes one of topics"),
        (["--channels", 3, "--set", "rate=-1"], "rate is -1; give the most messages per second in a group"),
        (["--channels", 3, "--set", "memberships=0"], "memberships is 0; give a whole number of at least 1"),
        (["--channels", 3, "--pinned", "{data}/r.parquet"], "has no column 'channel'; it has 'flow', 'rate'"),
        (["--channels", 3, "--pinned", "{data}/pin.csv"], "flow 1 is pinned to channel 3; groups are 0 to 2"),
        (
            ["--channels", 3, "--method", "joint", "--set", "pinned=4"],
            "pinned is 4; give a table of flow and channel",
        ),
        (
            ["--channels", 3, "--method", "joint", "--set", "start=4"],
            "start is 4; give a plan, as --from does",
        ),
    ],
)
def test_what_is_refused(data: Path, tmp_path: Path, words: list[Any], message: str) -> None:
    """All of it before Spark starts, and nothing is written."""
    if not (data / "events").exists():
        write_plan(ChannelPlan([[1]], [[1]]), data / "events", method="hash", flow_space="events")
    (data / "pin.csv").write_text("flow,channel\n1,3\n")
    given = [str(word).format(data=data) for word in words]
    assert message in refusal("plan", *inputs(data, 1), *given, "--out", tmp_path / "plan")
    assert not (tmp_path / "plan").exists()


def test_labels_are_text_where_the_interest_has_text(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({"subscriber": ["a", "b"], "flow": ["1", "2"]}), tmp_path / "i.parquet")
    (tmp_path / "p.csv").write_text("flow,channel\n2,0\n")
    found, _ = document(
        "plan", "--interests", tmp_path / "i.parquet", "--channels", "2", "--pinned", tmp_path / "p.csv",
        "--out", tmp_path / "plan",
    )  # fmt: skip
    plan, _ = read_plan(tmp_path / "plan")
    assert plan.carries.toarray().tolist() == [[False, True], [True, False]]
    assert json.dumps(found)
