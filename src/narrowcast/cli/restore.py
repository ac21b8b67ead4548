"""`narrowcast restore`: a live broker from a backup."""

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

from narrowcast.cli import broker_options, options
from narrowcast.cli.backup import show
from narrowcast.errors import InputError, ParameterError, TableError, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable

    from narrowcast.broker.security.login import Login
    from narrowcast.broker.storage.backup import BackupManifest
    from narrowcast.cli.backup import Tell

#: What is in the way that is named.
_SHOWN = 3


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What narrowcast backup has written.")],
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", metavar="DIR", help="The folder to make, for serve --data: empty, or not there."
        ),
    ] = None,
    nats: Annotated[
        str | None,
        typer.Option("--nats", metavar="URL", help="The server to store events at; else the broker's own."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Move what is in DIR aside; it is not deleted.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check all of FILE, tell what it holds, and change nothing.")
    ] = False,
    user: broker_options.User = None,
    token: broker_options.Token = None,
    tls_ca: broker_options.TlsCa = None,
    tls_cert: broker_options.TlsCert = None,
    tls_key: broker_options.TlsKey = None,
    as_json: options.Json = False,
) -> None:
    """Make the folder of a broker from a backup; then narrowcast serve --data DIR goes on from there.

    All of FILE is checked before anything is changed. Events that waited, and how far subscribers were, go to
    the NATS server that serve will start for DIR; or to the one of --nats, for a broker that is served with
    --nats. Subscribers get again what they have read since the backup.

    Examples:

        narrowcast restore broker.tar --data broker

        narrowcast restore broker.tar --dry-run

        narrowcast restore broker.tar.gz --data broker --nats nats://one:4222
    """
    from narrowcast.broker.storage.backup import read

    if dry_run:
        found = read(file)
        show("restore", file, file.stat().st_size, found, as_json=as_json, restored=False)
        return
    if data is None:
        raise ParameterError("there is no --data; name the folder to make, or give --dry-run")
    data = data.resolve()
    _check(data, force=force)
    who = None if nats is None else broker_options.login(nats, user, token, tls_ca, tls_cert, tls_key)
    with options.bars() as progress:
        at = progress.add_task("check the backup", total=None)

        def tell(text: str) -> None:
            progress.update(at, description=text)

        try:
            data.parent.mkdir(parents=True, exist_ok=True)
            aside = Path(tempfile.mkdtemp(prefix=f".{data.name}-", dir=data.parent))
        except OSError as error:
            raise TableError(f"cannot write {data}: {error.strerror}; name another folder") from error
        try:
            found, size = read(file, aside), file.stat().st_size
            old = _put(found, aside, data, who, tell, force=force)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    if old is not None:
        typer.echo(f"what was in {data} is in {old}", err=True)
    show(
        "restore", file, size, found, as_json=as_json, restored=True, data=str(data), old=old and str(old)
    )  # fmt: skip


def _check(data: Path, *, force: bool) -> None:
    """Refuse a folder that holds something, or in which a broker may run."""
    from narrowcast.broker.server.temporary_server import TemporaryServer

    if not data.exists() and not data.is_symlink():
        return
    if not data.is_dir():
        raise TableError(f"{data} is a file; name a folder that is empty, or that is not there")
    there = sorted(path.name for path in data.iterdir())
    if not there:
        return
    if not force:
        more = f" and {len(there) - _SHOWN:,} more" if len(there) > _SHOWN else ""
        raise TableError(
            f"{data} is not empty, it has {', '.join(there[:_SHOWN])}{more}; name another folder, or give "
            "--force to move it aside"
        )
    if (data / "nats" / "key").exists() and (server := TemporaryServer(data / "nats")).find():
        raise TransportError(
            f"a broker, or a NATS server that it has left behind{server.process}, runs in {data}; end it, or "
            "name another folder"
        )


def _put(
    found: BackupManifest, aside: Path, data: Path, who: Login | None, tell: Tell, *, force: bool
) -> Path | None:
    """Put what was read in its place, with its streams; return where what was there has gone."""
    from narrowcast.broker.server.temporary_server import TemporaryServer

    place = partial(_place, aside, data, force=force)
    if found.streams and who is not None:
        return asyncio.run(_give(found, aside, who, tell, place))
    if found.streams:
        with TemporaryServer(aside / "nats") as server:
            asyncio.run(_give(_alone(found), aside, server.login, tell, lambda: None))
    return place()


def _alone(found: BackupManifest) -> BackupManifest:
    """Return a manifest whose streams one server can have, however many had them."""
    streams = [
        msgspec.structs.replace(each, config=each.config | {"num_replicas": 1}) for each in found.streams
    ]
    return msgspec.structs.replace(found, streams=streams)


async def _give(
    found: BackupManifest, folder: Path, who: Login, tell: Tell, then: Callable[[], Path | None]
) -> Path | None:
    """Let a server have all streams, and do something then; where either fails, it has none of them."""
    from narrowcast.broker.storage.backup import member_of, positions_in
    from narrowcast.broker.storage.positions import renewed
    from narrowcast.broker.storage.stream_snapshots import StreamSnapshots
    from narrowcast.broker.wire import Subjects

    subjects = Subjects(found.prefix)
    async with (
        broker_options.connected(who, "narrowcast restore", found.prefix) as transport,
        StreamSnapshots(transport, subjects) as snapshots,
    ):
        if odd := {each.name for each in found.streams} ^ set(snapshots.names):
            raise InputError(f"the backup is not whole: {min(odd)} is missing, or of another broker")
        if there := await snapshots.there():
            raise InputError(
                f"the NATS server at {who.where} has stream {there[0]} already; remove it with all that it "
                "holds, or name another server"
            )
        given: list[str] = []
        try:
            for each in reversed(found.streams):  # what publishers send to comes last
                tell(f"restore {each.name}")
                given.append(each.name)
                if each.name == snapshots.streams.at:
                    records = renewed(positions_in(folder, found), found.prefix)
                    await snapshots.give_records(each, records)
                    continue
                with (folder / member_of(each.name)).open("rb") as file:
                    await snapshots.give(each, file.read)
            return then()
        except BaseException:
            for name in given:
                with suppress(TransportError):
                    await snapshots.remove(name)
            raise


def _place(aside: Path, data: Path, *, force: bool) -> Path | None:
    """Put a folder in its place; return where what was there has gone."""
    from narrowcast.broker.storage.backup import STREAMS

    _check(data, force=force)  # another may have written there meanwhile
    shutil.rmtree(aside / STREAMS, ignore_errors=True)
    shutil.rmtree(aside / "nats" / "ports", ignore_errors=True)
    old: Path | None = None
    try:
        if data.exists() and any(data.iterdir()):
            old = data.with_name(f"{data.name}.old-{datetime.now(UTC):%Y%m%dT%H%M%S}")
            data.rename(old)
        aside.rename(data)  # which may be there, empty
    except OSError as error:
        if old is not None and old.exists() and not data.exists():
            old.rename(data)
        raise TableError(
            f"cannot put the broker at {data}: {error.strerror}; name another folder, such as one inside it"
        ) from error
    return old
