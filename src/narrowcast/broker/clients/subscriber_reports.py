"""What a subscriber tells nodes of itself."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from narrowcast.broker import wire
from narrowcast.broker.data.node_counts import LatencyHistogram, SubscriberCounts
from narrowcast.errors import TransportError

if TYPE_CHECKING:
    from narrowcast.broker.transport import Transport

#: Seconds from one account of what came to the next, and where nothing came, to a sign of life.
REPORT, ALIVE = 10.0, 30.0


class SubscriberReporter:
    """Tells nodes every so often what a subscriber got, and that it is there.

    Parameters
    ----------
    transport
        What moves bytes.
    subject
        Where the subscriber speaks to nodes.
    name
        Who it is.
    """

    def __init__(self, transport: Transport, subject: str, name: str) -> None:
        self._transport, self._subject, self._name = transport, subject, name
        #: What it got; the seconds are those since nodes were told last.
        self.got = SubscriberCounts()
        self._told = (0, 0, 0)

    async def run(self) -> None:
        """Tell nodes again and again."""
        quiet = 0.0
        while True:
            await asyncio.sleep(REPORT)
            quiet += REPORT
            with suppress(TransportError):
                if await self.report(always=quiet >= ALIVE):
                    quiet = 0.0

    async def report(self, *, always: bool = False) -> bool:
        """Tell nodes what came since they were told last, if anything did; return whether they were told."""
        got = self.got
        now, arriving = (got.filtered, got.repeated, got.dropped), got.arriving
        more = [after - before for before, after in zip(self._told, now, strict=True)]
        if not always and not arriving.many and not any(more):
            return False
        self._told, got.arriving = now, LatencyHistogram()
        said = wire.SubscriberReport(self._name, arriving.classes, arriving.total, *more)
        await self._transport.publish(self._subject, wire.encode(said))
        return True
