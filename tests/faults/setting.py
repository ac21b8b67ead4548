"""A broker with clients under load, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from faults.awaited import Awaited
from faults.checker import Verdict, check, recoveries
from faults.journal import Refusal, Tail, read_handed, read_published
from faults.load import Load
from faults.processes import Broker, Client

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
        What publishers were told to be not published.
    """

    verdict: Verdict
    recovered: list[float | None]
    refused: list[Refusal]


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
    nats
        A NATS server for the broker, if it is to have none of its own.
    data
        Where the broker keeps things, if elsewhere.
    """

    def __init__(
        self,
        stack: ExitStack,
        folder: Path,
        load: Load,
        *options: object,
        nats: str = "",
        data: Path | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.load, self._stack = folder, load, stack
        self.plans = load.write_plans(folder / "plans")
        schema = load.write_schema(folder / "schema.json")
        users = ("--users", load.write_users(folder / "users.json")) if load.guarded else ()
        self._words = ("--schema", schema, "--plan", self.plans[0], *users, *options)
        self.broker = Broker(folder, *self._words, nats=nats, data=data, headers=load.bearer)
        self.subscribers: list[Client] = []
        self.publishers: list[Client] = []

    def another(self, folder: Path) -> Broker:
        """Return another broker like this one, which nobody uses."""
        folder.mkdir(parents=True, exist_ok=True)
        return Broker(folder, *self._words, headers=self.load.bearer)

    def start(self, url: str = "", processes: int = 2) -> None:
        """Start all of it, clients at a server if it is another; subscribers are in so many processes."""
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
        awaited = Awaited(flushed, self.load.wants, self.load.filters)
        journals = Tail(self.folder)
        size, since = -1, time.monotonic()
        while True:
            now, quiet = journals.size, time.monotonic() - since
            if now != size:
                size, since = now, time.monotonic()
            else:  # not while something comes: to read takes time from those who write
                for who, life in journals.new():
                    awaited.take(who, life)
                if not awaited.some or quiet > SILENT:
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
        return Run(verdict, recoveries(kills, lives), refused)
