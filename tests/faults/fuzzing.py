"""Garbage comes in beside good events, at every door of a broker."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from faults.journal import Life, read_handed, read_published
from faults.load import Load
from faults.processes import cpu_s, environment
from faults.setting import Run, Setting

#: Garbage a second, by door.
RATES = {"messages": 600.0, "http": 150.0}
#: Seconds for all garbage to be sent.
PATIENCE = 3600.0


@dataclass
class Fuzzed:
    """What came of garbage.

    Parameters
    ----------
    run
        What came of good events.
    sent
        Inputs by door.
    failed
        Requests that were answered as an error of the node's own, and what its log has of such.
    counts
        Events that came in, how many of them are known to be bad; and by the node's count how many it used,
        could not use, keeps, and does not keep.
    rates
        Good events a second that subscribers were handed out, without garbage and with it.
    busy
        The share of a core that the node took, without garbage and with it.
    """

    run: Run
    sent: dict[str, int]
    failed: list[str]
    counts: dict[str, int]
    rates: tuple[float, float]
    busy: tuple[float, float]

    @property
    def agree(self) -> bool:
        """Whether every event is accounted for, and every bad one is kept or counted."""
        of = self.counts
        whole = of["used"] + of["bad"] == of["good"] + of["garbage"]
        return whole and of["bad"] >= of["known_bad"] and of["kept"] + of["not_kept"] == of["bad"]


class Fuzzer:
    """A process that sends garbage: see `faults.fuzzer`."""

    def __init__(self, stack: ExitStack, folder: Path, task: str, *words: object) -> None:
        self.task = task
        out, self._err = folder / f"fuzz-{task}.out", folder / f"fuzz-{task}.err"
        self._out = out
        with out.open("wb") as to, self._err.open("wb") as err:
            command = [sys.executable, "-m", "faults.fuzzer", task, *map(str, words)]
            self._process = subprocess.Popen(command, stdout=to, stderr=err, env=environment())
        stack.callback(self._end)

    def _end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    @property
    def running(self) -> bool:
        """Whether it still sends."""
        return self._process.poll() is None

    def result(self) -> dict[str, Any]:
        """Return what it says in the end."""
        if self._process.wait(PATIENCE):
            raise AssertionError(f"{self.task} failed: {self._err.read_text()[-2000:]}")
        found: dict[str, Any] = json.loads(self._out.read_text())
        return found


def metrics(api: str) -> dict[str, float]:
    """Return the numbers of a node that stand for themselves, and those of dead letters that are not kept."""
    text = httpx.get(f"{api}/metrics", timeout=30).text
    found = {
        name: float(value) for name, value in re.findall(r"^narrowcast_(\w+) (\S+)$", text, re.MULTILINE)
    }
    lost = re.findall(r'^narrowcast_letters_lost_total\{why="\w+"\} (\S+)$', text, re.MULTILINE)
    return found | {"letters_lost": sum(map(float, lost))}


def fuzzed(folder: Path, load: Load, *, inputs: int = 100_000, calm: float = 20.0) -> Fuzzed:
    """Send so many inputs that are no good beside good events.

    Half go where publishers send, a quarter where subscribers and nodes speak, and a quarter over HTTP,
    of those two fifths made by schemathesis from the description of the API.
    """
    n_http, n_openapi = inputs * 3 // 20, inputs // 10
    folder.mkdir(parents=True, exist_ok=True)
    cases = folder / "cases"
    with ExitStack() as stack:
        # Before anything is measured: it takes more than all others together.
        Fuzzer(stack, folder, "openapi", load.seed, n_openapi, cases).result()
        setting = Setting(stack, folder, load)
        setting.start()
        api, node = setting.broker.api, setting.broker.pid
        epoch = int(httpx.get(f"{api}/health", timeout=30).json()["epoch"])
        time.sleep(3.0)
        calm_from, calm_cpu = time.time(), cpu_s(node)
        time.sleep(calm)
        begun, cpu = time.time(), cpu_s(node)
        fuzzers = [
            Fuzzer(stack, folder, "messages", setting.broker.url, load.seed, inputs // 2, inputs // 4, epoch,
                   RATES["messages"]),
            Fuzzer(stack, folder, "http", api, load.seed, n_http, RATES["http"], cases),
        ]  # fmt: skip
        while all(each.running for each in fuzzers):
            time.sleep(0.2)
        end = time.time()
        busy = (cpu - calm_cpu) / (begun - calm_from), (cpu_s(node) - cpu) / (end - begun)
        said = {each.task: each.result() for each in fuzzers}
        setting.check_alive()
        setting.end()
        assert setting.broker.pid == node
        run = setting.judge()
        now = metrics(api)
        log = setting.broker.said_in.read_text(errors="replace")
    flushed, _ = read_published(folder)
    garbage = sum(each.get("events", 0) for each in said.values())
    counts = {
        "good": sum(each.many for each in flushed),
        "garbage": garbage,
        "known_bad": said["messages"].get("bad", 0),
        "used": int(now["events_total"]),
        "bad": int(now["bad_total"]),
        "kept": int(now.get("letters", 0)),
        "not_kept": int(now["letters_lost"]),
    }
    failed = [line for each in said.values() for line in each.get("failed", [])]
    failed += sorted(
        {
            f"its log: {line:.150}"
            for line in re.findall(r"^Traceback .*(?:\n .*)*\n(\S.*)$", log, re.MULTILINE)
        }
    )
    sent = {task: int(each["sent"]) for task, each in said.items()}
    lives = [life for own in read_handed(folder).values() for life in own]
    rates = _rate(lives, calm_from, begun), _rate(lives, begun, end)
    return Fuzzed(run, sent, failed, counts, rates, busy)


def _rate(lives: Sequence[Life], begun: float, end: float) -> float:
    """Return the events a second that all subscribers were handed out in a while."""
    many = sum(int(np.count_nonzero((begun <= life.at) & (life.at < end))) for life in lives)
    return many / (end - begun)
