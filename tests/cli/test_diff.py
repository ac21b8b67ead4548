from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import typer
from typer.testing import CliRunner

from narrowcast import Hash, Interest
from narrowcast.cli.diff import diff
from narrowcast.errors import PlanError, TableError
from narrowcast.files import read_table
from narrowcast.model.artefact import write_plan
from narrowcast.model.diff import renumbered
from narrowcast.model.placement import Placement
from narrowcast.model.plan import ChannelPlan
from support.command import shows, table_of

if TYPE_CHECKING:
    from pathlib import Path

    from narrowcast.model.artefact import FlowSpace

app = typer.Typer(rich_markup_mode="markdown")
app.command()(diff)

FLOWS, SUBSCRIBERS = ["x", "y"], ["ann", "bob"]


@pytest.fixture
def plans(tmp_path: Path) -> list[str]:
    """Two plans that differ in the numbers of channels and in one direct pair."""
    first = ChannelPlan([[1, 0], [0, 1]], [[1, 0], [1, 1]], subscribers=SUBSCRIBERS, flows=FLOWS)
    second = ChannelPlan(
        [[0, 1], [1, 0]], [[0, 1], [1, 1]], None, [[0, 1], [0, 0]], subscribers=SUBSCRIBERS, flows=FLOWS
    )
    write_plan(first, tmp_path / "first", method="hash", costs={"waste": 8.0})
    write_plan(second, tmp_path / "second", method="per-flow", costs={"waste": 6.0, "filtering": 1.0})
    return [str(tmp_path / "first"), str(tmp_path / "second")]


def test_json_is_one_document(plans: list[str]) -> None:
    found = CliRunner().invoke(app, [*plans, "--json"])
    assert found.exit_code == 0
    assert json.loads(found.stdout) == {
        "channels": {"before": 2, "after": 2},
        "flows": {"moved": 2, "added": 0, "removed": 0},
        "subscribers": {"moved": 1, "added": 0, "removed": 0},
        "listens": {"added": 1, "dropped": 1},
        "unicast": {"added": 1, "dropped": 0},
        "regrouped": 0,
        "costs": {
            "filtering": {"before": None, "after": 1.0, "change_pct": None},
            "waste": {"before": 8.0, "after": 6.0, "change_pct": -25.0},
        },
        "subscriptions": None,
    }
    assert found.stderr == ""


def test_plans_with_a_channel_for_each_subscription(tmp_path: Path) -> None:
    names: dict[str, list[str]] = {"subscribers": SUBSCRIBERS, "flows": FLOWS}
    first = ChannelPlan(
        [[1, 0], [0, 1]], [[1, 1], [0, 1]], **names, subscriptions=Placement([1, 2, 3], [0, 1, 1])
    )
    second = ChannelPlan(
        [[0, 1], [1, 0]], [[1, 1], [1, 0]], **names, subscriptions=Placement([1, 2, 3], [1, 0, 0])
    )
    assert renumbered(second, first) == first
    write_plan(first, tmp_path / "first", method="direct", flow_space="events")
    write_plan(second, tmp_path / "second", method="direct", flow_space="events")
    words = [str(tmp_path / "first"), str(tmp_path / "second"), "--renumber", "--json"]
    found = json.loads(CliRunner().invoke(app, words).stdout)
    assert found["flows"]["moved"] == found["subscribers"]["moved"] == found["listens"]["added"] == 0
    assert found["subscriptions"] == {"moved": 0, "added": 0, "removed": 0, "which": []}


