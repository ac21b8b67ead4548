"""`narrowcast serve`: the live broker."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import pyarrow as pa
import typer

from narrowcast.cli import live
from narrowcast.errors import NarrowcastError, ParameterError, TableError
from narrowcast.files import read_table
from narrowcast.model.schema import Schema
from narrowcast.routing.routes import plan_name, read_routes

if TYPE_CHECKING:
    from narrowcast.broker import Desk, Interests, Node, Record, Transport
    from narrowcast.broker.standing import Holding
    from narrowcast.cli.replan import Replan
    from narrowcast.routing.routes import Routes

#: Into how many parts publishers are divided, whatever the number of nodes.
PARTITIONS = 16
#: Seconds from one look at the plan's folder to the next.
_LOOK = 1.0
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
    record: Annotated[
        Path | None,
        typer.Option("--record", metavar="DIR", help="Write events, routes and changes there, as Parquet."),
    ] = None,
    share: Annotated[
        float, typer.Option("--share", metavar="P", help="The share of the events that are recorded.")
    ] = 1.0,
    replan: Annotated[
        float | None,
        typer.Option("--replan", metavar="SECONDS", help="Plan anew so often from what is recorded."),
    ] = None,
    method: Annotated[str, typer.Option("--method", metavar="M", help="How to plan anew.")] = "direct",
    channels: Annotated[int, typer.Option("--channels", metavar="K", help="For how many channels.")] = 16,
    node: Annotated[
        str,
        typer.Option(
            "--node", metavar="I/N", help="Which of N nodes this is: 1 is the first, others follow."
        ),
    ] = "1/1",
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

    A plan that is put into the folder PLAN later is taken up while events flow. Several nodes share the
    publishers among them: the first has the subscriptions and the plan, and tells the others.

    Examples:

        narrowcast serve

        narrowcast serve --subscriptions s.parquet --plan plan --port 0

        narrowcast serve --nats nats://one:4222,nats://two:4222 --schema types.json

        narrowcast serve --data broker --http 127.0.0.1:8080

        narrowcast serve --nats nats://one:4222 --node 2/2

        narrowcast serve --record seen --replan 3600 --method direct --channels 100
    """
    from narrowcast.broker import Interests, NatsServer, Record, Store
    from narrowcast.cli.replan import Replan

    number, nodes = _node(node)
    if memory and (nats is not None or http is None or nodes > 1):
        raise ParameterError(
            "--memory is one node without NATS: leave --nats and --node out, and give --http"
        )
    if number > 1 and (
        subscriptions is not None or data is not None or plan is not None or schema is not None
    ):
        raise ParameterError(
            "the first node says what holds; leave --subscriptions, --plan, --schema and --data to it"
        )
    if nodes > 1 and nats is None:
        raise ParameterError("several nodes meet at a NATS server; name it by --nats")
    if replan is not None and record is None:
        raise ParameterError("--replan plans from what is recorded; give --record")
    written = None if record is None else Record(record, share=share)
    again = None if replan is None or written is None else Replan(replan, method, channels, written)
    store = None if data is None else Store(data / "subscriptions.db")
    types = None if schema is None else Schema.read(schema)
    interests = Interests(types, store=store, record=written)
    _tell_bad(interests.refused, f"subscriptions in {data}", strict=strict)
    if subscriptions is not None:
        _load(interests, subscriptions, strict=strict)
    given = None if plan is None else _Plan(plan.absolute(), flow)
    if given is not None:
        given.read(interests)
    with ExitStack() as stack:
        url = nats
        if url is None and not memory:
            folder = data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="narrowcast-")))
            url = stack.enter_context(NatsServer(folder / "nats", port=port)).url
        mine = [part for part in range(PARTITIONS) if part % nodes == number - 1]
        first = interests if number == 1 else None
        live.until_interrupted(_serve(url, first, _Plans(given, again), prefix, http, mine, written))


def _node(text: str) -> tuple[int, int]:
    """Return the number of a node, and of how many.

    >>> _node("2/3")
    (2, 3)
    """
    number, slash, nodes = text.partition("/")
    if slash and number.isdigit() and nodes.isdigit() and 1 <= int(number) <= int(nodes) <= PARTITIONS:
        return int(number), int(nodes)
    raise ParameterError(
        f"--node is {text!r}; give I/N, the how many-th of so many nodes, {PARTITIONS} at most"
    )


@dataclass
class _Plan:
    """A plan's folder, and what was in it last."""

    folder: Path
    flow: str | None
    name: str | None = None

    def read(self, interests: Interests) -> Routes:
        """Return the plan that is there."""
        routes = read_routes(self.folder, interests.schema, self.flow)
        self.name = routes.name
        return routes

    async def watch(self, desk: Desk) -> None:
        """Let plans be used that are put into the folder."""
        while True:
            await asyncio.sleep(_LOOK)
            name = plan_name(self.folder)
            if name is None or name == self.name:
                continue
            self.name = name
            try:
                done = await desk.rollout_from(str(self.folder), self.flow)
                _say(f"plan {done.plan} is in use, {done.listening:,} listen to its channels")
            except NarrowcastError as error:
                _say(f"the plan stays as it was: {error}")


@dataclass
class _Plans:
    """Where plans come from: a folder, and what is recorded."""

    given: _Plan | None
    again: Replan | None


async def _serve(
    url: str | None,
    interests: Interests | None,
    plans: _Plans,
    prefix: str,
    http: str | None,
    mine: list[int],
    record: Record | None,
) -> None:
    """Serve at a NATS server, or in memory; without interests, beside the first node."""
    from narrowcast.broker import Desk, Follower, MemoryTransport, Node

    async with AsyncExitStack() as stack:
        if url is None:
            transport: Transport = MemoryTransport()
        else:
            transport = await stack.enter_async_context(live.connected(url, "narrowcast serve"))
        desk = None if interests is None else Desk(transport, interests, prefix=prefix)
        holding: Holding = Follower(transport, prefix=prefix) if desk is None else desk
        node = Node(transport, holding, mine=mine, partitions=PARTITIONS, record=record)
        beside: list[asyncio.Task[None]] = []
        if desk is not None and plans.given is not None:
            given = plans.given
            desk.use(given.read(desk.interests), str(given.folder), given.flow)
            beside.append(asyncio.create_task(given.watch(desk)))
        if desk is not None and plans.again is not None:
            beside.append(asyncio.create_task(plans.again.run(node, desk, _say)))
        await node.start()
        stack.push_async_callback(_end, node, beside, record)
        places = [] if url is None else [url]
        if http is not None:
            from narrowcast.web.api import make_api
            from narrowcast.web.server import serving

            places.append(await stack.enter_async_context(serving(make_api(node, transport), http)))
        held = len(node.holding.interests)
        _say(f"serving at {' and '.join(places)}, {held:,} subscriptions; interrupt to stop")
        await node.wait()


async def _end(node: Node, beside: list[asyncio.Task[None]], record: Record | None) -> None:
    """End a node and what runs beside it, and say what it has done."""
    for task in beside:
        task.cancel()
    await asyncio.gather(*beside, return_exceptions=True)
    await node.stop()
    if record is not None:
        record.write(node.holding.interests)
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
