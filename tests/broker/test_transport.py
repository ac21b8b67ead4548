"""One suite for every transport: the fixture `opened` has them all."""

from __future__ import annotations

import asyncio
import gc
import warnings
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from narrowcast.broker.memory_transport import MemoryTransport
from narrowcast.broker.nats_transport import NatsTransport
from narrowcast.broker.transport import Message, Transport, check_subject
from narrowcast.errors import ParameterError, TransportError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from contextlib import AbstractAsyncContextManager

    from narrowcast.broker.transport import Inbox

    Open = Callable[..., AbstractAsyncContextManager[Transport]]

#: Nothing here should take long; a hang should fail, not block the run.
PATIENCE = 20


async def take(subscription: Inbox, count: int) -> list[Message]:
    async with asyncio.timeout(PATIENCE):
        return [await anext(subscription) for _ in range(count)]


async def rest(subscription: Inbox) -> list[Message]:
    async with asyncio.timeout(PATIENCE):
        return [message async for message in subscription]


def test_order_and_no_loss_for_slow_and_fast_readers(opened: Open) -> None:
    count = 3_000

    async def publish(transport: Transport, subject: str) -> None:
        for number in range(count):
            await transport.publish(subject, str(number).encode())

    async def read(subscription: Inbox, expected: int, pause: int) -> list[Message]:
        found = []
        for number in range(expected):
            found += await take(subscription, 1)
            if pause and number % pause == 0:
                await asyncio.sleep(0.001)
        return found

    async def run() -> None:
        async with opened() as transport:
            both = await transport.subscribe("ticks.*")
            one = await transport.subscribe("ticks.us")
            results = await asyncio.gather(
                read(both, 2 * count, 100),
                read(one, count, 0),
                publish(transport, "ticks.us"),
                publish(transport, "ticks.eu"),
            )
            numbers = [str(number).encode() for number in range(count)]
            assert [message.payload for message in results[1]] == numbers
            for subject in ("ticks.us", "ticks.eu"):
                assert [m.payload for m in results[0] if m.subject == subject] == numbers

    asyncio.run(run())


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        ("a.b", {"a.b"}),
        ("a.*", {"a.b", "a.c"}),
        ("*.b", {"a.b", "x.b"}),
        ("a.>", {"a.b", "a.c", "a.b.c"}),
        ("*.*.*", {"a.b.c"}),
        (">", {"a", "a.b", "a.c", "x.b", "a.b.c", "axb"}),
        ("axb", {"axb"}),
    ],
)
def test_patterns(opened: Open, pattern: str, fits: set[str]) -> None:
    async def run() -> None:
        async with opened() as transport:
            subscription = await transport.subscribe(pattern)
            for subject in ("a", "a.b", "a.c", "x.b", "a.b.c", "axb"):
                await transport.publish(subject, b"")
            found = await take(subscription, len(fits))
            assert {message.subject for message in found} == fits
            await transport.aclose()
            assert await rest(subscription) == []

    asyncio.run(run())


def test_every_subscription_has_its_own_copy_and_only_of_what_comes_later(opened: Open) -> None:
    async def run() -> None:
        async with opened() as transport:
            await transport.publish("news", b"before")
            one, two = await transport.subscribe("news"), await transport.subscribe("news")
            await transport.publish("news", b"after")
            assert await take(one, 1) == await take(two, 1) == [Message("news", b"after")]
            await one.aclose()
            await one.aclose()
            await transport.publish("news", b"last")
            assert await rest(one) == []
            assert await take(two, 1) == [Message("news", b"last")]

    asyncio.run(run())


def test_closing_ends_readers(opened: Open) -> None:
    async def run() -> None:
        async with opened() as transport:
            subscription = await transport.subscribe("news")
            waiting = asyncio.create_task(rest(subscription))
            await asyncio.sleep(0)
            await transport.publish("news", b"x")
            await asyncio.sleep(0.05)
            await transport.aclose()
            await transport.aclose()
            assert await waiting == [Message("news", b"x")]
            with pytest.raises(TransportError, match="the transport is closed; open a new one"):
                await transport.publish("news", b"y")
            with pytest.raises(TransportError, match="closed"):
                await transport.subscribe("news")

    asyncio.run(run())


