"""Plans that are taken up while events flow: what was lost, doubled or reordered.

`narrowcast serve`, one node or two, its NATS server, all subscribers together and two publishers are
processes of their own. While some 500 events a second are published, which the subscribers' one process can
take by every plan, 20 plans of five methods are rolled out over HTTP, one after another. Then every delivery
is compared with what the filters ask for: each event once to each who wants it, and in the order of its
publisher for all that came over one subject.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.live import COMMAND, Process, log, quiet, say

import narrowcast as nc
from narrowcast.broker import NatsServer, NatsTransport, Publisher, Subscriber

PEOPLE, EVENTS, CHANNELS, SEED = 100, 2_000, 8, 7
SWITCHES, PUBLISHERS = 20, 2
#: Clusters of subscribers, and the two ends.
METHODS = ("direct", "ncut", "unicast", "rassoc", "broadcast")
SCHEMA = nc.Schema.of({"price": "double", "amount": "double"})


def filters() -> dict[str, str]:
    """Return the filter of each subscriber."""
    low = np.random.default_rng(SEED).integers(0, 80, (PEOPLE, 2)).tolist()
    return {
        f"s{i}": f"price > {a} AND price <= {a + 30} AND amount > {b} AND amount <= {b + 40}"
        for i, (a, b) in enumerate(low)
    }


def events() -> list[dict[str, int]]:
    """Return what is published, again and again."""
    found = np.random.default_rng(SEED + 1).integers(0, 120, (EVENTS, 2)).tolist()
    return [{"price": price, "amount": amount} for price, amount in found]


def wanted() -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return which subscriber wants which event, by the slowest matcher."""
    batch = nc.EventBatch.from_rows(events(), SCHEMA)
    matchers = [
        nc.Scan().fit(nc.compile_filters(SCHEMA, [text]).subscriptions) for text in filters().values()
    ]
    return np.array([matcher.count(batch) > 0 for matcher in matchers])


async def receive(url: str, out: str) -> None:
    """Be all subscribers, until standard input ends; then write down what came, in order."""
    transports = [await NatsTransport.connect(url) for _ in range(4)]
    people = [await Subscriber(transports[i % 4], name).start() for i, name in enumerate(filters())]
    got: dict[str, list[tuple[str, int, str]]] = defaultdict(list)
    many = 0

    async def read(one: Subscriber) -> None:
        nonlocal many
        while some := await one.take(1 << 16):
            many += len(some)
            got[one.name] += [(event.publisher, event.number, event.subject) for event in some]

    reading = [asyncio.create_task(read(one)) for one in people]
    say({"ready": True})
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await quiet(lambda: many)
    Path(out).write_text(json.dumps(got))
    say({"deliveries": many})
    for each in reading:
        each.cancel()


async def publish(url: str, name: str) -> None:
    """Publish events until standard input ends; then tell from which number on, and how many."""
    transport = await NatsTransport.connect(url)
    over = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    some = events()
    async with Publisher(transport, name) as publisher:
        first, many = publisher.number, 0
        say({"ready": True})
        while not over.done():
            await publisher.publish(some[many % EVENTS])
            many += 1
            if many % 5 == 0:
                await asyncio.sleep(0.02)
    say({"publisher": name, "first": first, "events": many})


TASKS: dict[str, Callable[..., Any]] = {"receive": receive, "publish": publish}


def prepare(folder: Path) -> list[Path]:
    """Write the subscriptions, and a plan by each method."""
    names = list(filters())
    table = pa.table({"subscriber": names, "filter": list(filters().values())})
    pq.write_table(table, folder / "subscriptions.parquet")
    (folder / "schema.json").write_text(json.dumps(SCHEMA.to_dict()))
    interest = nc.Interest(wanted(), subscribers=names)
    plans = []
    for method in METHODS:
        made = nc.PLANNERS[method](channels=CHANNELS, seed=SEED).fit(interest).plan_
        plans.append(folder / method)
        nc.write_plan(made, plans[-1], method=method, seed=SEED, flow_space="events")
    return plans


def served(stack: ExitStack, *words: object) -> str:
    """Start a node for as long as a block lasts, and return the URL of its HTTP API."""
    command = [*COMMAND, "serve", "--http", "127.0.0.1:0", *map(str, words)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def end() -> None:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)

    stack.callback(end)
    assert process.stderr is not None
    said = next(line for line in process.stderr if "serving at" in line)
    return str(re.findall(r"http://\S+?:\d+", said)[0])


def switched(nodes: int, switches: int) -> dict[str, Any]:
    """Roll plans out under load, and compare what came with what should have."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        plans = prepare(folder)
        url = stack.enter_context(NatsServer(folder / "nats")).url
        tables = ["--subscriptions", folder / "subscriptions.parquet", "--schema", folder / "schema.json"]
        api = served(stack, "--nats", url, "--node", f"1/{nodes}", "--plan", plans[0], *tables)
        for other in range(2, nodes + 1):
            served(stack, "--nats", url, "--node", f"{other}/{nodes}")
        people = Process("receive", url, folder / "got.json", module="benchmarks.switching")
        people.next()
        sending = [Process("publish", url, f"p{i}", module="benchmarks.switching") for i in range(PUBLISHERS)]
        for each in sending:
            each.next()
        took = []
        for number in range(switches):
            time.sleep(0.3)
            begun = time.perf_counter()
            plan = str(plans[(number + 1) % len(plans)])
            httpx.post(f"{api}/rollout", json={"plan": plan}, timeout=60).raise_for_status()
            took.append(time.perf_counter() - begun)
        sent = [each.end() for each in sending]
        people.end()
        got = json.loads((folder / "got.json").read_text())
    row = compared(sent, got)
    return {"nodes": nodes, "switches": switches, **row, "switch_s": round(float(np.median(took)), 3)}


def compared(sent: list[dict[str, Any]], got: dict[str, list[list[Any]]]) -> dict[str, int]:
    """Count events lost, duplicated, reordered, or delivered to an uninterested subscriber."""
    wants = wanted()
    lost = doubled = reordered = wrong = 0
    for who, flags in zip(filters(), wants, strict=True):
        came = Counter((publisher, number) for publisher, number, _ in got.get(who, []))
        should = {
            (one["publisher"], one["first"] + i)
            for one in sent
            for i in range(one["events"])
            if flags[i % EVENTS]
        }
        lost += len(should - came.keys())
        wrong += len(came.keys() - should)
        doubled += sum(many - 1 for many in came.values())
        last: dict[tuple[str, str], int] = {}
        for publisher, number, subject in got.get(who, []):
            reordered += number < last.get((publisher, subject), -1)
            last[publisher, subject] = number
    return {
        "events": sum(one["events"] for one in sent),
        "deliveries": sum(map(len, got.values())),
        "lost": lost,
        "doubled": doubled,
        "reordered": reordered,
        "wrong": wrong,
    }


def run(*, quick: bool = False) -> dict[str, Any]:
    """Switch plans with one node and with two; quickly, three times."""
    rows = []
    for nodes in (1, 2):
        rows.append(switched(nodes, 3 if quick else SWITCHES))
        log(rows[-1])
    return {"quick": quick, "rows": rows}


if __name__ == "__main__":
    asyncio.run(TASKS[sys.argv[1]](*sys.argv[2:]))
