"""`narrowcast serve`: the live broker."""

from __future__ import annotations

import ipaddress
import logging
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import typer

from narrowcast.cli import broker_options, dead_letters, log_output, set_option
from narrowcast.cli.broker_runner import PARTITIONS, BrokerRunner
from narrowcast.cli.delivery_options import DeliveryOptions
from narrowcast.cli.log_output import facts
from narrowcast.cli.plan_source import PlanSources, WatchedPlan
from narrowcast.errors import ParameterError, TableError
from narrowcast.files import read_table
from narrowcast.model.schema import Schema
from narrowcast.routing import ROUTERS
from narrowcast.routing.router_parameters import router_maker, router_parameters

if TYPE_CHECKING:
    from narrowcast.broker import SubscriptionIndex
    from narrowcast.broker.security.permissions import PermissionGuard
    from narrowcast.routing import Router

log = logging.getLogger(__name__)

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
    ] = broker_options.PORT,
    host: Annotated[
        str, typer.Option("--host", metavar="H", help="The address that its own NATS server listens at.")
    ] = "127.0.0.1",
    users: Annotated[
        Path | None,
        typer.Option("--users", metavar="FILE", help="Who may come, and do what: see narrowcast users."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", metavar="DIR", help="The folder of its own server; else one that goes with it."
        ),
    ] = None,
    delivery: Annotated[
        str | None,
        typer.Option(
            "--delivery",
            metavar="D",
            help="at-most-once or at-least-once; else as before in --data, at-most-once at first.",
        ),
    ] = None,
    store: Annotated[
        int | None,
        typer.Option("--store", metavar="BYTES", help="At least once: how much is stored; else up to 8 GiB."),
    ] = None,
    keep: Annotated[
        float,
        typer.Option("--keep", metavar="SECONDS", help="At least once: how long it waits for a subscriber."),
    ] = 86_400.0,
    replicas: Annotated[
        int, typer.Option("--replicas", metavar="N", help="At least once: servers of a cluster that have it.")
    ] = 1,
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
    http_cert: Annotated[
        Path | None,
        typer.Option("--http-cert", metavar="FILE", help="Encrypt --http with this certificate, in PEM."),
    ] = None,
    http_key: Annotated[
        Path | None, typer.Option("--http-key", metavar="FILE", help="The key of that certificate.")
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
    router: Annotated[
        str,
        typer.Option("--router", metavar="R", help=f"What decides an event's way: {', '.join(ROUTERS)}."),
    ] = "channels",
    given_settings: set_option.Settings = None,
    prefix: broker_options.Prefix = "nc",
    user: broker_options.User = None,
    token: broker_options.Token = None,
    tls_ca: broker_options.TlsCa = None,
    tls_cert: broker_options.TlsCert = None,
    tls_key: broker_options.TlsKey = None,
    joins: Annotated[
        float | None,
        typer.Option("--joins", metavar="N", help="Channels joined a second for a new plan, at most."),
    ] = None,
    style: Annotated[
        log_output.LogStyle,
        typer.Option("--log", help="How it says what happens: for people, or JSON lines."),
    ] = log_output.LogStyle.TEXT,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop when a filter of S is bad instead of leaving it out.")
    ] = False,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            metavar="NAME=VALUE",
            help="Such as payload=65536, rate=1000, subscriptions=100: see the docs; can be repeated.",
        ),
    ] = None,
) -> None:
    """Take events, find who wants each, and send it to them by the plan, until interrupted.

    Publishers and subscribers come by narrowcast publish and narrowcast subscribe, or by the classes of
    narrowcast.broker. Without --schema, types come from filters: an attribute is what the first filter
    compares it with, numbers are doubles, and a later filter that takes it for another is refused.

    A plan that is put into the folder PLAN later is taken up while events flow. Several nodes share the
    publishers among them: the first has the subscriptions and the plan, and tells the others.

    Events go as the plan says. With --router exact each goes directly instead where that costs less: sending
    a message costs 0.35 of delivering one, unless --set send= says otherwise.

    Examples:

        narrowcast serve

        narrowcast serve --subscriptions s.parquet --plan plan --port 0

        narrowcast serve --nats nats://one:4222,nats://two:4222 --schema types.json

        narrowcast serve --data broker --http 127.0.0.1:8080

        narrowcast serve --nats nats://one:4222 --node 2/2

        narrowcast serve --record seen --replan 3600 --method direct --channels 100

        narrowcast serve --data broker --plan plan --joins 1000 --log json

        narrowcast serve --data broker --delivery at-least-once

        narrowcast serve --plan plan --router exact --set send=0.5

        narrowcast serve --users users.json --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem

        narrowcast serve --users users.json --http 0.0.0.0:8443 --http-cert cert.pem --http-key key.pem

        narrowcast serve --limit payload=65536 --limit subscriptions=100 --limit rate=1000
    """
    from narrowcast.broker import ActivityLog, NatsServer, SubscriptionIndex, SubscriptionStore
    from narrowcast.broker.control.index_file import IndexFile
    from narrowcast.broker.limits import BrokerLimits
    from narrowcast.broker.security.login import Login
    from narrowcast.broker.security.permissions import PermissionGuard
    from narrowcast.broker.security.tls import Tls
    from narrowcast.broker.security.users import UsersFile
    from narrowcast.broker.storage.broker_state import BrokerState
    from narrowcast.broker.storage.dead_letters import DeadLetters
    from narrowcast.broker.wire import Subjects
    from narrowcast.cli.replan_loop import ReplanLoop

    number, nodes = _node(node)
    if memory and (nats is not None or http is None or nodes > 1):
        raise ParameterError(
            "--memory is one node without NATS: leave --nats and --node out, and give --http"
        )
    if number > 1 and (subscriptions is not None or plan is not None or schema is not None):
        raise ParameterError(
            "the first node says what holds; leave --subscriptions, --plan and --schema to it"
        )
    if nodes > 1 and nats is None:
        raise ParameterError("several nodes meet at a NATS server; name it by --nats")
    if replan is not None and record is None:
        raise ParameterError("--replan plans from what is recorded; give --record")
    if (http_cert is None) != (http_key is None) or (http_cert is not None and http is None):
        raise ParameterError("--http-cert and --http-key go together, and with --http; give all three")
    if http is not None:
        from narrowcast.web.server import place_of

        place_of(http)  # told before anything is started
    if joins is not None and not joins > 0:
        raise ParameterError(f"--joins is {joins}; give a number above 0")
    way = _router(router, set_option.parameters(given_settings or []))
    bounds = BrokerLimits.parse(limit or [])
    with ExitStack() as stack:
        stack.enter_context(log_output.logged(style))
        written = None if record is None else ActivityLog(record, share=share)
        again = None if replan is None or written is None else ReplanLoop(replan, method, channels, written)
        if data is not None and not data.exists():
            data.mkdir(parents=True, mode=0o700)  # it will hold events
        lasting = None if data is None or number > 1 else BrokerState(data)
        kept = DeliveryOptions.of(
            delivery,
            lasting,
            keep=keep,
            most=store,
            replicas=replicas,
            own=data if nats is None else None,
            alone=memory,
        )
        if kept.stores and data is None and number == 1:
            raise ParameterError("at-least-once keeps subscriptions too; give --data")
        if lasting is not None:
            lasting.write(delivery=kept.delivery, prefix=prefix)
        held = None if data is None or number > 1 else SubscriptionStore(data / "subscriptions.db")
        index = None if data is None or held is None else IndexFile(data, held)
        types = None if schema is None else Schema.read(schema)
        interests = SubscriptionIndex(types, limits=bounds, store=held, record=written, index=index)
        _tell_bad(interests.refused, f"subscriptions in {data}", strict=strict)
        if subscriptions is not None:
            _load(interests, subscriptions, strict=strict)
        given = None if plan is None else WatchedPlan(plan.absolute(), flow)
        if given is not None:
            given.read(interests)
        guard = None if users is None else PermissionGuard(UsersFile(users), Subjects(prefix))
        _warn_open(guard, http, host if nats is None and not memory else None, plain=http_cert is None)
        who, server = None, None
        if nats is not None:
            who = broker_options.login(nats, user, token, tls_ca, tls_cert, tls_key)
        elif not memory:
            folder = data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="narrowcast-")))
            server = stack.enter_context(
                NatsServer(
                    folder / "nats",
                    port=port,
                    host=host,
                    users=None if guard is None else guard.lines(),
                    tls=Tls(tls_ca, tls_cert, tls_key),
                )
            )
            own = server.tls.own() if tls_cert is not None else None
            who = Login([server.url], server.user, server.password, own)
            if guard is not None:
                guard.at(server)
        made = BrokerRunner(
            who=who,
            server=server,
            guard=guard,
            interests=interests if number == 1 else None,
            plans=PlanSources(given, again, joins, lasting),
            kept=kept,
            prefix=prefix,
            http=http,
            https=None if http_cert is None else Tls(None, http_cert, http_key),
            mine=[part for part in range(PARTITIONS) if part % nodes == number - 1],
            record=written,
            router=way,
            letters=None if data is None else DeadLetters(data / dead_letters.FILE),
            bounds=bounds,
        )
        broker_options.until_interrupted(made.run())


