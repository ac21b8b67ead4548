"""`narrowcast explain`: an event, a subscriber and a channel, told from tables."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from narrowcast import Interest, Schema
from narrowcast.cli.app import app
from narrowcast.model.artefact import write_plan
from narrowcast.model.cells import CellGrid
from narrowcast.model.placement import Placement
from narrowcast.model.plan import ChannelPlan
from support.command import call, document, refusal, shows, table_of

if TYPE_CHECKING:
    from pathlib import Path

#: Who wants what: ann the lower prices, bob the upper ones of IBM, cid two things, dan what nobody can have.
FILTERS = [
    (1, "ann", "price <= 10"),
    (2, "bob", "price > 10 AND name = 'IBM'"),
    (3, "cid", "price > 5 AND price <= 15"),
    (4, "cid", "name = 'SAP' OR name IS NULL"),
    (5, "dan", "price > 20 AND price < 20"),
]
PEOPLE = ["ann", "bob", "cid", "dan"]


def add_filters(folder: Path, *more: tuple[int, str, str]) -> None:
    """Write the subscriptions, and more of them."""
    ids, names, texts = zip(*FILTERS, *more, strict=True)
    table = pa.table({"subscription_id": ids, "subscriber": names, "filter": texts})
    pq.write_table(table, folder / "s.parquet")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Tables, and plans of cells, of topics and of events."""
    add_filters(tmp_path)
    schema = Schema.of({"price": "int", "name": "string"})
    grid = CellGrid.equal(schema, {"price": (0, 20, 4)})
    lo, hi = grid.bounds(np.arange(4))
    ends = pa.table({"flow": np.arange(4), "lo": lo.tolist(), "hi": hi.tolist()})
    plan = ChannelPlan(
        [[1, 0], [1, 0], [0, 1], [0, 0]],
        [[1, 0], [0, 1], [1, 1], [0, 1]],
        unicast=[[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 0]],
        subscribers=PEOPLE,
        flows=[0, 1, 2, 3],
    )
    wants = Interest([[1, 1, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0]], [4.0, 3.0, 2.0, 1.0], PEOPLE)
    for name, space in (("cells", "cells"), ("events", "events")):
        params: dict[str, Any] = {"grid": grid.keys()} if space == "cells" else {}
        write_plan(
            plan,
            tmp_path / name,
            method="mst",
            params=params,
            flow_space=space,  # type: ignore[arg-type]
            interest=wants,
            cells=ends if space == "cells" else None,
        )
    topics = ChannelPlan(
        plan.carries, plan.listens, unicast=plan.unicast, subscribers=PEOPLE, flows=["w", "x", "y", "z"]
    )
    write_plan(topics, tmp_path / "topics", method="partial")
    who, flow = wants.wants.nonzero()
    pq.write_table(
        pa.table({"subscriber": np.array(PEOPLE)[who], "flow": np.array(["w", "x", "y", "z"])[flow]}),
        tmp_path / "i.parquet",
    )
    (tmp_path / "r.csv").write_text("flow,rate\nw,4\nx,3\ny,2\nz,1\n")
    (tmp_path / "t.csv").write_text("a,b,cost\nhub,ann,1\nhub,bob,1\nhub,cid,1\nhub,dan,1\nhub,far,10\n")
    (tmp_path / "e.csv").write_text("event_id,price,name\n" + "".join(f"{i},{i},IBM\n" for i in range(20)))
    return tmp_path


def of_event(folder: Path, event: dict[str, Any], *words: str | Path, plan: str = "cells") -> dict[str, Any]:
    given = ("--event", json.dumps(event), "--subscriptions", folder / "s.parquet")
    found, said = document("explain", folder / plan, *given, *words)
    assert said == ""
    return found


