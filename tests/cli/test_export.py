from __future__ import annotations

import asyncio
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from narrowcast.model.artefact import write_plan
from narrowcast.model.placement import Placement
from narrowcast.model.plan import ChannelPlan
from support.command import call, document, refusal, shows
from support.nats import SERVER, nats_server

if TYPE_CHECKING:
    from pathlib import Path

    from nats.aio.client import Client
    from nats.aio.msg import Msg

FLOWS = ["ticks.us.A", "ticks.us.B", "it's/é#,:=", "12", "true", "include", "direct"]


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """Two groups with three sessions, and one flow that is sent directly."""
    session = [2, 3, 4, 2, 3, 4, None]
    carries = [[int(channel == each) for channel in range(5)] for each in session]
    write_plan(
        ChannelPlan(
            carries,
            [[0, 0, 1, 0, 1], [0, 0, 0, 1, 0]],
            [-1, -1, 0, 0, 1],
            [[0] * 7, [0, 0, 0, 0, 0, 0, 1]],
            ["ann", "bob"],
            FLOWS,
        ),
        tmp_path / "plan",
        method="hash",
    )
    return tmp_path / "plan"


def test_a_real_server_leads_topics_to_channels(plan: Path, tmp_path: Path) -> None:
    for i, options in enumerate(([], ["--keep-topic"], ["--encode"], ["--encode", "--keep-topic"])):
        out = tmp_path / f"out-{i}"
        assert call("export", plan, "--to", "nats", "--out", out, *options).exit_code == 0
        checked = subprocess.run(
            [SERVER, "-t", "-c", out / "mappings.conf"], capture_output=True, text=True, check=False
        )
        assert checked.returncode == 0, checked.stderr
    led = {"ticks.us.A": 2, "ticks.us.B": 3, "it's/é#,:=": 4, "12": 2, "true": 3, "include": 4}
    home = tmp_path / "server"
    home.mkdir()
    shutil.copy(tmp_path / "out-0" / "mappings.conf", home)
    with nats_server(home, "include mappings.conf", jetstream=False) as server:
        got: dict[str, str] = {}

        async def sent(client: Client, _: object) -> None:
            done = asyncio.Event()

            async def take(message: Msg) -> None:
                got[message.data.decode()] = message.subject
                if len(got) == len(FLOWS):
                    done.set()

            await client.subscribe(">", cb=take)
            for flow in FLOWS:
                await client.publish(flow, flow.encode())
            await asyncio.wait_for(done.wait(), 30)

        server.ask(sent)
    assert got == {flow: f"narrowcast.channel.{n}" for flow, n in led.items()} | {
        "direct": "narrowcast.to.bob"
    }


def test_listeners_see_the_topics_that_are_kept(plan: Path, tmp_path: Path) -> None:
    home = tmp_path / "server"
    found, _ = document(
        "export", plan, "--to", "nats", "--keep-topic", "--encode", "--prefix", "p", "--out", home
    )
    assert found["files"]["mappings.conf"] == len(FLOWS) + 3
    with nats_server(home, "include mappings.conf", jetstream=False) as server:

        async def sent(client: Client, _: object) -> list[str]:
            ann = await client.subscribe("p.channel.2.>")
            for word in ("ticks%2Eus%2EB", "ticks%2Eus%2EA", "12"):
                await client.publish(f"p.flow.{word}", b"")
            return [(await ann.next_msg(30)).subject for _ in range(2)]

        assert server.ask(sent) == ["p.channel.2.ticks%2Eus%2EA", "p.channel.2.12"]


def test_facts_and_files(plan: Path, tmp_path: Path) -> None:
    out = tmp_path / "made" / "tables"
    found, said = document("export", plan, "--to", "multicast", "--port-per-session", "--out", out)
    assert said == ""
    assert found == {
        "command": "export",
        "to": "multicast",
        "out": str(out),
        "flow_space": "topics",
        "groups": 2,
        "sessions": 3,
        "flows": 7,
        "subscribers": 2,
        "unicast": 1,
        "files": {"sessions.csv": 3, "groups.csv": 2, "flows.csv": 6, "subscribers.csv": 3, "unicast.csv": 1},
    }
    assert sorted(path.name for path in out.iterdir()) == sorted(found["files"])
    assert (out / "unicast.csv").read_text() == '"subscriber","flow"\n"bob","direct"\n'
    # Without a folder the document tells what there would be, and nothing is written.
    dry, _ = document("export", plan, "--to", "csv")
    assert dry["out"] is None
    assert dry["files"] == {"carries.csv": 6, "listens.csv": 3, "channels.csv": 5, "unicast.csv": 1}


