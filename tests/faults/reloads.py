"""What many connected users may do changes again and again: how long that takes, and whom it disconnects."""

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
    """What came of changes.

    Parameters
    ----------
    users
        How many were connected, and had another channel after each change.
    seconds
        Of each, from the change until the server holds to it.
    disconnects
        Connections that were lost.
    """

    users: int
    seconds: list[float]
    disconnects: int


def reloaded(folder: Path, load: Load, *, times: int = TIMES) -> Reloads:
    """Let users have other channels again and again, while they are connected from another process."""
    folder.mkdir(parents=True, exist_ok=True)
    guard = PermissionGuard(UsersFile(load.write_users(folder / "users.json")), Subjects("nc"))
    people = list(load.filters)
    with ExitStack() as stack:
        server = stack.enter_context(NatsServer(folder / "nats", users=guard.lines()))
        guard.at(server)
        client = stack.enter_context(Client("idle", server.url, folder, load, *people))
        client.start()
        seconds = asyncio.run(_changed(guard, people, times))
        client.end()
        lost = json.loads(client.out.read_text().splitlines()[-1])["lost"]
    return Reloads(len(people), seconds, lost)


async def _changed(guard: PermissionGuard, people: list[str], times: int) -> list[float]:
    """Change the channels of all so often, and return how long each took."""
    number = {name: i for i, name in enumerate(people)}
    took = []
    for turn in range(times):
        guard.channels = lambda name, turn=turn: [(turn, number.get(name, 0) % _CHANNELS)]  # type: ignore[misc]
        begun = time.perf_counter()
        await guard.permit()
        took.append(time.perf_counter() - begun)
        await asyncio.sleep(APART)
    return took
