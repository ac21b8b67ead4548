"""A node with many subscriptions is killed, and comes again."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import narrowcast as nc
from faults.processes import Broker
from narrowcast.broker import Publisher, Subscriber
from narrowcast.broker.nats_transport import NatsTransport

#: The attributes of events, and the highest value of each.
ATTRIBUTES, HIGHEST = 4, 10_000
#: Seconds to wait for an event.
PATIENCE = 60.0


def write_tables(folder: Path, subscriptions: int, people: int) -> list[object]:
    """Write so many filters of so many people, and the types; return the words that name the types."""
    low = np.random.default_rng(7).integers(0, HIGHEST, (subscriptions, ATTRIBUTES))
    texts = [
        " AND ".join(f"a{j} > {value} AND a{j} <= {value + HIGHEST // 10}" for j, value in enumerate(row))
        for row in low.tolist()
    ]
    names = [f"s{i % people}" for i in range(subscriptions)]
    pq.write_table(pa.table({"subscriber": names, "filter": texts}), folder / "subscriptions.parquet")
    schema = nc.Schema.of({f"a{j}": "double" for j in range(ATTRIBUTES)} | {"extra": "double"})
    (folder / "schema.json").write_text(json.dumps(schema.to_dict()))
    return ["--schema", folder / "schema.json"]


def restarted(
    folder: Path, *, subscriptions: int = 100_000, people: int = 1_000, kills: int = 5
) -> tuple[list[float], list[float]]:
    """Kill a node again and again that has so many subscriptions on disk.

    Return the seconds from each start of its process until it says that it serves, and until somebody has
    the first event that was published after the kill.
    """
    folder.mkdir(parents=True, exist_ok=True)
    words = write_tables(folder, subscriptions, people)
    with Broker(folder, *words, "--subscriptions", folder / "subscriptions.parquet", name="first") as broker:
        broker.start()
    with Broker(folder, *words) as broker:
        broker.start()
        return asyncio.run(_killed(broker, kills))


async def _killed(broker: Broker, kills: int) -> tuple[list[float], list[float]]:
    """Kill a node so often."""
    serving, delivered = [], []
    transports = [await NatsTransport.connect(broker.url) for _ in range(2)]
    async with Subscriber(transports[0], "reader") as reader, Publisher(transports[1], "writer") as writer:
        await reader.subscribe("extra >= 0")
        for number in range(kills):
            broker.kill()
            begun = time.monotonic()
            broker.begin()
            waiting = asyncio.create_task(_serving(broker, begun))
            await writer.publish({"extra": number})
            async with asyncio.timeout(PATIENCE):
                [event] = await reader.take(1)
            delivered.append(time.monotonic() - begun)
            assert event.data == {"extra": number}
            serving.append(await waiting)
    for each in transports:
        await each.aclose()
    return serving, delivered


async def _serving(broker: Broker, begun: float) -> float:
    """Return the seconds until a broker says that it serves."""
    await asyncio.to_thread(broker.wait_ready)
    return time.monotonic() - begun
