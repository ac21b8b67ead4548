"""Strangers at every door of a broker with users, while events flow and plans change."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx

from faults.load import OPERATOR, STRANGER, Load
from faults.setting import Run, Setting
from narrowcast.broker import wire
from narrowcast.broker.nats_transport import NatsTransport
from narrowcast.broker.transport import Message
from narrowcast.errors import NarrowcastError, TransportError
from support.strangers import CLOSED, MUTE

#: Seconds of it, and from one plan to the next.
SECONDS, PLANS = 30.0, 4.0
#: What comes to anybody: answers to their own questions, and that a node is there.
_OWN = ("nc.answer.eve.", "nc.control.eve", "nc.beats")
#: Who is somebody else there.
_VICTIM = "s0"


@dataclass
class Strangers:
    """What came of strangers.

    Parameters
    ----------
    run
        What came of everybody else.
    tried, refused
        What was tried, and how often that was refused, by kind.
    heard
        Messages that somebody got and that are not their own.
    taken
        What should have been refused, and was not.
    """

    run: Run
    tried: dict[str, int]
    refused: dict[str, int]
    heard: list[str]
    taken: list[str]


class Stranger:
    """Somebody who tries everything, again and again.

    Parameters
    ----------
    url, api
        Where the broker is.
    load
        Who there is.
    """

    def __init__(self, url: str, api: str, load: Load) -> None:
        self._url, self._api, self._load = url, api, load
        self.tried: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.heard: list[str] = []
        self.taken: list[str] = []

    async def run(self, seconds: float) -> None:
        """Try for so long."""
        end = time.monotonic() + seconds
        async with AsyncExitStack() as stack:
            login = self._load.login(STRANGER)
            eve = await NatsTransport.connect(self._url, **login, refused=lambda _: None)
            stack.push_async_callback(eve.aclose)
            for own in ("nc.out.to.eve", "nc.out.all", "nc.control.eve", "nc.beats", "nc.answer.eve.>"):
                await eve.subscribe(own, self._hear)
            api = await stack.enter_async_context(httpx.AsyncClient(base_url=self._api, timeout=20))
            while time.monotonic() < end:
                await self._come()
                await self._listen(eve)
                await self._forge(eve)
                await self._ask(api)
                await asyncio.sleep(0.5)

    def _hear(self, message: Message) -> None:
        """Note what comes that is not her own; she wants no event."""
        if not message.subject.startswith(_OWN):
            self.heard.append(f"{message.subject}: {message.payload!r:.60}")

    async def _come(self) -> None:
        """Come as somebody else, with a token of one's own or none, and as nobody."""
        mine = self._load.token(STRANGER)
        for name, token in (
            (_VICTIM, mine),
            (_VICTIM, ""),
            ("narrowcast", mine),
            ("mallory", mine),
            (None, None),
        ):
            self.tried["connect"] += 1
            try:
                came = await NatsTransport.connect(self._url, user=name, password=token, patience=5.0)
            except TransportError:
                self.refused["connect"] += 1
            else:
                await came.subscribe(">", self._hear)
                self.taken.append(f"{name} may come with another's token")

    async def _listen(self, eve: NatsTransport) -> None:
        """Listen to what is another's, in every way that a pattern can be written."""
        closed = [each.replace("ann", STRANGER).replace("bob", _VICTIM) for each in CLOSED]
        channels = [f"nc.out.channel.{int(time.time()) + i}.{n}" for i in range(-40, 3) for n in range(2)]
        for subject in (*closed, "nc.out.channel.*.*", "nc.out.channel.*.0", *channels[::9]):
            self.tried["listen"] += 1
            try:
                await eve.subscribe(subject, self._hear)
            except TransportError:
                self.refused["listen"] += 1
            else:
                self.taken.append(f"she may listen to {subject}")

    async def _forge(self, eve: NatsTransport) -> None:
        """Publish as a node, as another, and to the server's own doors, with answers to herself."""
        frame = wire.encode(wire.Frame(-1, time.time(), [("forged", 1)], bytes(8), [b'{"price": 50}']))
        batch = wire.encode(wire.PublishedBatch("p0", 1, [b'{"price": 50}']))
        order = wire.encode(wire.RemoveSubscriptions(_VICTIM, list(range(100))))
        for subject in MUTE:
            where = subject.replace("ann", STRANGER).replace("bob", _VICTIM)
            for payload in (frame, batch, order):
                self.tried["publish"] += 1
                await eve.publish(where, payload, reply="nc.answer.eve.forged")
        for what in (
            "STREAM.MSG.GET.nc_out",
            "CONSUMER.CREATE.nc_out.eve",
            "DIRECT.GET.nc_out",
            "STREAM.INFO.nc_in",
        ):
            self.tried["publish"] += 1
            await eve.publish(f"$JS.API.{what}", b'{"seq": 1}', reply="nc.answer.eve.forged")
        await eve.flush()

    async def _ask(self, api: httpx.AsyncClient) -> None:
        """Ask over HTTP without a token, with a wrong one, and with one's own for what is another's."""
        hers = {"Authorization": f"Bearer {self._load.token(STRANGER)}"}
        nobody: list[dict[str, str]] = [{}, {"Authorization": "Bearer x" * 9}, {"Authorization": OPERATOR}]
        for headers in (*nobody, hers):
            for method, path in (
                ("GET", f"/subscriptions?subscriber={_VICTIM}"),
                ("DELETE", f"/subscriptions/1?subscriber={_VICTIM}"),
                ("POST", "/subscriptions"),
                ("GET", f"/subscribers/{_VICTIM}/events"),
                ("POST", "/events"),
                ("POST", "/rollout"),
                ("GET", "/metrics"),
            ):
                body = {"subscriber": _VICTIM, "filter": "price > 0", "plan": "/", "price": 50}
                self.tried["request"] += 1
                sent = body if method == "POST" else None
                answer = await api.request(method, path, headers=headers, json=sent)
                if answer.status_code in (401, 403):
                    self.refused["request"] += 1
                else:
                    self.taken.append(f"{method} {path} is answered {answer.status_code}")


def strangers(folder: Path, load: Load, *, seconds: float = SECONDS) -> Strangers:
    """Let strangers try for a while; the load has to be guarded."""
    with ExitStack() as stack:
        setting = Setting(stack, folder, load)
        setting.start()
        stranger = Stranger(setting.broker.url, setting.broker.api, load)
        asyncio.run(_beside(setting, stranger, seconds))
        setting.check_alive()
        setting.end()
        run = setting.judge()
    return Strangers(run, dict(stranger.tried), dict(stranger.refused), stranger.heard, stranger.taken)


async def _beside(setting: Setting, stranger: Stranger, seconds: float) -> None:
    """Let a stranger try while one plan after another is taken up."""
    trying = asyncio.create_task(stranger.run(seconds))
    number = 0
    while not trying.done():
        number += 1
        plan = setting.plans[number % len(setting.plans)]
        await asyncio.to_thread(setting.broker.rollout, plan)
        await asyncio.wait({trying}, timeout=PLANS)
    try:
        trying.result()
    except NarrowcastError as error:
        raise AssertionError(f"a stranger could not go on: {error}") from error