def test_an_event_in_a_cell(folder: Path) -> None:
    found = of_event(folder, {"price": 12, "name": "IBM"}, "--router", "channels")
    assert (found["flow_space"], found["router"], found["unit"]) == ("cells", "channels", "messages")
    # The types of the filters would do for whole prices; that the grid has integers the plan itself tells.
    assert (found["flow"], found["cell"], found["carried_by"]) == (2, {"price": [10.0, 15.0]}, [1])
    assert (found["interested"], found["first_interested"]) == (2, ["bob", "cid"])
    assert found["decision"]["chosen"] == {
        "way": "channel 1",
        "channels": [1],
        "unicast": 0,
        "cost": 3.0,
        "allowed": True,
    }
    assert (found["received"], found["wasted"], found["uninterested"], found["directly"]) == (3, 1, 1, 0)
    [dan] = found["subscribers"]
    assert (dan["subscriber"], dan["interested"], dan["gets_it"]) == ("dan", False, ["channel 1"])
    assert dan["filters"] == [
        {
            "subscription_id": 5,
            "filter": "price > 20 AND price < 20",
            "holds": False,
            "reason": None,
            "fails": [{"text": "price > 20", "holds": False, "values": {"price": 12}}],
        }
    ]


def test_an_event_for_one_subscriber(folder: Path) -> None:
    event = {"price": 12, "name": "IBM"}
    [cid] = of_event(folder, event, "--subscriber", "cid")["subscribers"]
    assert (cid["interested"], cid["gets_it"], cid["n_filters"]) == (True, ["channel 1"], 2)
    assert [(each["subscription_id"], each["holds"]) for each in cid["filters"]] == [(3, True), (4, False)]
    assert [each["text"] for each in cid["filters"][1]["fails"]] == ["name = 'SAP'", "name IS NULL"]
    [ann] = of_event(folder, event, "--subscriber", "ann")["subscribers"]
    assert (ann["interested"], ann["gets_it"]) == (False, [])
    assert ann["filters"][0]["fails"] == [{"text": "price <= 10", "holds": False, "values": {"price": 12}}]


def test_an_event_for_the_sake_of_a_subscription(folder: Path) -> None:
    """Cid's two subscriptions are in two clusters: an event goes to that of the one that it matches."""
    plan = ChannelPlan(
        np.ones((1, 3)),
        [[1, 0, 0], [0, 1, 0], [1, 0, 1], [0, 0, 1]],
        subscribers=PEOPLE,
        subscriptions=Placement([1, 2, 3, 4, 5], [0, 1, 0, 2, 2]),
    )
    write_plan(plan, folder / "finer", method="direct", flow_space="events")
    add_filters(folder, (6, "cid", "price = 12"), (7, "eve", "price = 13"))
    words = ("--router", "channels")
    found = of_event(folder, {"price": 7, "name": "IBM"}, *words, plan="finer")
    assert found["matched"] == [{"subscription_id": 1, "channel": 0}, {"subscription_id": 3, "channel": 0}]
    assert (found["carried_by"], found["received"], found["wasted"]) == ([0], 2, 0)
    assert found["decision"]["chosen"]["way"] == "channel 0"
    found = of_event(folder, {"price": 30, "name": "SAP"}, *words, plan="finer")
    assert found["matched"] == [{"subscription_id": 4, "channel": 2}]
    assert (found["carried_by"], found["uninterested"]) == ([2], 1)
    # A subscription that the plan lacks has no channel; its subscriber may be reached all the same.
    found = of_event(folder, {"price": 12, "name": "IBM"}, *words, plan="finer")
    assert found["matched"][-1] == {"subscription_id": 6, "channel": None}
    assert (found["carried_by"], found["directly"], found["interested"]) == ([0, 1], 0, 2)
    found = of_event(folder, {"price": 13, "name": "x"}, *words, plan="finer")
    assert (found["carried_by"], found["first_directly"]) == ([0], ["eve"])
    whole = of_event(folder, {"price": 7, "name": "IBM"}, *words, plan="events")
    assert (whole["matched"], whole["n_matched"], whole["carried_by"]) == (None, 2, None)
    text = call(
        "explain", folder / "finer", "--event", '{"price": 30, "name": "SAP"}',
        "--subscriptions", folder / "s.parquet", *words,
    )  # fmt: skip
    rows = table_of(text.stdout)
    assert ["carried by", "channel 2"] in rows
    assert ["matching", "1 subscription: 4 in channel 2"] in rows


