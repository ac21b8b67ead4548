"""Blocking publisher and subscriber, for programs without an event loop."""

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

Result = TypeVar("Result")


class Connection:
    """A connection to a broker through NATS servers, which runs an event loop in its own thread.

    Parameters
    ----------
    servers
        URLs of the servers of one cluster, separated by commas.
    prefix
        Prefix of the broker's subjects; the same as on the nodes (default: nc).
    patience
        Seconds to wait for a server (default: 10).
    user, token
        Credentials, where the broker has users; the URLs may contain them instead.
    tls
        Certificates, where the servers require TLS.

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
        """Connect to a server; a connection can be opened once.

        Raises
        ------
        TransportError
            When it was opened before, or no server answers in time.
        """
        from narrowcast.broker.nats_transport import NatsTransport

        if self._thread.ident is not None:
            raise TransportError("connection: it was opened before; create a new Connection")
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

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine in the event loop, and return its result.

        Raises
        ------
        TransportError
            When the connection is not open.
        """
        if not self._thread.is_alive():
            work.close()
            raise TransportError("connection: it is not open; use it in a with block, or call open()")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # after an interrupt the coroutine must not take events that are lost then
            future.cancel()
            raise

    def publisher(self, name: str | None = None) -> BlockingPublisher:
        """Return a publisher (see `Publisher`); its name is that of the user, if any, by default."""
        made = BlockingPublisher(self, name or self._login.user or None)
        self._open.append(made)
        return made

    def subscriber(self, name: str | None = None) -> BlockingSubscriber:
        """Return a subscriber (see `Subscriber`); its name is that of the user by default."""
        made = BlockingSubscriber(self, name or self._login.user)
        self._open.append(made)
        return made

    def close(self, *, processed: bool = True) -> None:
        """Close the connection with its publishers and subscribers.

        Parameters
        ----------
        processed
            Whether events taken from subscribers are processed: then they are acknowledged, where the broker
            stores events.
        """
        if self._transport is not None:
            for each in self._open:
                each.close(processed=processed)
            self.run(self._transport.aclose())
            self._transport = None
            self._end()

    def _end(self) -> None:
        """Stop the event loop and its thread."""
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
    """A `Publisher` with blocking calls; created by `Connection.publisher`."""

    def __init__(self, connection: Connection, name: str | None) -> None:
        self._connection = connection

        async def made() -> Publisher:
            assert connection._transport is not None
            return await Publisher(connection._transport, name, prefix=connection._prefix).start()

        self._publisher = connection.run(made())
        self._closed = False

    def publish(self, *events: Mapping[str, Any] | bytes) -> None:
        """Publish events in order: mappings, or JSON as bytes."""

        async def all_of_them() -> None:
            for event in events:
                await self._publisher.publish(event)

        self._connection.run(all_of_them())

    def flush(self) -> None:
        """Wait until nodes have accepted all events or, where they are stored, until all are stored."""
        self._connection.run(self._publisher.flush())

    def close(self, *, processed: bool = True) -> None:  # noqa: ARG002 - the same signature as subscribers
        """Send all events, and close the publisher; `processed` has no effect here."""
        if not self._closed:
            self._closed = True
            self._connection.run(self._publisher.aclose())


class BlockingSubscriber:
    """A `Subscriber` with blocking calls; created by `Connection.subscriber`."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection

        async def made() -> Subscriber:
            assert connection._transport is not None
            return await Subscriber(connection._transport, name, prefix=connection._prefix).start()

        self._subscriber = connection.run(made())
        self._closed = False

    def subscribe(self, *filters: str) -> list[int]:
        """Subscribe to events by filters; return the ids of the subscriptions."""
        return self._connection.run(self._subscriber.subscribe(*filters))

    def unsubscribe(self, *subscription_ids: int) -> None:
        """Remove subscriptions by id."""
        self._connection.run(self._subscriber.unsubscribe(*subscription_ids))

    def take(self, most: int, *, timeout: float | None = None) -> list[Event]:
        """Wait for an event; return all events that have arrived, or none after `timeout`.

        Where the broker stores events, this acknowledges those returned before.

        Parameters
        ----------
        most
            Events to return, at most.
        timeout
            Seconds to wait (default: no limit).
        """

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
        """Wait for the next event, and return it."""
        found = self._connection.run(self._subscriber.take(1))
        if not found:
            raise StopIteration
        return found[0]

    def close(self, *, processed: bool = True) -> None:
        """Stop receiving; the subscriptions remain.

        Parameters
        ----------
        processed
            Whether events taken from the subscriber are processed: then they are acknowledged, where the
            broker stores events.
        """
        if not self._closed:
            self._closed = True
            self._connection.run(self._subscriber.aclose(processed=processed))
