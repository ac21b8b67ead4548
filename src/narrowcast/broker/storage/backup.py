"""A backup of a broker: one file, with a manifest by which all of it is checked before any of it is used."""

from __future__ import annotations

import hashlib
import os
import re
import tarfile
import zlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from narrowcast.broker.storage.broker_state import FILE, PLAN, DeliveryGuarantee
from narrowcast.broker.storage.stream_snapshots import StreamSnapshot  # noqa: TC001 msgspec reads annotations
from narrowcast.errors import InputError
from narrowcast.files import first_line, writing

if TYPE_CHECKING:
    from collections.abc import Callable

#: The format of backups.
FORMAT = 1
#: What a broker has in its folder: subscriptions, dead letters, and perhaps users.
SUBSCRIPTIONS, LETTERS, USERS = "subscriptions.db", "dead-letters.db", "users.json"
#: What a backup has besides: the manifest and its hash, which come first; positions; snapshots of streams.
MANIFEST, SUM, POSITIONS, STREAMS = "manifest.json", "manifest.sha256", "streams/positions", "streams"
#: The names that members may have. No other is written anywhere, whatever an archive says.
NAME = re.compile(
    rf"{SUBSCRIPTIONS}|{LETTERS}|{USERS}|{FILE}|{POSITIONS}"
    rf"|{STREAMS}/[A-Za-z0-9_-]+\.snapshot|{PLAN}(/[A-Za-z0-9_][\w.=-]*)+",
    re.ASCII,
)
#: Bytes of the largest manifest, and that are read in one go.
_LARGEST, _BLOCK = 1 << 24, 1 << 20
#: What reading an archive can end with, where it is none or is damaged.
_DAMAGE = (tarfile.TarError, EOFError, OSError, zlib.error, ValueError)


class BackupMember(msgspec.Struct, frozen=True):
    """A file of a backup."""

    size: int
    sha256: str


