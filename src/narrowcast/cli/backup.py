"""`narrowcast backup`: the whole state of a live broker in one file."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from narrowcast.cli import broker_options, dead_letters, options, panels
from narrowcast.errors import InputError
from narrowcast.files import writing

if TYPE_CHECKING:
    from collections.abc import Callable

    from narrowcast.broker.security.login import Login
    from narrowcast.broker.security.tls import Tls
    from narrowcast.broker.storage.backup import BackupManifest
    from narrowcast.broker.storage.backup_writer import BackupWriter

    #: Called with the name of each step.
    Tell = Callable[[str], None]


def backup(
    data: dead_letters.Data,
    out: Annotated[
        Path,
        typer.Option("--out", metavar="FILE", help="File of the backup; a name with .tar.gz is compressed."),
    ],
    nats: Annotated[
        str | None,
        typer.Option(
            "--nats",
            metavar="URL",
            help="NATS server, the same as for `narrowcast serve --nats` (default: the server of the "
            "broker itself, found by --data).",
            rich_help_panel=panels.CONNECTION,
        ),
    ] = None,
    prefix: Annotated[
        str | None,
        typer.Option(
            "--prefix",
            metavar="P",
            help="First word of the subjects of the broker (default: the one recorded in --data).",
            rich_help_panel=panels.CONNECTION,
        ),
    ] = None,
    user: broker_options.User = None,
    token: broker_options.Token = None,
    tls_ca: broker_options.TlsCa = None,
    tls_cert: broker_options.TlsCert = None,
    tls_key: broker_options.TlsKey = None,
    as_json: options.Json = False,
) -> None:
    """Write the whole state of a broker to one file, while it runs or when it is stopped.

    That is its subscriptions, dead letters and plan, and for delivery at least once the stored events and the
    position of each subscriber. The broker's own NATS server is found by --data; when it is not running, it
    is started for the backup. For servers of your own, give --nats as for `narrowcast serve`.

    Only you may read FILE: it contains events, and the tokens of users if DIR has a users.json.

    Examples:

        narrowcast backup --data broker --out broker.tar

        narrowcast backup --data broker --out broker.tar.gz --nats nats://one:4222,nats://two:4222
    """
    from narrowcast.broker.security.tls import Tls
    from narrowcast.broker.storage.backup_writer import facts_of, open_backup_writer
    from narrowcast.broker.storage.broker_state import DeliveryGuarantee
    from narrowcast.broker.wire import Subjects

    with options.bars() as progress, open_backup_writer(data, out) as made:
        at = progress.add_task("start", total=None)

        def tell(text: str) -> None:
            progress.update(at, description=text)

        state = facts_of(data)
        first_word = Subjects(prefix or ("nc" if state is None else state.prefix)).prefix
        promised = None if state is None else state.delivery
        stored = False
        if promised is not DeliveryGuarantee.AT_MOST_ONCE:
            access = (
                None if nats is None else broker_options.login(nats, user, token, tls_ca, tls_cert, tls_key)
            )
            stored = _streams(made, data, access, Tls(tls_ca, tls_cert, tls_key), first_word, tell)
            if not stored and promised is not None:
                raise InputError(
                    f"{nats or 'the NATS server of the broker itself'}: has no stored events with prefix "
                    f"{first_word!r}, but the broker of {data} delivers at least once; give --nats and "
                    "--prefix as for narrowcast serve"
                )
        tell("copy subscriptions, dead letters and plan")
        made.copy()
        tell("write the file")
        found = made.pack(
            out,
            delivery=DeliveryGuarantee.AT_LEAST_ONCE if stored else DeliveryGuarantee.AT_MOST_ONCE,
            prefix=first_word,
        )
    show("backup", out, out.stat().st_size, found, as_json=as_json)


def _streams(made: BackupWriter, data: Path, access: Login | None, tls: Tls, prefix: str, tell: Tell) -> bool:
    """Back up the streams, from the given servers or the broker's own; return whether there are any."""
    from narrowcast.broker.server.temporary_server import TemporaryServer

    if access is not None:
        return asyncio.run(_back_up(made, access, prefix, tell))
    if not (data / "nats" / "key").exists():  # the broker has no server of its own
        return False
    with TemporaryServer(data / "nats", tls=tls) as server:
        return asyncio.run(_back_up(made, server.login, prefix, tell))


async def _back_up(made: BackupWriter, access: Login, prefix: str, tell: Tell) -> bool:
    """Back up the streams of a broker; return whether it has any."""
    from narrowcast.broker.storage.backup import member_of
    from narrowcast.broker.storage.stream_snapshots import StreamSnapshots
    from narrowcast.broker.wire import Subjects

    async with (
        broker_options.connected(access, "narrowcast backup", prefix) as transport,
        StreamSnapshots(transport, Subjects(prefix)) as snapshots,
    ):
        there = await snapshots.existing()
        if not there:
            return False
        for name in snapshots.names:
            if name not in there:
                raise InputError(
                    f"the NATS server at {access.where} has stream {there[0]} but not {name}; start the "
                    "broker"
                )
            tell(f"back up {name}")
            if name == snapshots.streams.at:
                made.add_stream(*await snapshots.save_records(name))
                continue
            path = made.path_of(member_of(name))
            with writing(path), path.open("wb") as file:
                made.add_stream(await snapshots.save(name, file.write))
    return True


def show(command: str, file: Path, size: int, found: BackupManifest, *, as_json: bool, **more: Any) -> None:
    """Print the contents of a backup."""
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
