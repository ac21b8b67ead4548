"""`narrowcast serve`: the live broker."""

from __future__ import annotations

import sys
import tempfile
from contextlib import AsyncExitStack, ExitStack
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
    from narrowcast.broker import Interests, Node, Transport
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
    http: Annotated[
        str | None,
        typer.Option(
            "--http", metavar="HOST:PORT", help="Serve the HTTP API there; port 0 for any free one."
        ),
    ] = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="No NATS at all: events come and go by --http alone.")
    ] = False,
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

        narrowcast serve --data broker --http 127.0.0.1:8080
    """
    from narrowcast.broker import Interests, NatsServer, Store

    if memory and (nats is not None or http is None):
        raise ParameterError("--memory is without NATS: leave --nats out, and give --http to be reached")
    store = None if data is None else Store(data / "subscriptions.db")
    interests = Interests(None if schema is None else Schema.read(schema), store=store)
    _tell_bad(interests.refused, f"subscriptions in {data}", strict=strict)
    if subscriptions is not None:
        _load(interests, subscriptions, strict=strict)
    routes = None if plan is None else read_routes(plan, interests.schema, flow)
    with ExitStack() as stack:
        url = nats
        if url is None and not memory:
            folder = data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="narrowcast-")))
            url = stack.enter_context(NatsServer(folder / "nats", port=port)).url
        live.until_interrupted(_serve(url, interests, routes, prefix, http))


async def _serve(
    url: str | None, interests: Interests, routes: Routes | None, prefix: str, http: str | None
) -> None:
    """Serve at a NATS server, or in memory."""
    from narrowcast.broker import Desk, MemoryTransport, Node

    async with AsyncExitStack() as stack:
        if url is None:
            transport: Transport = MemoryTransport()
        else:
            transport = await stack.enter_async_context(live.connected(url, "narrowcast serve"))
        desk = Desk(transport, interests, prefix=prefix)
        if routes is not None:
            desk.use(routes)
        node = Node(transport, desk)
        await node.start()
        stack.push_async_callback(_end, node)
        places = [] if url is None else [url]
        if http is not None:
            from narrowcast.web.api import make_api
            from narrowcast.web.server import serving

            places.append(await stack.enter_async_context(serving(make_api(node, transport), http)))
        _say(f"serving at {' and '.join(places)}, {len(interests):,} subscriptions; interrupt to stop")
        await node.wait()


async def _end(node: Node) -> None:
    """End a node, and say what it has done."""
    await node.stop()
    counts = node.counts
    sent = f"{counts.entries:,} sent in {counts.frames:,} frames"
    _say(f"{counts.events:,} events, {counts.pairs:,} wanted, {sent}")
    for reason, many in counts.reasons.most_common(_SHOWN):
        _say(f"{many:,} left out: {reason}")


def _load(interests: Interests, path: Path, *, strict: bool) -> None:
    """Take up the subscriptions of a table."""
    table = read_table(path, ("subscriber", "filter"))
    who, texts = (table[name].cast(pa.string()).to_pylist() for name in ("subscriber", "filter"))
    whole = [i for i in range(len(table)) if who[i] and texts[i] is not None]
    ids = None
    if "subscription_id" in table.column_names:
        given = table["subscription_id"].cast(pa.int64()).to_pylist()
        whole = [i for i in whole if given[i] is not None]
        ids = [given[i] for i in whole]
    bad = interests.load([who[i] for i in whole], [texts[i] for i in whole], ids)
    bad += ["a subscriber, a filter or an id is missing"] * (len(table) - len(whole))
    _tell_bad(bad, f"rows of {path}", strict=strict)


def _tell_bad(bad: list[str], what: str, *, strict: bool) -> None:
    """Say which subscriptions are left out."""
    if bad and strict:
        raise TableError(f"{len(bad):,} {what} cannot be used: {bad[0]}; mend them, or leave --strict out")
    if bad:
        _say(f"{len(bad):,} {what} are left out:")
    for reason in bad[:_SHOWN]:
        _say(f"  {reason}")


def _say(text: str) -> None:
    """Tell the person at the terminal; standard output is for data."""
    print(text, file=sys.stderr, flush=True)
