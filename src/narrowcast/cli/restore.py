"""`narrowcast restore`: the data folder of a live broker from a backup."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from narrowcast.cli import broker_options, options, panels
from narrowcast.cli.backup import show
from narrowcast.errors import InputError, ParameterError, TableError, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable

    from narrowcast.broker.security.login import Login
    from narrowcast.broker.storage.backup import BackupManifest
    from narrowcast.cli.backup import Tell

#: Existing files that an error names.
_SHOWN = 3


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Backup that `narrowcast backup` wrote.")],
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="DIR",
            help="Data folder to make, for `narrowcast serve --data`; must be empty or not exist; "
            "required unless --dry-run is given.",
        ),
    ] = None,
    nats: Annotated[
        str | None,
        typer.Option(
            "--nats",
            metavar="URL",
            help="NATS server to restore the events to (default: the server that serve starts for --data).",
            rich_help_panel=panels.CONNECTION,
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Move existing contents of DIR aside; they are not deleted.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the whole FILE, print its contents, and change nothing.")
    ] = False,
    user: broker_options.User = None,
    token: broker_options.Token = None,
    tls_ca: broker_options.TlsCa = None,
    tls_cert: broker_options.TlsCert = None,
    tls_key: broker_options.TlsKey = None,
    as_json: options.Json = False,
) -> None:
    """Restore a broker's data folder from a backup.

    `narrowcast serve --data DIR` then continues from it. The whole FILE is checked before anything is
    changed. Stored events and positions of subscribers go to the NATS server that serve will start for DIR,
    or to --nats for a broker that is served with --nats. Subscribers receive the events that they have read
    since the backup again.

    Examples:

        narrowcast restore broker.tar --data broker

        narrowcast restore broker.tar --dry-run

        narrowcast restore broker.tar.gz --data broker --nats nats://one:4222
    """
    from narrowcast.broker.storage.backup import read_backup

    if dry_run:
        found = read_backup(file)
        show("restore", file, file.stat().st_size, found, as_json=as_json, restored=False)
        return
    if data is None:
        raise ParameterError("--data is required, unless --dry-run is given", parameter="data")
    data = data.resolve()
    _check(data, force=force)
    access = None if nats is None else broker_options.login(nats, user, token, tls_ca, tls_cert, tls_key)
    with options.bars() as progress:
        at = progress.add_task("check the backup", total=None)

        def tell(text: str) -> None:
            progress.update(at, description=text)

        try:
            data.parent.mkdir(parents=True, exist_ok=True)
            aside = Path(tempfile.mkdtemp(prefix=f".{data.name}-", dir=data.parent))
        except OSError as error:
            raise TableError(f"{data}: cannot be written ({error.strerror}); name another folder") from error
        try:
            found, size = read_backup(file, aside), file.stat().st_size
            old = _put(found, aside, data, access, tell, force=force)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    if old is not None:
        typer.echo(f"the earlier contents of {data} are in {old}", err=True)
    show(
        "restore", file, size, found, as_json=as_json, restored=True, data=str(data), old=old and str(old)
    )  # fmt: skip


def _check(data: Path, *, force: bool) -> None:
    """Refuse a folder that is not empty, or whose broker may be running."""
    from narrowcast.broker.server.temporary_server import TemporaryServer

    if not data.exists() and not data.is_symlink():
        return
    if not data.is_dir():
        raise TableError(f"{data}: is a file; name a folder that is empty or does not exist")
    there = sorted(path.name for path in data.iterdir())
    if not there:
        return
    if not force:
        more = f" and {len(there) - _SHOWN:,} more" if len(there) > _SHOWN else ""
        raise TableError(
            f"{data}: is not empty, it contains {', '.join(there[:_SHOWN])}{more}; name another folder, or "
            "give --force to move its contents aside"
        )
    if (data / "nats" / "key").exists() and (server := TemporaryServer(data / "nats")).find():
        raise TransportError(
            f"{data}: in use by a broker, or by a NATS server that it left behind{server.process}; end it, "
            "or "
            "name another folder"
        )


def _put(
    found: BackupManifest, aside: Path, data: Path, access: Login | None, tell: Tell, *, force: bool
) -> Path | None:
    """Move the restored folder into place and restore its streams; return where earlier contents went."""
    from narrowcast.broker.server.temporary_server import TemporaryServer

    place = partial(_place, aside, data, force=force)
    if found.streams and access is not None:
        return asyncio.run(_restore_streams(found, aside, access, tell, place))
    if found.streams:
        with TemporaryServer(aside / "nats") as server:
            asyncio.run(_restore_streams(_for_one_server(found), aside, server.login, tell, lambda: None))
    return place()


def _for_one_server(found: BackupManifest) -> BackupManifest:
    """Return a manifest whose streams have one replica, for the broker's own single server."""
    streams = [
        msgspec.structs.replace(each, config=each.config | {"num_replicas": 1}) for each in found.streams
    ]
    return msgspec.structs.replace(found, streams=streams)


async def _restore_streams(
    found: BackupManifest, folder: Path, access: Login, tell: Tell, then: Callable[[], Path | None]
) -> Path | None:
    """Restore all streams, then call `then`; if either fails, remove the restored streams again."""
    from narrowcast.broker.storage.backup import member_of, positions_in
    from narrowcast.broker.storage.positions import renew_records
    from narrowcast.broker.storage.stream_snapshots import StreamSnapshots
    from narrowcast.broker.wire import Subjects

    subjects = Subjects(found.prefix)
    async with (
        broker_options.connected(access, "narrowcast restore", found.prefix) as transport,
        StreamSnapshots(transport, subjects) as snapshots,
    ):
        if odd := {each.name for each in found.streams} ^ set(snapshots.names):
            raise InputError(f"incomplete backup: stream {min(odd)} is missing, or belongs to another broker")
        if there := await snapshots.existing():
            raise InputError(
                f"the NATS server at {access.where} has stream {there[0]} already; remove it with its "
                "contents, "
                "or name another server"
            )
        given: list[str] = []
        try:
            for each in reversed(found.streams):  # the stream that publishers send to comes last
                tell(f"restore {each.name}")
                given.append(each.name)
                if each.name == snapshots.streams.at:
                    records = renew_records(positions_in(folder, found), found.prefix)
                    await snapshots.restore_records(each, records)
                    continue
                with (folder / member_of(each.name)).open("rb") as file:
                    await snapshots.restore(each, file.read)
            return then()
        except BaseException:
            for name in given:
                with suppress(TransportError):
                    await snapshots.remove(name)
            raise


def _place(aside: Path, data: Path, *, force: bool) -> Path | None:
    """Move a folder into place; return where earlier contents went."""
    from narrowcast.broker.storage.backup import STREAMS

    _check(data, force=force)  # again, as it may have changed meanwhile
    shutil.rmtree(aside / STREAMS, ignore_errors=True)
    shutil.rmtree(aside / "nats" / "ports", ignore_errors=True)
    old: Path | None = None
    try:
        if data.exists() and any(data.iterdir()):
            old = data.with_name(f"{data.name}.old-{datetime.now(UTC):%Y%m%dT%H%M%S}")
            data.rename(old)
        aside.rename(data)  # replaces an empty folder
    except OSError as error:
        if old is not None and old.exists() and not data.exists():
            old.rename(data)
        raise TableError(
            f"{data}: cannot be replaced ({error.strerror}); name another folder, such as one inside it"
        ) from error
    return old
