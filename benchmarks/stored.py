"""The live broker at least once, beside at most once and plain JetStream: the price of losing nothing.

The same processes, events and 100,000 filters of 1,000 subscribers as in `live`, on two cores:

- `few`: events a second if about one filter matches each; received, matched and stored for their subscribers.
- `many`: deliveries a second if 39 filters match. `plain_jetstream` is the alternative written with nats-py,
  with the matches known beforehand: a message for each delivery, stored, and a durable consumer for each of
  the 1,000 subscribers.
- `half`: at half of the rate that each sustained: latency from `publish` until a subscriber has the event.
- `calm`: 1,000 events a second of `few`, with hardly any queueing: latency.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from array import array
from typing import Any

import nats
from benchmarks.live import (
    EVENTS,
    PEOPLE,
    SUBSCRIPTIONS,
    Process,
    driven,
    job_of,
    log,
    quantiles,
    quiet,
    say,
    stamped,
)
from benchmarks.workloads import make

from narrowcast.broker import NatsServer
from narrowcast.matching import AutoMatcher
from narrowcast.matching.match_queries import subscribers_of

#: Events of the peer, which is slower; and a second of those that hardly wait.
PLAIN, CALM = 400, 1_000.0
STREAM = "PLAIN"


async def receive(url: str, _: str, n: int) -> None:
    """Be all subscribers with plain JetStream: a durable consumer each."""
    client = await nats.connect(url, pending_size=1 << 27)
    stream = client.jetstream()
    await stream.add_stream(name=STREAM, subjects=["plain.*"], max_bytes=1 << 30)
    got, late, last = 0, array("d"), 0.0

    async def arrived(message: Any) -> None:
        nonlocal got, last
        got += 1
        last = time.time()
        late.append(last - float(message.data[message.data.rindex(b":") + 1 : -1]))
        await message.ack()

    for i in range(min(n, PEOPLE)):
        await stream.subscribe(f"plain.s{i}", durable=f"s{i}", cb=arrived, manual_ack=True)
    say({"ready": True})
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await quiet(lambda: got)
    say({"deliveries": got, "last": last, **quantiles(late)})
    await client.close()


async def publish(url: str, kind: str, n: int, events: int) -> None:
    """Store a message for each delivery, and wait until all are."""
    some = job_of(kind, n).payloads
    work = make("S10", "int", n, len(some))
    subscriptions = work.subscriptions()
    wants = subscribers_of(AutoMatcher().fit(subscriptions).match(work.events()), subscriptions)
    client = await nats.connect(url, pending_size=1 << 27)
    stream = client.jetstream(publish_async_max_pending=4000)
    begun, many = time.time(), 0
    for i in range(events):
        payload = stamped(some[i % len(some)])
        for person in wants[i % len(some)].tolist():
            await stream.publish_async(f"plain.s{person}", payload)
            many += 1
    await stream.publish_async_completed()
    say({"begun": begun, "ended": time.time(), "deliveries": many})
    await client.close()


def plainly(url: str, n: int, events: int) -> dict[str, Any]:
    """Run plain JetStream once."""
    people = Process("receive", url, "many", n, module="benchmarks.stored")
    people.next()
    sent = Process("publish", url, "many", n, events, module="benchmarks.stored").next()
    found = people.end()
    took = found["last"] - sent["begun"]
    rates = {"deliveries_per_s": round(found["deliveries"] / took)}
    return {"events": events, **found, "lost": sent["deliveries"] - found["deliveries"], **rates}


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure everything; quickly, a hundredth, and the numbers mean nothing."""
    scale = 0.01 if quick else 1.0
    n = int(SUBSCRIPTIONS * scale)
    few, many = int(EVENTS["few"] * scale), int(EVENTS["many"] * scale)
    found: dict[str, Any] = {"quick": quick}
    for name, stored in (("at_most_once", False), ("at_least_once", True)):
        with tempfile.TemporaryDirectory() as folder, NatsServer(folder) as server:
            url = server.url
            rows = {"few": driven(url, "few", n, few, heard=False, stored=stored)}
            rows["many"] = driven(url, "many", n, many, stored=stored)
            rate = rows["many"]["sustained_events_per_s"] / 2
            rows["half"] = driven(url, "many", n, many // 4, rate, stored=stored)
            rows["calm"] = driven(url, "few", n, int(10 * CALM * max(scale, 0.1)), CALM, stored=stored)
            log({name: rows})
            found[name] = rows
    with tempfile.TemporaryDirectory() as folder, NatsServer(folder) as server:
        found["plain_jetstream"] = plainly(server.url, n, max(20, int(PLAIN * scale)))
        log(found["plain_jetstream"])
    most, least = found["at_most_once"], found["at_least_once"]
    found["ratios"] = {
        "events_few": round(
            least["few"]["node"]["events_per_s"] / max(1, most["few"]["node"]["events_per_s"]), 3
        ),
        "deliveries_many": round(
            least["many"]["deliveries_per_s"] / max(1, most["many"]["deliveries_per_s"]), 3
        ),
        "deliveries_times_plain_jetstream": round(
            least["many"]["deliveries_per_s"] / max(1, found["plain_jetstream"]["deliveries_per_s"]), 2
        ),
    }
    return found


if __name__ == "__main__":
    tasks: dict[str, Any] = {"receive": receive, "publish": publish}
    asyncio.run(tasks[sys.argv[1]](*sys.argv[2:4], *map(int, sys.argv[4:])))
