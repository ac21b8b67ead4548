"""Processes are killed at random moments while events flow."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from faults.checker import Verdict, check, lost, recoveries
from faults.journal import read_handed, read_published
from faults.load import Load
from faults.processes import Broker, Client, await_that

#: Seconds under load before the first kill, and from when all is at work again to the next: at least, at most.
FIRST, CALM = 2.0, (0.5, 3.0)
#: Seconds from one death of a server to the next, at least: one that dies five times a minute is given up.
APART = 16.0
#: Seconds from the order to take up a plan until the kill, at most.
SWITCHING = 0.5
#: Seconds without anything new after which nothing more comes, and in which what comes too often would.
SILENT, AFTER = 20.0, 1.5


@dataclass
class Run:
    """What came of a run with kills.

    Parameters
    ----------
    verdict
        What is wrong with deliveries.
    recovered
        Seconds from each kill until everybody had something new; None where somebody never had.
    refused
        Events that publishers were told to be not published.
    """

    verdict: Verdict
    recovered: list[float | None]
    refused: int


class Setting:
    """A broker with clients under load.

    Parameters
    ----------
    stack
        What ends them.
    folder
        Where all files go.
    load
        What is published and wanted.
    options
        More words for `narrowcast serve`.
    """

    def __init__(self, stack: ExitStack, folder: Path, load: Load, *options: object) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.load, self._stack = folder, load, stack
        self.plans = load.write_plans(folder / "plans")
        schema = load.write_schema(folder / "schema.json")
        words = ("--schema", schema, "--plan", self.plans[0], *options)
        self.broker = Broker(folder, *words)
        self.subscribers: list[Client] = []
        self.publishers: list[Client] = []

    def start(self, url: str = "", processes: int = 2) -> None:
        """Start all of it, subscribers in so many processes."""
        self._stack.enter_context(self.broker).start()
        people = list(self.load.filters)
        self.subscribers = [
            self._client("receive", url, *people[i::processes]) for i in range(min(processes, len(people)))
        ]
        for each in self.subscribers:
            each.wait_ready()
        self.publishers = [self._client("publish", url, name) for name in self.load.names]
        for each in self.publishers:
            each.wait_ready()

    def _client(self, kind: str, url: str, *names: str) -> Client:
        made = Client(kind, url or self.broker.url, self.folder, self.load, *names)
        self._stack.enter_context(made).begin()
        return made

    def check_alive(self) -> None:
        """Refuse to go on when something has ended by itself."""
        for each in (self.broker, *self.subscribers, *self.publishers):
            each.check()

    def end(self) -> None:
        """Let publishers end, and wait until subscribers have all, or nothing more comes."""
        for each in self.publishers:
            each.end()
        flushed, _ = read_published(self.folder)
        size, since = -1, time.monotonic()
        while time.monotonic() - since < SILENT:
            now = sum(path.stat().st_size for path in self.folder.glob("receive-*.log"))
            if now != size:
                size, since = now, time.monotonic()
            elif not lost(flushed, read_handed(self.folder), self.load.wants, list(self.load.filters)):
                break
            time.sleep(0.5)
        time.sleep(AFTER)
        self.check_alive_but_publishers()
        for each in self.subscribers:
            each.end()

    def check_alive_but_publishers(self) -> None:
        """Refuse to go on when a broker or a subscriber has ended by itself."""
        for each in (self.broker, *self.subscribers):
            each.check()

    def judge(self, kills: Sequence[float] = ()) -> Run:
        """Compare what came with what should have."""
        flushed, refused = read_published(self.folder)
        lives = read_handed(self.folder)
        people = list(self.load.filters)
        verdict = check(flushed, lives, self.load.wants, people, self.load.window)
        return Run(verdict, recoveries(kills, lives), sum(each.many for each in refused))


class Killer:
    """Kills processes of a setting one after another, each at a random moment.

    Parameters
    ----------
    setting
        Of which.
    rng
        Of the moments.
    switching
        Whether a plan is being taken up at each kill.
    """

    def __init__(self, setting: Setting, rng: random.Random, *, switching: bool = False) -> None:
        self._setting, self._rng, self._switching = setting, rng, switching
        self._switches = self._clients = 0
        self._server_died = -APART
        #: When each kill was.
        self.kills: list[float] = []
        #: What became of each order to take up a plan.
        self.said: list[str] = []

    def kill(self, target: str) -> None:
        """Kill the node, the server, or a client, and wait until there is one again."""
        setting, rng = self._setting, self._rng
        time.sleep(rng.uniform(*CALM) if self.kills else FIRST)
        if target == "server":
            time.sleep(max(0.0, self._server_died + APART - time.monotonic()) + rng.uniform(0.0, 0.5))
        setting.check_alive()
        switch = self._switch() if self._switching else None
        if target == "node":
            self.kills.append(setting.broker.kill())
            setting.broker.start()
        elif target == "server":
            before = setting.broker.server
            self.kills.append(setting.broker.kill_server())
            self._server_died = time.monotonic()
            await_that("there is a NATS server again", lambda: setting.broker.server not in (None, before))
        else:
            client = self._client()
            self.kills.append(client.kill())
            client.start()
        if switch is not None:
            switch.join()

    def _client(self) -> Client:
        """Return a subscriber and a publisher in turn, each of them one after another."""
        kind = (self._setting.subscribers, self._setting.publishers)[self._clients % 2]
        found = kind[self._clients // 2 % len(kind)]
        self._clients += 1
        return found

    def _switch(self) -> threading.Thread:
        """Let another plan be taken up, and return when that has perhaps begun."""
        self._switches += 1
        plans = self._setting.plans
        plan = plans[self._switches % len(plans)]
        working = threading.Thread(target=lambda: self.said.append(self._setting.broker.rollout(plan)))
        working.start()
        time.sleep(self._rng.uniform(0.0, SWITCHING))
        return working


def killed(folder: Path, targets: Sequence[str], load: Load, *, switching: bool = False) -> Run:
    """Kill what is named, one after another, and tell what came of it."""
    with ExitStack() as stack:
        setting = Setting(stack, folder, load)
        setting.start()
        killer = Killer(setting, random.Random(f"{load.seed} {' '.join(targets)}"), switching=switching)
        for target in targets:
            killer.kill(target)
        time.sleep(CALM[1])
        setting.end()
        return setting.judge(killer.kills)