def test_which_subscription_is_in_which_cluster(folder: Path) -> None:
    plan = ChannelPlan(
        np.ones((1, 3)),
        [[1, 0, 0], [0, 1, 0], [1, 0, 1], [0, 0, 1]],
        subscribers=PEOPLE,
        subscriptions=Placement([1, 2, 3, 4, 5], [0, 1, 0, 2, 2]),
    )
    write_plan(plan, folder / "finer", method="direct", flow_space="events")
    add_filters(folder, (0, "cid", "price = 12"))
    words = ("explain", folder / "finer", "--subscriber", "cid")
    given = ("--subscriptions", folder / "s.parquet")
    found, _ = document(*words, *given)
    assert found["n_subscriptions"] == 3
    assert [(each["subscription_id"], each["channel"]) for each in found["subscriptions"]] == [
        *((3, 0), (4, 2), (0, None))
    ]
    assert found["subscriptions"][0]["filter"] == "price > 5 AND price <= 15"
    assert ["4", "2", "name = 'SAP' OR name IS NULL"] in table_of(call(*words, *given).stdout)
    assert ["... and 2 more", "", ""] in table_of(call(*words, *given, "--rows", "1").stdout)
    # Whose subscriptions they are is not in the plan.
    alone, _ = document(*words)
    assert (alone["n_subscriptions"], alone["subscriptions"]) == (None, [])
    assert ["subscriptions", "unknown: give --subscriptions"] in table_of(call(*words).stdout)
    channel, _ = document("explain", folder / "finer", "--channel", "2")
    assert (channel["subscriptions"], channel["first_subscriptions"]) == (2, [4, 5])
    shown = table_of(call("explain", folder / "finer", "--channel", "2").stdout)
    assert ["subscriptions", "2: 4, 5"] in shown
    whole, _ = document("explain", folder / "events", "--subscriber", "cid", *given)
    assert "subscriptions" not in whole


def test_what_an_event_lacks_is_null(folder: Path) -> None:
    found = of_event(folder, {}, "--subscriber", "bob")
    assert (found["flow"], found["cell"]) == (0, {"price": [None, 5.0]})  # where null falls
    assert found["first_interested"] == ["cid"]
    assert found["subscribers"][0]["filters"][0]["fails"] == [
        {"text": "price > 10", "holds": None, "values": {"price": None}},
        {"text": "name = 'IBM'", "holds": None, "values": {"name": None}},
    ]


def test_those_whom_the_plan_lacks_are_sent_to_directly(folder: Path) -> None:
    add_filters(folder, (6, "eve", "price = 12"), (7, "fay", "price = 1"))
    event = {"price": 12, "name": "IBM"}
    found = of_event(folder, event, "--router", "channels")
    assert (found["interested"], found["directly"], found["first_directly"]) == (3, 1, ["eve"])
    assert found["decision"]["chosen"]["way"] == "channel 1 + unicast"
    [eve] = of_event(folder, event, "--subscriber", "eve")["subscribers"]
    assert (eve["gets_it"], eve["filters"][0]["holds"]) == (["directly"], True)
    [fay] = of_event(folder, event, "--subscriber", "fay")["subscribers"]
    assert (fay["gets_it"], fay["filters"][0]["fails"][0]["text"]) == ([], "price = 1")


