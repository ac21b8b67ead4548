"""Format of a broker's backup: an archive whose manifest has the size and hash of each member."""

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

#: Version of the format.
FORMAT = 1
#: Files in the folder of a broker: subscriptions, dead letters, and users if there are any.
SUBSCRIPTIONS, LETTERS, USERS = "subscriptions.db", "dead-letters.db", "users.json"
#: Further members of a backup: the manifest and its hash, which come first; positions; and the folder of the
#: stream snapshots.
MANIFEST, SUM, POSITIONS, STREAMS = "manifest.json", "manifest.sha256", "streams/positions", "streams"
#: Allowed names of members: no other member of an archive is ever written to disk.
NAME = re.compile(
    rf"{SUBSCRIPTIONS}|{LETTERS}|{USERS}|{FILE}|{POSITIONS}"
    rf"|{STREAMS}/[A-Za-z0-9_-]+\.snapshot|{PLAN}(/[A-Za-z0-9_][\w.=-]*)+",
    re.ASCII,
)
#: Bytes of the largest manifest, and of a block that is read at a time.
_LARGEST, _BLOCK = 1 << 24, 1 << 20
#: Errors raised when a file is not an archive, or is damaged.
_DAMAGE = (tarfile.TarError, EOFError, OSError, zlib.error, ValueError)


class BackupMember(msgspec.Struct, frozen=True):
    """Size in bytes and SHA-256 hash of a file in a backup."""

    size: int
    sha256: str


class BackupManifest(msgspec.Struct, frozen=True):
    """Content of a backup.

    Parameters
    ----------
    format
        Version of the format.
    created, version
        Time of the backup, and the version of Narrowcast that wrote it.
    delivery, prefix
        Delivery guarantee of the broker, and prefix of its subjects.
    plan
        Name of the broker's plan; None without a plan.
    subscriptions, subscribers, letters, positions
        Number of subscriptions, subscribers, dead letters and positions.
    streams
        Saved streams, in the order in which they were saved.
    members
        Size and hash of all files except the manifest and its hash, by name.
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
        """Return the manifest as builtin types, without the configuration and state of streams."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        streams = [{name: each[name] for name in ("name", "messages", "bytes")} for each in found["streams"]]
        return found | {"streams": streams}


def member_of(stream: str) -> str:
    """Return the name of the member that contains a stream: a snapshot, or the records of positions.

    Examples
    --------
    >>> member_of("nc_in"), member_of("nc_at")
    ('streams/nc_in.snapshot', 'streams/positions')
    """
    return POSITIONS if stream.endswith("_at") else f"{STREAMS}/{stream}.snapshot"


def read_backup(path: str | Path, into: Path | None = None) -> BackupManifest:
    """Check a backup completely, and extract it.

    Parameters
    ----------
    path
        The backup.
    into
        Folder for the files (default: only check). After an error its content is incomplete.

    Raises
    ------
    InputError
        When the file is not a backup, is damaged, or has a later format.
    TableError
        When the files cannot be written, for example for lack of disk space.
    """
    path = Path(path)
    try:
        with tarfile.open(path, "r|*") as tar:
            manifest = _read_manifest(
                path, _read_member(path, tar, MANIFEST), partial(_read_member, path, tar, SUM)
            )
            left = dict(manifest.members)
            while (entry := tar.next()) is not None:
                wanted = left.pop(entry.name, None)
                if wanted is None or not _is_plain(entry) or not NAME.fullmatch(entry.name):
                    raise InputError(
                        f"{path}: unexpected member {entry.name!r:.100}; use another backup",
                        parameter="path",
                        value=str(path),
                    )
                _extract(path, tar, entry, wanted, into)
    except FileNotFoundError as error:
        raise InputError(
            f"{path}: no such file; must be a file written by narrowcast backup",
            parameter="path",
            value=str(path),
        ) from error
    except (InputError, MemoryError):
        raise
    except _DAMAGE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise InputError(
                f"{path}: cannot be read: {error.strerror}", parameter="path", value=str(path)
            ) from error
        raise InputError(
            f"{path}: not a backup, or damaged: {first_line(error)}; use another backup",
            parameter="path",
            value=str(path),
        ) from error
    if left:
        raise InputError(
            f"{path}: damaged: member {next(iter(left))} is missing; use another backup",
            parameter="path",
            value=str(path),
        )
    return manifest