class BackupManifest(msgspec.Struct, frozen=True):
    """What a backup holds.

    Parameters
    ----------
    format
        Of backups.
    created, version
        When it was made, and by which Narrowcast.
    delivery, prefix
        What the broker promises, and how its subjects begin.
    plan
        What tells its plan from others; None without one.
    subscriptions, subscribers, letters, positions
        How many there are.
    streams
        What was stored, in the order in which it was taken.
    members
        All files but the manifest itself.
    """

    format: int
    created: str
    version: str
    delivery: DeliveryGuarantee
    prefix: str
    plan: str | None
    subscriptions: int
    subscribers: int
    letters: int
    positions: int
    streams: list[StreamSnapshot]
    members: dict[str, BackupMember]

    def facts(self) -> dict[str, Any]:
        """Return it as commands show it: without what only servers read."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        streams = [{name: each[name] for name in ("name", "messages", "bytes")} for each in found["streams"]]
        return found | {"streams": streams}


def member_of(stream: str) -> str:
    """Return the member that holds a stream: a snapshot, or positions, which are read one by one.

    Examples
    --------
    >>> member_of("nc_in"), member_of("nc_at")
    ('streams/nc_in.snapshot', 'streams/positions')
    """
    return POSITIONS if stream.endswith("_at") else f"{STREAMS}/{stream}.snapshot"


def read(path: str | Path, into: Path | None = None) -> BackupManifest:
    """Check all of a backup, and write its files into a folder, if one is given.

    Raises
    ------
    InputError
        When it is no backup, is damaged, or of a later format: then what is in the folder is of no use.
    TableError
        When there is no room for it.
    """
    path = Path(path)
    try:
        with tarfile.open(path, "r|*") as tar:
            manifest = _manifest(path, _content(path, tar, MANIFEST), partial(_content, path, tar, SUM))
            left = dict(manifest.members)
            while (entry := tar.next()) is not None:
                wanted = left.pop(entry.name, None)
                if wanted is None or not _is_plain(entry) or not NAME.fullmatch(entry.name):
                    raise InputError(
                        f"{path} holds {entry.name!r:.100}, which a backup does not have; take another backup"
                    )
                _take(path, tar, entry, wanted, into)
    except FileNotFoundError as error:
        raise InputError(f"{path} is not there; name a file that narrowcast backup has made") from error
    except (InputError, MemoryError):
        raise
    except _DAMAGE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise InputError(f"cannot read {path}: {error.strerror}") from error
        raise InputError(
            f"{path} is no backup, or is damaged: {first_line(error)}; take another backup"
        ) from error
    if left:
        raise InputError(f"{path} is damaged: {next(iter(left))} is missing; take another backup")
    return manifest


def _is_plain(entry: tarfile.TarInfo) -> bool:
    """Return whether a member is a file, and no link or anything else."""
    return entry.type in (tarfile.REGTYPE, tarfile.AREGTYPE)


def _content(path: Path, tar: tarfile.TarFile, name: str) -> bytes:
    """Return what the next member holds, which is small and has a name."""
    entry = tar.next()
    if entry is None or entry.name != name or not _is_plain(entry) or entry.size > _LARGEST:
        raise InputError(f"{path} is no backup: it does not begin with a manifest; name one that is")
    file = tar.extractfile(entry)
    return b"" if file is None else file.read()


def _manifest(path: Path, text: bytes, hashed: Callable[[], bytes]) -> BackupManifest:
    """Return the manifest of a backup, if it is what it was."""
    try:
        number = msgspec.json.decode(text, type=_Format).format
        if number > FORMAT:
            raise InputError(
                f"{path} is of format {number}, and this Narrowcast reads {FORMAT}; install a later one"
            )
        if hashed() != hashlib.sha256(text).hexdigest().encode():
            raise InputError(f"{path} is damaged: {MANIFEST} is not what it was; take another backup")
        manifest = msgspec.json.decode(text, type=BackupManifest)
    except msgspec.MsgspecError as error:
        raise InputError(
            f"{path} is no backup, or is damaged: its manifest says {first_line(error)}; take another backup"
        ) from error
    needed = {SUBSCRIPTIONS, *(member_of(each.name) for each in manifest.streams)}
    if missing := sorted(needed - manifest.members.keys()):
        raise InputError(f"{path} is damaged: its manifest has no {missing[0]:.100}; take another backup")
    return manifest


class _Format(msgspec.Struct):
    """What is read of a manifest of any format."""

    format: int


def _take(
    path: Path, tar: tarfile.TarFile, entry: tarfile.TarInfo, wanted: BackupMember, into: Path | None
) -> None:
    """Check a member, and write it where files go."""
    source = tar.extractfile(entry)
    assert source is not None
    digest, size = hashlib.sha256(), 0
    to = Path(os.devnull) if into is None else into / entry.name
    with writing(to):
        to.parent.mkdir(parents=True, exist_ok=True)
        file = to.open("wb")
    with file:
        while some := source.read(_BLOCK):
            digest.update(some)
            size += len(some)
            with writing(to):
                file.write(some)
        with writing(to):
            file.flush()
            if into is not None:
                to.chmod(0o600)
                os.fsync(file.fileno())
    if (size, digest.hexdigest()) != (wanted.size, wanted.sha256):
        raise InputError(f"{path} is damaged: {entry.name} is not what it was; take another backup")


def positions_in(folder: Path, manifest: BackupManifest) -> list[tuple[str, bytes]]:
    """Return the positions of a backup that was read into a folder."""
    try:
        found = msgspec.msgpack.decode((folder / POSITIONS).read_bytes(), type=list[tuple[str, bytes]])
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError(f"the backup has no positions that can be read: {first_line(error)}") from error
    below = f"{manifest.prefix}.at."
    if odd := [subject for subject, _ in found if not subject.startswith(below)]:
        raise InputError(f"the backup has a position {odd[0]!r:.100} that is not below {below}; take another")
    return found