def test_routers_and_their_parameters(folder: Path) -> None:
    event = {"price": 12, "name": "IBM"}
    high = of_event(folder, event, "--set", "threshold=0.9")["decision"]
    assert (high["chosen"]["way"], high["threshold"], high["share"]) == ("unicast", 0.9, pytest.approx(2 / 3))
    assert high["why"].endswith("2 of 3, and it is used from 90 % on")
    low = of_event(folder, event, "--set", "threshold=0.15")["decision"]
    assert low["chosen"]["way"] == "channel 1"
    exact = of_event(folder, event, "--router", "exact")["decision"]
    assert (exact["chosen"]["way"], exact["why"]) == (
        "unicast",
        "channel 1 costs 3, and unicast 2",
    )
    assert of_event(folder, event, "--router", "partial")["decision"]["chosen"]["way"] == "unicast"


def test_costs_on_a_network(folder: Path) -> None:
    words = ("--topology", folder / "t.csv", "--publisher", "far")
    found = of_event(folder, {"price": 12, "name": "IBM"}, *words)
    assert found["unit"] == "cost of links"
    ways = {way["way"]: way["cost"] for way in found["decision"]["ways"]}
    assert ways == {"unicast": 22.0, "channel 1": 13.0, "broadcast": 14.0, "ideal": 12.0}
    assert found["decision"]["chosen"]["way"] == "channel 1"
    assert 0 < found["decision"]["break_even"] < 2 / 3
    locations = folder / "l.csv"
    locations.write_text("subscriber,node\nann,far\nbob,far\ncid,far\ndan,far\n")
    here = of_event(folder, {"price": 12, "name": "IBM"}, *words, "--locations", locations)
    assert {way["cost"] for way in here["decision"]["ways"] if way["way"] != "broadcast"} == {0.0}


def test_an_event_of_a_topic(folder: Path) -> None:
    given = ("--interests", folder / "i.parquet")
    found, _ = document("explain", folder / "topics", "--event", '{"flow": "y"}', *given)
    assert found["router"] == "partial"  # as the plan's method
    assert (found["flow"], found["cell"], found["carried_by"]) == ("y", None, [1])
    assert (found["interested"], found["decision"]["chosen"]["way"]) == (2, "unicast")
    words = ("--router", "channels", "--flow", "Topic", *given)
    other, _ = document("explain", folder / "topics", "--event", '{"topic": "y"}', *words)
    assert (other["received"], other["wasted"]) == (3, 1)
    assert other["subscribers"] == [{"subscriber": "dan", "interested": False, "gets_it": ["channel 1"]}]
    nobody, _ = document("explain", folder / "topics", "--event", '{"flow": "no"}', *given)
    assert (nobody["carried_by"], nobody["interested"]) == ([], 0)
    assert nobody["decision"]["why"] == "no subscriber is interested"


def test_an_event_that_goes_to_everybody(folder: Path) -> None:
    words = ("--interests", folder / "i.parquet", "--topology", folder / "t.csv", "--publisher", "far")
    given = ("--event", '{"flow": "z"}', "--router", "exact", "--set", "broadcast=true")
    found, _ = document("explain", folder / "topics", *given, *words)
    assert (found["carried_by"], found["first_interested"]) == ([], ["bob", "cid"])
    assert (found["decision"]["method"], found["decision"]["chosen"]["cost"]) == ("broadcast", 14.0)
    assert found["decision"]["why"] == "a broadcast costs 14, and the next best, unicast, 22"
    assert (found["received"], found["wasted"]) == (4, 2)
    assert [(each["subscriber"], each["gets_it"]) for each in found["subscribers"]] == [
        ("ann", ["broadcast"]),
        ("dan", ["broadcast"]),
    ]


def test_a_plan_of_events_may_use_any_channel(folder: Path) -> None:
    found = of_event(folder, {"price": 12, "name": "IBM"}, "--router", "channels", plan="events")
    assert (found["flow"], found["carried_by"]) == (None, None)
    assert found["decision"]["chosen"]["channels"] == [0, 1]
    # cid hears both channels.
    assert (found["received"], found["wasted"], found["uninterested"]) == (5, 3, 2)


