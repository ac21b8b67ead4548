"""Permissions of many connected users change repeatedly: how long that takes, and who is disconnected."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from faults.load import Load
from faults.processes import Client
from narrowcast.broker import NatsServer
from narrowcast.broker.security.permissions import PermissionGuard
from narrowcast.broker.security.users import UsersFile
from narrowcast.broker.wire import Subjects

#: How often it changes, and seconds from one change to the next.
TIMES, APART = 20, 0.5
_CHANNELS = 16


@dataclass
class Reloads:
    """Result of changing permissions.

    Parameters
    ----------
    users
        Number of connected users; each gets another channel in each change.
    seconds
        Seconds from each change until the server enforces it.
    disconnects
        Number of lost connections.
    """

    users: int
    seconds: list[float]
    disconnects: int


def reloaded(folder: Path, load: Load, *, times: int = TIMES) -> Reloads:
    """Change the channels of users repeatedly, while they are connected from another process."""
    folder.mkdir(parents=True, exist_ok=True)
    guard = PermissionGuard(UsersFile(load.write_users(folder / "users.json")), Subjects("nc"))
    people = list(load.filters)
    with ExitStack() as stack:
        server = stack.enter_context(NatsServer(folder / "nats", users=guard.lines()))
        guard.attach(server)
        client = stack.enter_context(Client("idle", server.url, folder, load, *people))
        client.start()
        seconds = asyncio.run(_changed(guard, people, times))
        client.end()
        lost = json.loads(client.out.read_text().splitlines()[-1])["lost"]
    return Reloads(len(people), seconds, lost)


async def _changed(guard: PermissionGuard, people: list[str], times: int) -> list[float]:
    """Change the channels of all users repeatedly; return the seconds each time took."""
    number = {name: i for i, name in enumerate(people)}
    took = []
    for turn in range(times):
        guard.channels = lambda name, turn=turn: [(turn, number.get(name, 0) % _CHANNELS)]  # type: ignore[misc]
        begun = time.perf_counter()
        await guard.permit()
        took.append(time.perf_counter() - begun)
        await asyncio.sleep(APART)
    return took
