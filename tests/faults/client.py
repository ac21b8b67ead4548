"""Clients as processes of their own, which write down what happens to them until standard input ends.

python -m faults.client receive URL FOLDER LIFE LOAD NAME...
python -m faults.client publish URL FOLDER LIFE LOAD NAME
python -m faults.client idle URL FOLDER LIFE LOAD NAME...
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from faults.journal import Handed, Journal, path_of
from faults.load import Load
from narrowcast.broker import Event, Publisher, Subscriber
from narrowcast.broker.nats_transport import NatsTransport
from narrowcast.errors import NarrowcastError, TransportError

log = logging.getLogger("faults")

#: Seconds to try to come in while nobody answers, and from one try to the next.
PATIENCE, PAUSE = 60.0, 0.3


def over() -> asyncio.Future[str]:
    """Return what is done when this process is to end."""
    return asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def ready() -> None:
    """Tell whoever started this process that it is at work."""
    print("ready", flush=True)


async def entered(url: str, name: str, load: Load) -> Subscriber:
    """Return a subscriber that has its filters, as soon as a broker is there."""
    end = time.monotonic() + PATIENCE
    while True:
        transport = await NatsTransport.connect(url, patience=PATIENCE, **load.login(name))
        made = Subscriber(transport, name, window=load.window, limit=load.limit, patience=3.0)
        try:
            await made.start()
            if not made.filters:
                await made.subscribe(*load.filters[name])
        except TransportError as error:
            log.warning("%s is not in yet: %s", name, error)
            await made.aclose(processed=False)
            await transport.aclose()
            if time.monotonic() > end:
                raise
            await asyncio.sleep(PAUSE)
        else:
            return made


def handed(event: Event, now: float) -> Handed:
    """Return what is written down of an event of ours; its number is in it a second time."""
    data = event.data
    number = event.number if data["n"] == event.number else -1
    return Handed(event.publisher, number, event.subject, now, data["t"])


async def receive(url: str, folder: Path, life: int, load: Load, *names: str) -> None:
    """Be some subscribers; who else publishes something that they want does not matter here."""
    ours = set(load.names)

    async def read(one: Subscriber) -> None:
        journal = Journal(path_of(folder, "receive", one.name, life))
        rng = random.Random(f"{load.seed} {life} {one.name}")
        while some := await one.take(rng.randint(1, 2 * load.window)):
            now = time.time()
            journal.handed([handed(event, now) for event in some if event.publisher in ours])

    people = await asyncio.gather(*(entered(url, name, load) for name in names))
    reading = [asyncio.create_task(read(one)) for one in people]
    ready()
    both: set[asyncio.Future[Any]] = {over(), *reading}
    done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    for each in done & set(reading):
        each.result()
    for one in people:
        await one.aclose()
    await asyncio.gather(*reading)


async def publish(url: str, folder: Path, life: int, load: Load, name: str) -> None:
    """Be a publisher, which flushes now and then; what was refused is not published again."""
    transport = await NatsTransport.connect(url, patience=PATIENCE, **load.login(name))
    publisher = await Publisher(transport, name).start()
    journal = Journal(path_of(folder, "publish", name, life))
    rng = random.Random(f"{load.seed} {life} {name}")
    ending = over()
    ready()
    begun, many = time.monotonic(), 0
    while not ending.done():
        first = publisher.number
        try:
            for _ in range(rng.randint(1, load.together)):
                await publisher.publish(load.event(publisher.number, time.time()))
                if rng.random() < 0.2:
                    await asyncio.sleep(0)
            await publisher.flush()
            journal.flushed(first, publisher.number - first, time.time())
        except NarrowcastError as error:
            journal.refused(first, publisher.number - first, time.time(), str(error))
            log.warning("%s: %s", name, error)
            await asyncio.sleep(PAUSE)
            begun, many = time.monotonic(), 0  # what was not published then is not made up for
        many += publisher.number - first
        await asyncio.sleep(max(0.0, begun + many / load.rate - time.monotonic()))
    await transport.aclose()


async def idle(url: str, _folder: Path, _life: int, load: Load, *names: str) -> None:
    """Be connected, and say in the end how many connections were lost."""
    found = []
    for name in names:
        found.append(await NatsTransport.connect(url, patience=PATIENCE, **load.login(name)))
        await found[-1].subscribe(f"nc.out.to.{name}")
    ready()
    await over()
    print(json.dumps({"lost": sum(each.connections - 1 for each in found)}), flush=True)
    for each in found:
        await each.aclose()


def main() -> None:
    """Do what the arguments say."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s.%(msecs)03d %(message)s", datefmt="%H:%M:%S")
    task, url, folder, life, load, *names = sys.argv[1:]
    tasks: dict[str, Any] = {"receive": receive, "publish": publish, "idle": idle}
    work = tasks[task]
    asyncio.run(_failing(work(url, Path(folder), int(life), Load(**json.loads(load)), *names)))


async def _failing(work: Coroutine[None, None, None]) -> None:
    """Do something, and end this process at once when it fails: a thread may still wait for its input."""
    try:
        await work
    except Exception:
        log.exception("a client has failed")
        os._exit(1)


if __name__ == "__main__":
    main()
