"""`narrowcast serve`: a node of the live broker."""

from __future__ import annotations

import ipaddress
import logging
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from narrowcast.cli import broker_options, choices, dead_letters, log_output, panels, set_option
from narrowcast.cli.broker_runner import PARTITIONS, BrokerRunner
from narrowcast.cli.delivery_options import DeliveryOptions
from narrowcast.cli.log_output import facts
from narrowcast.cli.plan_source import PlanSources, WatchedPlan
from narrowcast.errors import ParameterError, TableError

if TYPE_CHECKING:
    from narrowcast.broker import SubscriptionIndex
    from narrowcast.broker.security.permissions import PermissionGuard
    from narrowcast.routing import Router

log = logging.getLogger(__name__)

#: Bad filters that a warning lists.
_SHOWN = 5


def serve(
    plan: Annotated[
        Path | None,
        typer.Option(
            "--plan",
            metavar="PLAN",
            help="Plan to route by; a plan that replaces it later is rolled out (default: none, send "
            "directly).",
            rich_help_panel=panels.BROKER,
        ),
    ] = None,
    subscriptions: Annotated[
        Path | None,
        typer.Option(
            "--subscriptions",
            metavar="S",
            help="Table with subscriber and filter: subscriptions at the start (default: none).",
            rich_help_panel=panels.BROKER,
        ),
    ] = None,
    nats: Annotated[
        str | None,
        typer.Option(
            "--nats",
            metavar="URL",
            help="NATS server, or servers of a cluster joined by commas (default: start a server).",
            rich_help_panel=panels.CONNECTION,
        ),
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            "--port",
            metavar="N",
            help="Port of the server that is started; 0 for any free port.",
            rich_help_panel=panels.CONNECTION,
        ),
    ] = broker_options.PORT,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            metavar="H",
            help="Address that the started server listens at.",
            rich_help_panel=panels.CONNECTION,
        ),
    ] = "127.0.0.1",
    users: Annotated[
        Path | None,
        typer.Option(
            "--users",
            metavar="FILE",
            help="File of users and roles: see `narrowcast users` (default: no access control).",
            rich_help_panel=panels.CONNECTION,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="DIR",
            help="Data folder for subscriptions, dead letters and stored events (default: a temporary "
            "folder).",
            rich_help_panel=panels.STORAGE,
        ),
    ] = None,
    delivery: Annotated[
        str | None,
        typer.Option(
            "--delivery",
            metavar="D",
            help="Delivery guarantee: at-most-once or at-least-once (default: as recorded in --data, else "
            "at-most-once).",
            rich_help_panel=panels.STORAGE,
        ),
    ] = None,
    store: Annotated[
        int | None,
        typer.Option(
            "--store",
            metavar="BYTES",
            help="At least once: maximum size of stored events (default: half of the free disk space, at "
            "most 8 GiB).",
            rich_help_panel=panels.STORAGE,
        ),
    ] = None,
    keep: Annotated[
        float,
        typer.Option(
            "--keep",
            metavar="SECONDS",
            help="At least once: time that an event is stored for absent subscribers.",
            rich_help_panel=panels.STORAGE,
        ),
    ] = 86_400.0,
    replicas: Annotated[
        int,
        typer.Option(
            "--replicas",
            metavar="N",
            help="At least once: number of servers of a cluster that store each event, 1 to 5.",
            rich_help_panel=panels.STORAGE,
        ),
    ] = 1,
    schema: Annotated[
        Path | None,
        typer.Option(
            "--schema",
            metavar="FILE",
            help="Types of event attributes: a JSON object of names and types, or a table with these "
            "columns (default: learned from filters).",
            rich_help_panel=panels.BROKER,
        ),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            metavar="HOST:PORT",
            help="Serve the HTTP API at this address; port 0 for any free port (default: not served).",
            rich_help_panel=panels.HTTP,
        ),
    ] = None,
    http_cert: Annotated[
        Path | None,
        typer.Option(
            "--http-cert",
            metavar="FILE",
            help="Certificate of the HTTP API, in PEM (default: not encrypted).",
            rich_help_panel=panels.HTTP,
        ),
    ] = None,
    http_key: Annotated[
        Path | None,
        typer.Option(
            "--http-key",
            metavar="FILE",
            help="Private key of --http-cert, in PEM; required with it.",
            rich_help_panel=panels.HTTP,
        ),
    ] = None,
    memory: Annotated[
        bool,
        typer.Option(
            "--memory",
            help="Use no NATS: publishers and subscribers connect over --http only.",
            rich_help_panel=panels.HTTP,
        ),
    ] = False,
    record: Annotated[
        Path | None,
        typer.Option(
            "--record",
            metavar="DIR",
            help="Record events, routes and subscriptions in this folder, as Parquet (default: not "
            "recorded).",
            rich_help_panel=panels.REPLANNING,
        ),
    ] = None,
    share: Annotated[
        float,
        typer.Option(
            "--share",
            metavar="P",
            help="Share of events to record, 0 to 1.",
            rich_help_panel=panels.REPLANNING,
        ),
    ] = 1.0,
    replan: Annotated[
        float | None,
        typer.Option(
            "--replan",
            metavar="SECONDS",
            help="Interval at which a new plan is made from the recorded events (default: never).",
            rich_help_panel=panels.REPLANNING,
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            "--method", metavar="M", help="Planning method of --replan.", rich_help_panel=panels.REPLANNING
        ),
    ] = "direct",
    channels: Annotated[
        int,
        typer.Option(
            "--channels",
            metavar="K",
            help="Maximum number of channels of --replan.",
            rich_help_panel=panels.REPLANNING,
        ),
    ] = 16,
    node: Annotated[
        str,
        typer.Option(
            "--node",
            metavar="I/N",
            help=f"Number of this node and of all nodes, up to {PARTITIONS}; node 1 has the subscriptions "
            "and the plan.",
        ),
    ] = "1/1",
    flow: Annotated[
        str | None,
        typer.Option(
            "--flow",
            metavar="A",
            help="Attribute that holds the topic of an event; required for a plan of topics.",
            rich_help_panel=panels.BROKER,
        ),
    ] = None,
    router: Annotated[
        str,
        typer.Option(
            "--router",
            metavar="R",
            help=f"Router that decides the route of each event: {', '.join(choices.ROUTERS)}.",
            rich_help_panel=panels.BROKER,
        ),
    ] = "channels",
    given_settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set a parameter of the router; repeatable. `--set help` lists them.",
            rich_help_panel=panels.BROKER,
        ),
    ] = None,
    prefix: broker_options.Prefix = "nc",
    user: broker_options.User = None,
    token: broker_options.Token = None,
    tls_ca: broker_options.TlsCa = None,
    tls_cert: broker_options.TlsCert = None,
    tls_key: broker_options.TlsKey = None,
    joins: Annotated[
        float | None,
        typer.Option(
            "--joins",
            metavar="N",
            help="Maximum number of channel joins per second, of all subscribers, when a plan is rolled "
            "out (default: no limit).",
            rich_help_panel=panels.BROKER,
        ),
    ] = None,
    style: Annotated[
        log_output.LogStyle,
        typer.Option("--log", metavar="STYLE", help="Style of the log: text, or json (one object per line)."),
    ] = log_output.LogStyle.TEXT,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Stop when a filter of S is bad (default: leave it out with a warning).",
            rich_help_panel=panels.BROKER,
        ),
    ] = False,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            metavar="NAME=VALUE",
            help="Limit on publishers and subscribers, such as payload=65536, rate=1000 or "
            "subscriptions=100: see docs/limits.md; repeatable.",
            rich_help_panel=panels.BROKER,
        ),
    ] = None,
) -> None:
    """Run a broker node: match published events and deliver them by the plan, until interrupted.

    Clients use `narrowcast publish` and `narrowcast subscribe`, or the classes of narrowcast.broker. Without
    --schema, the type of an attribute is that of the first value that a filter compares it with (numbers are
    doubles); a later filter with another type is refused.

    A plan that replaces the folder PLAN is rolled out while events flow. Several nodes divide the publishers
    among themselves; the first has the subscriptions and the plan, and sends them to the others.

    Events go over the plan's channels. With --router exact, an event is sent directly where that costs less;
    publishing a message counts 0.35 of delivering one, unless --set send= says otherwise.

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
    from narrowcast.model.schema import Schema

    number, nodes = _node(node)
    if memory and (nats is not None or http is None or nodes > 1):
        raise ParameterError(
            "--memory: needs --http, and cannot be combined with --nats or --node", parameter="memory"
        )
    if number > 1 and (subscriptions is not None or plan is not None or schema is not None):
        raise ParameterError(
            f"--node={node}: only node 1 takes --subscriptions, --plan and --schema; leave them out",
            parameter="node",
            value=node,
        )
    if nodes > 1 and nats is None:
        raise ParameterError(
            f"--node={node}: several nodes need a NATS server; give --nats", parameter="node", value=node
        )
    if replan is not None and record is None:
        raise ParameterError("--replan: needs --record", parameter="replan", value=replan)
    if (http_cert is None) != (http_key is None) or (http_cert is not None and http is None):
        raise ParameterError("--http-cert, --http-key and --http belong together; give all three")
    if http is not None:
        from narrowcast.web.server import parse_address

        parse_address(http)  # refuse it before anything is started
    if joins is not None and not joins > 0:
        raise ParameterError(parameter="joins", value=joins, limit="above 0")
    router_used = _router(router, set_option.parameters(given_settings or []))
    bounds = BrokerLimits.parse(limit or [])
    with ExitStack() as stack:
        stack.enter_context(log_output.logged(style))
        written = None if record is None else ActivityLog(record, share=share)
        replans = None if replan is None or written is None else ReplanLoop(replan, method, channels, written)
        if data is not None and not data.exists():
            data.mkdir(parents=True, mode=0o700)  # only the owner may read events
        state = None if data is None or number > 1 else BrokerState(data)
        storage = DeliveryOptions.of(
            delivery,
            state,
            keep=keep,
            max_bytes=store,
            replicas=replicas,
            own=data if nats is None else None,
            alone=memory,
        )
        if storage.stores and data is None and number == 1:
            raise ParameterError(
                "--delivery=at-least-once: needs --data", parameter="delivery", value=delivery
            )
        if state is not None:
            state.write(delivery=storage.delivery, prefix=prefix)
        stored = None if data is None or number > 1 else SubscriptionStore(data / "subscriptions.db")
        index = None if data is None or stored is None else IndexFile(data, stored)
        types = None if schema is None else Schema.read(schema)
        interests = SubscriptionIndex(types, limits=bounds, store=stored, record=written, index=index)
        _report_bad(interests.refused, f"subscriptions in {data}", strict=strict)
        if subscriptions is not None:
            _load(interests, subscriptions, strict=strict)
        given = None if plan is None else WatchedPlan(plan.absolute(), flow)
        if given is not None:
            given.read(interests)
        guard = None if users is None else PermissionGuard(UsersFile(users), Subjects(prefix))
        _warn_open(guard, http, host if nats is None and not memory else None, plain=http_cert is None)
        access, server = None, None
        if nats is not None:
            access = broker_options.login(nats, user, token, tls_ca, tls_cert, tls_key)
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
            own = server.tls.own_context() if tls_cert is not None else None
            access = Login([server.url], server.user, server.password, own)
            if guard is not None:
                guard.attach(server)
        made = BrokerRunner(
            access=access,
            server=server,
            guard=guard,
            interests=interests if number == 1 else None,
            plans=PlanSources(given, replans, joins, state),
            storage=storage,
            prefix=prefix,
            http=http,
            https=None if http_cert is None else Tls(None, http_cert, http_key),
            partitions=[part for part in range(PARTITIONS) if part % nodes == number - 1],
            record=written,
            router=router_used,
            letters=None if data is None else DeadLetters(data / dead_letters.FILE),
            bounds=bounds,
        )
        broker_options.until_interrupted(made.run())


def _router(name: str, params: dict[str, Any]) -> Router:
    """Return a router by name; publishing a message has a cost unless the parameters set one.

    >>> _router("exact", {}).send, _router("exact", {"send": 2}).send
    (0.35, 2)
    """
    from narrowcast.broker.control.subscriber_placement import SEND
    from narrowcast.routing.router_parameters import router_maker, router_parameters

    takes = "send" in router_parameters(name) and "send" not in params
    return router_maker(name, params | ({"send": SEND} if takes else {}))(None)


def _warn_open(guard: PermissionGuard | None, http: str | None, host: str | None, *, plain: bool) -> None:
    """Warn about addresses that are open to the network without users, or without encryption of tokens."""
    for option, place in (("--http", http and http.rpartition(":")[0]), ("--host", host)):
        if not place or _is_local(place.strip("[]")):
            continue
        if guard is not None and option == "--http" and plain:
            log.warning(
                "--http %s: tokens are sent unencrypted; give --http-cert and --http-key, or listen at "
                "127.0.0.1 behind a proxy that has a certificate",
                place,
            )
        elif guard is None:
            log.warning(
                "%s %s: open to the network without access control; give --users, or listen at 127.0.0.1",
                option,
                place,
            )


def _is_local(host: str) -> bool:
    """Return whether an address is reachable from this machine only.

    >>> _is_local("localhost"), _is_local("127.0.0.1"), _is_local("::1"), _is_local("0.0.0.0")
    (True, True, True, False)
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _node(text: str) -> tuple[int, int]:
    """Read the number of a node and the number of nodes.

    >>> _node("2/3")
    (2, 3)
    """
    number, slash, nodes = text.partition("/")
    if slash and number.isdigit() and nodes.isdigit() and 1 <= int(number) <= int(nodes) <= PARTITIONS:
        return int(number), int(nodes)
    raise ParameterError(
        parameter="node", value=text, limit=f"I/N with 1 <= I <= N <= {PARTITIONS}, for example 2/3"
    )


