"""Questions are answered in turns: who asks much keeps nobody else from an answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from narrowcast.broker import MemoryTransport, wire
from narrowcast.broker.control.request_server import _EACH, RequestServer, _Waiting
from narrowcast.broker.transport import Message

if TYPE_CHECKING:
    from narrowcast.broker.wire import Answer

NC = wire.Subjects("nc")


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=5), max_size=30))
def test_each_has_its_turn_and_its_order(rounds: list[list[str]]) -> None:
    """Against a plain list: nobody waits for more than one of each other who was there before."""
    waiting, asked = _Waiting(), 0
    left: list[Message] = []
    for some in rounds:
        fresh = [Message(who, b"%d" % (asked + i)) for i, who in enumerate(some)]
        asked += len(some)
        waiting.add(fresh)
        left += fresh
        assert len(waiting) == len(left)
        if left:
            found = waiting.next()
            assert found == next(each for each in left if each.subject == found.subject)
            left.remove(found)
    rest = [waiting.next() for _ in range(len(waiting))]
    many = len({each.subject for each in left})
    assert len({each.subject for each in rest[:many]}) == many
    assert sorted(each.payload for each in rest) == sorted(each.payload for each in left)


def test_a_flood_of_one_holds_up_nobody() -> None:
    async def run() -> list[str]:
        transport, answered = MemoryTransport(), list[str]()

        async def answer(message: Message) -> Answer:
            await asyncio.sleep(0)
            answered.append(message.subject)
            return wire.Refusal("")

        asked = await transport.subscribe(NC.asks)
        running = asyncio.create_task(RequestServer(transport, NC, answer).run(asked))
        for _ in range(5_000):
            await transport.publish(NC.ask("mal"), b"")
        await asyncio.sleep(0)
        for name in ("ann", "bob"):
            await transport.publish(NC.ask(name), b"")
        await asked.aclose()
        await running
        return answered

    answered = asyncio.run(run())
    assert {NC.ask("ann"), NC.ask("bob")} <= set(answered[:5])
    assert answered.count(NC.ask("mal")) == _EACH