def test_which_subscriptions_moved(tmp_path: Path) -> None:
    """Ann listens to both channels before and after, and yet two of her subscriptions are elsewhere."""
    names: dict[str, list[str]] = {"subscribers": SUBSCRIBERS, "flows": FLOWS}
    carries = [[1, 0], [0, 1]]
    for name, listens, placed in (
        ("first", [[1, 1], [0, 1]], Placement([1, 2, 3, 4], [0, 1, 1, 0])),
        ("second", [[1, 1], [1, 0]], Placement([1, 2, 3, 5], [1, 0, 1, 0])),
        ("whole", [[1, 1], [1, 0]], None),
    ):
        plan = ChannelPlan(carries, listens, **names, subscriptions=placed)
        write_plan(plan, tmp_path / name, method="direct", flow_space="events")
    words = [str(tmp_path / "first"), str(tmp_path / "second")]
    found = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)["subscriptions"]
    assert (found["moved"], found["added"], found["removed"]) == (2, 1, 1)
    which = [(each["subscription_id"], each["before"], each["after"]) for each in found["which"]]
    assert which == [(1, 0, 1), (2, 1, 0), (4, 0, None), (5, None, 0)]
    rows = table_of(CliRunner().invoke(app, words).stdout)
    assert ["subscriptions", "", "", "2", "1", "1"] in rows
    assert [row for row in rows if row[0] in "1245"] == [
        *(["1", "0", "1"], ["2", "1", "0"], ["4", "0", "none"], ["5", "none", "0"])
    ]
    # A plan of whole subscribers does not say where a subscription is.
    both = [words[0], str(tmp_path / "whole")]
    for order in (both, both[::-1]):
        said = CliRunner().invoke(app, [*order, "--json"])
        assert json.loads(said.stdout)["subscriptions"] is None
        assert f"{tmp_path}/first assigns single subscriptions and {tmp_path}/whole whole" in said.stderr


def test_renumbering_shows_what_really_moved(plans: list[str]) -> None:
    found = json.loads(CliRunner().invoke(app, [*plans, "--renumber", "--json"]).stdout)
    assert found["flows"]["moved"] == found["subscribers"]["moved"] == found["listens"]["added"] == 0
    assert found["unicast"] == {"added": 1, "dropped": 0}


def test_the_table_says_the_same(plans: list[str]) -> None:
    found = CliRunner().invoke(app, plans)
    assert found.exit_code == 0
    rows = [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in found.stdout.splitlines()
        if "│" in line
    ]
    assert "hash to per-flow" in found.stdout
    assert ["channels", "2", "2", "", "", ""] in rows
    assert ["flows", "", "", "2", "0", "0"] in rows
    assert ["subscribers", "", "", "1", "0", "0"] in rows
    assert ["unicast pairs", "", "", "", "1", "0"] in rows
    assert ["waste", "8", "6", "-25.0 %"] in rows
    assert ["filtering", "", "1", ""] in rows


def test_help_has_an_example() -> None:
    found = CliRunner().invoke(app, ["--help"])
    assert found.exit_code == 0
    assert "narrowcast diff plans/monday plans/tuesday" in found.stdout


def test_bad_input(plans: list[str], tmp_path: Path) -> None:
    missing = CliRunner().invoke(app, [plans[0], str(tmp_path / "nothing")])
    assert isinstance(missing.exception, PlanError)
    assert "nothing: not a folder" in str(missing.exception)
    assert missing.stdout == ""
    (tmp_path / "second" / "listens.parquet").unlink()
    broken = CliRunner().invoke(app, plans)
    assert isinstance(broken.exception, PlanError)
    assert "listens.parquet" in str(broken.exception)
    assert CliRunner().invoke(app, [plans[0]]).exit_code == 2


def test_plans_of_other_inputs_are_told_of(tmp_path: Path) -> None:
    interest = Interest([[1, 1], [0, 1]])
    for name, print_ in (("a", "1"), ("b", "2")):
        write_plan(
            Hash(channels=1).fit(interest).plan_,
            tmp_path / name,
            method="hash",
            params={},
            seed=0,
            flow_space="topics",
            costs={},
            inputs={"events": print_},
        )
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    assert CliRunner().invoke(app, [a, a]).stderr == ""
    assert "different inputs (events): their costs do not compare" in CliRunner().invoke(app, [a, b]).stderr