def test_an_event_without_a_value_falls_in_the_cell_that_is_open_below(folder: Path) -> None:
    words = ("--event", '{"name": "IBM"}', "--subscriptions", folder / "s.parquet")
    found = call("explain", folder / "cells", *words)
    assert ["cell", "0: null or price <= 5"] in table_of(found.stdout)


def test_an_attribute_that_nobody_looks_at_is_told(folder: Path) -> None:
    words = ("explain", folder / "cells", "--subscriptions", folder / "s.parquet", "--event")
    found, said = document(*words, '{"price": 3, "colour": "red"}')
    assert (found["flow"], found["first_interested"]) == (0, ["ann", "cid"])
    assert shows(said, "--event 'colour' price, name\n")
    typed = (*words, '{"price": 3, "colour": "red"}', "--events", folder / "e.csv")
    assert shows(refusal(*typed), "--event 'colour'")


def test_a_channel_to_everybody_is_a_channel(folder: Path) -> None:
    plan = ChannelPlan([[1]], [[1]] * 4, subscribers=PEOPLE, flows=["w"])
    write_plan(plan, folder / "one", method="broadcast")
    words = ("--event", '{"flow": "w"}', "--interests", folder / "i.parquet")
    found, _ = document("explain", folder / "one", *words)
    assert (found["decision"]["method"], found["decision"]["chosen"]["way"]) == ("channel", "channel 0")


def test_an_event_from_a_file_or_standard_input(folder: Path) -> None:
    (folder / "e.json").write_text('{"price": 3}\n')
    words = ("--subscriptions", folder / "s.parquet")
    found, _ = document("explain", folder / "cells", "--event", f"@{folder / 'e.json'}", *words)
    assert found["flow"] == 0
    command = ["explain", str(folder / "cells"), "--event", "-", *map(str, words), "--json"]
    piped = CliRunner().invoke(app, command, input='{"price": 7}')
    assert json.loads(piped.stdout)["flow"] == 1


def test_a_subscriber(folder: Path) -> None:
    alone, _ = document("explain", folder / "cells", "--subscriber", "cid")
    assert (alone["in_plan"], alone["flows_over_channels"], alone["first_directly"]) == (True, 3, [3])
    assert [(each["channel"], each["flows"], each["rate"]) for each in alone["channels"]] == [
        (0, 2, 7.0),
        (1, 1, 2.0),
    ]
    assert "wants" not in alone
    words = ("--interests", folder / "i.parquet", "--rates", folder / "r.csv")
    dan, _ = document("explain", folder / "topics", "--subscriber", "dan", *words)
    assert (dan["wants"], dan["received"], dan["wasted"], dan["alike"]) == (0, 2.0, 2.0, False)
    cid, _ = document("explain", folder / "topics", "--subscriber", "cid", *words)
    assert (cid["wants"], cid["wants_over_channels"], cid["wants_directly"], cid["wasted"]) == (4, 3, 1, 0.0)
    assert cid["wants_missed"] == 0


def test_a_subscriber_by_filters_and_events(folder: Path) -> None:
    words = ("--subscriptions", folder / "s.parquet", "--events", folder / "e.csv")
    found, _ = document("explain", folder / "cells", "--subscriber", "ann", *words)
    # Prices 0 to 19: six of them in the first cell, five in the second.
    assert (found["wants"], found["wanted_rate"]) == (2, pytest.approx(11 / 20))
    assert (found["received"], found["wasted"]) == (pytest.approx(11 / 20), 0.0)
    bob, _ = document("explain", folder / "cells", "--subscriber", "bob", *words)
    assert (bob["wants"], bob["wants_over_channels"], bob["wants_directly"]) == (2, 1, 1)


