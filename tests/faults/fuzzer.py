"""Sends garbage as a process of its own, and says in the end what became of it.

python -m faults.fuzzer messages URL SEED INGRESS CONTROL EPOCH RATE
python -m faults.fuzzer openapi SEED MANY FILE
python -m faults.fuzzer http API SEED MANY RATE FILE PART PARTS
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec

from faults.garbage import Sent, control, ingress, request

#: Messages, and requests, that are on their way at once.
_TOGETHER, _REQUESTS = 50, 8
#: Seconds for an answer.
_PATIENCE = 60.0


class Case(NamedTuple):
    """A request: its path with the query."""

    method: str
    path: str
    body: bytes
    headers: dict[str, str]


def say(what: dict[str, Any]) -> None:
    """Tell the process that started this one."""
    print(json.dumps(what), flush=True)


@dataclass
class Answers:
    """What a web server said: how often which code, how many events it took, and what it failed at."""

    codes: Counter[int] = field(default_factory=Counter)
    events: int = 0
    failed: dict[str, str] = field(default_factory=dict)

    def note(self, what: str, body: object, code: int, text: str) -> None:
        """Note an answer; of those that are an error of the server's own, an example each."""
        self.codes[code] += 1
        if code >= 500:
            self.failed.setdefault(f"{what}: {code} {text:.120}", f"{body!r:.80}")
        if code == 202:
            self.events += json.loads(text)["events"]

    def say(self) -> None:
        """Tell of it."""
        failed = [f"{what} for {body}" for what, body in self.failed.items()]
        say({"sent": self.codes.total(), "events": self.events, "codes": self.codes, "failed": failed})


async def messages(url: str, seed: str, n_ingress: str, n_control: str, epoch: str, rate: str) -> None:
    """Send events and control messages; what publishers send is known to be stored."""
    from narrowcast.broker.clients.request_client import RequestClient
    from narrowcast.broker.nats_transport import NatsTransport
    from narrowcast.broker.storage.record_subjects import RecordSubjects
    from narrowcast.broker.storage.streams import EventStreams, error_of
    from narrowcast.broker.wire import Subjects

    rng = random.Random(f"{seed} messages")
    transport = await NatsTransport.connect(url)
    asking = RequestClient(transport, "nc.answer.fuzzer")
    await asking.start()
    streams = EventStreams(transport, Subjects("nc"))
    await streams.start()
    rows = [(each.subject, each.payload) async for each in streams.newest(streams.at, "nc.at.store.*")]
    known = RecordSubjects.found("nc", rows)
    assert known is not None
    left = ["in"] * int(n_ingress) + ["control"] * int(n_control)
    rng.shuffle(left)
    counts: Counter[str] = Counter()

    async def send(one: Sent) -> None:
        if not one.events:
            await asking.send(one.subject, one.payload)
            return
        said = await asking.ask(one.subject, one.payload, patience=_PATIENCE)
        if (why := error_of(said)) is not None:
            raise RuntimeError(f"{one.subject} is not stored: {why}")
        counts["events"] += one.events
        counts["bad"] += one.bad or 0

    begun, many = time.monotonic(), 0
    rest = iter(left)
    while some := list(islice(rest, _TOGETHER)):
        made = [ingress(rng) if kind == "in" else control(rng, int(epoch), *known) for kind in some]
        await asyncio.gather(*map(send, made))
        many += len(some)
        await asyncio.sleep(max(0.0, begun + many / float(rate) - time.monotonic()))
    await transport.flush()
    await streams.aclose()
    await transport.aclose()
    say({"sent": many, **counts})


async def http(api: str, seed: str, n_odd: str, rate: str, file: str, part: str, parts: str) -> None:
    """Send requests that are mostly wrong, and among them a part of what `openapi` has written to a file."""
    rng = random.Random(f"{seed} http")
    made = msgspec.msgpack.decode(Path(file).read_bytes(), type=list[Case])[int(part) :: int(parts)]
    which = [True] * int(n_odd) + [False] * len(made)
    rng.shuffle(which)
    described = iter(made)
    cases = (Case(*request(rng), {}) if odd else next(described) for odd in which)
    found, begun, many = Answers(), time.monotonic(), 0

    async def send(one: Case) -> None:
        try:
            answer = await client.request(one.method, one.path, content=one.body, headers=one.headers)
        except httpx.ReadError:  # it need not read what it refuses to the end
            found.codes[0] += 1
        else:
            what = f"{one.method} {one.path.partition('?')[0]:.20}"
            found.note(what, one.body, answer.status_code, answer.text)

    async def some() -> None:
        nonlocal many
        for one in cases:
            many += 1
            await asyncio.sleep(max(0.0, begun + many / float(rate) - time.monotonic()))
            await send(one)

    async with httpx.AsyncClient(base_url=api, timeout=_PATIENCE) as client:
        await asyncio.gather(*(some() for _ in range(_REQUESTS)))
    found.say()


def openapi(seed: str, many: str, to: str) -> None:
    """Write down what schemathesis makes of the description of the API: what fits it, and what does not."""
    import hypothesis
    import requests
    import schemathesis

    from narrowcast.broker import ControlPlane, MemoryTransport, Node, SubscriptionIndex
    from narrowcast.web.api import make_api

    transport = MemoryTransport()
    api = make_api(Node(transport, ControlPlane(transport, SubscriptionIndex())), transport)
    description = schemathesis.openapi.from_dict(api.openapi())
    operations: list[Any] = [made.ok() for made in description.get_all_operations()]  # type: ignore[union-attr]
    # What streams for ever is none of it.
    some = [each for each in operations if not each.path.endswith("/events") or each.method.upper() == "POST"]
    ways = [(each, mode) for each in some for mode in schemathesis.GenerationMode if each.body or each.query]
    found: list[Case] = []

    def run(operation: Any, mode: Any, most: int, part: int) -> None:
        @hypothesis.seed(int(seed) * 1000 + part)
        @hypothesis.settings(
            max_examples=most, database=None, deadline=None, phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
        )  # fmt: skip
        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        def one(case: Any) -> None:
            made = requests.Request(**case.as_transport_kwargs(base_url="http://api")).prepare()
            body: Any = made.body.encode() if isinstance(made.body, str) else made.body or b""
            headers = {name: str(value) for name, value in made.headers.items()}
            found.append(Case(str(made.method), made.path_url, body, headers))

        one()

    part = 0
    while (left := int(many) - len(found)) > 0:
        for operation, mode in ways:
            run(operation, mode, min(1000, left // len(ways) + 1), part)
            part += 1
    Path(to).write_bytes(msgspec.msgpack.encode(found[: int(many)]))
    say({"cases": len(found[: int(many)])})


def main() -> None:
    """Do what the arguments say."""
    task, *words = sys.argv[1:]
    if task == "openapi":
        openapi(*words)
    else:
        tasks: dict[str, Any] = {"messages": messages, "http": http}
        asyncio.run(tasks[task](*words))


if __name__ == "__main__":
    main()
