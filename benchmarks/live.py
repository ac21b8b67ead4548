"""The live broker beside plain nats-py: events and deliveries a second, latency, and deliveries by plan.

The NATS server, a node, all subscribers together and the publisher are processes of their own on this
machine; everything is at most once. Events are JSON of about 128 bytes, subscriptions are filters of 1,000
subscribers.

- `few`: C10, of which an event matches about one of 100,000 subscriptions: events a second that the node
  takes, matches and sends.
- `many`: S10, of which an event matches 39: deliveries a second. `plain` is the alternative written with
  nats-py, with the matches known beforehand: a message for each delivery.
- `half`: the same two at half the rate that each sustained until all events had arrived; `same`, the broker
  at half the rate of the other. Latency is from `publish` until a subscriber has the event, by the clock of
  one machine; at the full rate it is mostly waiting time.
- `plans`: 300 subscribers and events around hotspots. `narrowcast plan` makes a plan of 16 channels by each
  method from 4,000 events, and 4,000 others are sent by it: deliveries for each, counted by the subscribers
  as they come in, beside what `narrowcast evaluate` says of those 4,000 that the plan was made from
  (`learned`), and of those that are sent (`sent`).
- `soak`: an hour of 500 events a second in three minutes, and the memory of the node and of the subscribers
  after each fifth of it. Subscribers remember what they saw for up to a minute, so that it counts from the
  second fifth on.
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import nats
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.sparks import filters_of
from benchmarks.workloads import make

import narrowcast as nc
from narrowcast.broker import ControlPlane, NatsServer, Node, Publisher, Subscriber, SubscriptionIndex
from narrowcast.broker.nats_transport import NatsTransport
from narrowcast.broker.storage.positions import Positions
from narrowcast.broker.storage.streams import EventStreams
from narrowcast.broker.wire import Subjects
from narrowcast.matching import AutoMatcher
from narrowcast.matching.match_queries import subscribers_of
from narrowcast.routing.plan_routes import read_routes
from narrowcast.workloads.hotspots import Hotspots

HERE = Path(__file__).parent
SUBSCRIPTIONS, PEOPLE = 100_000, 1_000
EVENTS = {"few": 400_000, "many": 40_000, "soak": 1_800_000}
NAMES = {"few": "C10", "many": "S10", "soak": "C10"}
#: Events a second of an hour in three minutes.
SOAK = 10_000.0
#: Connections that all subscribers together have: a server gives up one for which too much waits.
CONNECTIONS = 16
#: Events of the peer, which is slower.
PLAIN = 8_000
#: Events that are published between two looks at the clock.
STEP = 8
#: Methods, and what their flows are.
METHODS = {
    "unicast": "events",
    "broadcast": "events",
    "direct": "events",
    "ncut": "events",
    "hash": "cells",
    "macqueen": "cells",
    "pairwise": "cells",
}
CLUSTERED, CHANNELS, SEEN = 300, 16, 4_000
#: When, how much was done until then, and the memory held, in MB.
Mark: TypeAlias = tuple[float, int, float]
COMMAND = [sys.executable, "-c", "from narrowcast.cli.main import main; main()"]


def log(text: object) -> None:
    """Report progress on standard error."""
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Job:
    """What a run is about.

    Parameters
    ----------
    schema, people, filters
        Who subscribes to what.
    payloads
        Events as JSON, without the end, which has the time of publishing.
    plan
        The folder of the plan, if any.
    """

    schema: nc.Schema
    people: list[str]
    filters: list[str]
    payloads: list[bytes]
    plan: str | None = None


def job_of(kind: str, n: int, events: int = 20_000) -> Job:
    """Return what a run is about: a kind by name, or a plan in a folder, beside which its tables are."""
    if kind in NAMES:
        work = make(NAMES[kind], "int", n, events)
        rows = work.points.astype(np.int64).tolist()
        some = [_open(dict(zip(work.attributes, row, strict=True))) for row in rows]
        people = [f"s{i % PEOPLE}" for i in range(n)]
        return Job(work.schema, people, filters_of(work).to_pylist(), some)
    tables = {
        name: pq.read_table(Path(kind).parent / f"{name}.parquet") for name in ("subscriptions", "sent")
    }
    batch = nc.EventBatch.from_arrow(tables["sent"])
    people, filters = (tables["subscriptions"][name].to_pylist() for name in ("subscriber", "filter"))
    return Job(batch.schema, people, filters, [_open(batch.row(i)) for i in range(len(batch))], kind)


def _open(event: dict[str, Any]) -> bytes:
    """Return an event as JSON without its end."""
    return msgspec.json.encode(event)[:-1]


def stamped(some: bytes) -> bytes:
    """Return an event that says when it was published."""
    return b'%s,"t":%.6f}' % (some, time.time())


def quantiles(seconds: array[float]) -> dict[str, float]:
    """Return what latency there was."""
    if not len(seconds):
        return {}
    found = np.quantile(seconds, [0.5, 0.99])
    return {"p50_ms": round(1000 * float(found[0]), 2), "p99_ms": round(1000 * float(found[1]), 2)}


# ---- processes


async def node(url: str, kind: str, n: int, stored: int = 0) -> None:
    """Be a node, which stores events if told so, until standard input ends; then tell what was done."""
    transport = await NatsTransport.connect(url, limit=1 << 20)
    job = job_of(kind, n, 1)
    interests = SubscriptionIndex(job.schema)
    assert interests.load(job.people, job.filters) == []
    streams = EventStreams(transport, Subjects(), max_bytes=4 << 30) if stored else None
    positions = None if streams is None else Positions(streams, Subjects())
    desk = ControlPlane(transport, interests, positions=positions)
    if job.plan is not None:
        desk.use(read_routes(job.plan, job.schema), job.plan)
    made = Node(transport, desk, streams=streams)
    await made.start()
    gc.freeze()
    say({"ready": True})
    marks: list[Mark] = []
    watching = asyncio.create_task(watch(lambda: made.counts.events, marks))
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    if streams is not None:  # publishers do not wait for the node
        await quiet(lambda: made.counts.events)
    watching.cancel()
    counts = made.counts
    busy = [mark for mark in marks if 0 < mark[1] < counts.events]
    rate = (busy[-1][1] - busy[0][1]) / (busy[-1][0] - busy[0][0]) if len(busy) > 1 else 0.0
    say(
        {
            "events": counts.events,
            "wanted": counts.pairs,
            "deliveries": counts.direct + counts.shared,
            "listening": len(desk.epoch.joined),
            "frames": counts.frames,
            "entries": counts.entries,
            "events_per_s": round(rate),
            "match_ms": round(1000 * counts.matching.total / max(1, counts.matching.count), 2),
            "memory_mb": fifths(marks),
        }
    )
    await made.stop()
    await transport.aclose()


async def watch(count: Callable[[], int], marks: list[Mark]) -> None:
    """Note again and again when how much was done, and the memory that this process held."""
    while True:
        marks.append((time.time(), count(), _memory()))
        await asyncio.sleep(0.1)


def fifths(marks: list[Mark]) -> list[float]:
    """Return the memory when each fifth of what was done was over."""
    most = max((done for _, done, _ in marks), default=0)
    if not most:
        return []
    return [next(memory for _, done, memory in marks if done >= most * i / 5) for i in range(1, 6)]


def _memory() -> float:
    """Return the memory that this process holds, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * 4096 / 1e6, 1)


