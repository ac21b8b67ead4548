"""Garbage arrives beside good events, at every interface of a broker."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from faults.journal import Life, read_handed, read_published
from faults.load import Load
from faults.processes import Broker, cpu_s, environment
from faults.setting import Run, Setting
from faults.soak import capacity

#: Garbage a second, by door.
RATES = {"messages": 600.0, "http": 150.0}
#: Seconds for all garbage to be sent.
PATIENCE = 3600.0
#: The part of what is possible that good events are published at.
PART = 0.5
#: Seconds in which a load is steady, and after which what garbage leaves behind has come.
SETTLED = 3.0


@dataclass
class Fuzzed:
    """Result of a run with garbage.

    Parameters
    ----------
    run
        Result for good events.
    rate
        Events published per second.
    sent
        Inputs by interface.
    failed
        Requests answered with a server error, and such errors in the node's log.
    counts
        Events that arrived and known bad ones among them; and the node's counts of routed, bad, stored and
        lost ones.
    calm, elsewhere, beside
        Speed without garbage, beside the same garbage sent to another broker on the same machine, and beside
        garbage sent to this broker.
    """

    run: Run
    rate: float
    sent: dict[str, int]
    failed: list[str]
    counts: dict[str, int]
    calm: While
    elsewhere: While
    beside: While

    @property
    def agree(self) -> bool:
        """Whether every event is accounted for, and every bad one is stored or counted."""
        of = self.counts
        whole = of["used"] + of["bad"] == of["good"] + of["garbage"]
        return whole and of["bad"] >= of["known_bad"] and of["kept"] + of["not_kept"] == of["bad"]


@dataclass(frozen=True)
class While:
    """Good events received per second for a while, and the node's share of a core."""

    deliveries: float
    core: float


class Watch:
    """Measures speed while something else goes on.

    Parameters
    ----------
    node
        The process to measure.
    """

    def __init__(self, node: int) -> None:
        self._node = node
        self._spans: list[tuple[float, float]] = []
        self._core = 0.0

    def __enter__(self) -> None:
        self._begun = time.time(), cpu_s(self._node)

    def __exit__(self, *_: object) -> None:
        begun, core = self._begun
        self._spans.append((begun, time.time()))
        self._core += cpu_s(self._node) - core

    def over(self, lives: Sequence[Life]) -> While:
        """Return the measurement, using the events that subscribers received."""
        seconds = sum(end - begun for begun, end in self._spans)
        many = sum(
            int(np.count_nonzero((begun <= life.at) & (life.at < end)))
            for life in lives
            for begun, end in self._spans
        )
        return While(many / seconds, self._core / seconds)


class Fuzzer:
    """A process that sends garbage; see `faults.fuzzer`."""

    def __init__(self, stack: ExitStack, folder: Path, task: str, *words: object) -> None:
        self.task = task
        number = len(list(folder.glob("fuzz-*.out")))
        out, self._err = folder / f"fuzz-{number}-{task}.out", folder / f"fuzz-{number}-{task}.err"
        self._out = out
        with out.open("wb") as to, self._err.open("wb") as err:
            command = [sys.executable, "-m", "faults.fuzzer", task, *map(str, words)]
            self._process = subprocess.Popen(command, stdout=to, stderr=err, env=environment())
        stack.callback(self.end)

    def end(self) -> None:
        """Stop sending."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def result(self) -> dict[str, Any]:
        """Return the report of the process."""
        if self._process.wait(PATIENCE):
            raise AssertionError(f"{self.task} failed: {self._err.read_text()[-2000:]}")
        found: dict[str, Any] = json.loads(self._out.read_text())
        return found


def metrics(api: str) -> dict[str, float]:
    """Return a node's metrics without labels, and those of lost dead letters."""
    text = httpx.get(f"{api}/metrics", timeout=30).text
    found = {
        name: float(value) for name, value in re.findall(r"^narrowcast_(\w+) (\S+)$", text, re.MULTILINE)
    }
    lost = re.findall(r'^narrowcast_letters_lost_total\{why="\w+"\} (\S+)$', text, re.MULTILINE)
    return found | {"letters_lost": sum(map(float, lost))}


