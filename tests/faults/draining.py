"""How fast a node works off what has waited for it, alone and beside garbage: then it is what is short."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np

from faults.awaited import acknowledged
from faults.fuzzing import RATES, Fuzzer, metrics
from faults.journal import read_handed, read_published
from faults.load import Load
from faults.processes import Broker
from faults.setting import Run, Setting

#: Seconds for which publishers store events while the node stands still.
FILL = 12.0
#: Where garbage goes: nowhere, to another broker on the same machine, or to this one.
CALM, ELSEWHERE, HERE = "calm", "garbage_elsewhere", "garbage"
#: Of messages with garbage so many of 13 go where publishers send.
_INGRESS, _CONTROL = 8, 5
#: How many messages with garbage a second are stored among events, to be worked off with them.
_STORED = RATES["messages"] * _INGRESS / (_INGRESS + _CONTROL)
#: More than any run sends, and requests of schemathesis among those over HTTP.
_MANY, _CASES = 20_000, 2_000
#: Between which parts of all that waited the rate is taken.
_FROM, _TO = 0.1, 0.9


@dataclass
class Drained:
    """What came of it.

    Parameters
    ----------
    rates
        Events a second by where garbage went, each time.
    left_out
        How many bad events there were in all.
    runs
        What came of good events, each time.
    """

    rates: dict[str, list[float]]
    left_out: int
    runs: list[Run]


def drained(folder: Path, load: Load, *, times: int = 3, fill: float = FILL) -> Drained:
    """Let a node work off what publishers stored in some seconds, in turns without and with garbage."""
    rates: dict[str, list[float]] = {CALM: [], ELSEWHERE: [], HERE: []}
    found = Drained(rates, 0, [])
    with ExitStack() as stack:
        cases = folder / "cases"
        Fuzzer(stack, folder, "openapi", load.seed, _CASES, cases).result()
    for number in range(times):
        for where, own in rates.items():
            with ExitStack() as stack:
                turn = _Turn(stack, folder / f"{number}-{where}", load, cases, where)
                turn.run(fill)
                found.left_out += int(metrics(turn.setting.broker.api)["bad_total"])
                found.runs.append(turn.setting.judge())
            own.append(worked_off(turn.setting.folder))
    return found


class _Turn:
    """A broker whose node is stopped while events are stored, and let go then."""

    def __init__(self, stack: ExitStack, folder: Path, load: Load, cases: Path, where: str) -> None:
        self._stack, self._folder, self._load, self._cases, self._where = stack, folder, load, cases, where
        self.setting = Setting(stack, folder, load)
        self.setting.start()
        self._to: Broker | None = None
        if where == HERE:
            self._to = self.setting.broker
        elif where == ELSEWHERE:
            self._to = stack.enter_context(self.setting.another(folder / "other")).start()

    def run(self, fill: float) -> None:
        """Let events be stored for some seconds, and worked off then."""
        node = self.setting.broker.pid
        epochs = {} if self._to is None else {self._to: self._epoch(self._to)}
        os.kill(node, signal.SIGSTOP)
        try:
            stored = [self._messages(to, epoch, _MANY, 0, _STORED) for to, epoch in epochs.items()]
            time.sleep(fill)
            for each in self.setting.publishers:
                each.end()
            for fuzzer in stored:
                fuzzer.end()
            rate = RATES["messages"]
            live = [self._requests(to) for to in epochs]
            for to, epoch in epochs.items():
                here = to is self.setting.broker  # what publishers send waits there already
                share = _CONTROL / (_INGRESS + _CONTROL) if here else 1.0
                live.append(self._messages(to, epoch, 0 if here else _MANY, _MANY, share * rate))
            time.sleep(2.0 if live else 0.0)
        finally:
            os.kill(node, signal.SIGCONT)
        self.setting.end()
        for fuzzer in live:
            fuzzer.end()

    def _epoch(self, broker: Broker) -> int:
        return int(httpx.get(f"{broker.api}/health", timeout=30).json()["epoch"])

    def _messages(self, to: Broker, epoch: int, ingress: int, control: int, rate: float) -> Fuzzer:
        many = ingress * _INGRESS // _CONTROL if control else ingress
        words = (to.url, self._load.seed, many, control, epoch, rate)
        return Fuzzer(self._stack, self._folder, "messages", *words)

    def _requests(self, to: Broker) -> Fuzzer:
        words = (to.api, self._load.seed, _MANY, RATES["http"], self._cases, 0, 1)
        return Fuzzer(self._stack, self._folder, "http", *words)


def worked_off(folder: Path) -> float:
    """Return how many events a second a node worked off, by when somebody was handed out what was among them.

    That is of the middle part of what each publisher had stored: in the beginning and in the end garbage is
    not under way yet, or any more.
    """
    lives = [life for own in read_handed(folder).values() for life in own]
    found = 0.0
    for publisher, numbers in acknowledged(read_published(folder)[0]).items():
        came = [life.came_from(publisher) for life in lives]
        number = np.concatenate([life.number[own] for life, own in zip(lives, came, strict=True)])
        at = np.concatenate([life.at[own] for life, own in zip(lives, came, strict=True)])
        first, last = (numbers[int(part * len(numbers))] for part in (_FROM, _TO))
        inside = (number >= first) & (number <= last)
        found += float((last - first) / np.ptp(at[inside]))
    return found
