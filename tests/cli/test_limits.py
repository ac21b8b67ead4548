"""Limits of a broker through the commands: what is too much is refused in one line."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from support.command import outcome, refusal, shows
from support.live import NARROWCAST, line_with, running

if TYPE_CHECKING:
    from pathlib import Path


def test_limits_that_are_none() -> None:
    assert "rate=0" in refusal("serve", "--limit", "rate=0")
    assert "'depht=3'" in refusal("serve", "--limit", "depht=3")


def refused(url: str, *filters: str) -> str:
    """Return the error of a subscriber that is refused."""
    words = [word for text in filters for word in ("--filter", text)]
    command: list[str | Path] = [NARROWCAST, "subscribe", "--nats", url, "--subscriber", "ann", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    return line


@pytest.mark.nats
def test_too_much_is_refused(tmp_path: Path) -> None:
    limits = ["bytes=200", "depth=5", "subscriptions=2", "attributes=3", "payload=100"]
    words = [word for limit in limits for word in ("--limit", limit)]
    with running("serve", "--port", "0", "--data", tmp_path / "data", *words) as broker:
        url = re.findall(r"nats://\S+?:\d+", line_with(broker, "serving at"))[0]
        assert shows(refused(url, f"name = '{'x' * 300}'"), "309 bytes 200")
        assert shows(refused(url, "((((((a > 1))))))"), "6 5")
        assert shows(refused(url, "a > 1", "a > 2", "a > 3"), "'ann' subscriptions 3 2")
        assert shows(refused(url, "a > 1 AND b > 1 AND c > 1 AND d > 1"), "attributes 3")
        with running("subscribe", "--nats", url, "--subscriber", "ann", "--filter", "a > 1") as ann:
            line_with(ann, "subscribed")
            events = [{"a": 2, "text": "x" * 100}, {"a": 3}]
            (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
            publish = [NARROWCAST, "publish", tmp_path / "events.jsonl", "--nats", url]
            subprocess.run(publish, check=True, capture_output=True, timeout=60)
            assert ann.stdout is not None
            assert json.loads(ann.stdout.readline()) == {"a": 3}
        found = json.loads(outcome("dead-letters", "list", "--data", tmp_path / "data", "--json").stdout)
        [(reason, count)] = found["reasons"].items()
        assert count == 1
        assert shows(reason, "120 100")
