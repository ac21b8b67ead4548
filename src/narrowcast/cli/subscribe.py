"""`narrowcast subscribe`: what somebody wants, as it comes."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from narrowcast.cli import live
from narrowcast.errors import ParameterError

#: Events that are written in one go.
_MANY = 1024


def subscribe(
    subscriber: Annotated[str, typer.Option("--subscriber", metavar="NAME", help="Who subscribes.")],
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
    nats: live.Nats = live.HERE,
    prefix: live.Prefix = "nc",
) -> None:
    """Print one JSON line for each event that matches, in order, until interrupted.

    Examples:

        narrowcast subscribe --subscriber ann --filter "price > 75 AND name = 'IBM'"

        narrowcast subscribe --subscriber bob --topic sports --topic weather
    """
    wanted = [*(filters or []), *(_topic(flow, topic) for topic in topics or [])]
    if not wanted:
        raise ParameterError("there is nothing to subscribe to; give --filter or --topic")
    if count is not None and count < 1:
        raise ParameterError(f"--count is {count}; give a whole number of at least 1")
    live.until_interrupted(_subscribe(nats, subscriber, wanted, prefix, count, keep=keep))


def _topic(attribute: str, topic: str) -> str:
    """Return the filter of a topic."""
    escaped = topic.replace("'", "''")
    return f"{attribute} = '{escaped}'"


async def _subscribe(
    url: str, name: str, wanted: list[str], prefix: str, count: int | None, *, keep: bool
) -> None:
    """Print what comes."""
    from narrowcast.broker import Subscriber

    async with (
        live.connected(url, "narrowcast subscribe") as transport,
        Subscriber(transport, name, prefix=prefix) as subscriber,
    ):
        ids = await subscriber.subscribe(*wanted)
        print(f"subscribed as {name!r}; interrupt to stop", file=sys.stderr, flush=True)
        left = count
        try:
            while events := await subscriber.take(_MANY if left is None else min(_MANY, left)):
                sys.stdout.buffer.write(b"".join(event.payload + b"\n" for event in events))
                sys.stdout.buffer.flush()
                if left is not None:
                    left -= len(events)
                    if not left:
                        break
        finally:
            if not keep:
                held = subscriber.filters  # a broker that came again gave them other ids
                own = [n for n in ids if n in held] or [n for n, text in held.items() if text in wanted]
                await subscriber.unsubscribe(*own)
