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
from itertools import islice
from typing import Any

import httpx
from faults.garbage import Sent, control, ingress, request

#: Messages that are on their way at once.
_TOGETHER = 50
#: Seconds for an answer.
_PATIENCE = 30.0
#: Requests that failed and are named.
_SHOWN = 10


def say(what: dict[str, Any]) -> None:
    """Tell the process that started this one."""
    print(json.dumps(what), flush=True)


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
        counts["bad" if one.bad is not None else "unknown"] += one.events if one.bad is None else one.bad

    begun, many = time.monotonic(), 0
    rest = iter(left)
    while some := list(islice(rest, _TOGETHER)):
        await asyncio.gather(*(send(ingress(rng) if kind == "in" else control(rng, int(epoch))) for kind in some))
        many += len(some)
        await asyncio.sleep(max(0.0, begun + many / float(rate) - time.monotonic()))
    await transport.flush()
    await transport.aclose()
    say({"sent": many, **counts})


async def http(api: str, seed: str, many: str, rate: str) -> None:
    """Send requests that are mostly wrong."""
    rng = random.Random(f"{seed} http")
    codes: Counter[int] = Counter()
    events, failed = 0, list[str]()
    begun = time.monotonic()
    async with httpx.AsyncClient(base_url=api, timeout=_PATIENCE) as client:
        for i in range(int(many)):
            method, path, body = request(rng)
            answer = await client.request(method, path, content=body)
            codes[answer.status_code] += 1
            if answer.status_code >= 500:
                failed.append(f"{method} {path:.80} {body[:80]!r}: {answer.text:.200}")
            if answer.status_code == 202:
                events += answer.json()["events"]
            await asyncio.sleep(max(0.0, begun + i / float(rate) - time.monotonic()))
    say({"sent": int(many), "events": events, "codes": codes, "failed": failed[:_SHOWN]})


def openapi(api: str, seed: str, many: str) -> None:
    """Send what schemathesis makes of the description of the API."""
    import hypothesis
    import schemathesis

    description = schemathesis.openapi.from_url(f"{api}/openapi.json")
    operations = [found.ok() for found in description.get_all_operations()]
    codes: Counter[int] = Counter()
    failed = list[str]()
    count = {"events": 0, "sent": 0}

    def run(operation: Any, most: int, part: int) -> None:
        @hypothesis.seed(int(seed) * 1000 + part)
        @hypothesis.settings(
            max_examples=most, database=None, deadline=None, phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
        )  # fmt: skip
        @hypothesis.given(case=operation.as_strategy())
        def one(case: Any) -> None:
            answer = case.call(timeout=_PATIENCE)
            count["sent"] += 1
            codes[answer.status_code] += 1
            if answer.status_code >= 500:
                failed.append(f"{case.method} {case.formatted_path} {case.body!r:.80}: {answer.text:.200}")
            if answer.status_code == 202:
                count["events"] += answer.json()["events"]

        one()

    # What streams for ever is none of it.
    some = [each for each in operations if not each.path.endswith("/events") or each.method.upper() == "POST"]
    part = 0
    while count["sent"] < int(many):
        for each in some:
            run(each, max(1, min(1000, (int(many) - count["sent"]) // len(some) + 1)), part)
            part += 1
    say({**count, "codes": codes, "failed": failed[:_SHOWN]})


def main() -> None:
    """Do what the arguments say."""
    task, *words = sys.argv[1:]
    if task == "openapi":
        openapi(*words)
    else:
        asyncio.run({"messages": messages, "http": http}[task](*words))


if __name__ == "__main__":
    main()