async def receive(url: str, kind: str, n: int) -> None:
    """Be all subscribers, until standard input ends; then tell what came."""
    transports = [await NatsTransport.connect(url, limit=1 << 20) for _ in range(CONNECTIONS)]
    got, late, last = 0, array("d"), [0.0]
    names = sorted(set(job_of(kind, n, 1).people))
    people = [await Subscriber(transports[i % CONNECTIONS], name).start() for i, name in enumerate(names)]

    async def read(one: Subscriber) -> None:
        nonlocal got
        while some := await one.take(1 << 16):
            now = last[0] = time.time()
            got += len(some)
            late.append(now - _sent(some[0].payload))

    reading = [asyncio.create_task(read(one)) for one in people]
    gc.freeze()
    say({"ready": True})
    marks: list[Mark] = []
    watching = asyncio.create_task(watch(lambda: got, marks))
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await quiet(lambda: got)
    counted = {
        name: sum(getattr(one.counts, name) for one in people) for name in ("dropped", "filtered", "repeated")
    }
    watching.cancel()
    say({"deliveries": got, "last": last[0], "memory_mb": fifths(marks), **counted, **quantiles(late)})
    for each in reading:
        each.cancel()


async def quiet(count: Callable[[], int]) -> None:
    """Wait until nothing more has come for a second: what is on its way still counts."""
    before = -1
    while before != count():
        before = count()
        await asyncio.sleep(1.0)


def _sent(payload: bytes) -> float:
    return float(payload[payload.rindex(b":") + 1 : -1])


async def publish(url: str, kind: str, n: int, events: int, rate: float) -> None:
    """Publish events, at some rate or as fast as they go."""
    transport = await NatsTransport.connect(url)
    some = job_of(kind, n).payloads
    async with Publisher(transport, "bench") as publisher:
        begun = time.time()
        for i in range(events):
            await publisher.publish(stamped(some[i % len(some)]))
            if rate and i % STEP == 0:
                await asyncio.sleep(max(0.0, begun + i / rate - time.time()))
        await publisher.flush()
        ended = time.time()
    await transport.aclose()
    say({"begun": begun, "ended": ended, "events_per_s": round(events / (ended - begun))})