def _load(interests: SubscriptionIndex, path: Path, *, strict: bool) -> None:
    """Add the subscriptions of a table, and report the bad ones."""
    import pyarrow as pa

    from narrowcast.files import read_table

    table = read_table(path, ("subscriber", "filter"))
    names, texts = (table[name].cast(pa.string()).to_pylist() for name in ("subscriber", "filter"))
    whole = [i for i in range(len(table)) if names[i] and texts[i] is not None]
    ids = None
    if "subscription_id" in table.column_names:
        given = table["subscription_id"].cast(pa.int64()).to_pylist()
        whole = [i for i in whole if given[i] is not None]
        ids = [given[i] for i in whole]
    bad = interests.load([names[i] for i in whole], [texts[i] for i in whole], ids)
    bad += ["a subscriber, a filter or an id is missing"] * (len(table) - len(whole))
    _report_bad(bad, f"rows of {path}", strict=strict)


def _report_bad(bad: list[str], what: str, *, strict: bool) -> None:
    """Warn about bad subscriptions; with `strict` they are an error."""
    if bad and strict:
        raise TableError(f"{len(bad):,} {what} are bad: {bad[0]}; correct them, or leave --strict out")
    if bad:
        shown = "".join(f"\n  {reason}" for reason in bad[:_SHOWN])
        log.warning("%s bad %s are ignored:%s", f"{len(bad):,}", what, shown, extra=facts(many=len(bad)))