@pytest.mark.parametrize(
    ("space", "params", "said"),
    [
        ("events", {"recent": 9}, "different inputs (recent): their"),
        ("events", {"last": 5}, "different inputs (recent, last): their"),
        ("events", {"window": "PT1H", "recent": 5}, "different inputs (window): their"),
        ("events", {"recent": 5, "channels": 9, "top": 4, "moves": 3}, ""),
        ("cells", {"recent": 5}, "different inputs (flows): their"),
    ],
)
def test_plans_of_other_events_of_the_same_tables(
    tmp_path: Path, space: FlowSpace, params: dict[str, Any], said: str
) -> None:
    plan = Hash(channels=1).fit(Interest([[1, 1], [0, 1]])).plan_
    inputs = {"events": "1"}
    write_plan(plan, tmp_path / "a", method="hash", flow_space="events", params={"recent": 5}, inputs=inputs)
    write_plan(plan, tmp_path / "b", method="hash", flow_space=space, params=params, inputs=inputs)
    found = CliRunner().invoke(app, [str(tmp_path / "a"), str(tmp_path / "b")]).stderr
    assert said in found
    assert bool(said) == bool(found)


def test_plans_of_another_number_of_events(tmp_path: Path) -> None:
    """The last 5 events that somebody wanted may be fewer, once others subscribe."""
    for name, wants in (("a", [[1, 1], [0, 1]]), ("b", [[1], [1]])):
        plan = Hash(channels=1).fit(Interest(wants)).plan_
        write_plan(plan, tmp_path / name, method="hash", flow_space="events", params={"recent": 5})
    found = CliRunner().invoke(app, [str(tmp_path / "a"), str(tmp_path / "b")])
    assert found.stderr == "the plans were made from different inputs: their costs do not compare\n"


def test_a_folder_with_a_plan_in_it_is_pointed_into(tmp_path: Path) -> None:
    (tmp_path / "out" / "plan").mkdir(parents=True)
    (tmp_path / "out" / "plan" / "plan.json").write_text("{}")
    found = CliRunner().invoke(app, [str(tmp_path / "out")] * 2)
    assert str(found.exception).endswith(
        f"out: not a plan, but contains one; give {tmp_path / 'out' / 'plan'}"
    )


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_the_way_is_written(plans: list[str], tmp_path: Path, ending: str) -> None:
    """Between these plans, numbered alike, one pair is sent directly from now on."""
    file = tmp_path / "new" / f"way.{ending}"
    found = CliRunner().invoke(app, [*plans, "--renumber", "--steps", str(file)])
    assert found.exit_code == 0
    [row] = read_table(file).to_pylist()
    assert (row["action"], row["subscriber"], row["flow"]) == ("directly", "ann", "y")
    assert [each.name for each in file.parent.iterdir()] == [file.name]


def test_the_way_is_not_written_over_anything(plans: list[str], tmp_path: Path) -> None:
    file = tmp_path / "way.csv"
    file.write_text("mine")
    found = CliRunner().invoke(app, [*plans, "--steps", str(file)])
    assert isinstance(found.exception, TableError)
    assert str(found.exception).endswith("way.csv exists already; name another file or remove it")
    assert file.read_text() == "mine"
    found = CliRunner().invoke(app, [*plans, "--steps", str(tmp_path / "way.xls")])
    assert "ends in '.xls'; use one of .parquet, .csv" in str(found.exception)


def test_a_limit_on_the_way(tmp_path: Path) -> None:
    one = ChannelPlan([[1, 0]], [[1, 0]], subscribers=["ann"], flows=["x"])
    two = ChannelPlan([[0, 1]], [[0, 1]], subscribers=["ann"], flows=["x"])
    for name, plan in (("a", one), ("b", two)):
        write_plan(plan, tmp_path / name, method="hash")
    plans = [str(tmp_path / "a"), str(tmp_path / "b")]
    for words, most in (([], 2), (["--memberships", "1"], 1)):
        file = tmp_path / f"way{most}.csv"
        found = CliRunner().invoke(app, [*plans, *words, "--json", "--steps", str(file)])
        assert json.loads(found.stdout)["memberships_on_the_way"] == most
        assert ("directly" in read_table(file)["action"].to_pylist()) == (most == 1)
    text = CliRunner().invoke(app, [*plans, "--steps", str(tmp_path / "way.csv")]).stdout
    assert text.endswith("during the migration: at most 2\n")
    wrong = CliRunner().invoke(app, [*plans, "--memberships", "1"])
    assert shows(str(wrong.exception), "--memberships 1 --steps")