def test_a_channel(folder: Path) -> None:
    alone, _ = document("explain", folder / "cells", "--channel", "1")
    assert (alone["flows"], alone["members"], alone["rate"], alone["parent"]) == (1, 3, 2.0, None)
    assert alone["heaviest_flows"] == [{"flow": 2, "cell": {"price": [10.0, 15.0]}}]
    words = ("--interests", folder / "i.parquet", "--rates", folder / "r.csv")
    found, _ = document("explain", folder / "topics", "--channel", "1", *words)
    assert (found["rate"], found["delivered"], found["wasted"]) == (2.0, 6.0, 2.0)
    assert found["most_wasted_flow"] == {"flow": "y", "wanted_by": 2, "wasted": 2.0}
    assert found["most_wasted_member"] == {"subscriber": "dan", "wanted": 0.0, "wasted": 2.0}
    full, _ = document("explain", folder / "topics", "--channel", "0", *words)
    assert (full["wasted"], full["most_wasted_flow"], full["most_wasted_member"]) == (0.0, None, None)
    assert [each["flow"] for each in full["heaviest_flows"]] == ["w", "x"]


def test_the_tables_say_the_same(folder: Path) -> None:
    words = ("--subscriptions", folder / "s.parquet")
    found = call("explain", folder / "cells", "--event", '{"price": 12, "name": "IBM"}', *words)
    assert found.exit_code == 0, found.exception
    rows = table_of(found.stdout)
    assert ["cell", "2: 10 < price <= 15"] in rows
    assert ["interested", "2: bob, cid"] in rows
    assert ["channel 1", "3", "0", "chosen"] in rows
    assert ["unicast", "2", "2", "possible"] in rows
    assert ["dan: price > 20 (price is 12)", "5", "channel 1"] in rows
    assert "1 uninterested subscribers receive it" in found.stdout
    assert "It goes by channel 1: 66.67 % of the members of channel 1 are interested" in found.stdout
    one = call("explain", folder / "cells", "--event", '{"price": 2}', "--subscriber", "ann", *words).stdout
    assert ["ann: nothing", "1", "channel 0"] in table_of(one)
    given = ("--interests", folder / "i.parquet")
    who = table_of(call("explain", folder / "topics", "--subscriber", "dan", *given).stdout)
    assert ["1", "1", "3", "1", "0", "1"] in who
    assert ["rates", "unknown: each flow counts 1"] in who
    what = table_of(call("explain", folder / "topics", "--channel", "1", *given).stdout)
    assert ["... wasted", "1 (33.33 %)"] in what
    assert ["y", "1", "2", "1"] in what
    bare = table_of(call("explain", folder / "cells", "--channel", "0").stdout)
    assert ["wasted", "unknown: give --subscriptions and --events"] in bare
    assert ["1: 5 < price <= 10"] in bare


def test_bad_filters_are_counted_and_named(folder: Path) -> None:
    add_filters(folder, (6, "dan", "price >"), (1, "dan", "price = 12"))
    found = of_event(folder, {"price": 12, "name": "IBM"}, "--subscriber", "dan")
    assert found["rejected"] == 2
    reasons = [each["reason"] for each in found["subscribers"][0]["filters"]]
    assert reasons[0] is None
    assert reasons[1].startswith("does not parse")
    assert reasons[2].startswith("subscription_id 1 is used by an earlier row")