def test_a_channel_for_each_subscription(tmp_path: Path) -> None:
    plan = ChannelPlan(
        [[1, 0], [0, 1]], [[1, 1], [0, 1]], flows=[5, 6], subscriptions=Placement([9, 8, 7], [0, 1, 1])
    )
    write_plan(plan, tmp_path / "plan", method="direct", flow_space="events")
    found, _ = document("export", tmp_path / "plan", "--to", "csv", "--out", tmp_path / "tables")
    assert found["files"]["subscriptions.csv"] == 3
    text = (tmp_path / "tables" / "subscriptions.csv").read_text()
    assert text == '"subscription_id","channel"\n7,1\n8,1\n9,0\n'
    found, _ = document("export", tmp_path / "plan", "--to", "multicast")
    assert (found["groups"], found["subscribers"], found["files"]["subscribers.csv"]) == (2, 2, 3)


def test_one_table_is_printed(plan: Path) -> None:
    found = call("export", plan, "--to", "multicast")
    assert found.exit_code == 0
    assert found.stdout == (
        '"address","port","session","group","rate","members"\n'
        '"239.192.0.0",5000,2,0,,1\n"239.192.0.0",5000,3,0,,1\n"239.192.0.1",5000,4,1,,1\n'
    )
    assert found.stderr == (
        "not printed: groups, flows, subscribers, unicast; --table NAME prints one, --out DIR writes all\n"
    )
    other = call("export", plan, "--to", "csv", "--table", "unicast")
    assert other.stdout == '"subscriber","flow"\n"bob","direct"\n'
    assert other.stderr == ""
    text = call("export", plan, "--to", "nats").stdout
    assert text.startswith("# Maps each topic to its channel.")
    assert '  "direct": "narrowcast.to.bob"\n' in text


def test_files_are_told_of(plan: Path, tmp_path: Path) -> None:
    found = call("export", plan, "--to", "nats", "--out", tmp_path / "out")
    assert found.stdout.splitlines()[:2] == [
        f"{tmp_path}/out/mappings.conf: 10 lines",
        f"{tmp_path}/out/flows.csv: 6 rows",
    ]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--to", "kafka"], "--to='kafka' multicast nats csv"),
        (["--to", "multicast", "--base", "10.0.0.0/8"], "base 10.0.0.0/8"),
        (
            ["--to", "multicast", "--base", "239.1.1.1/32"],
            "base 1 2",
        ),
        (
            ["--to", "multicast", "--base", "239.1.1.1/32"],
            "base 239.1.1.0/31",
        ),
        (["--to", "multicast", "--port", "70000"], "port 70000 65535"),
        (
            ["--to", "nats", "--base", "239.0.0.0/8"],
            "--base multicast",
        ),
        (["--to", "csv", "--no-mappings"], "--no-mappings nats"),
        (["--to", "nats", "--prefix", "a b"], "prefix 'a b'"),
        (["--to", "csv", "--table", "flows"], "'flows' carries listens channels unicast"),
        (["--to", "csv", "--table", "carries", "--json"], "--table --json"),
    ],
)
def test_bad_input(plan: Path, words: list[str], reason: str) -> None:
    assert shows(refusal("export", plan, *words), reason)


def test_bad_places(plan: Path, tmp_path: Path) -> None:
    assert "nothing" in refusal("export", tmp_path / "nothing", "--to", "csv")
    (tmp_path / "there").mkdir()
    assert "there" in refusal("export", plan, "--to", "csv", "--out", tmp_path / "there")
    assert list((tmp_path / "there").iterdir()) == []
    assert call("export", plan).exit_code == 2
    refused = refusal("export", plan, "--to", "nats", "--prefix", "ticks", "--out", tmp_path / "none")
    assert "ticks" in refused
    assert not (tmp_path / "none").exists()


def test_groups_to_avoid_are_joined_by_commas(plan: Path) -> None:
    words: list[str | Path] = ["export", plan, "--to", "multicast", "--table", "groups"]
    both = call(*words, "--avoid", "224.64.0.0,224.64.0.1")
    assert both.stdout == call(*words, "--avoid", "224.64.0.0", "--avoid", "224.64.0.1").stdout
    assert '"239.192.0.2"' in both.stdout
    assert '"239.192.0.0"' not in both.stdout
