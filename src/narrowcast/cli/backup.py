"""`narrowcast backup`: all that a live broker holds, in one file."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from narrowcast.cli import broker_options, dead_letters, options
from narrowcast.errors import InputError
from narrowcast.files import writing

if TYPE_CHECKING:
    from collections.abc import Callable

    from narrowcast.broker.security.login import Login
    from narrowcast.broker.security.tls import Tls
    from narrowcast.broker.storage.backup import BackupManifest
    from narrowcast.broker.storage.backup_writer import BackupWriter

    #: Called with what is done now.
    Tell = Callable[[str], None]


def backup(
    data: dead_letters.Data,
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="The file to write; .tar.gz is compressed.")
    ],
    nats: Annotated[
        str | None,
        typer.Option("--nats", metavar="URL", help="The server that serve has as --nats, if it has one."),
    ] = None,
    prefix: Annotated[
        str | None,
        typer.Option("--prefix", metavar="P", help="How subjects of the broker begin, unless DIR says it."),
    ] = None,
    user: broker_options.User = None,
    token: broker_options.Token = None,
    tls_ca: broker_options.TlsCa = None,
    tls_cert: broker_options.TlsCert = None,
    tls_key: broker_options.TlsKey = None,
    as_json: options.Json = False,
) -> None:
    """Write all that a broker holds to one file, while it runs or when it is stopped.

    That is its subscriptions, dead letters and plan; and if it delivers at least once, the events that wait,
    and how far each subscriber has read. Its own NATS server is found by DIR; where it does not run, it is
    started for this and ended. For servers of your own, give --nats as serve has it.

    Only you may read FILE: it holds events, and the tokens of users if DIR has a users.json.

    Examples:

        narrowcast backup --data broker --out broker.tar

        narrowcast backup --data broker --out broker.tar.gz --nats nats://one:4222,nats://two:4222
    """
    from narrowcast.broker.security.tls import Tls
    from narrowcast.broker.storage.backup_writer import draft, facts_of
    from narrowcast.broker.storage.broker_state import DeliveryGuarantee
    from narrowcast.broker.wire import Subjects

    with options.bars() as progress, draft(data, out) as made:
        at = progress.add_task("begin", total=None)

        def tell(text: str) -> None:
            progress.update(at, description=text)

        said = facts_of(data)
        begins = Subjects(prefix or ("nc" if said is None else said.prefix)).prefix
        promised = None if said is None else said.delivery
        stored = False
        if promised is not DeliveryGuarantee.AT_MOST_ONCE:
            who = None if nats is None else broker_options.login(nats, user, token, tls_ca, tls_cert, tls_key)
            stored = _streams(made, data, who, Tls(tls_ca, tls_cert, tls_key), begins, tell)
            if not stored and promised is not None:
                raise InputError(
                    f"the broker of {data} delivers at least once, and {nats or 'its own NATS server'} has "
                    f"nothing stored with prefix {begins!r}; give --nats, and --prefix, as serve has them"
                )
        tell("copy subscriptions, dead letters and plan")
        made.copy()
        tell("write the file")
        found = made.pack(
            out,
            delivery=DeliveryGuarantee.AT_LEAST_ONCE if stored else DeliveryGuarantee.AT_MOST_ONCE,
            prefix=begins,
        )
    show("backup", out, out.stat().st_size, found, as_json=as_json)


def _streams(made: BackupWriter, data: Path, who: Login | None, tls: Tls, prefix: str, tell: Tell) -> bool:
    """Take what is stored, from servers that are given or that of the broker; return whether there is any."""
    from narrowcast.broker.server.temporary_server import TemporaryServer

    if who is not None:
        return asyncio.run(_take(made, who, prefix, tell))
    if not (data / "nats" / "key").exists():  # it has no server of its own
        return False
    with TemporaryServer(data / "nats", tls=tls) as server:
        return asyncio.run(_take(made, server.login, prefix, tell))


async def _take(made: BackupWriter, who: Login, prefix: str, tell: Tell) -> bool:
    """Take the streams of a broker; return whether it has any."""
    from narrowcast.broker.storage.backup import member_of
    from narrowcast.broker.storage.stream_snapshots import StreamSnapshots
    from narrowcast.broker.wire import Subjects

    async with (
        broker_options.connected(who, "narrowcast backup", prefix) as transport,
        StreamSnapshots(transport, Subjects(prefix)) as snapshots,
    ):
        there = await snapshots.there()
        if not there:
            return False
        for name in snapshots.names:
            if name not in there:
                raise InputError(
                    f"the NATS server at {who.where} has {there[0]}, and no {name}; start the broker"
                )
            tell(f"take {name}")
            if name == snapshots.streams.at:
                made.stored(*await snapshots.records(name))
                continue
            path = made.file(member_of(name))
            with writing(path), path.open("wb") as file:
                made.stored(await snapshots.take(name, file.write))
    return True


def show(command: str, file: Path, size: int, found: BackupManifest, *, as_json: bool, **more: Any) -> None:
    """Print what a backup holds."""
    facts = {"command": command, "file": str(file), "bytes": size, **found.facts(), **more}
    rows = [
        ("", "number"),
        ("subscriptions", f"{found.subscriptions:,}"),
        ("subscribers", f"{found.subscribers:,}"),
        ("dead letters", f"{found.letters:,}"),
        ("plan", found.plan or "none"),
        *(
            (f"stream {each.name}", f"{each.messages:,} messages, {each.bytes:,} bytes")
            for each in found.streams
        ),
        ("positions of subscribers", f"{found.positions:,}"),
    ]
    title = f"{file}, {size:,} bytes, made {found.created}: delivers {found.delivery}"
    options.show(facts, {title: rows}, as_json=as_json)
