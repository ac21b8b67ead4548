from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from narrowcast.errors import ParameterError, PlanError, TableError
from narrowcast.model.artefact import read_plan, write_plan
from narrowcast.model.interest import Interest
from narrowcast.model.placement import Placement
from narrowcast.model.plan import ChannelPlan
from support.errors import refused

if TYPE_CHECKING:
    from pathlib import Path

INTEREST = Interest([[1, 1, 0], [0, 1, 1]], rate=[1, 2, 4], subscribers=["ann", "bob"], flows=[10, 20, 30])
PLAN = ChannelPlan(
    carries=[[1, 0], [1, 0], [0, 0]],
    listens=[[1, 0], [1, 0]],
    parent=[1, -1],
    unicast=[[0, 0, 0], [0, 0, 1]],
    subscribers=INTEREST.subscribers,
    flows=INTEREST.flows,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_plan(PLAN, tmp_path / "plan", method="hash", params={"channels": 2}, interest=INTEREST)
    return tmp_path / "plan"


def test_the_folder_as_other_programs_read_it(tmp_path: Path) -> None:
    before = datetime.now(UTC)
    info = write_plan(
        PLAN,
        tmp_path / "plan",
        method="hash",
        params={"channels": np.int64(2), "share": 0.5},
        seed=3,
        flow_space="topics",
        costs={"waste": np.float64(1.5)},
        inputs={"interests": "sha256:abc"},
        interest=INTEREST,
    )
    written = json.loads((tmp_path / "plan" / "plan.json").read_text())
    created = datetime.fromisoformat(written.pop("created"))
    assert before <= created <= datetime.now(UTC)
    assert created.utcoffset() == timedelta(0)
    assert written == {
        "format": 1,
        "method": "hash",
        "params": {"channels": 2, "share": 0.5},
        "seed": 3,
        "channels": 1,
        "flow_space": "topics",
        "costs": {"waste": 1.5},
        "inputs": {"interests": "sha256:abc"},
    }
    tables = {path.stem: pq.read_table(path) for path in (tmp_path / "plan").glob("*.parquet")}
    assert {name: table.to_pydict() for name, table in tables.items()} == {
        "carries": {"flow": [10, 20], "channel": [0, 0]},
        "listens": {"subscriber": ["ann", "bob"], "channel": [0, 0]},
        "unicast": {"subscriber": ["bob"], "flow": [30]},
        "channels": {"channel": [0, 1], "parent": [1, None], "rate": [3.0, 3.0], "members": [2, 2]},
    }
    assert tables["channels"].schema.types == [pa.int32(), pa.int32(), pa.float64(), pa.int64()]
    plan, again = read_plan(tmp_path / "plan")
    assert plan == PLAN
    assert again == info


def test_what_is_not_needed_is_not_written(tmp_path: Path) -> None:
    write_plan(ChannelPlan([[1]], [[1]]), tmp_path / "plan", method="broadcast")
    assert not (tmp_path / "plan" / "unicast.parquet").exists()
    assert pq.read_table(tmp_path / "plan" / "channels.parquet")["rate"].to_pylist() == [None]


@st.composite
def plans(draw: st.DrawFn) -> ChannelPlan:
    n_subscribers, n_flows, n_channels = (draw(st.integers(0, 4)) for _ in range(3))

    def labels(count: int) -> pa.Array:
        kind = draw(st.sampled_from([pa.int64(), pa.uint8(), pa.string(), pa.large_string()]))
        one = st.integers(0, 255) if pa.types.is_integer(kind) else st.text(max_size=3)
        return pa.array(draw(st.lists(one, min_size=count, max_size=count, unique=True)), kind)

    # The last channel is the group of any of the others.
    parent = [draw(st.sampled_from([-1, n_channels - 1])) for _ in range(n_channels - 1)] + [-1] * (
        n_channels > 0
    )
    used = np.ones(n_channels, np.bool_)
    used[-1:] = not any(p >= 0 for p in parent)
    return ChannelPlan(
        draw(arrays(np.bool_, (n_flows, n_channels))) & used,
        draw(arrays(np.bool_, (n_subscribers, n_channels))) & used,
        parent,
        draw(arrays(np.bool_, (n_subscribers, n_flows))),
        labels(n_subscribers),
        labels(n_flows),
    )


@given(plans())
def test_a_plan_comes_back(tmp_path_factory: pytest.TempPathFactory, plan: ChannelPlan) -> None:
    folder = tmp_path_factory.mktemp("plans") / "plan"
    write_plan(plan, folder, method="any")
    again, info = read_plan(folder)
    assert info.channels == plan.n_groups == again.n_groups
    written, read = plan.to_tables(), again.to_tables()
    for name, table in read.items():
        key = [(column, "ascending") for column in table.column_names]
        if name != "unicast" or table.num_rows:
            assert table.schema == written[name].schema
        assert table.sort_by(key).to_pydict() == written[name].sort_by(key).to_pydict()
    # A subscriber without a row is not in the folder, and is not served, as before.
    interest = Interest(
        np.ones((plan.n_subscribers, plan.n_flows)), subscribers=plan.subscribers, flows=plan.flows
    )
    assert again.false_exclusions(interest) == plan.false_exclusions(interest)


def test_writing_leaves_nothing_half_done(folder: Path) -> None:
    with refused(TableError, folder):
        write_plan(PLAN, folder, method="hash")
    with refused(ParameterError, parameter="params"):
        write_plan(PLAN, folder.parent / "other", method="hash", params={"topology": object()})
    with refused(ParameterError, "waste", "inf", parameter="costs"):
        write_plan(PLAN, folder.parent / "other", method="hash", costs={"waste": float("inf")})
    space: Any = "planets"
    with refused(ParameterError, "flow_space", "planets", parameter="flow_space", value="planets"):
        write_plan(PLAN, folder.parent / "other", method="hash", flow_space=space)
    assert [path.name for path in folder.parent.iterdir()] == ["plan"]
    write_plan(ChannelPlan([[1]], [[1]]), folder, method="broadcast", replace=True)
    assert read_plan(folder)[1].method == "broadcast"


def change(folder: Path, **fields: Any) -> None:
    path = folder / "plan.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def put(folder: Path, name: str, **columns: Any) -> None:
    pq.write_table(pa.table(columns), folder / f"{name}.parquet")


def channels(folder: Path, **columns: Any) -> None:
    put(
        folder,
        "channels",
        **{"channel": [0, 1], "parent": [1, None], "rate": [1.0, 1.0], "members": [1, 1]} | columns,
    )


@pytest.mark.parametrize(
    ("spoil", "shown"),
    [
        (lambda f: (f / "plan.json").unlink(), ("plan.json",)),
        (
            lambda f: (f / "plan.json").write_text("{"),
            ("plan.json",),
        ),
        (lambda f: change(f, format=2), ("plan.json", "2", "1")),
        (lambda f: change(f, seed="x"), ("seed",)),
        (lambda f: change(f, created="2026-01-01T00:00:00"), ("created",)),
        (lambda f: change(f, channels=7), ("7", "channels.parquet", "1")),
        (lambda f: (f / "carries.parquet").unlink(), ("carries.parquet",)),
        (lambda f: (f / "listens.parquet").write_bytes(b"PAR"), ("listens.parquet",)),
        (lambda f: put(f, "carries", flow=[1]), ("carries.parquet", "channel", "flow")),
        (lambda f: put(f, "carries", flow=[1], channel=[2]), ("2", "0", "1")),
        (lambda f: put(f, "listens", subscriber=["a"], channel=[-1]), ("-1",)),
        (
            lambda f: put(f, "listens", subscriber=["a"], channel=["x"]),
            ("channel", "string"),
        ),
        (lambda f: put(f, "listens", subscriber=["a"], channel=[None]), ("channel", "1")),
        (lambda f: put(f, "carries", flow=[0.5], channel=[0]), ("flow", "double")),
        (lambda f: put(f, "unicast", subscriber=["a"], flow=["x"]), ("int64", "string")),
        (
            lambda f: channels(f, channel=[0, 2]),
            ("channels.parquet", "2", "0", "1"),
        ),
        (lambda f: channels(f, channel=[0, None]), ("channels.parquet", "channel", "1")),
        (lambda f: channels(f, parent=["1", None]), ("parent", "string")),
        (lambda f: channels(f, parent=[5, None]), ("0", "5")),
        (
            lambda f: put(f, "subscriptions", subscription_id=[3], channel=[7]),
            ("7", "3", "0", "1"),
        ),
        (
            lambda f: put(f, "subscriptions", subscription_id=[3], channel=[1]),
            ("1", "3"),
        ),
        (
            lambda f: put(f, "subscriptions", subscription_id=[3]),
            ("subscriptions.parquet", "channel", "subscription_id"),
        ),
        (
            lambda f: put(f, "subscriptions", subscription_id=[3, 3], channel=[0, 0]),
            ("3",),
        ),
    ],
)
def test_folders_that_cannot_be_read(folder: Path, spoil: Any, shown: tuple[str, ...]) -> None:
    spoil(folder)
    with refused(PlanError, *shown) as caught:
        read_plan(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_not_a_folder(tmp_path: Path) -> None:
    with refused(PlanError, tmp_path / "nothing"):
        read_plan(tmp_path / "nothing")


def test_rows_in_any_order(folder: Path) -> None:
    channels(folder, channel=[1, 0], parent=[None, 1])
    assert read_plan(folder)[0] == PLAN


def test_the_channel_of_each_subscription(tmp_path: Path) -> None:
    plan = ChannelPlan(
        [[1, 0], [0, 1]], [[1, 1], [0, 1]], subscriptions=Placement([8, 3, 5], [1, 0, 1]), flows=[4, 6]
    )
    write_plan(plan, tmp_path / "plan", method="direct", flow_space="events", params={"by": "subscription"})
    table = pq.read_table(tmp_path / "plan" / "subscriptions.parquet")
    assert table.to_pydict() == {"subscription_id": [3, 5, 8], "channel": [0, 1, 1]}
    assert table.schema.types == [pa.int64(), pa.int32()]
    again, _ = read_plan(tmp_path / "plan")
    assert again == plan
    assert again.subscriptions == plan.subscriptions
    # A plan without the table is a plan of whole subscribers.
    (tmp_path / "plan" / "subscriptions.parquet").unlink()
    whole, _ = read_plan(tmp_path / "plan")
    assert whole.subscriptions is None
    assert whole != plan


def test_cells_are_written_where_given_and_need_not_be_read(tmp_path: Path) -> None:
    cells = pa.table({"flow": [10, 20], "lo": [[0.0, 1.0], [2.0, 1.0]], "hi": [[2.0, 5.0], [4.0, 5.0]]})
    write_plan(PLAN, tmp_path / "plan", method="hash", flow_space="cells", cells=cells)
    assert pq.read_table(tmp_path / "plan" / "cells.parquet").equals(cells)
    plan, info = read_plan(tmp_path / "plan")
    assert (info.flow_space, plan.n_groups) == ("cells", PLAN.n_groups)
    write_plan(PLAN, tmp_path / "topics", method="hash")
    assert not (tmp_path / "topics" / "cells.parquet").exists()
