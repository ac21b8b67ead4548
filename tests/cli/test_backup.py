"""A broker lost and found again through the commands, as people run them."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

import narrowcast as nc
from narrowcast.broker import Connection, Store
from narrowcast.broker.borrowed import Borrowed
from narrowcast.broker.quarantine import Quarantine
from narrowcast.broker.server import NatsServer
from support.command import outcome, refusal
from support.live import NARROWCAST, line_with, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STORED = ("--delivery", "at-least-once")


@contextmanager
def serving(data: Path, *words: str | Path) -> Iterator[str]:
    """Serve a folder for the length of a block, and give the address."""
    with running("serve", "--port", "0", "--data", data, *words) as broker:
        yield re.findall(r"nats://\S+?:\d+", line_with(broker, "serving at"))[0]


def publish(url: str, *numbers: int) -> None:
    """Publish events one by one, so that each is stored by itself."""
    with Connection(url) as broker:
        publisher = broker.publisher("p")
        for number in numbers:
            publisher.publish({"n": number})
            publisher.flush()
            time.sleep(0.1)  # longer than a node waits for more


def heard(url: str, name: str, many: int, *, patience: float = 20.0) -> list[int]:
    """Return the events that somebody gets, so many and what comes right behind them."""
    found: list[int] = []
    with Connection(url) as broker:
        reader = broker.subscriber(name)
        end = time.monotonic() + patience
        while time.monotonic() < end and len(found) < many:
            found += [event.data["n"] for event in reader.take(many, timeout=0.5)]
        found += [event.data["n"] for event in reader.take(1000, timeout=0.7)]
    return found


def told(*words: str | Path) -> dict[str, Any]:
    """Run a command that goes well, and return what it tells."""
    done = outcome(*words, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.nats
def test_a_broker_is_lost_and_goes_on_elsewhere(tmp_path: Path) -> None:
    data, elsewhere, file = tmp_path / "data", tmp_path / "elsewhere", tmp_path / "b.tar"
    interest = nc.Interest([[1], [1]], subscribers=["ann", "bob"])
    nc.write_plan(nc.Broadcast().fit(interest).plan_, tmp_path / "plan", method="broadcast", flow_space="events")
    with serving(data, *STORED, "--plan", tmp_path / "plan") as url:
        with Connection(url) as broker:
            broker.subscriber("ann").subscribe("n >= 0")
            broker.subscriber("bob").subscribe("n > 100")
        publish(url, *range(10))
        assert heard_some(url, "ann", 5) == [0, 1, 2, 3, 4]
        made = told("backup", "--data", data, "--out", file)
        assert (made["subscriptions"], made["subscribers"], made["positions"]) == (2, 2, 2)
        assert (made["delivery"], made["prefix"], made["format"]) == ("at-least-once", "nc", 1)
        assert [each["name"] for each in made["streams"]] == ["nc_in", "nc_at", "nc_out"]
        assert made["streams"][2]["messages"] == 10
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        publish(url, 10)  # the backup does not have it
    shutil.rmtree(data)
    assert told("restore", file, "--dry-run")["restored"] is False
    assert told("restore", file, "--data", elsewhere)["restored"] is True
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar", "elsewhere", "plan"]
    with serving(elsewhere, *STORED) as url:
        assert heard(url, "ann", 5) == [5, 6, 7, 8, 9]
        publish(url, 11, 101)
        assert heard(url, "ann", 2) == [11, 101]
        assert heard(url, "bob", 1) == [101]


def heard_some(url: str, name: str, many: int) -> list[int]:
    """Return the first events that somebody reads, who then goes."""
    found: list[int] = []
    with Connection(url) as broker:
        reader = broker.subscriber(name)
        while len(found) < many:
            found += [event.data["n"] for event in reader.take(1, timeout=20)]
    return found
