"""`narrowcast subscribe`: print the events that match a subscriber's filters."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from narrowcast.cli import broker_options
from narrowcast.errors import ParameterError

if TYPE_CHECKING:
    from narrowcast.broker import Event
    from narrowcast.broker.security.login import Login

#: Events per write.
_BATCH = 1024


def subscribe(
    subscriber: Annotated[
        str | None,
        typer.Option("--subscriber", metavar="NAME", help="Name of the subscriber (default: the user)."),
    ] = None,
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter", metavar="F", help="Filter in the syntax of SQL WHERE, such as price > 75; repeatable."
        ),
    ] = None,
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="T", help="Topic: a value of the attribute --flow; repeatable."),
    ] = None,
    flow: Annotated[
        str, typer.Option("--flow", metavar="A", help="Attribute of events that holds the topic.")
    ] = "topic",
    count: Annotated[
        int | None,
        typer.Option("--count", metavar="N", help="End after N events (default: at an interruption)."),
    ] = None,
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Keep the subscriptions in the broker at the end, to continue later."),
    ] = False,
    with_ids: Annotated[
        bool, typer.Option("--ids", help="Print the publisher and the number of each event with it.")
    ] = False,
    nats: broker_options.Nats = broker_options.HERE,
    prefix: broker_options.Prefix = "nc",
    user: broker_options.User = None,
    token: broker_options.Token = None,
    tls_ca: broker_options.TlsCa = None,
    tls_cert: broker_options.TlsCert = None,
    tls_key: broker_options.TlsKey = None,
) -> None:
    """Subscribe to a live broker and print one JSON line per event, until interrupted.

    With a broker that delivers at least once, --keep leaves the subscriptions in place: the next start
    continues where this one ended, without any filter. An event counts as read when the next one is printed.

    Examples:

        narrowcast subscribe --subscriber ann --filter "price > 75 AND name = 'IBM'"

        narrowcast subscribe --subscriber bob --topic sports --topic weather

        narrowcast subscribe --subscriber bob --topic sports --keep --ids

        NARROWCAST_TOKEN=... narrowcast subscribe --user ann --filter "price > 75"
    """
    wanted = [*(filters or []), *(_topic(flow, topic) for topic in topics or [])]
    if count is not None and count < 1:
        raise ParameterError(parameter="count", value=count, limit="an integer of at least 1")
    access = broker_options.login(nats, user, token, tls_ca, tls_cert, tls_key)
    name = subscriber or access.user
    if not name:
        raise ParameterError("--subscriber is required, unless there is a --user", parameter="subscriber")
    broker_options.until_interrupted(
        _subscribe(access, name, wanted, prefix, count, keep=keep, with_ids=with_ids)
    )


def _topic(attribute: str, topic: str) -> str:
    escaped = topic.replace("'", "''")
    return f"{attribute} = '{escaped}'"


def _plain(event: Event) -> bytes:
    """Return the line of an event."""
    return event.payload + b"\n"


def _with_id(event: Event) -> bytes:
    """Return the line of an event with its publisher and number."""
    head = msgspec.json.encode({"publisher": event.publisher, "number": event.number})
    return b'%s,"event":%s}\n' % (head[:-1], event.payload)


async def _subscribe(
    access: Login,
    name: str,
    wanted: list[str],
    prefix: str,
    count: int | None,
    *,
    keep: bool,
    with_ids: bool,
) -> None:
    from narrowcast.broker import Subscriber

    async with (
        broker_options.connected(access, "narrowcast subscribe", prefix) as transport,
        Subscriber(transport, name, prefix=prefix) as subscriber,
    ):
        there = set(subscriber.filters.values())  # kept from an earlier start
        if not wanted and not there:
            raise ParameterError("nothing to subscribe to: needs --filter or --topic")
        # Without stored events, several processes may share the name, and each removes its own subscriptions.
        alone = subscriber.stored or keep
        fresh = [text for text in wanted if not alone or text not in there]
        ids = await subscriber.subscribe(*fresh) if fresh else []
        line = _with_id if with_ids else _plain
        print(f"subscribed as {name!r}; interrupt to stop", file=sys.stderr, flush=True)
        left = count
        try:
            while events := await subscriber.take(_BATCH if left is None else min(_BATCH, left)):
                sys.stdout.buffer.write(b"".join(map(line, events)))
                sys.stdout.buffer.flush()
                if left is not None:
                    left -= len(events)
                    if not left:
                        break
        finally:
            if wanted and not keep and not subscriber.replaced:
                held = subscriber.filters  # a restarted broker has given them other ids
                own = [] if subscriber.stored else [n for n in ids if n in held]
                await subscriber.unsubscribe(*(own or [n for n, text in held.items() if text in wanted]))