def _is_plain(entry: tarfile.TarInfo) -> bool:
    """Return whether a member is a regular file."""
    return entry.type in (tarfile.REGTYPE, tarfile.AREGTYPE)


def _read_member(path: Path, tar: tarfile.TarFile, name: str) -> bytes:
    """Return the content of the next member, which has to be small and of this name."""
    entry = tar.next()
    if entry is None or entry.name != name or not _is_plain(entry) or entry.size > _LARGEST:
        raise InputError(
            f"{path}: not a backup: it does not begin with {MANIFEST} and {SUM}; use a file written by "
            "narrowcast backup",
            parameter="path",
            value=str(path),
        )
    file = tar.extractfile(entry)
    return b"" if file is None else file.read()


def _read_manifest(path: Path, text: bytes, read_hash: Callable[[], bytes]) -> BackupManifest:
    """Check and return the manifest of a backup."""
    try:
        number = msgspec.json.decode(text, type=_Format).format
        if number > FORMAT:
            raise InputError(
                f"{path}: format={number}: must be at most {FORMAT}; install a later version of narrowcast",
                parameter="format",
                value=number,
                limit=f"at most {FORMAT}",
            )
        if read_hash() != hashlib.sha256(text).hexdigest().encode():
            raise InputError(
                f"{path}: damaged: the hash of {MANIFEST} differs; use another backup",
                parameter="path",
                value=str(path),
            )
        manifest = msgspec.json.decode(text, type=BackupManifest)
    except msgspec.MsgspecError as error:
        raise InputError(
            f"{path}: not a backup, or damaged: invalid {MANIFEST}: {first_line(error)}; use another backup",
            parameter="path",
            value=str(path),
        ) from error
    needed = {SUBSCRIPTIONS, *(member_of(each.name) for each in manifest.streams)}
    if missing := sorted(needed - manifest.members.keys()):
        raise InputError(
            f"{path}: damaged: {MANIFEST} does not list {missing[0]:.100}; use another backup",
            parameter="path",
            value=str(path),
        )
    return manifest


class _Format(msgspec.Struct):
    """The part of a manifest that all formats have."""

    format: int


def _extract(
    path: Path, tar: tarfile.TarFile, entry: tarfile.TarInfo, wanted: BackupMember, into: Path | None
) -> None:
    """Check the size and hash of a member, and write it into a folder, if one is given."""
    source = tar.extractfile(entry)
    assert source is not None
    digest, size = hashlib.sha256(), 0
    to = Path(os.devnull) if into is None else into / entry.name
    with writing(to):
        to.parent.mkdir(parents=True, exist_ok=True)
        file = to.open("wb")
    with file:
        while block := source.read(_BLOCK):
            digest.update(block)
            size += len(block)
            with writing(to):
                file.write(block)
        with writing(to):
            file.flush()
            if into is not None:
                to.chmod(0o600)
                os.fsync(file.fileno())
    if (size, digest.hexdigest()) != (wanted.size, wanted.sha256):
        raise InputError(
            f"{path}: damaged: the size or hash of {entry.name} differs; use another backup",
            parameter="path",
            value=str(path),
        )


def positions_in(folder: Path, manifest: BackupManifest) -> list[tuple[str, bytes]]:
    """Return the records of positions, as subject and payload, of a backup extracted into a folder.

    Raises
    ------
    InputError
        When they cannot be read, or have a subject of another broker.
    """
    try:
        found = msgspec.msgpack.decode((folder / POSITIONS).read_bytes(), type=list[tuple[str, bytes]])
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError(f"{folder / POSITIONS}: invalid positions: {first_line(error)}") from error
    below = f"{manifest.prefix}.at."
    if invalid := [subject for subject, _ in found if not subject.startswith(below)]:
        raise InputError(
            f"position {invalid[0]!r:.100}: must begin with {below}; use another backup",
            value=invalid[0],
            limit=f"below {below}",
        )
    return found
