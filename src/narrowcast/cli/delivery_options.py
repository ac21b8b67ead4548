"""The delivery guarantee of a live broker and its storage of events."""

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

#: Bytes of storage at least.
_LEAST = 1 << 20


@dataclass(frozen=True)
class DeliveryOptions:
    """The delivery guarantee, and the storage of events that it needs.

    Parameters
    ----------
    delivery
        At most once or at least once.
    keep
        Seconds that an event is stored.
    max_bytes
        Maximum size of stored events.
    replicas
        Servers that store each event.
    """

    delivery: DeliveryGuarantee
    keep: float
    max_bytes: int
    replicas: int

    @classmethod
    def of(
        cls,
        asked: str | None,
        state: BrokerState | None,
        *,
        keep: float,
        max_bytes: int | None,
        replicas: int,
        own: Path | None,
        alone: bool,
    ) -> DeliveryOptions:
        """Check the options, with defaults from the recorded state of the broker.

        Parameters
        ----------
        asked
            The guarantee asked for; None for the recorded one.
        state
            The recorded state; None for nodes without one.
        keep, max_bytes, replicas
            As of `EventStreams`; without bytes, half of the free disk space, and 8 GiB at most.
        own
            Data folder of the broker's own NATS server; None without one.
        alone
            Whether the broker runs without NATS.
        """
        from narrowcast.broker.storage.broker_state import DeliveryGuarantee
        from narrowcast.broker.storage.streams import MAX_BYTES

        try:
            wanted = None if asked is None else DeliveryGuarantee(asked)
        except ValueError as error:
            raise ParameterError(
                parameter="delivery", value=asked, limit=" or ".join(DeliveryGuarantee)
            ) from error
        found = (wanted or DeliveryGuarantee.AT_MOST_ONCE) if state is None else state.delivery(wanted)
        if found is DeliveryGuarantee.AT_LEAST_ONCE and alone:
            raise ParameterError(
                "--memory: stores no events; leave it out, or use --delivery at-most-once", parameter="memory"
            )
        if not keep >= 1:
            raise ParameterError(parameter="keep", value=keep, limit="at least 1 second")
        if max_bytes is not None and max_bytes < _LEAST:
            raise ParameterError(parameter="store", value=max_bytes, limit=f"at least {_LEAST:,} bytes")
        if not 1 <= replicas <= 5:
            raise ParameterError(parameter="replicas", value=replicas, limit="1 to 5 servers")
        if max_bytes is None:
            max_bytes = MAX_BYTES
            if own is not None:
                own.mkdir(parents=True, exist_ok=True)
                max_bytes = max(_LEAST, min(MAX_BYTES, shutil.disk_usage(own).free // 2))
        return cls(found, keep, max_bytes, replicas)

    @property
    def stores(self) -> bool:
        """Whether events are stored."""
        return self.delivery == "at-least-once"

    def streams(self, transport: Transport, prefix: str) -> EventStreams | None:
        """Return the streams that store events; None where none are stored."""
        if not self.stores:
            return None
        from narrowcast.broker.storage.streams import EventStreams
        from narrowcast.broker.wire import Subjects

        return EventStreams(
            transport, Subjects(prefix), retention=self.keep, max_bytes=self.max_bytes, replicas=self.replicas
        )
