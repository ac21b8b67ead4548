"""A backup of a broker in the making: copies of what may be written to meanwhile, put into one file."""

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
    """What will be in a backup, in a folder of its own.

    Parameters
    ----------
    data
        The folder of the broker.
    folder
        Where copies go.

    Examples
    --------
    >>> import tempfile
    >>> from narrowcast.broker import Store
    >>> from narrowcast.broker.storage.backup import read
    >>> with tempfile.TemporaryDirectory() as here:
    ...     store = Store(f"{here}/broker/subscriptions.db")
    ...     store.add({3: ("ann", "price > 75")})
    ...     Path(here, "draft").mkdir()
    ...     draft = BackupWriter(f"{here}/broker", f"{here}/draft")
    ...     draft.copy()
    ...     made = draft.pack(f"{here}/b.tar", delivery=DeliveryGuarantee.AT_MOST_ONCE, prefix="nc")
    ...     store.close()
    ...     read(f"{here}/b.tar") == made, made.subscriptions, list(made.members)
    (True, 1, ['subscriptions.db'])
    """

    def __init__(self, data: str | Path, folder: str | Path) -> None:
        self._data, self._folder = Path(data), Path(folder)
        if not (self._data / SUBSCRIPTIONS).is_file():
            raise InputError(
                f"{data} has no {SUBSCRIPTIONS}; name the folder that narrowcast serve has as --data"
            )
        self._streams: list[StreamSnapshot] = []
        self._positions = 0

    def copy(self) -> None:
        """Copy all that is in the broker's folder itself, while it may be written to."""
        for name, what in ((SUBSCRIPTIONS, "the subscriptions"), (LETTERS, "the dead letters")):
            if (self._data / name).exists():
                _copy_database(self._data / name, self._folder / name, what)
        if (self._data / USERS).is_file():
            with _copying(self._data / USERS):
                shutil.copyfile(self._data / USERS, self._folder / USERS)
        self._copy_plan()

    def _copy_plan(self) -> None:
        """Copy the facts and the plan that they name: both of one moment."""
        facts, plan = _bytes_of(self._data / FILE), PlanStore(self._data / PLAN)
        if plan.name is not None:
            used = None
            if facts is not None:
                with suppress(msgspec.MsgspecError):  # whoever reads the facts reports it
                    used = msgspec.json.decode(facts, type=BrokerFacts).plan
            with _copying(plan.folder):
                files = plan.files(used)
            with writing(self._folder / PLAN):
                for name, content in files.items():
                    self.file(f"{PLAN}/{name}").write_bytes(content)
        if facts is not None:
            with writing(self._folder / FILE):
                (self._folder / FILE).write_bytes(facts)

    def file(self, name: str) -> Path:
        """Return where to write a member."""
        path = self._folder / name
        path.parent.mkdir(exist_ok=True)
        return path

    def stored(self, taken: StreamSnapshot, positions: list[tuple[str, bytes]] | None = None) -> None:
        """Note that a stream is taken, and write positions where those are what it holds."""
        self._streams.append(taken)
        if positions is not None:
            kinds = (subject.split(".")[-3:] for subject, _ in positions)
            self._positions = len({words[-1] for words in kinds if words[0] in ("position", "restored")})
            with writing(self._folder / POSITIONS):
                self.file(POSITIONS).write_bytes(msgspec.msgpack.encode(positions))

    def pack(self, out: str | Path, *, delivery: DeliveryGuarantee, prefix: str) -> BackupManifest:
        """Write the backup, which appears whole or not at all; only its owner may read it."""
        out = Path(out)
        files = {
            path.relative_to(self._folder).as_posix(): path
            for path in sorted(self._folder.rglob("*"))
            if path.is_file()
        }
        if odd := [name for name in files if not NAME.fullmatch(name)]:
            raise InputError(f"{self._data / odd[0]} has a name that no backup holds; rename or remove it")
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
            members={name: _member(path) for name, path in files.items()},
        )
        text = msgspec.json.format(msgspec.json.encode(manifest)) + b"\n"
        aside = out.with_name(f".{out.name}-{os.getpid()}")
        try:
            with writing(out):
                (self._folder / MANIFEST).write_bytes(text)
                (self._folder / SUM).write_text(hashlib.sha256(text).hexdigest())
                first = {name: self._folder / name for name in (MANIFEST, SUM)}
                _write(aside, first | files, packed=_is_packed(out))
                aside.rename(out)
                _sync(out.parent)
        finally:
            aside.unlink(missing_ok=True)
        return manifest

    def _count(self, name: str, what: str, table: str) -> int:
        """Return how many there are of something in a copy."""
        if not (self._folder / name).exists():
            return 0
        try:
            with closing(sqlite3.connect(self._folder / name)) as db:
                return int(db.execute(f"SELECT {what} FROM {table}").fetchone()[0])  # noqa: S608 names of ours
        except sqlite3.Error as error:
            raise InputError(f"{self._data / name} is none of a broker's: {first_line(error)}") from error


