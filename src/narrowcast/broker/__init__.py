"""The live side: carrying messages to those who want them.

`NatsTransport` is in `narrowcast.broker.nats`, which needs nats-py.
"""

from narrowcast.broker.blocking import BlockingPublisher, BlockingSubscriber, Connection
from narrowcast.broker.desk import Desk
from narrowcast.broker.follower import Follower
from narrowcast.broker.interests import Interests
from narrowcast.broker.memory import MemoryTransport
from narrowcast.broker.node import Node
from narrowcast.broker.publisher import Publisher
from narrowcast.broker.record import Record
from narrowcast.broker.server import NatsServer
from narrowcast.broker.store import Store
from narrowcast.broker.subscriber import Event, Subscriber
from narrowcast.broker.transport import Inbox, Message, Transport

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
    "Node",
    "Publisher",
    "Record",
    "Store",
    "Subscriber",
    "Transport",
]
