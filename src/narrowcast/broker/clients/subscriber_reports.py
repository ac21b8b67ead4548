"""Reports of a subscriber's counts and latencies to nodes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from narrowcast.broker import wire
from narrowcast.broker.data.node_counts import LatencyHistogram, SubscriberCounts
from narrowcast.errors import TransportError

if TYPE_CHECKING:
    from narrowcast.broker.transport import Transport

#: Seconds between two reports, and between two signs of life while no events arrive.
REPORT, ALIVE = 10.0, 30.0


class SubscriberReporter:
    """Reports to nodes every 10 s what a subscriber received; every 30 s if nothing has changed.

    Parameters
    ----------
    transport
        Connection to the broker.
    subject
        Subject of the subscriber's requests to nodes.
    name
        Name of the subscriber.
    """

    def __init__(self, transport: Transport, subject: str, name: str) -> None:
        self._transport, self._subject, self._name = transport, subject, name
        #: Counts of received events; its latencies are those since the last report.
        self.counts = SubscriberCounts()
        self._reported = (0, 0, 0)

    async def run(self) -> None:
        """Report at intervals, until cancelled."""
        quiet = 0.0
        while True:
            await asyncio.sleep(REPORT)
            quiet += REPORT
            with suppress(TransportError):
                if await self.report(always=quiet >= ALIVE):
                    quiet = 0.0

    async def report(self, *, always: bool = False) -> bool:
        """Send the counts since the last report.

        Parameters
        ----------
        always
            Whether to send a report without changes.

        Returns
        -------
        bool
            Whether a report was sent.
        """
        counts = self.counts
        now, arriving = (counts.filtered, counts.repeated, counts.dropped), counts.arriving
        more = [after - before for before, after in zip(self._reported, now, strict=True)]
        if not always and not arriving.count and not any(more):
            return False
        self._reported, counts.arriving = now, LatencyHistogram()
        report = wire.SubscriberReport(self._name, arriving.classes, arriving.total, *more)
        await self._transport.publish(self._subject, wire.encode(report))
        return True
