"""Events that a broker could not use, listed and sent again through the commands."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from support.command import outcome, refusal
from support.live import NARROWCAST, line_with, running

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.nats
def test_list_and_replay(tmp_path: Path) -> None:
    (tmp_path / "types.json").write_text('{"price": "double"}')
    (tmp_path / "events.jsonl").write_text('{"price": "dear"}\n{"price": 2}\n{"price": [1]}\n')
    data = tmp_path / "data"
    with running("serve", "--port", "0", "--data", data, "--schema", tmp_path / "types.json") as broker:
        url = re.findall(r"nats://\S+?:\d+", line_with(broker, "serving at"))[0]
        words = [NARROWCAST, "publish", tmp_path / "events.jsonl", "--nats", url]
        subprocess.run(words, check=True, capture_output=True, timeout=60)
        found = json.loads(outcome("dead-letters", "list", "--data", data, "--json").stdout)
        assert found["letters"] == 2
        assert found["reasons"] == {
            "attribute 'price' is double, not a list": 1, "attribute 'price' is double, not a text": 1
        }  # fmt: skip
        assert [letter["payload"] for letter in found["first"]] == ['{"price": "dear"}', '{"price": [1]}']
        shown = outcome("dead-letters", "list", "--data", data, "--reason", "text").stdout
        assert "1 dead letters" in shown
        assert '{"price": "dear"}' in shown
        again = outcome("dead-letters", "replay", "--data", data, "--nats", url, "--reason", "text", "--json")
        assert json.loads(again.stdout) == {"command": "dead-letters replay", "letters": 1}
        found = json.loads(outcome("dead-letters", "list", "--data", data, "--json").stdout)
        # It is as bad as before, and a new letter.
        assert [letter["payload"] for letter in found["first"]] == ['{"price": [1]}', '{"price": "dear"}']


@pytest.mark.nats
def test_lines_are_published_as_they_come(tmp_path: Path) -> None:
    with running("serve", "--port", "0") as broker:
        url = re.findall(r"nats://\S+?:\d+", line_with(broker, "serving at"))[0]
        with (
            running("subscribe", "--nats", url, "--subscriber", "ann", "--filter", "price > 1") as ann,
            running("publish", "-", "--nats", url) as publisher,
        ):
            line_with(ann, "subscribed")
            assert publisher.stdin is not None
            assert ann.stdout is not None
            for price in (2, 1, 3):
                publisher.stdin.write(f'{{"price": {price}}}\n')
                publisher.stdin.flush()
                if price > 1:
                    assert json.loads(ann.stdout.readline()) == {"price": price}


def test_refusals(tmp_path: Path) -> None:
    assert "dead-letters.db" in refusal("dead-letters", "list", "--data", tmp_path)
    assert "--limit=-1" in refusal("dead-letters", "list", "--data", tmp_path, "--limit", "-1")
