"""A live broker as people run it: three commands in three terminals."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import narrowcast as nc
from support.cluster import until
from support.command import outcome, refusal, shows
from support.live import NARROWCAST, line_with, running

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.nats


def published(url: str, *events: str) -> subprocess.CompletedProcess[str]:
    words: list[str | Path] = [NARROWCAST, "publish", "--nats", url, "-", "--json"]
    lines = "\n".join(events) + "\n"
    return subprocess.run(words, input=lines, capture_output=True, text=True, check=False, timeout=60)


def test_three_terminals(tmp_path: Path) -> None:
    table = {"subscriber": ["ann", "bob", "bob"], "filter": ["price > 75", "name = 'IBM'", "name ="]}
    pq.write_table(pa.table(table), tmp_path / "s.parquet")
    interest = nc.Interest([[1, 0, 1], [0, 1, 1]], subscribers=["ann", "bob"])
    made = nc.Broadcast().fit(interest).plan_
    others = nc.Broadcast().fit(nc.Interest([[1], [1]], subscribers=["x", "y"])).plan_
    for name, plan in (("plan", made), ("other", nc.Unicast().fit(interest).plan_), ("strange", others)):
        nc.write_plan(plan, tmp_path / name, method="broadcast", flow_space="events")
    with ExitStack() as stack:
        files: list[str | Path] = [
            "--subscriptions",
            tmp_path / "s.parquet",
            "--plan",
            tmp_path / "plan",
            "--data",
            tmp_path / "data",
        ]
        broker = stack.enter_context(running("serve", "--port", "0", "--http", "127.0.0.1:0", *files))
        assert "1 bad rows of" in line_with(broker, "rows of")
        said = line_with(broker, "serving at")
        assert "2 subscriptions" in said
        url = re.findall(r"nats://\S+?:\d+", said)[0]
        ann = stack.enter_context(
            running(
                "subscribe", "--nats", url, "--subscriber", "ann", "--filter", "price < 10", "--count", "3"
            )
        )
        line_with(ann, "subscribed")
        cloud = {
            "specversion": "1.0",
            "id": "1",
            "source": "/x",
            "type": "t",
            "data": {"price": 99, "name": "SAP"},
        }
        events = ['{"price": 80, "name": "IBM"}', '{"price": 50}', '{"price": 5.5}', "", json.dumps(cloud)]
        done = published(url, *events)
        assert (done.returncode, json.loads(done.stdout)) == (0, {"command": "publish", "events": 4})
        out, _ = ann.communicate(timeout=30)
        assert out.splitlines() == [events[0], events[2], events[4]]
        assert ann.returncode == 0
        api = re.findall(r"http://\S+?:\d+", said)[0]
        assert httpx.get(f"{api}/health").json()["events"] == 4
        moved = subprocess.run(
            [NARROWCAST, "rollout", tmp_path / "other", "--nats", url, "--json"],
            capture_output=True,
            check=True,
        )
        epoch = httpx.get(f"{api}/health").json()["epoch"]
        assert epoch > 1_000_000_000  # no plan of an earlier start has it
        assert json.loads(moved.stdout) | {"plan": ""} == {
            "command": "rollout", "epoch": epoch, "plan": "", "listening": 0
        }  # fmt: skip
        odd = subprocess.run(
            [NARROWCAST, "rollout", tmp_path / "strange", "--nats", url],
            capture_output=True,
            text=True,
            check=False,
        )
        assert odd.returncode == 2
        assert "none of its 2 subscribers subscribes here" in odd.stderr
        bad = published(url, '{"price": 1}', "[1]")
        assert bad.returncode == 2
        assert bad.stderr.startswith("narrowcast: line 2 of -: ")
        broker.send_signal(signal.SIGTERM)
        _, err = broker.communicate(timeout=30)
        assert broker.returncode == 0
        assert "5 events, " in err
        assert "is in use" in err
        assert "warning: " in err


@pytest.mark.slow
def test_a_reader_that_leaves_and_a_server_that_dies(tmp_path: Path) -> None:
    with running("serve", "--port", "0", "--http", "127.0.0.1:0", "--data", tmp_path) as broker:
        api = re.findall(r"http://\S+?:\d+", line_with(broker, "serving at"))[0]
        wanted = {"subscriber": "ann", "filter": "price > 1"}
        assert httpx.post(f"{api}/subscriptions", json=wanted, timeout=30).status_code == 201
        for _ in range(3):
            with httpx.stream("GET", f"{api}/subscribers/ann/events", timeout=30) as stream:
                body = b'{"price":  2.50}'
                assert httpx.post(f"{api}/events", content=body, timeout=30).status_code == 202
                assert next(stream.iter_lines()) == body.decode()  # as it was written
        assert httpx.get(f"{api}/health").json()["status"] == "ok"
        process = tmp_path / "nats" / "nats.pid"
        for _ in range(4):
            killed = process.read_text()
            os.kill(int(killed), signal.SIGKILL)
            assert " -9; see " in line_with(broker, "restarting it")
            until(lambda: process.exists() and process.read_text() not in ("", killed), "another server")  # noqa: B023
            until(lambda: httpx.get(f"{api}/health").json()["status"] == "ok", "a connection to it")
            time.sleep(1.0)  # the broker knows that it listens
        until(lambda: httpx.get(f"{api}/health").json()["status"] == "ok", "a connection to it")
        with httpx.stream("GET", f"{api}/subscribers/ann/events", timeout=30) as stream:
            assert httpx.post(f"{api}/events", content=body, timeout=30).status_code == 202
            assert next(stream.iter_lines()) == body.decode()
        os.kill(int(process.read_text()), signal.SIGKILL)  # too often
        _, err = broker.communicate(timeout=30)
        assert broker.returncode == 2
        assert err.splitlines()[-1].startswith("narrowcast: NATS server nats://127.0.0.1:")


@pytest.mark.slow
def test_a_broker_that_comes_again(tmp_path: Path) -> None:
    """Its subscribers listen to the channels of its plan again, and the other node hears of what changes."""
    from narrowcast.broker import Connection, NatsServer

    interest = nc.Interest([[1, 0, 1], [0, 1, 1]], subscribers=["ann", "bob"])
    nc.write_plan(
        nc.Broadcast().fit(interest).plan_, tmp_path / "plan", method="broadcast", flow_space="events"
    )
    with ExitStack() as stack:
        url = stack.enter_context(NatsServer(tmp_path / "nats")).url
        words = ["serve", "--nats", url, "--http", "127.0.0.1:0", "--node"]
        own: list[str | Path] = [*words, "1/2", "--plan", tmp_path / "plan"]
        first = stack.enter_context(running(*own))
        line_with(first, "serving at")
        other = stack.enter_context(running(*words, "2/2"))
        line_with(other, "serving at")
        broker = stack.enter_context(Connection(url))
        people = {name: broker.subscriber(name) for name in ("ann", "bob")}
        people["ann"].subscribe("price >= 100")
        people["bob"].subscribe("price < 150")
        first.kill()
        first.wait()
        again = stack.enter_context(running(*own))
        api = re.findall(r"http://\S+?:\d+", line_with(again, "serving at"))[0]
        late = broker.subscriber("late")
        late.subscribe("price > 0")
        for _ in range(400):  # until both have heard that it is another
            held = httpx.get(f"{api}/health").json()["subscriptions"]
            seen = httpx.post(f"{api}/explain", json={"price": 120}).json()
            if held == 3 and seen["channels"] == [{"channel": 0, "listeners": 2}]:
                break
            time.sleep(0.1)
        assert (held, seen["channels"]) == (3, [{"channel": 0, "listeners": 2}])
        for i in range(6):  # some of them each node's
            broker.publisher(f"p{i}").publish({"price": 120})
        for one in (*people.values(), late):
            found: list[str] = []
            while len(found) < 6:
                some = one.take(10, timeout=30)
                assert some
                found += [event.publisher for event in some]
            assert sorted(found) == [f"p{i}" for i in range(6)]


def test_refusals(tmp_path: Path) -> None:
    assert "--count=0" in refusal("subscribe", "--subscriber", "ann", "--filter", "a > 1", "--count", "0")
    assert "none.jsonl" in refusal("publish", tmp_path / "none.jsonl")
    assert "70000" in refusal("serve", "--port", "70000")
    assert "none" in refusal("serve", "--plan", tmp_path / "none")
    for odd in ("0/1", "3/2", "1", "x/y", "1/17"):
        assert f"--node='{odd}'" in refusal("serve", "--node", odd)
    assert "--nats" in refusal("serve", "--node", "1/2")
    assert "--memory" in refusal("serve", "--memory")
    assert "--record" in refusal("serve", "--replan", "5")
    assert "'best'" in refusal("serve", "--router", "best")
    assert shows(refusal("serve", "--set", "send=1"), "'channels' send")
    assert shows(refusal("serve", "--router", "exact", "--set", "send=-1"), "send -1")
    wrong = refusal("serve", "--replan", "5", "--record", tmp_path, "--method", "none")
    assert "'none'" in wrong
    told = refusal("serve", "--nats", "nats://x", "--node", "2/2", "--plan", tmp_path)
    assert "--node=2/2" in told


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    from narrowcast.broker import NatsServer

    with NatsServer(tmp_path / "one") as server:
        found = outcome("serve", "--port", str(server.port), "--data", tmp_path / "two")
    assert found.returncode == 2
    assert "127.0.0.1" in found.stderr
    assert "address already in use" in found.stderr


@pytest.mark.slow
def test_two_nodes_and_a_plan_that_is_put_into_its_folder(tmp_path: Path) -> None:
    from narrowcast.broker import Connection, NatsServer

    interest = nc.Interest([[1, 0, 1], [0, 1, 1]], subscribers=["ann", "bob"])
    folder = tmp_path / "plan"
    nc.write_plan(nc.Unicast().fit(interest).plan_, folder, method="unicast", flow_space="events")
    with ExitStack() as stack:
        url = stack.enter_context(NatsServer(tmp_path / "nats")).url
        words = ["serve", "--nats", url, "--http", "127.0.0.1:0", "--node"]
        first = stack.enter_context(running(*words, "1/2", "--plan", folder))
        apis = re.findall(r"http://\S+?:\d+", line_with(first, "serving at"))
        other = stack.enter_context(running(*words, "2/2"))
        apis += re.findall(r"http://\S+?:\d+", line_with(other, "serving at"))
        broker = stack.enter_context(Connection(url))
        people = {name: broker.subscriber(name) for name in ("ann", "bob")}
        people["ann"].subscribe("price >= 100")
        people["bob"].subscribe("price < 150")
        publishers = [broker.publisher(f"p{i}") for i in range(6)]  # some of them each node's
        for round_, method in enumerate(("unicast", "channel")):
            for i in range(100):
                for publisher in publishers:
                    publisher.publish({"price": 100 * round_ + i})
            expected = {"ann": 600 * round_, "bob": 600 - 300 * round_}
            for name, many in expected.items():
                found: list[tuple[str, int]] = []
                while len(found) < many:
                    some = people[name].take(1000, timeout=20)
                    assert some
                    found += [(event.publisher, event.number) for event in some]
                assert len(set(found)) == len(found) == many
                assert people[name].take(1, timeout=0.05) == []
            for api in apis:
                metrics = httpx.get(f"{api}/metrics").text
                assert f'narrowcast_routed_total{{method="{method}"}}' in metrics
            if not round_:
                made = nc.Broadcast().fit(interest).plan_
                nc.write_plan(made, folder, method="broadcast", flow_space="events", replace=True)
                assert " 2 " in line_with(first, "is in use")
        refused = httpx.post(f"{apis[1]}/subscriptions", json={"subscriber": "x", "filter": "price > 1"})
        assert refused.status_code == 409


@pytest.mark.slow
def test_the_loop(tmp_path: Path) -> None:
    """Events are recorded, a plan is made of them, and it wastes less than everything to everybody."""
    from narrowcast.broker import Connection

    people = {f"s{i}": f"price >= {10 * (i % 4)} AND price < {10 * (i % 4) + 10}" for i in range(12)}
    interest = nc.Interest([[1]] * 12, subscribers=list(people))
    nc.write_plan(
        nc.Broadcast().fit(interest).plan_, tmp_path / "plan", method="broadcast", flow_space="events"
    )
    words: list[str | Path] = [
        "--plan",
        tmp_path / "plan",
        "--record",
        tmp_path / "seen",
        "--replan",
        "10",
        "--channels",
        "4",
    ]
    with running("serve", "--port", "0", *words) as broker:
        url = re.findall(r"nats://\S+?:\d+", line_with(broker, "serving at"))[0]
        with Connection(url) as connection:
            subscribers = {name: connection.subscriber(name) for name in people}
            for name, text in people.items():
                subscribers[name].subscribe(text)
            publisher = connection.publisher()

            def publish() -> None:
                publisher.publish(*({"price": i % 40} for i in range(400)))
                publisher.flush()

            publish()
            before = line_with(broker, "since the last plan")
            line_with(broker, "by direct is in use, with 12 subscribers")
            publish()
            after = line_with(broker, "since the last plan")
            for subscriber in subscribers.values():
                assert len(subscriber.take(1000, timeout=10)) == 200
    wasted = [float(re.findall(r"([\d.]+) of them wasted", line)[0]) for line in (before, after)]
    assert wasted[0] > 5
    assert wasted[1] == 0
