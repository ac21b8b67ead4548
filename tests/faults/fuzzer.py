"""Sends garbage as a process of its own, and says in the end what became of it.

python -m faults.fuzzer messages URL SEED INGRESS CONTROL EPOCH RATE
python -m faults.fuzzer http API SEED MANY RATE
python -m faults.fuzzer openapi API SEED MANY
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
from typing import Any

import httpx

from faults.garbage import Sent, control, ingress, request

#: Messages that are on their way at once.
_TOGETHER = 50
#: Seconds for an answer.
_PATIENCE = 60.0


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
    from narrowcast.broker.asking import Asking
    from narrowcast.broker.nats import NatsTransport
    from narrowcast.broker.streams import error_of

    rng = random.Random(f"{seed} messages")
    transport = await NatsTransport.connect(url)
    asking = Asking(transport, "nc.answer.fuzzer")
    await asking.start()
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
        made = [ingress(rng) if kind == "in" else control(rng, int(epoch)) for kind in some]
        await asyncio.gather(*map(send, made))
        many += len(some)
        await asyncio.sleep(max(0.0, begun + many / float(rate) - time.monotonic()))
    await transport.flush()
    await transport.aclose()
    say({"sent": many, **counts})


async def http(api: str, seed: str, many: str, rate: str) -> None:
    """Send requests that are mostly wrong."""
    rng = random.Random(f"{seed} http")
    found = Answers()
    begun = time.monotonic()
    async with httpx.AsyncClient(base_url=api, timeout=_PATIENCE) as client:
        for i in range(int(many)):
            method, path, body = request(rng)
            try:
                answer = await client.request(method, path, content=body)
            except httpx.ReadError:  # it need not read what it refuses to the end
                found.codes[0] += 1
            else:
                found.note(f"{method} {path.partition('?')[0]:.20}", body, answer.status_code, answer.text)
            await asyncio.sleep(max(0.0, begun + i / float(rate) - time.monotonic()))
    found.say()


def openapi(api: str, seed: str, many: str) -> None:
    """Send what schemathesis makes of the description of the API."""
    import hypothesis
    import schemathesis

    description = schemathesis.openapi.from_url(f"{api}/openapi.json")
    operations: list[Any] = [made.ok() for made in description.get_all_operations()]  # type: ignore[union-attr]
    found = Answers()

    def run(operation: Any, most: int, part: int) -> None:
        @hypothesis.seed(int(seed) * 1000 + part)
        @hypothesis.settings(
            max_examples=most, database=None, deadline=None, phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
        )  # fmt: skip
        @hypothesis.given(case=operation.as_strategy())
        def one(case: Any) -> None:
            answer = case.call(timeout=_PATIENCE)
            found.note(f"{case.method} {operation.path}", case.body, answer.status_code, answer.text)

        one()

    # What streams for ever is none of it.
    some = [each for each in operations if not each.path.endswith("/events") or each.method.upper() == "POST"]
    part = 0
    while (left := int(many) - found.codes.total()) > 0:
        for each in some:
            run(each, min(1000, left // len(some) + 1), part)
            part += 1
    found.say()


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
