"""Processes are killed at random moments while events flow."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from faults.load import Load
from faults.processes import Client, await_that
from faults.setting import Run, Setting

#: Seconds under load before the first kill, and from when all is at work to the next: at least, at most.
FIRST, CALM = 2.0, (0.5, 3.0)
#: Seconds from one death of a server to the next, at least: one that dies five times a minute is given up.
APART = 16.0
#: Seconds from the order to take up a plan until the kill, at most.
SWITCHING = 0.5


class Killer:
    """Kills processes of a setting one after another, each at a random moment.

    Parameters
    ----------
    setting
        The broker and its clients.
    rng
        Draws the moments.
    switching
        Whether a rollout is running at each kill.
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
        """Kill the node, the server or a client, and wait until it has been restarted."""
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
        """Return a subscriber and a publisher in turn, each time another one."""
        kind = (self._setting.subscribers, self._setting.publishers)[self._clients % 2]
        found = kind[self._clients // 2 % len(kind)]
        self._clients += 1
        return found

    def _switch(self) -> threading.Thread:
        """Start a rollout, and return when it has probably begun."""
        self._switches += 1
        plans = self._setting.plans
        plan = plans[self._switches % len(plans)]
        working = threading.Thread(target=lambda: self.said.append(self._setting.broker.rollout(plan)))
        working.start()
        time.sleep(self._rng.uniform(0.0, SWITCHING))
        return working


def killed(
    folder: Path, targets: Sequence[str], load: Load, *, switching: bool = False, processes: int = 2
) -> Run:
    """Kill the named kinds of processes one after another; subscribers run in several processes."""
    with ExitStack() as stack:
        setting = Setting(stack, folder, load)
        setting.start(processes=processes)
        killer = Killer(setting, random.Random(f"{load.seed} {' '.join(targets)}"), switching=switching)
        for target in targets:
            killer.kill(target)
        time.sleep(CALM[1])
        setting.end()
        return setting.judge(killer.kills)
