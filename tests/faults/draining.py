"""How fast a node processes a backlog, alone and beside garbage, when it is the bottleneck."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from faults.awaited import acknowledged
from faults.fuzzing import RATES, Fuzzer, metrics
from faults.journal import read_handed, read_published
from faults.load import Load
from faults.setting import Run, Setting

#: Seconds for which publishers store events while the node stands still.
FILL = 12.0
#: Without garbage, and beside it.
CALM, BESIDE = "calm", "garbage"
#: Messages out of 13 with garbage that go to the publishers' subjects, and to control subjects.
_INGRESS, _CONTROL = 8, 5
#: Messages with garbage per second stored among the events, and sent while the backlog is processed.
_AMONG = RATES["messages"] * _INGRESS / (_INGRESS + _CONTROL)
_MEANWHILE = RATES["messages"] - _AMONG
#: Seconds of storing events that a node processes in one second.
_FASTER = 1.8
#: More than any run sends, and requests of schemathesis among those over HTTP.
_MANY, _CASES = 20_000, 2_000
#: Between which parts of all that waited the rate is taken.
_FROM, _TO = 0.1, 0.9


@dataclass
class Drained:
    """Result of processing backlogs.

    Parameters
    ----------
    rates
        Events per second without and beside garbage, in each turn.
    left_out
        Number of bad events in all.
    runs
        Result for good events in each turn.
    """

    rates: dict[str, list[float]]
    left_out: int
    runs: list[Run]


def drained(folder: Path, load: Load, *, times: int = 3, fill: float = FILL) -> Drained:
    """Let a node process what publishers stored in some seconds, in turns without and with garbage."""
    rates: dict[str, list[float]] = {CALM: [], BESIDE: []}
    found = Drained(rates, 0, [])
    with ExitStack() as stack:
        cases = folder / "cases"
        Fuzzer(stack, folder, "openapi", load.seed, _CASES, cases).result()
    for number in range(times):
        for name, own in rates.items():
            with ExitStack() as stack:
                turn = _Turn(stack, folder / f"{number}-{name}", load, cases)
                turn.run(fill, garbage=name == BESIDE)
                found.left_out += int(metrics(turn.setting.broker.api)["bad_total"])
                found.runs.append(turn.setting.judge())
            own.append(worked_off(turn.setting.folder))
    return found


class _Turn:
    """A broker whose node is suspended while events are stored, and resumed then."""

    def __init__(self, stack: ExitStack, folder: Path, load: Load, cases: Path) -> None:
        self._stack, self._folder, self._load, self._cases = stack, folder, load, cases
        self.setting = Setting(stack, folder, load)
        self.setting.start()
        self._epoch = int(metrics(self.setting.broker.api)["epoch"])

    def run(self, fill: float, *, garbage: bool) -> None:
        """Store events for some seconds, then process them."""
        node, live = self.setting.broker.pid, []
        os.kill(node, signal.SIGSTOP)
        try:
            stored = [self._messages(_MANY, 0, _AMONG / _FASTER)] if garbage else []
            time.sleep(fill)
            for each in self.setting.publishers:
                each.end()
            for fuzzer in stored:
                fuzzer.end()
            if garbage:
                live = [self._messages(0, _MANY, _MEANWHILE), self._requests()]
                time.sleep(2.0)
        finally:
            os.kill(node, signal.SIGCONT)
        self.setting.end()
        for fuzzer in live:
            fuzzer.end()

    def _messages(self, ingress: int, control: int, rate: float) -> Fuzzer:
        words = (self.setting.broker.url, self._load.seed, ingress, control, self._epoch, rate)
        return Fuzzer(self._stack, self._folder, "messages", *words)

    def _requests(self) -> Fuzzer:
        words = (self.setting.broker.api, self._load.seed, _MANY, RATES["http"], self._cases, 0, 1)
        return Fuzzer(self._stack, self._folder, "http", *words)


def worked_off(folder: Path) -> float:
    """Return the events per second that a node processed, by the times of receipt at subscribers.

    Only the middle part of each publisher's backlog counts: at the beginning and the end there is no garbage.
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
