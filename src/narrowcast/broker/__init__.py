"""The live side: carrying messages to those who want them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from narrowcast.broker.clients.blocking import BlockingPublisher, BlockingSubscriber, Connection
from narrowcast.broker.clients.event import Event
from narrowcast.broker.clients.publisher import Publisher
from narrowcast.broker.clients.subscriber import Subscriber
from narrowcast.broker.control.control_plane import ControlPlane
from narrowcast.broker.control.follower import Follower
from narrowcast.broker.control.subscription_index import SubscriptionIndex
from narrowcast.broker.data.activity_log import ActivityLog
from narrowcast.broker.data.node import Node
from narrowcast.broker.memory_transport import MemoryTransport
from narrowcast.broker.server.nats_server import NatsServer
from narrowcast.broker.storage.subscription_store import SubscriptionStore
from narrowcast.broker.transport import Inbox, Message, Transport
from narrowcast.deprecation import renamed

if TYPE_CHECKING:
    from narrowcast.broker.nats_transport import NatsTransport

__all__ = [
    "ActivityLog",
    "BlockingPublisher",
    "BlockingSubscriber",
    "Connection",
    "ControlPlane",
    "Event",
    "Follower",
    "Inbox",
    "MemoryTransport",
    "Message",
    "NatsServer",
    "NatsTransport",
    "Node",
    "Publisher",
    "Subscriber",
    "SubscriptionIndex",
    "SubscriptionStore",
    "Transport",
]


def __getattr__(name: str) -> Any:
    """Load what needs nats-py when it is asked for."""
    if name == "NatsTransport":
        from narrowcast.broker.nats_transport import NatsTransport

        return NatsTransport
    return renamed(
        __name__,
        name,
        {
            "Desk": "ControlPlane",
            "Interests": "SubscriptionIndex",
            "Record": "ActivityLog",
            "Store": "SubscriptionStore",
        },
    )
