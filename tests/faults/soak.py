"""Minutes under load: whether memory or latency grows."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from faults.journal import Tail, read_published
from faults.load import Load
from faults.processes import memory_mb
from faults.setting import Run, Setting

#: Seconds at full speed to see how fast that is, and the part of it that is then asked for.
TRIAL, PART = 15.0, 0.8
#: Events a second that no publisher reaches.
_FLAT_OUT = 1e9
#: How much more a process may hold after the last fifth than after the second, and events may take.
GROWTH, LATER = 1.10, 2.0
#: MB and seconds that are nothing.
_SLACK_MB, _SLACK = 16.0, 0.05
_FIFTHS = 5


@dataclass
class Soaked:
    """Result of minutes under load.

    Parameters
    ----------
    run
        Result for deliveries.
    rate
        Events published per second.
    memory
        MB of each process after each fifth of the time.
    p99
        99th percentile of the latency in seconds, in each fifth.
    """

    run: Run
    rate: float
    memory: dict[str, list[float]]
    p99: list[float]

    @property
    def flat(self) -> bool:
        """Whether memory does not grow from the second fifth on; before that, caches fill up."""
        return all(each[-1] <= GROWTH * each[1] + _SLACK_MB for each in self.memory.values())

    @property
    def steady(self) -> bool:
        """Whether latency does not grow."""
        return self.p99[-1] <= LATER * min(self.p99) + _SLACK


def capacity(folder: Path, load: Load, seconds: float = TRIAL) -> float:
    """Return the events per second of all publishers with which all subscribers keep up."""
    with ExitStack() as stack:
        setting = Setting(stack, folder, replace(load, rate=_FLAT_OUT))
        setting.start()
        time.sleep(seconds)
        setting.end()
    flushed, _ = read_published(folder)
    last = max(float(life.at.max()) for _, life in Tail(folder).new() if len(life))
    begun = min(each.at for each in flushed)
    return sum(each.many for each in flushed) / (last - begun)


def soaked(folder: Path, load: Load, *, seconds: float = 600.0, rate: float | None = None) -> Soaked:
    """Publish for a time at a rate, or at 80 % of the capacity, and measure."""
    whole = PART * capacity(folder / "trial", load) if rate is None else rate
    with ExitStack() as stack:
        setting = Setting(stack, folder / "soak", replace(load, rate=whole / load.publishers))
        setting.start()
        server = setting.broker.server
        assert server is not None
        watched = {"node": setting.broker.pid, "server": server}
        watched |= {f"subscribers {i + 1}": each.pid for i, each in enumerate(setting.subscribers)}
        memory: dict[str, list[float]] = {name: [] for name in watched}
        begun = time.time()
        for fifth in range(1, _FIFTHS + 1):
            time.sleep(max(0.0, begun + fifth * seconds / _FIFTHS - time.time()))
            setting.check_alive()
            for name, pid in watched.items():
                memory[name].append(round(memory_mb(pid), 1))
        setting.end()
        run = setting.judge()
    p99 = late(folder / "soak", begun, seconds)
    return Soaked(run, run.verdict.events / seconds, memory, p99)


def late(folder: Path, begun: float, seconds: float) -> list[float]:
    """Return the 99th percentile of the latency in seconds, in each fifth of the time."""
    took: list[list[NDArray[np.float64]]] = [[] for _ in range(_FIFTHS)]
    for _, life in Tail(folder).new():
        fifth = np.floor((life.sent - begun) / (seconds / _FIFTHS))
        for i, each in enumerate(took):
            each.append((life.at - life.sent)[fifth == i])
    whole = [np.concatenate(each) if each else np.empty(0) for each in took]
    return [round(float(np.quantile(each, 0.99)), 3) if len(each) else float("nan") for each in whole]
