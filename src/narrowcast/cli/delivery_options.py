"""What a live broker promises, and how it stores events for that."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from narrowcast.errors import ParameterError

if TYPE_CHECKING:
    from pathlib import Path

    from narrowcast.broker import Transport
    from narrowcast.broker.storage.broker_state import BrokerState, DeliveryGuarantee
    from narrowcast.broker.storage.streams import EventStreams

#: Bytes that are stored, at least.
_LEAST = 1 << 20


@dataclass(frozen=True)
class DeliveryOptions:
    """What is promised, and how events are stored: for so long, so many bytes, on so many servers."""

    delivery: DeliveryGuarantee
    keep: float
    most: int
    replicas: int

    @classmethod
    def of(
        cls,
        asked: str | None,
        lasting: BrokerState | None,
        *,
        keep: float,
        most: int | None,
        replicas: int,
        own: Path | None,
        alone: bool,
    ) -> DeliveryOptions:
        """Return what is asked for, or what was promised before.

        Parameters
        ----------
        asked
            What is to be promised; None for what was before.
        lasting
            What was promised before, of the first node.
        keep, most, replicas
            As of `EventStreams`; without bytes, half of what is free, and 8 GiB at most.
        own
            The folder of its own server.
        alone
            Whether there is no server at all.
        """
        from narrowcast.broker.storage.broker_state import DeliveryGuarantee
        from narrowcast.broker.storage.streams import MOST

        try:
            wanted = None if asked is None else DeliveryGuarantee(asked)
        except ValueError as error:
            raise ParameterError(f"--delivery is {asked!r}; give {' or '.join(DeliveryGuarantee)}") from error
        found = (wanted or DeliveryGuarantee.AT_MOST_ONCE) if lasting is None else lasting.delivery(wanted)
        if found is DeliveryGuarantee.AT_LEAST_ONCE and alone:
            raise ParameterError("--memory stores nothing; leave it out, or serve at-most-once")
        if not keep >= 1:
            raise ParameterError(f"--keep is {keep:g}; give at least 1 second")
        if most is not None and most < _LEAST:
            raise ParameterError(f"--store is {most:,}; give at least {_LEAST:,} bytes")
        if not 1 <= replicas <= 5:
            raise ParameterError(f"--replicas is {replicas}; give 1 to 5 servers")
        if most is None:
            most = MOST
            if own is not None:
                own.mkdir(parents=True, exist_ok=True)
                most = max(_LEAST, min(MOST, shutil.disk_usage(own).free // 2))
        return cls(found, keep, most, replicas)

    @property
    def stores(self) -> bool:
        """Whether events are stored."""
        return self.delivery == "at-least-once"

    def streams(self, transport: Transport, prefix: str) -> EventStreams | None:
        """Return where events are stored, if they are."""
        if not self.stores:
            return None
        from narrowcast.broker.storage.streams import EventStreams
        from narrowcast.broker.wire import Subjects

        return EventStreams(
            transport, Subjects(prefix), keep=self.keep, most=self.most, replicas=self.replicas
        )