class Garbage:
    """All garbage of a seed, in parts that are sent to one broker or another.

    Half goes to the publishers' subjects, a quarter to the subjects of subscribers and nodes, and a quarter
    over HTTP, of which schemathesis makes two fifths from the description of the API.

    Parameters
    ----------
    stack
        Ends the processes.
    folder
        Folder of all files.
    seed, inputs, parts
        The seed, the number of inputs, and the number of parts.
    """

    def __init__(self, stack: ExitStack, folder: Path, seed: int, inputs: int, parts: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._stack, self._folder, self._seed = stack, folder, seed
        self._inputs, self._parts, self._cases = inputs, parts, folder / "cases"
        # Before anything is measured: it takes more than all others together.
        Fuzzer(stack, folder, "openapi", seed, inputs // 10, self._cases).result()

    def send(self, broker: Broker, part: int) -> list[dict[str, Any]]:
        """Send a part, and return the report of each interface."""
        seed, share = f"{self._seed}.{part}", self._inputs // self._parts
        epoch = int(httpx.get(f"{broker.api}/health", timeout=30).json()["epoch"])
        fuzzers = [
            Fuzzer(self._stack, self._folder, "messages", broker.url, seed, share // 2, share // 4, epoch,
                   RATES["messages"]),
            Fuzzer(self._stack, self._folder, "http", broker.api, seed, share * 3 // 20, RATES["http"],
                   self._cases, part, self._parts),
        ]  # fmt: skip
        return [{"door": each.task, **each.result()} for each in fuzzers]


def fuzzed(
    folder: Path, load: Load, *, inputs: int = 100_000, parts: int = 4, calm: float = 20.0, part: float = PART
) -> Fuzzed:
    """Send invalid inputs beside good events, at a share of the possible rate.

    They go in turns to the broker and to another one beside it, so that both compute for the same garbage.
    """
    whole = part * capacity(folder / "trial", load) if part else load.rate * load.publishers
    with ExitStack() as stack:
        garbage = Garbage(stack, folder / "garbage", load.seed, inputs, parts)
        load = replace(load, rate=whole / load.publishers)
        setting = Setting(stack, folder / "run", load)
        setting.start()
        other = stack.enter_context(setting.another(folder / "other")).start()
        node = setting.broker.pid
        calmly, elsewhere, beside = (Watch(node) for _ in range(3))
        time.sleep(SETTLED)
        with calmly:
            time.sleep(calm)
        said: list[dict[str, Any]] = []
        for number in range(parts):
            with elsewhere:
                garbage.send(other, number)
            time.sleep(SETTLED)
            with beside:
                said += garbage.send(setting.broker, number)
            time.sleep(SETTLED)
        with calmly:
            time.sleep(calm)
        setting.check_alive()
        setting.end()
        assert setting.broker.pid == node
        run = setting.judge()
        now = metrics(setting.broker.api)
        log = setting.broker.said_in.read_text(errors="replace")
    flushed, _ = read_published(folder / "run")
    counts = {
        "good": sum(each.many for each in flushed),
        "garbage": sum(each.get("events", 0) for each in said),
        "known_bad": sum(each.get("bad", 0) for each in said),
        "used": int(now["events_total"]),
        "bad": int(now["bad_total"]),
        "kept": int(now.get("letters", 0)),
        "not_kept": int(now["letters_lost"]),
    }
    failed = [line for each in said for line in each.get("failed", [])]
    failed += sorted(
        {
            f"its log: {line:.150}"
            for line in re.findall(r"^Traceback .*(?:\n .*)*\n(\S.*)$", log, re.MULTILINE)
        }
    )
    sent: dict[str, int] = {}
    for each in said:
        sent[each["door"]] = sent.get(each["door"], 0) + int(each["sent"])
    lives = [life for own in read_handed(folder / "run").values() for life in own]
    whiles = [each.over(lives) for each in (calmly, elsewhere, beside)]
    return Fuzzed(run, whole, sent, failed, counts, *whiles)
