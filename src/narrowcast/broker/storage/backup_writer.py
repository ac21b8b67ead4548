"""Writer of backups, which copies a broker's files while the broker may write to them."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import tarfile
import tempfile
import time
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

import narrowcast
from narrowcast.broker.storage.backup import (
    FORMAT,
    LETTERS,
    MANIFEST,
    NAME,
    POSITIONS,
    SUBSCRIPTIONS,
    SUM,
    USERS,
    BackupManifest,
    BackupMember,
)
from narrowcast.broker.storage.broker_state import FILE, PLAN, BrokerFacts, DeliveryGuarantee
from narrowcast.errors import InputError, TableError
from narrowcast.files import first_line, writing
from narrowcast.model.plan_store import PlanStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from narrowcast.broker.storage.stream_snapshots import StreamSnapshot


class BackupWriter:
    """Collects the files of a backup in a temporary folder, and packs them.

    Parameters
    ----------
    data
        Folder of the broker.
    folder
        Temporary folder for the copies.

    Examples
    --------
    >>> import tempfile
    >>> from narrowcast.broker import SubscriptionStore
    >>> from narrowcast.broker.storage.backup import read_backup
    >>> with tempfile.TemporaryDirectory() as here:
    ...     store = SubscriptionStore(f"{here}/broker/subscriptions.db")
    ...     store.add({3: ("ann", "price > 75")})
    ...     Path(here, "draft").mkdir()
    ...     writer = BackupWriter(f"{here}/broker", f"{here}/draft")
    ...     writer.copy()
    ...     made = writer.pack(f"{here}/b.tar", delivery=DeliveryGuarantee.AT_MOST_ONCE, prefix="nc")
    ...     store.close()
    ...     read_backup(f"{here}/b.tar") == made, made.subscriptions, list(made.members)
    (True, 1, ['subscriptions.db'])
    """

    def __init__(self, data: str | Path, folder: str | Path) -> None:
        self._data, self._folder = Path(data), Path(folder)
        if not (self._data / SUBSCRIPTIONS).is_file():
            raise InputError(
                f"{data}: no {SUBSCRIPTIONS} in it; must be the data folder of a broker",
                parameter="data",
                value=str(data),
                limit="the data folder of a broker",
            )
        self._streams: list[StreamSnapshot] = []
        self._positions = 0

    def copy(self) -> None:
        """Copy the files of the broker's folder, while the broker may write to them.

        Raises
        ------
        TableError
            When a file cannot be copied, or is damaged.
        """
        for name, what in ((SUBSCRIPTIONS, "the subscriptions"), (LETTERS, "the dead letters")):
            if (self._data / name).exists():
                _copy_database(self._data / name, self._folder / name, what)
        if (self._data / USERS).is_file():
            with _translate_errors(self._data / USERS):
                shutil.copyfile(self._data / USERS, self._folder / USERS)
        self._copy_plan()

    def _copy_plan(self) -> None:
        """Copy the state file and the plan that it names, so that both match."""
        facts, plan = _read_if_exists(self._data / FILE), PlanStore(self._data / PLAN)
        if plan.name is not None:
            used = None
            if facts is not None:
                with suppress(msgspec.MsgspecError):  # `facts_of` reports an invalid file
                    used = msgspec.json.decode(facts, type=BrokerFacts).plan
            with _translate_errors(plan.folder):
                files = plan.files(used)
            with writing(self._folder / PLAN):
                for name, content in files.items():
                    self.path_of(f"{PLAN}/{name}").write_bytes(content)
        if facts is not None:
            with writing(self._folder / FILE):
                (self._folder / FILE).write_bytes(facts)

    def path_of(self, name: str) -> Path:
        """Return the path at which to write a member of this name."""
        path = self._folder / name
        path.parent.mkdir(exist_ok=True)
        return path

    def add_stream(self, snapshot: StreamSnapshot, positions: list[tuple[str, bytes]] | None = None) -> None:
        """Add a saved stream; for the stream of positions also its records, as subject and payload."""
        self._streams.append(snapshot)
        if positions is not None:
            kinds = (subject.split(".")[-3:] for subject, _ in positions)
            self._positions = len({words[-1] for words in kinds if words[0] in ("position", "restored")})
            with writing(self._folder / POSITIONS):
                self.path_of(POSITIONS).write_bytes(msgspec.msgpack.encode(positions))

    def pack(self, out: str | Path, *, delivery: DeliveryGuarantee, prefix: str) -> BackupManifest:
        """Write the backup in one step: after an error there is no file. Only its owner may read it.

        Parameters
        ----------
        out
            File to write; compressed if its name ends with .gz or .tgz.
        delivery, prefix
            Delivery guarantee of the broker, and prefix of its subjects.

        Raises
        ------
        InputError
            When a file has a name that a backup cannot contain, or a database is not that of a broker.
        TableError
            When the file cannot be written.
        """
        out = Path(out)
        files = {
            path.relative_to(self._folder).as_posix(): path
            for path in sorted(self._folder.rglob("*"))
            if path.is_file()
        }
        if invalid := [name for name in files if not NAME.fullmatch(name)]:
            raise InputError(
                f"{self._data / invalid[0]}: a backup cannot contain a file of this name; rename or remove it"
            )
        manifest = BackupManifest(
            format=FORMAT,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            version=narrowcast.__version__,
            delivery=delivery,
            prefix=prefix,
            plan=PlanStore(self._folder / PLAN).name,
            subscriptions=self._count(SUBSCRIPTIONS, "count(*)", "subscriptions"),
            subscribers=self._count(SUBSCRIPTIONS, "count(DISTINCT subscriber)", "subscriptions"),
            letters=self._count(LETTERS, "count(*)", "letters"),
            positions=self._positions,
            streams=self._streams,
            members={name: _describe(path) for name, path in files.items()},
        )
        text = msgspec.json.format(msgspec.json.encode(manifest)) + b"\n"
        temporary = out.with_name(f".{out.name}-{os.getpid()}")
        try:
            with writing(out):
                (self._folder / MANIFEST).write_bytes(text)
                (self._folder / SUM).write_text(hashlib.sha256(text).hexdigest())
                first = {name: self._folder / name for name in (MANIFEST, SUM)}
                _write(temporary, first | files, compressed=_is_compressed(out))
                temporary.rename(out)
                _sync_folder(out.parent)
        finally:
            temporary.unlink(missing_ok=True)
        return manifest

    def _count(self, name: str, expression: str, table: str) -> int:
        """Return the result of a counting expression over a table of a copied database."""
        if not (self._folder / name).exists():
            return 0
        try:
            with closing(sqlite3.connect(self._folder / name)) as db:
                return int(db.execute(f"SELECT {expression} FROM {table}").fetchone()[0])  # noqa: S608 names of ours
        except sqlite3.Error as error:
            raise InputError(
                f"{self._data / name}: not a database of a broker: {first_line(error)}"
            ) from error


@contextmanager
def open_backup_writer(data: str | Path, out: str | Path) -> Iterator[BackupWriter]:
    """Provide a writer with a temporary folder beside the future backup, for the length of a block.

    Raises
    ------
    TableError
        When the file exists.
    """
    out = Path(out)
    if out.exists() or out.is_symlink():
        raise TableError(
            f"{out}: file exists; use another name, or remove it", parameter="out", value=str(out)
        )
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        yield BackupWriter(data, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def facts_of(data: str | Path) -> BrokerFacts | None:
    """Return the facts in the state file of a broker's folder; None without a state file.

    Raises
    ------
    InputError
        When the file is invalid.
    """
    text = _read_if_exists(Path(data) / FILE)
    try:
        return None if text is None else msgspec.json.decode(text, type=BrokerFacts)
    except msgspec.MsgspecError as error:
        raise InputError(
            f"{Path(data) / FILE}: invalid state file: {first_line(error)}; repair or remove it"
        ) from error


def _copy_database(path: Path, to: Path, what: str) -> None:
    """Copy a SQLite database as of one moment, while other processes may write to it."""
    try:
        with (
            closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=30)) as source,
            closing(sqlite3.connect(to)) as made,
        ):
            source.backup(made)
            made.execute("PRAGMA journal_mode = DELETE")  # one file, without others beside it
            found = made.execute("PRAGMA quick_check").fetchone()[0]
    except sqlite3.Error as error:
        raise TableError(f"{path}: cannot copy {what}: {first_line(error)}") from error
    if found != "ok":
        raise TableError(f"{path}: {what} are damaged: {found}")


@contextmanager
def _translate_errors(path: Path) -> Iterator[None]:
    """Raise errors of the file system as `TableError`."""
    try:
        yield
    except OSError as error:
        raise TableError(f"{path}: cannot be copied: {error.strerror or first_line(error)}") from error


def _read_if_exists(path: Path) -> bytes | None:
    """Return the content of a file; None if it does not exist."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _describe(path: Path) -> BackupMember:
    """Return the size and hash of a file."""
    with path.open("rb") as file:
        return BackupMember(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


def _is_compressed(path: Path) -> bool:
    """Return whether a backup of this name is compressed.

    >>> _is_compressed(Path("a.tar")), _is_compressed(Path("a.tar.gz")), _is_compressed(Path("a.tgz"))
    (False, True, True)
    """
    return path.suffix.lower() in (".gz", ".tgz")


def _write(path: Path, files: dict[str, Path], *, compressed: bool) -> None:
    """Write an archive that only its owner can read."""
    path.unlink(missing_ok=True)
    path.touch(0o600)
    with path.open("wb") as to:
        with tarfile.open(fileobj=to, mode="w:gz" if compressed else "w") as tar:
            for name, source in files.items():
                entry = tarfile.TarInfo(name)
                entry.size, entry.mtime, entry.mode = source.stat().st_size, int(time.time()), 0o600
                with source.open("rb") as file:
                    tar.addfile(entry, file)
        to.flush()
        os.fsync(to.fileno())


def _sync_folder(folder: Path) -> None:
    """Wait until the entries of a folder are on disk."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