def test_bad_subjects(opened: Open) -> None:
    async def run() -> None:
        async with opened() as transport:
            for subject in ("", "a..b", ".a", "a b", "a\n", "a.*", ">"):
                with pytest.raises(ParameterError, match="subject"):
                    await transport.publish(subject, b"")
            for pattern in ("", "a.>.b", "a.", "a\tb"):
                with pytest.raises(ParameterError, match="subject"):
                    await transport.subscribe(pattern)

    asyncio.run(run())


def test_a_wildcard_is_a_whole_word() -> None:
    check_subject("a*b.c>d")
    with pytest.raises(ParameterError, match=r"subject 'a\.\*' has a wildcard; publish to one subject"):
        check_subject("a.*")


def test_all_that_waits_is_taken_at_once(opened: Open) -> None:
    async def run() -> None:
        async with opened() as transport:
            news = await transport.subscribe("news")
            for number in range(5):
                await transport.publish("news", str(number).encode())
            await transport.flush()
            found: list[bytes] = []
            async with asyncio.timeout(PATIENCE):
                while len(found) < 5:
                    some = await news.take(2)
                    assert 1 <= len(some) <= 2
                    found += [message.payload for message in some]
            assert found == [b"0", b"1", b"2", b"3", b"4"]
            await transport.aclose()
            assert await news.take(2) == []

    asyncio.run(run())


def test_answers(opened: Open) -> None:
    async def run() -> None:
        async with opened() as transport:
            asked, answers = await transport.subscribe("ask"), await transport.subscribe("answers.7")
            await transport.publish("ask", b"?", reply="answers.7")
            [question] = await take(asked, 1)
            assert question.reply == "answers.7"
            await transport.publish(question.reply, b"!")
            assert await take(answers, 1) == [Message("answers.7", b"!")]

    asyncio.run(run())


def test_a_slow_reader_holds_nobody_up(opened: Open) -> None:
    async def run() -> None:
        async with opened(limit=4) as transport:
            slow, other = await transport.subscribe("news"), await transport.subscribe("news")
            reading = asyncio.create_task(rest(other))
            for number in range(20):
                await transport.publish("news", str(number).encode())
                await transport.flush()
                await asyncio.sleep(0.001)  # the other reads
            async with asyncio.timeout(PATIENCE):
                while slow.dropped < 16:
                    await asyncio.sleep(0.01)
            await transport.aclose()
            assert [message.payload for message in await rest(slow)] == [b"0", b"1", b"2", b"3"]
            assert [message.payload for message in await reading] == [b"%d" % n for n in range(20)]
            assert (slow.dropped, other.dropped) == (16, 0)

    asyncio.run(run())


def test_memory_needs_room() -> None:
    with pytest.raises(ParameterError, match="limit is 0; let at least 1 message wait"):
        MemoryTransport(limit=0)


def test_a_nats_server_that_is_not_there() -> None:
    with pytest.raises(TransportError, match=r"no NATS server answers at nats://127\.0\.0\.1:1 within 0.3 s"):
        asyncio.run(NatsTransport.connect("nats://127.0.0.1:1", patience=0.3))
    with pytest.raises(ParameterError, match="servers is ' , '; name one, as nats://host:4222"):
        asyncio.run(NatsTransport.connect(" , "))


@pytest.mark.nats
def test_what_a_server_does_not_take(nats_url: str) -> None:
    async def run() -> None:
        transport = await NatsTransport.connect(nats_url)
        try:
            with pytest.raises(ParameterError, match=r"payload of 1,048,577 bytes exceeds .* of 1,048,576"):
                await transport.publish("news", bytes((1 << 20) + 1))
        finally:
            await transport.aclose()

    asyncio.run(run())