def _router(name: str, params: dict[str, Any]) -> Router:
    """Return a router by name, for which messages cost something to send unless told.

    >>> _router("exact", {}).send, _router("exact", {"send": 2}).send
    (0.35, 2)
    """
    from narrowcast.broker.control.subscriber_placement import SEND

    takes = "send" in router_parameters(name) and "send" not in params
    return router_maker(name, params | ({"send": SEND} if takes else {}))(None)


def _warn_open(guard: PermissionGuard | None, http: str | None, host: str | None, *, plain: bool) -> None:
    """Say where everybody on the network may do everything, or may read tokens."""
    for what, place in (("--http", http and http.rpartition(":")[0]), ("--host", host)):
        if not place or _near(place.strip("[]")):
            continue
        if guard is not None and what == "--http" and plain:
            log.warning(
                "--http %s is not encrypted, and tokens go over it; give --http-cert and --http-key, or "
                "listen at 127.0.0.1 behind a proxy that has a certificate",
                place,
            )
        elif guard is None:
            log.warning(
                "%s %s is open to everybody who reaches it; give --users, or listen at 127.0.0.1", what, place
            )


def _near(host: str) -> bool:
    """Return whether only this machine reaches an address.

    >>> _near("localhost"), _near("127.0.0.1"), _near("::1"), _near("0.0.0.0"), _near("broker")
    (True, True, True, False, False)
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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


def _load(interests: SubscriptionIndex, path: Path, *, strict: bool) -> None:
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
        shown = "".join(f"\n  {reason}" for reason in bad[:_SHOWN])
        log.warning("%s %s are left out:%s", f"{len(bad):,}", what, shown, extra=facts(many=len(bad)))
