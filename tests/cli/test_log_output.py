"""What a broker says while it runs, as JSON that machines read."""

from __future__ import annotations

import json
import logging
import re
import signal
from typing import TYPE_CHECKING

import pytest

from narrowcast.cli.log_output import LogStyle, facts, logged
from support.command import refusal
from support.live import running

if TYPE_CHECKING:
    from pathlib import Path


def test_both_styles(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("narrowcast.somewhere")
    for style in LogStyle:
        with logged(style):
            log.info("%d came", 3, extra=facts(many=3))
            log.debug("not said")
            try:
                raise ValueError("odd")
            except ValueError:
                log.exception("failed")
    log.info("not said either")
    lines = capsys.readouterr().err.splitlines()
    assert lines[:3] == ["3 came", "error: failed", "Traceback (most recent call last):"]
    first, second = (json.loads(line) for line in lines[-2:])
    assert (first["message"], first["many"], first["level"]) == ("3 came", 3, "info")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", first["time"])
    assert first["logger"] == "narrowcast.somewhere"
    assert (second["level"], second["message"]) == ("error", "failed")
    assert "ValueError: odd" in second["exception"]


@pytest.mark.nats
def test_serve_says_everything_in_json(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text("subscriber,filter\nann,price > 75\nbob,price >\n")
    with running("serve", "--port", "0", "--log", "json", "--subscriptions", tmp_path / "s.csv") as broker:
        assert broker.stderr is not None
        rows = [json.loads(broker.stderr.readline()) for _ in range(2)]
        broker.send_signal(signal.SIGTERM)
        _, err = broker.communicate(timeout=30)
        assert broker.returncode == 0, err
    rows += map(json.loads, err.splitlines())
    assert (rows[0]["level"], rows[0]["many"]) == ("warning", 1)
    assert rows[1]["subscriptions"] == 1
    assert rows[1]["places"][0].startswith("nats://127.0.0.1:")
    assert (rows[-1]["events"], rows[-1]["bad"]) == (0, 0)


def test_refusals(tmp_path: Path) -> None:
    assert "--joins is 0.0; give a number above 0" in refusal("serve", "--joins", "0")
    assert "--keep is -1; give at least 1 second" in refusal("serve", "--keep=-1")
    assert "--store is 10; give at least 1,048,576 bytes" in refusal("serve", "--store", "10")
    assert "--replicas is 6; give 1 to 5 servers" in refusal("serve", "--replicas", "6")
    assert "'nonsense' is no place to listen at; give HOST:PORT" in refusal("serve", "--http", "nonsense")
    assert "--joins is -1.0; give a number above 0" in refusal("rollout", tmp_path, "--joins=-1")
    assert "--least is 2.0; give a share from 0 to 1" in refusal("rollout", tmp_path, "--least", "2")
