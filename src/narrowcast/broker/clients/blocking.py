"""Publishers and subscribers for programs without an event loop."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Self, TypeVar

from narrowcast.broker.clients.publisher import Publisher
from narrowcast.broker.clients.subscriber import Subscriber
from narrowcast.broker.security.login import Login
from narrowcast.broker.wire import Subjects
from narrowcast.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Mapping
    from types import TracebackType

    from narrowcast.broker.clients.event import Event
    from narrowcast.broker.security.tls import Tls
    from narrowcast.broker.transport import Transport

Found = TypeVar("Found")


class Connection:
    """A connection to a broker at NATS servers, with an event loop in a thread of its own.

    Parameters
    ----------
    servers
        URLs of servers of one cluster, joined by commas.
    prefix
        As nodes have it.
    patience
        Seconds to wait for a server.
    user, token
        Who connects, where the broker has users; the URLs may say it too.
    tls
        Certificates, where servers want TLS.

    Examples
    --------
    ::

        with Connection("nats://127.0.0.1:4222") as broker:
            ann = broker.subscriber("ann")
            ann.subscribe("price > 75")
            broker.publisher().publish({"price": 80})
            print(next(ann).data)
    """

    def __init__(
        self,
        servers: str,
        *,
        prefix: str = "nc",
        patience: float = 10.0,
        user: str | None = None,
        token: str | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._servers, self._prefix, self._patience = servers, prefix, patience
        self._login = Login.of(servers, user, token, tls.context() if tls is not None and tls.given else None)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="narrowcast", daemon=True)
        self._transport: Transport | None = None
        self._open: list[BlockingPublisher | BlockingSubscriber] = []

    def open(self) -> Self:
        """Connect."""
        from narrowcast.broker.nats_transport import NatsTransport

        if self._thread.ident is not None:
            raise TransportError("a connection is opened once; make another")
        self._thread.start()
        try:
            login = self._login
            self._transport = self.run(
                NatsTransport.connect(
                    login.servers,
                    patience=self._patience,
                    user=login.user or None,
                    password=login.password or None,
                    tls=login.tls,
                    inbox=Subjects(self._prefix).inbox(login.user) if login.user else "",
                )
            )
        except BaseException:
            self._end()
            raise
        return self

    def run(self, work: Coroutine[Any, Any, Found]) -> Found:
        """Do something in the event loop, and wait for it."""
        if not self._thread.is_alive():
            work.close()
            raise TransportError("the connection is not open; use it in a with block, or open it")
        found = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return found.result()
        except BaseException:  # who is interrupted waits no longer, and so takes nothing
            found.cancel()
            raise

    def publisher(self, name: str | None = None) -> BlockingPublisher:
        """Return a publisher: see `Publisher`. Where there is a user, it has that name unless told."""
        made = BlockingPublisher(self, name or self._login.user or None)
        self._open.append(made)
        return made

    def subscriber(self, name: str | None = None) -> BlockingSubscriber:
        """Return a subscriber: see `Subscriber`. Where there is a user, it has that name unless told."""
        made = BlockingSubscriber(self, name or self._login.user)
        self._open.append(made)
        return made

    def close(self, *, processed: bool = True) -> None:
        """Close all of it; where events are stored, what was handed out is acknowledged if `processed`."""
        if self._transport is not None:
            for each in self._open:
                each.close(processed=processed)
            self.run(self._transport.aclose())
            self._transport = None
            self._end()

    def _end(self) -> None:
        """End the loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(processed=error is None)


class BlockingPublisher:
    """A `Publisher` whose calls wait; `Connection.publisher` makes one."""

    def __init__(self, connection: Connection, name: str | None) -> None:
        self._connection = connection

        async def made() -> Publisher:
            assert connection._transport is not None
            return await Publisher(connection._transport, name, prefix=connection._prefix).start()

        self._publisher = connection.run(made())
        self._closed = False

    def publish(self, *events: Mapping[str, Any] | bytes) -> None:
        """Publish events, in their order."""

        async def all_of_them() -> None:
            for event in events:
                await self._publisher.publish(event)

        self._connection.run(all_of_them())

    def flush(self) -> None:
        """Wait until nodes have taken all events."""
        self._connection.run(self._publisher.flush())

    def close(self, *, processed: bool = True) -> None:  # noqa: ARG002 - as subscribers have it
        """Flush, and end."""
        if not self._closed:
            self._closed = True
            self._connection.run(self._publisher.aclose())


class BlockingSubscriber:
    """A `Subscriber` whose calls wait; `Connection.subscriber` makes one."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection

        async def made() -> Subscriber:
            assert connection._transport is not None
            return await Subscriber(connection._transport, name, prefix=connection._prefix).start()

        self._subscriber = connection.run(made())
        self._closed = False

    def subscribe(self, *filters: str) -> list[int]:
        """Subscribe to what filters let through, and return the ids of these subscriptions."""
        return self._connection.run(self._subscriber.subscribe(*filters))

    def unsubscribe(self, *subscription_ids: int) -> None:
        """Give up subscriptions by id."""
        self._connection.run(self._subscriber.unsubscribe(*subscription_ids))

    def take(self, most: int, *, timeout: float | None = None) -> list[Event]:
        """Wait for an event, and return all that are there, so many at most; none when time is up."""

        async def taken() -> list[Event]:
            try:
                async with asyncio.timeout(timeout):
                    return await self._subscriber.take(most)
            except TimeoutError:
                return []

        return self._connection.run(taken())

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        """Wait for the next event."""
        found = self._connection.run(self._subscriber.take(1))
        if not found:
            raise StopIteration
        return found[0]

    def close(self, *, processed: bool = True) -> None:
        """Stop listening; subscriptions stay. What was handed out is acknowledged if it was `processed`."""
        if not self._closed:
            self._closed = True
            self._connection.run(self._subscriber.aclose(processed=processed))