@contextmanager
def draft(data: str | Path, out: str | Path) -> Iterator[BackupWriter]:
    """Give a draft beside the file that it will become, for the length of a block.

    Raises
    ------
    InputError
        When that file is there already.
    """
    out = Path(out)
    if out.exists() or out.is_symlink():
        raise TableError(f"{out} exists already; name another file or remove it")
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        yield BackupWriter(data, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def facts_of(data: str | Path) -> BrokerFacts | None:
    """Return what a broker has written down of itself; None where it has not."""
    text = _bytes_of(Path(data) / FILE)
    try:
        return None if text is None else msgspec.json.decode(text, type=BrokerFacts)
    except msgspec.MsgspecError as error:
        raise InputError(
            f"{Path(data) / FILE} cannot be read: {first_line(error)}; mend or remove it"
        ) from error


def _copy_database(path: Path, to: Path, what: str) -> None:
    """Copy a file of SQLite's as it is at one moment, whoever writes to it."""
    try:
        with (
            closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=30)) as source,
            closing(sqlite3.connect(to)) as made,
        ):
            source.backup(made)
            made.execute("PRAGMA journal_mode = DELETE")  # one file, without others beside it
            found = made.execute("PRAGMA quick_check").fetchone()[0]
    except sqlite3.Error as error:
        raise TableError(f"cannot copy {what} in {path}: {first_line(error)}") from error
    if found != "ok":
        raise TableError(f"{what} in {path} are damaged: {found}")


@contextmanager
def _copying(path: Path) -> Iterator[None]:
    """Say in one line what cannot be copied."""
    try:
        yield
    except OSError as error:
        raise TableError(f"cannot copy {path}: {error.strerror or first_line(error)}") from error


def _bytes_of(path: Path) -> bytes | None:
    """Return what a file holds; None where there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _member(path: Path) -> BackupMember:
    """Return the size and the hash of a file."""
    with path.open("rb") as file:
        return BackupMember(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


def _is_packed(path: Path) -> bool:
    """Return whether a file is compressed, by its name.

    >>> _is_packed(Path("a.tar")), _is_packed(Path("a.tar.gz")), _is_packed(Path("a.tgz"))
    (False, True, True)
    """
    return path.suffix.lower() in (".gz", ".tgz")


def _write(path: Path, files: dict[str, Path], *, packed: bool) -> None:
    """Write an archive that only its owner may read."""
    path.unlink(missing_ok=True)
    path.touch(0o600)
    with path.open("wb") as to:
        with tarfile.open(fileobj=to, mode="w:gz" if packed else "w") as tar:
            for name, source in files.items():
                entry = tarfile.TarInfo(name)
                entry.size, entry.mtime, entry.mode = source.stat().st_size, int(time.time()), 0o600
                with source.open("rb") as file:
                    tar.addfile(entry, file)
        to.flush()
        os.fsync(to.fileno())


def _sync(folder: Path) -> None:
    """Let what was done in a folder be on disk."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