async def plain_receive(url: str, _: str, n: int) -> None:
    """Be all subscribers with nats-py alone."""
    clients = [await nats.connect(url, pending_size=1 << 27) for _ in range(CONNECTIONS)]
    got, late, last = 0, array("d"), 0.0

    async def arrived(message: Any) -> None:
        nonlocal got, last
        got += 1
        if got % 50 == 0:
            last = time.time()
            late.append(last - _sent(message.data))

    for i in range(min(n, PEOPLE)):
        own = clients[i % CONNECTIONS]
        await own.subscribe(f"plain.s{i}", cb=arrived, pending_msgs_limit=-1, pending_bytes_limit=-1)
    for own in clients:
        await own.flush()
    gc.freeze()
    say({"ready": True})
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await quiet(lambda: got)
    say({"deliveries": got, "last": last, **quantiles(late)})
    for own in clients:
        await own.close()


async def plain_publish(url: str, kind: str, n: int, events: int, rate: float) -> None:
    """Publish a message for each delivery, with the matches known beforehand."""
    some = job_of(kind, n).payloads
    work = make(NAMES[kind], "int", n, len(some))
    subscriptions = work.subscriptions()
    wants = subscribers_of(AutoMatcher().fit(subscriptions).match(work.events()), subscriptions)
    subjects = [[f"plain.s{i}" for i in wants[row].tolist()] for row in range(len(some))]
    client = await nats.connect(url)
    begun, many = time.time(), 0
    for i in range(events):
        payload = stamped(some[i % len(some)])
        for subject in subjects[i % len(some)]:
            await client.publish(subject, payload)
            many += 1
        if i % STEP == 0:
            await client.flush()  # else it would only fill its own memory
        if rate and i % STEP == 0:
            await asyncio.sleep(max(0.0, begun + i / rate - time.time()))
    await client.flush()
    ended = time.time()
    await client.close()
    say({"begun": begun, "ended": ended, "deliveries": many, "events_per_s": round(events / (ended - begun))})


def say(what: dict[str, Any]) -> None:
    """Tell the process that started this one."""
    print(json.dumps(what), flush=True)


TASKS: dict[str, Callable[..., Any]] = {
    "node": node,
    "receive": receive,
    "publish": publish,
    "plain-receive": plain_receive,
    "plain-publish": plain_publish,
}


# ---- measurements


