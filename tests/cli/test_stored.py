"""At least once through the commands: nothing is lost when the broker is killed and a subscriber is away."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from support.command import refusal, shows
from support.live import NARROWCAST, line_with, running

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.nats


def publish(url: str, *prices: int) -> None:
    """Publish events."""
    lines = "".join(f'{{"price": {price}}}\n' for price in prices)
    words: list[str | Path] = [NARROWCAST, "publish", "--nats", url, "-"]
    done = subprocess.run(words, input=lines, text=True, capture_output=True, check=True, timeout=60)
    assert str(len(prices)) in done.stdout


def test_a_broker_is_killed_and_a_subscriber_comes_again(tmp_path: Path) -> None:
    words = ("serve", "--port", "0", "--data", tmp_path / "data")
    with running(*words, "--delivery", "at-least-once") as broker:
        url = re.findall(r"nats://\S+?:\d+", line_with(broker, "serving at"))[0]
        own = ("subscribe", "--nats", url, "--subscriber", "ann", "--filter", "price > 75", "--keep", "--ids")
        with running(*own, "--count", "1") as ann:
            line_with(ann, "subscribed as 'ann'")
            publish(url, 80)
            out, _ = ann.communicate(timeout=60)
        first = json.loads(out)
        assert first["event"] == {"price": 80}
        broker.kill()
        broker.wait()
        publish(url, 70, 90, 95)  # the server is still there, and stores them
    with running(*words) as broker:  # as before: at least once
        line_with(broker, "1 subscriptions")
        with running(*own[:5], "--keep", "--ids", "--count", "2") as ann:  # its filter is there
            out, _ = ann.communicate(timeout=60)
        with running("subscribe", "--nats", url, "--subscriber", "bob") as bob:
            assert "--filter" in line_with(bob, "narrowcast:")
        rows = [json.loads(line) for line in out.splitlines()]
        assert [row["event"] for row in rows] == [{"price": 90}, {"price": 95}]
        assert rows[0]["publisher"] == rows[1]["publisher"] != first["publisher"]
        assert rows[1]["number"] == rows[0]["number"] + 1
    assert "--delivery=at-most-once" in refusal(*words, "--delivery", "at-most-once")
    assert shows(refusal("serve", "--delivery", "at-least-once"), "--delivery=at-least-once --data")
    said = refusal(*words, "--delivery", "twice")
    assert shows(said, "--delivery 'twice' at-most-once at-least-once")
    said = refusal("serve", "--memory", "--http", "127.0.0.1:0", "--delivery", "at-least-once")
    assert shows(said, "--memory --delivery at-most-once")


@pytest.mark.parametrize("delivery", ["at-most-once", "at-least-once"])
def test_two_of_one_name(tmp_path: Path, delivery: str) -> None:
    """The second has what it asked for when the first goes, whether that is replaced or interrupted."""
    with running("serve", "--port", "0", "--data", tmp_path / "data", "--delivery", delivery) as broker:
        url = re.findall(r"nats://\S+?:\d+", line_with(broker, "serving at"))[0]
        own = ("subscribe", "--nats", url, "--subscriber", "ann", "--filter", "price > 75")
        with running(*own) as first:
            line_with(first, "subscribed as 'ann'")
            with running(*own, "--count", "1") as second:
                line_with(second, "subscribed as 'ann'")
                if delivery == "at-most-once":
                    first.send_signal(signal.SIGINT)
                _, said = first.communicate(timeout=30)
                assert ("another subscriber of this name" in said) == (delivery == "at-least-once")
                publish(url, 80)
                assert second.communicate(timeout=30)[0] == '{"price": 80}\n'
        with running(*own[:5]) as third:  # and when both are gone nothing is left of it
            assert "--filter" in line_with(third, "narrowcast:")
