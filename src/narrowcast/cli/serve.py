"""`narrowcast serve`: the live broker."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import pyarrow as pa
import typer

from narrowcast.cli import live
from narrowcast.errors import ParameterError, TableError
from narrowcast.files import read_table
from narrowcast.model.schema import Schema
from narrowcast.routing.routes import read_routes

if TYPE_CHECKING:
    from narrowcast.broker import Interests
    from narrowcast.routing.routes import Routes

#: Bad filters that are shown.
_SHOWN = 5


def serve(
    plan: Annotated[
        Path | None,
        typer.Option("--plan", metavar="PLAN", help="The plan; without one all is sent directly."),
    ] = None,
    subscriptions: Annotated[
        Path | None,
        typer.Option("--subscriptions", metavar="S", help="Table to start with: subscriber, filter."),
    ] = None,
    nats: Annotated[
        str | None,
        typer.Option("--nats", metavar="URL", help="A NATS server or cluster; without, one is started."),
    ] = None,
    port: Annotated[
        int,
        typer.Option("--port", metavar="N", help="Where its own NATS server listens; 0 for any free port."),
    ] = live.PORT,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", metavar="DIR", help="The folder of its own server; else one that goes with it."
        ),
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option(
            "--schema", metavar="FILE", help="The types of events: JSON of names to types, or a table."
        ),
    ] = None,
    flow: Annotated[
        str | None,
        typer.Option(
            "--flow", metavar="A", help="For a plan of topics: the attribute that names an event's."
        ),
    ] = None,
    prefix: live.Prefix = "nc",
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop when a filter of S is bad instead of leaving it out.")
    ] = False,
) -> None:
    """Take events, find who wants each, and send it to them by the plan, until interrupted.

    Publishers and subscribers come by narrowcast publish and narrowcast subscribe, or by the classes of
    narrowcast.broker. Without --schema, types come from filters: an attribute is what the first filter
    compares it with, numbers are doubles, and a later filter that takes it for another is refused.

    Examples:

        narrowcast serve

        narrowcast serve --subscriptions s.parquet --plan plan --port 0

        narrowcast serve --nats nats://one:4222,nats://two:4222 --schema types.json
    """
    from narrowcast.broker import Interests, NatsServer

    if nats is not None and data is not None:
        raise ParameterError("--data is of a server of its own; leave it out with --nats")
    interests = Interests(None if schema is None else Schema.read(schema))
    if subscriptions is not None:
        _load(interests, subscriptions, strict=strict)
    routes = None if plan is None else read_routes(plan, interests.schema, flow)
    with ExitStack() as stack:
        url = nats
        if url is None:
            folder = data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="narrowcast-")))
            url = stack.enter_context(NatsServer(folder, port=port)).url
        live.until_interrupted(_serve(url, interests, routes, prefix))


async def _serve(url: str, interests: Interests, routes: Routes | None, prefix: str) -> None:
    """Serve at a NATS server."""
    from narrowcast.broker import Node

    async with live.connected(url, "narrowcast serve") as transport:
        node = Node(transport, interests, prefix=prefix)
        if routes is not None:
            node.use(routes)
        await node.start()
        _say(f"serving at {url}, {len(interests):,} subscriptions; interrupt to stop")
        try:
            await node.wait()
        finally:
            await asyncio.shield(node.stop())
            counts = node.counts
            _say(f"{counts.events:,} events, {counts.pairs:,} deliveries in {counts.frames:,} frames")
            for reason, many in counts.reasons.most_common(_SHOWN):
                _say(f"{many:,} left out: {reason}")


def _load(interests: Interests, path: Path, *, strict: bool) -> None:
    """Take up the subscriptions of a table."""
    table = read_table(path, ("subscriber", "filter"))
    columns = [table[name].cast(pa.string()).to_pylist() for name in ("subscriber", "filter")]
    whole = [(who, text) for who, text in zip(*columns, strict=True) if who and text is not None]
    bad = interests.load([who for who, _ in whole], [text for _, text in whole])
    left = len(table) - len(whole) + len(bad)
    if left and strict:
        raise TableError(f"{left:,} rows of {path} cannot be used: {bad[0] if bad else 'null'}; mend them")
    if left:
        _say(f"{left:,} rows of {path} are left out:")
    for reason in bad[:_SHOWN]:
        _say(f"  {reason}")


def _say(text: str) -> None:
    """Tell the person at the terminal; standard output is for data."""
    print(text, file=sys.stderr, flush=True)
