"""The live side: carrying messages to those who want them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from narrowcast.broker.clients.blocking import BlockingPublisher, BlockingSubscriber, Connection
from narrowcast.broker.clients.event import Event
from narrowcast.broker.clients.publisher import Publisher
from narrowcast.broker.clients.subscriber import Subscriber
from narrowcast.broker.control.desk import Desk
from narrowcast.broker.control.follower import Follower
from narrowcast.broker.control.interests import Interests
from narrowcast.broker.data.node import Node
from narrowcast.broker.data.record import Record
from narrowcast.broker.memory import MemoryTransport
from narrowcast.broker.server.server import NatsServer
from narrowcast.broker.storage.store import Store
from narrowcast.broker.transport import Inbox, Message, Transport

if TYPE_CHECKING:
    from narrowcast.broker.nats import NatsTransport

__all__ = [
    "BlockingPublisher",
    "BlockingSubscriber",
    "Connection",
    "Desk",
    "Event",
    "Follower",
    "Inbox",
    "Interests",
    "MemoryTransport",
    "Message",
    "NatsServer",
    "NatsTransport",
    "Node",
    "Publisher",
    "Record",
    "Store",
    "Subscriber",
    "Transport",
]


def __getattr__(name: str) -> Any:
    """Load what needs nats-py when it is asked for."""
    if name == "NatsTransport":
        from narrowcast.broker.nats import NatsTransport

        return NatsTransport
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