def test_types_that_do_not_fit_the_cells(folder: Path) -> None:
    types = folder / "types.json"
    types.write_text('{"price": "double", "name": "string"}')
    words = ("--event", '{"price": 1.5}', "--subscriptions", folder / "s.parquet")
    assert "attribute 'price' of type double: does not fit the cells of" in refusal(
        "explain", folder / "cells", *words, "--schema", types
    )
    types.write_text('{"price": "int", "name": "string"}')
    assert "attribute 'price'=1.5: must be int" in refusal(
        "explain", folder / "cells", *words, "--schema", types
    )


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ([], "--event, --subscriber --channel"),
        (["--channel", "1", "--subscriber", "ann"], "channel"),
        (["--channel", "1", "--event", "{}"], "channel"),
        (["--channel", "2"], "channel 2"),
        (["--channel", "-1"], "channel -1 1"),
        (["--subscriber", "annn"], "subscriber annn"),
        (["--subscriber", "?"], "subscriber ann bob cid"),
        (["--event", "[1]"], "event [1"),
        (["--event", "{"], "event"),
        (["--event", "@nothing.json"], "event nothing.json"),
        (["--event", "{}"], "event"),
        (["--event", "{}", "--router", "treshold"], "router treshold"),
        (["--event", "{}", "--router", "exact", "--set", "threshold=1"], "threshold=1 exact"),
        (["--event", "{}", "--set", "threshold=much"], "threshold much"),
        (["--event", "{}", "--set", "network=1"], "network threshold"),
        (["--event", "{}", "--publisher", "far"], "publisher"),
        (["--event", "{}", "--schema", "a", "--events", "b"], "schema events"),
        (["--event", '{"prise": 3}'], "event prise"),
        (
            ["--event", "{}", "--flow", "x"],
            "flow",
        ),
        (
            ["--channel", "1", "--router", "exact"],
            "router",
        ),
        (["--subscriber", "ann", "--topology", "t"], "topology"),
    ],
)
def test_bad_words(folder: Path, words: list[str], shown: str) -> None:
    assert shows(refusal("explain", folder / "cells", *words), shown)


def test_attributes_that_events_lack(folder: Path, tmp_path: Path) -> None:
    types = tmp_path / "types.json"
    types.write_text('{"price": "int", "name": "string", "volume": "int"}')
    words = ("explain", folder / "cells", "--subscriptions", folder / "s.parquet", "--event")
    said = refusal(*words, '{"price": 1, "venue": "x"}', "--schema", types)
    assert shows(said, "--event 'venue' price, name, volume")
    document(*words, '{"price": 1, "venue": "x"}')  # filters alone do not tell what events have
    document(*words, '{"PRICE": 1, "event_id": 7}', "--schema", types)


def test_bad_input(folder: Path) -> None:
    assert str(folder / "nope") in refusal("explain", folder / "nope", "--channel", "1")
    event = ("--event", '{"price": 12}', "--subscriptions", folder / "s.parquet")
    assert "unknown subscriber 'x'" in refusal("explain", folder / "cells", *event, "--subscriber", "x")
    words = ("--topology", folder / "t.csv", "--publisher", "nowhere")
    assert "unknown node 'nowhere'" in refusal("explain", folder / "cells", *event, *words)
    assert "flow='flow': must be the attribute" in refusal("explain", folder / "topics", *event)
    assert "must be given together with interests" in refusal(
        "explain", folder / "topics", "--channel", "1", "--rates", folder / "r.csv"
    )
    odd = ChannelPlan([[1]], [[1]])
    write_plan(odd, folder / "ranges", method="kd", flow_space="ranges")
    assert "ranges for partitioning" in refusal("explain", folder / "ranges", "--channel", "0")
    write_plan(odd, folder / "gridless", method="mst", flow_space="cells")
    assert "the plan of cells has no grid" in refusal("explain", folder / "gridless", *event)
    write_plan(odd, folder / "numbers", method="mst")
    assert "unknown subscriber 'ann'; known: integers from 0 to 0" in refusal(
        "explain", folder / "numbers", "--subscriber", "ann"
    )
    assert "labels of type string do not fit the plan, which has int64" in refusal(
        "explain", folder / "numbers", "--channel", "0", "--interests", folder / "i.parquet"
    )


def test_help_has_examples() -> None:
    found = call("explain", "--help")
    assert found.exit_code == 0
    assert "narrowcast explain plan --channel 3" in found.stdout
