"""The live side: carrying messages to those who want them."""

from narrowcast.broker.memory import MemoryTransport
from narrowcast.broker.transport import Inbox, Message, Transport

__all__ = ["Inbox", "MemoryTransport", "Message", "Transport"]
