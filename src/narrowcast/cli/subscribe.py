"""`narrowcast subscribe`: what somebody wants, as it comes."""

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

#: Events that are written in one go.
_MANY = 1024


def subscribe(
    subscriber: Annotated[
        str | None, typer.Option("--subscriber", metavar="NAME", help="Who subscribes; else the user.")
    ] = None,
    filters: Annotated[
        list[str] | None,
        typer.Option("--filter", metavar="F", help="What is wanted, as SQL's WHERE; can be repeated."),
    ] = None,
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="T", help="A topic that is wanted: the value of --flow; repeatable."),
    ] = None,
    flow: Annotated[
        str, typer.Option("--flow", metavar="A", help="The attribute of events that names their topic.")
    ] = "topic",
    count: Annotated[
        int | None, typer.Option("--count", metavar="N", help="End after so many events.")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the subscriptions there at the end, for another time.")
    ] = False,
    with_ids: Annotated[
        bool, typer.Option("--ids", help="Print who published each event, and its number, beside it.")
    ] = False,
    nats: broker_options.Nats = broker_options.HERE,
    prefix: broker_options.Prefix = "nc",
    user: broker_options.User = None,
    token: broker_options.Token = None,
    tls_ca: broker_options.TlsCa = None,
    tls_cert: broker_options.TlsCert = None,
    tls_key: broker_options.TlsKey = None,
) -> None:
    """Print one JSON line for each event that matches, in order, until interrupted.

    Where the broker delivers at least once, and subscriptions are left there with --keep, the next start goes
    on where this one ended, with no filter needed; an event counts as read when the one behind it is printed.

    Examples:

        narrowcast subscribe --subscriber ann --filter "price > 75 AND name = 'IBM'"

        narrowcast subscribe --subscriber bob --topic sports --topic weather

        narrowcast subscribe --subscriber bob --topic sports --keep --ids

        NARROWCAST_TOKEN=... narrowcast subscribe --user ann --filter "price > 75"
    """
    wanted = [*(filters or []), *(_topic(flow, topic) for topic in topics or [])]
    if count is not None and count < 1:
        raise ParameterError(f"--count is {count}; give a whole number of at least 1")
    who = broker_options.login(nats, user, token, tls_ca, tls_cert, tls_key)
    name = subscriber or who.user
    if not name:
        raise ParameterError("there is nobody who subscribes; give --subscriber, or --user")
    broker_options.until_interrupted(
        _subscribe(who, name, wanted, prefix, count, keep=keep, with_ids=with_ids)
    )


def _topic(attribute: str, topic: str) -> str:
    """Return the filter of a topic."""
    escaped = topic.replace("'", "''")
    return f"{attribute} = '{escaped}'"


def _plain(event: Event) -> bytes:
    """Return an event as it was published, as a line."""
    return event.payload + b"\n"


def _with_id(event: Event) -> bytes:
    """Return an event with its id, as a line."""
    head = msgspec.json.encode({"publisher": event.publisher, "number": event.number})
    return b'%s,"event":%s}\n' % (head[:-1], event.payload)


async def _subscribe(
    who: Login,
    name: str,
    wanted: list[str],
    prefix: str,
    count: int | None,
    *,
    keep: bool,
    with_ids: bool,
) -> None:
    """Print what comes."""
    from narrowcast.broker import Subscriber

    async with (
        broker_options.connected(who, "narrowcast subscribe", prefix) as transport,
        Subscriber(transport, name, prefix=prefix) as subscriber,
    ):
        there = set(subscriber.filters.values())  # of another time
        if not wanted and not there:
            raise ParameterError("there is nothing to subscribe to; give --filter or --topic")
        # Where nothing is stored others of this name may read too: what they have goes when they go.
        alone = subscriber.stored or keep
        fresh = [text for text in wanted if not alone or text not in there]
        ids = await subscriber.subscribe(*fresh) if fresh else []
        line = _with_id if with_ids else _plain
        print(f"subscribed as {name!r}; interrupt to stop", file=sys.stderr, flush=True)
        left = count
        try:
            while events := await subscriber.take(_MANY if left is None else min(_MANY, left)):
                sys.stdout.buffer.write(b"".join(map(line, events)))
                sys.stdout.buffer.flush()
                if left is not None:
                    left -= len(events)
                    if not left:
                        break
        finally:
            if wanted and not keep and not subscriber.replaced:
                held = subscriber.filters  # a broker that came again gave them other ids
                own = [] if subscriber.stored else [n for n in ids if n in held]
                await subscriber.unsubscribe(*(own or [n for n, text in held.items() if text in wanted]))
