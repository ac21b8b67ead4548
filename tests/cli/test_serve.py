"""A live broker as people run it: three commands in three terminals."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import narrowcast as nc
from support.command import outcome, refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.nats
NARROWCAST = Path(sys.executable).with_name("narrowcast")


@contextmanager
def running(*words: str | Path) -> Iterator[subprocess.Popen[str]]:
    """Give a command that runs for the length of a block."""
    pipe = subprocess.PIPE
    process = subprocess.Popen([NARROWCAST, *map(str, words)], stdout=pipe, stderr=pipe, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def line_with(process: subprocess.Popen[str], text: str) -> str:
    """Return the first line on standard error that has some text."""
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return line
    raise AssertionError(f"{text!r} is not said")


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
        assert "1 rows of" in line_with(broker, "left out")
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
        assert json.loads(moved.stdout) | {"plan": ""} == {
            "command": "rollout", "epoch": 2, "plan": "", "listening": 0
        }  # fmt: skip
        odd = subprocess.run(
            [NARROWCAST, "rollout", tmp_path / "strange", "--nats", url],
            capture_output=True,
            text=True,
            check=False,
        )
        assert odd.returncode == 2
        assert "is a plan for others: none of its 2 subscribers subscribes here" in odd.stderr
        bad = published(url, '{"price": 1}', "[1]")
        assert bad.returncode == 2
        assert bad.stderr.startswith("narrowcast: line 2 of - is no JSON object:")
        broker.send_signal(signal.SIGTERM)
        _, err = broker.communicate(timeout=30)
        assert broker.returncode == 0
        assert "5 events, " in err


def test_refusals(tmp_path: Path) -> None:
    assert "give --filter or --topic" in refusal("subscribe", "--subscriber", "ann")
    assert "--count is 0" in refusal("subscribe", "--subscriber", "ann", "--filter", "a > 1", "--count", "0")
    assert "cannot be read" in refusal("publish", tmp_path / "none.jsonl")
    assert "port is 70000; give one from 1 to 65535" in refusal("serve", "--port", "70000")
    assert "is not a folder" in refusal("serve", "--plan", tmp_path / "none")


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    from narrowcast.broker import NatsServer

    with NatsServer(tmp_path / "one") as server:
        found = outcome("serve", "--port", str(server.port), "--data", tmp_path / "two")
    assert found.returncode == 2
    assert "the NATS server does not start at 127.0.0.1" in found.stderr
    assert "address already in use" in found.stderr