@pytest.mark.nats
def test_who_gives_up_waiting_harms_nobody(nats_url: str) -> None:
    """A flush that nobody waits for any more: the connection goes on."""

    async def run() -> None:
        transport = await NatsTransport.connect(nats_url)
        inbox = await transport.subscribe("still.there")
        for work in (transport.flush, lambda: transport.subscribe("x.y"), inbox.aclose):
            task = asyncio.ensure_future(work())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        again = await transport.subscribe("still.there")
        async with asyncio.timeout(20):
            await transport.publish("still.there", b"1")
            assert (await anext(again)).payload == b"1"
            await transport.flush()
        assert transport.connected
        await transport.aclose()
        assert not transport.connected

    asyncio.run(run())


class Door:
    """Leads to a NATS server; while it is shut, who comes hears half a word and the end."""

    def __init__(self, url: str) -> None:
        self._to, self._ends = urlsplit(url), list[asyncio.StreamWriter]()
        self.shut, self.turned_away = False, 0

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.shut:
            self.turned_away += 1
            writer.write(b'INFO {"server_id"')
            writer.close()
            return
        there, back = await asyncio.open_connection(self._to.hostname, self._to.port)
        self._ends += [writer, back]
        await asyncio.gather(self._pass(reader, back), self._pass(there, writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while some := await reader.read(1 << 16):
                writer.write(some)
        writer.close()

    def shut_now(self) -> None:
        """Send everybody out, and let nobody in."""
        self.shut = True
        for end in self._ends:
            end.close()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[str]:
        """Let people in; yields where."""
        async with await asyncio.start_server(self._accept, "127.0.0.1", 0) as server:
            yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            self.shut_now()
            await asyncio.sleep(0.05)


def nothing_left_open(run: Callable[[], Coroutine[None, None, None]]) -> None:
    """Run something, and see to it that all its connections are closed by who made them."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        asyncio.run(run())
        gc.collect()
    assert not [str(warning.message) for warning in told]


@pytest.mark.nats
def test_a_server_that_goes_while_it_greets_leaves_nothing_open(nats_url: str) -> None:
    async def run() -> None:
        door = Door(nats_url)
        async with door.opened() as url, asyncio.timeout(PATIENCE):
            transport = await NatsTransport.connect(url)
            inbox = await transport.subscribe("still.there")
            door.shut_now()
            while door.turned_away < 3:
                await asyncio.sleep(0.01)
            door.shut = False
            while not transport.connected:
                await asyncio.sleep(0.01)
            assert transport.connections == 2
            await transport.publish("still.there", b"1")
            assert (await anext(inbox)).payload == b"1"
            await transport.aclose()

    nothing_left_open(run)


@pytest.mark.nats
def test_closing_at_any_moment_of_connecting_again_is_the_end(nats_url: str) -> None:
    async def closed_at(moment: int) -> None:
        door = Door(nats_url)
        async with door.opened() as url, asyncio.timeout(PATIENCE):
            transport = await NatsTransport.connect(url)
            door.shut_now()
            while not door.turned_away:
                await asyncio.sleep(0.01)
            door.shut = moment % 4 == 0
            await asyncio.sleep(0.18 + moment / 1_000)  # it tries again every 0.2 s
            await transport.aclose()
            assert not transport.connected

    async def run() -> None:
        await asyncio.gather(*map(closed_at, range(40)))
        await asyncio.sleep(0.5)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    nothing_left_open(run)


@pytest.mark.nats
@pytest.mark.parametrize("shut", [False, True])
def test_who_gives_up_connecting_leaves_nothing_open(nats_url: str, shut: bool) -> None:
    async def run() -> None:
        door = Door(nats_url)
        async with door.opened() as url, asyncio.timeout(PATIENCE):
            door.shut = shut
            for turns in range(60):
                task = asyncio.ensure_future(NatsTransport.connect(url))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                (found,) = await asyncio.gather(task, return_exceptions=True)
                if isinstance(found, NatsTransport):  # it was faster
                    await found.aclose()
                else:
                    assert isinstance(found, asyncio.CancelledError)

    nothing_left_open(run)