class Process:
    """A task in a process of its own."""

    def __init__(self, *words: object, module: str = "benchmarks.live") -> None:
        command = [sys.executable, "-m", module, *map(str, words)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, cwd=HERE.parent, stdin=pipe, stdout=pipe, text=True)

    def next(self) -> dict[str, Any]:
        """Return what it says next."""
        assert self._process.stdout is not None
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def end(self) -> dict[str, Any]:
        """Let it end, and return what it says last."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        found = self.next()
        self._process.wait(60)
        return found


def driven(
    url: str, kind: str, n: int, events: int, rate: float = 0.0, *, heard: bool = True, stored: bool = False
) -> dict[str, Any]:
    """Run the broker once."""
    broker = Process("node", url, kind, n, int(stored))
    broker.next()
    people = Process("receive", url, kind, n) if heard else None
    if people is not None:
        people.next()
        time.sleep(1.0)  # the node hears who listens to which channel
    sent = Process("publish", url, kind, n, events, rate).next()
    found = people.end() if people is not None else {}
    done = broker.end()
    row = {"events": events, "wanted": done["wanted"], "node": done, **found}
    row["events_per_s"] = round(events / (sent["ended"] - sent["begun"]))
    if people is not None:
        took = found["last"] - sent["begun"]
        row["deliveries_per_s"] = round(found["deliveries"] / took)
        row["sustained_events_per_s"] = round(events / took)
        row["lost"] = done["wanted"] - found["deliveries"]
    return row


def plainly(url: str, kind: str, n: int, events: int, rate: float = 0.0) -> dict[str, Any]:
    """Run plain nats-py once."""
    people = Process("plain-receive", url, kind, n)
    people.next()
    sent = Process("plain-publish", url, kind, n, events, rate).next()
    found = people.end()
    took = found["last"] - sent["begun"]
    return {
        "events": events,
        **found,
        "lost": sent["deliveries"] - found["deliveries"],
        "events_per_s": sent["events_per_s"],
        "deliveries_per_s": round(found["deliveries"] / took),
        "sustained_events_per_s": round(events / took),
    }


def by_plan(url: str, method: str, folder: Path, seen: int) -> dict[str, Any]:
    """Count deliveries by a plan, beside those that it should come to."""
    inputs = ["--subscriptions", folder / "subscriptions.parquet", "--events"]
    plan = folder / method
    words = ["--flows", METHODS[method], "--method", method, "--channels", CHANNELS, "--out", plan]
    commanded("plan", *inputs, folder / "learned.parquet", *words)
    model = {}
    for name in ("learned", "sent"):
        found = commanded("evaluate", plan, *inputs, folder / f"{name}.parquet", "--router", "channels")
        sent = found["replay"]["plan"]
        model[name] = (sent["received_over_channels"] + sent["direct_messages"]) / seen
        model[f"{name}_wasted"] = sent["wasted"] / seen
    row = driven(url, str(plan), 0, seen)
    came = sum(row[name] for name in ("deliveries", "filtered", "repeated", "dropped")) / seen
    return {
        "method": method,
        "flows": METHODS[method],
        "events": seen,
        "deliveries": round(came, 3),
        "wasted": round(came - row["wanted"] / seen, 3),
        "counted_by_node": round(row["node"]["deliveries"] / seen, 3),
        "listening": row["node"]["listening"],
        **{f"model_{name}": round(value, 3) for name, value in model.items()},
        "off_learned_pct": round(100 * (came / model["learned"] - 1), 2),
        "off_sent_pct": round(100 * (came / model["sent"] - 1), 2),
        "lost": row["lost"],
    }


def commanded(*words: object) -> Any:
    """Run a command of ours, and return what it says."""
    done = subprocess.run([*COMMAND, *map(str, words), "--json"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, words))}: {done.stderr}")
    return json.loads(done.stdout)


def write_tables(folder: Path, seen: int) -> None:
    """Write subscriptions, the events that plans are made from, and those that are sent."""
    tables = Hotspots(n_subscriptions=CLUSTERED, n_events=2 * seen, seed=7).tables()
    pq.write_table(tables["subscriptions"], folder / "subscriptions.parquet")
    # In turn, so that both have the same law whatever moves meanwhile.
    for start, name in enumerate(("learned", "sent")):
        rows = pa.array(range(start, 2 * seen, 2))
        pq.write_table(tables["events"].take(rows), folder / f"{name}.parquet")


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure everything; quickly, a hundredth, and the numbers mean nothing."""
    scale = 0.01 if quick else 1.0
    n = int(SUBSCRIPTIONS * scale)
    many = {kind: int(events * scale) for kind, events in EVENTS.items()}
    with tempfile.TemporaryDirectory() as folder, NatsServer(folder) as server:
        url = server.url
        few = driven(url, "few", n, many["few"], heard=False)
        log({"few": few})
        full = driven(url, "many", n, many["many"])
        log({"many": full})
        plain = plainly(url, "many", n, int(PLAIN * scale))
        log({"plain": plain})
        half = driven(url, "many", n, many["many"] // 2, full["sustained_events_per_s"] / 2)
        plain_half = plainly(url, "many", n, int(PLAIN * scale) // 2, plain["sustained_events_per_s"] / 2)
        same = driven(url, "many", n, many["many"] // 2, plain["sustained_events_per_s"] / 2)
        log({"half": half, "plain_half": plain_half, "same": same})
        seen = int(SEEN * max(scale, 0.05))
        write_tables(Path(folder), seen)
        plans = []
        for method in METHODS:
            plans.append(by_plan(url, method, Path(folder), seen))
            log(plans[-1])
        soak = driven(url, "soak", n, many["soak"], SOAK)
        log({"soak": soak})
    ratio = full["deliveries_per_s"] / max(1, plain["deliveries_per_s"])
    memory = {"node": soak["node"]["memory_mb"], "subscribers": soak["memory_mb"]}
    rate = few["node"]["events_per_s"]
    off = max(abs(row["off_learned_pct"]) for row in plans)
    steady = all(each[-1] <= 1.05 * each[1] for each in memory.values() if each)
    targets = [
        ("events a second, few match", ">= 50,000", rate, rate >= 50_000),
        ("deliveries a second, times plain nats-py", ">= 3", round(ratio, 2), ratio >= 3),
        ("deliveries by plan, off the model's", "<= 5 %", off, off <= 5),
        ("memory, MB, an hour's events", "no growth", memory, steady),
    ]
    return {
        "quick": quick,
        "targets": [dict(zip(("what", "asked", "measured", "met"), each, strict=True)) for each in targets],
        "few": few,
        "many": {"broker": full, "plain": plain},
        "half": {"broker": half, "plain": plain_half, "same": same},
        "plans": plans,
        "soak": soak,
    }


if __name__ == "__main__":
    numbers = [float(word) if "." in word else int(word) for word in sys.argv[4:]]
    asyncio.run(TASKS[sys.argv[1]](*sys.argv[2:4], *numbers))
