"""A broker with clients under load, and the result of a run."""

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
    """Result of a run with kills.

    Parameters
    ----------
    verdict
        Result of checking the deliveries.
    recovered
        Seconds from each kill until every subscriber had a newer event; None where one never had.
    refused
        Refusals that publishers received.
    """

    verdict: Verdict
    recovered: list[float | None]
    refused: list[Refusal]


class Setting:
    """A broker with clients under load.

    Parameters
    ----------
    stack
        Ends the processes.
    folder
        Folder of all files.
    load
        Events and filters.
    options
        Additional arguments of `narrowcast serve`.
    nats
        An existing NATS server for the broker.
    data
        Another folder for the broker's data.
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
        """Return a second broker of the same kind, without clients."""
        folder.mkdir(parents=True, exist_ok=True)
        return Broker(folder, *self._words, headers=self.load.bearer)

    def start(self, url: str = "", processes: int = 2) -> None:
        """Start all processes; subscribers are spread over several processes."""
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
        """Raise an error when a process has ended by itself."""
        for each in (self.broker, *self.subscribers, *self.publishers):
            each.check()

    def end(self) -> None:
        """End the publishers, and wait until subscribers have all events, or receive no more."""
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
        """Raise an error when a broker or a subscriber has ended by itself."""
        for each in (self.broker, *self.subscribers):
            each.check()

    def judge(self, kills: Sequence[float] = ()) -> Run:
        """Compare received events with those that should have been received."""
        flushed, refused = read_published(self.folder)
        lives = read_handed(self.folder)
        people = list(self.load.filters)
        verdict = check(flushed, lives, self.load.wants, people, self.load.window)
        return Run(verdict, recoveries(kills, lives), refused)
