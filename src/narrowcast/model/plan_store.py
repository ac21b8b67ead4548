"""Plan store: versions of a plan in one folder, of which a reader always sees exactly one."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import time
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from narrowcast.errors import NarrowcastError, PlanError
from narrowcast.files import new_folder, swap, writing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    T = TypeVar("T")

#: Name of the pointer to the current version, and of the folder of versions.
CURRENT, VERSIONS = "CURRENT", "versions"
#: The file that every plan has; its hash is the name of the plan.
INFO = "plan.json"
#: Number of retained versions, and seconds that an older one stays after it was replaced.
_RETAINED, _GRACE_S = 3, 10.0


class PlanStore:
    """The folder of a plan: a plain folder, or versions with an atomic pointer to the current one.

    A plan that was never replaced is a plain folder. Replacing it adds versions and a pointer to the current
    version; the files in the folder become links through that pointer::

        plan.json -> CURRENT/plan.json
        carries.parquet -> CURRENT/carries.parquet
        CURRENT -> versions/000002-5b2f0c9a7e41
        versions/000001-93d1c60b8f25/...
        versions/000002-5b2f0c9a7e41/...

    A version is complete before the pointer refers to it and never changes afterwards; the pointer is
    replaced by one rename, so a killed writer leaves the old version current. Writers wait for one another. A
    reader resolves the pointer once and reads that version, which is not removed for some seconds after
    replacement.

    Parameters
    ----------
    folder
        The folder; it need not exist.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as place:
    ...     store = PlanStore(f"{place}/plan")
    ...     for text in ("one", "two"):
    ...         with store.write(replace=True) as folder:
    ...             _ = (folder / "plan.json").write_text(text)
    ...     store.load(lambda folder: (folder / "plan.json").read_text())
    'two'
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    @property
    def name(self) -> str | None:
        """Unique name of the current version; None if there is no plan."""
        return name_of(self._version() or self.folder)

    def load(self, read: Callable[[Path], T], name: str | None = None) -> T:
        """Read one version with a function and return its result.

        Parameters
        ----------
        read
            Reads a folder. It is called again if a plain folder was replaced during the first call.
        name
            Name of a version (default: the current version; also used if the named one is not retained).

        Raises
        ------
        PlanError
            When the pointer refers to no version, or when a plain folder changed while it was read.
        """
        version = self._version(name)
        if version is None:
            before = self.name
            try:
                found = read(self.folder)
            except (NarrowcastError, OSError):
                if self.name == before:
                    raise
            else:
                if self.name == before:
                    return found
            version = self._version(name)
            if version is None:
                raise PlanError(f"{self.folder}: replaced while it was read; read it again")
        if not version.is_dir():
            raise PlanError(
                f"{self.folder / CURRENT}: points to {version}, which does not exist; write the plan again"
            )
        return read(version)

    def files(self, name: str | None = None) -> dict[str, bytes]:
        """Return the files of a version by name; see `load`."""
        return self.load(_contents, name)

    @contextmanager
    def write(self, *, replace: bool = False) -> Iterator[Path]:
        """Provide an empty folder for a new version, which becomes current if the block does not raise.

        Parameters
        ----------
        replace
            Whether an existing plan is replaced (default: refuse).

        Raises
        ------
        TableError
            When the folder exists and `replace` is not set, before anything is written.
        """
        with new_folder(self.folder, replace=replace, put=self._put if replace else None) as aside:
            yield aside

    def replace_file(self, name: str, content: bytes) -> None:
        """Replace a file that is not part of the plan atomically; the plan's name does not change."""
        with writing(self.folder), _locked(self.folder):
            folder = self._version() or self.folder
            aside = folder / f".{name}"
            aside.write_bytes(content)
            aside.replace(folder / name)
            if folder != self.folder:
                self._link_files([name])

    def _put(self, aside: Path, folder: Path) -> None:
        """Move a complete version to an empty place, or add it to an existing plan and make it current."""
        try:
            aside.rename(folder)
            return
        except OSError:  # the folder exists
            pass
        if self.name is None or folder.is_symlink():
            swap(aside, folder)
            return
        with writing(folder), _locked(folder):
            try:
                self._upgrade()
                version = self._add(aside)
            except OSError:  # no links on this file system, or a mounted folder
                swap(aside, folder)
                return
            self._make_current(version)
            self._prune()

    def _upgrade(self) -> None:
        """Turn a plain folder into one with versions; the contents that readers see stay the same."""
        (self.folder / VERSIONS).mkdir(exist_ok=True)
        self._discard_incomplete()
        if (self.folder / CURRENT).is_symlink():
            return
        copy = Path(tempfile.mkdtemp(prefix=".", dir=self.folder / VERSIONS))
        for name, content in _contents(self.folder).items():
            (copy / name).write_bytes(content)
        copy.chmod(0o755)
        self._make_current(self._add(copy))

    def _add(self, folder: Path) -> Path:
        """Move a complete folder into the folder of versions."""
        versions = self._versions()
        number = _number(versions[-1]) + 1 if versions else 1
        return folder.rename(self.folder / VERSIONS / f"{number:06d}-{name_of(folder)}")

    def _make_current(self, version: Path) -> None:
        """Point to a version, with links for exactly its files."""
        names = [file.name for file in _files(version)]
        if (self.folder / CURRENT).is_symlink():
            self._link_files(names)  # before the switch, so that every file of the version always has a link
        self._link(CURRENT, f"{VERSIONS}/{version.name}")
        os.utime(version)  # the time since when it is current
        self._link_files(names)
        for path in self.folder.iterdir():
            if path.name not in (CURRENT, *names) and (path.is_symlink() or path.is_file()):
                path.unlink()

    def _link_files(self, names: list[str]) -> None:
        for name in names:
            if not (self.folder / name).is_symlink():
                self._link(name, f"{CURRENT}/{name}")

    def _link(self, name: str, target: str) -> None:
        """Make a link in the folder atomically, replacing a file or another link."""
        aside = self.folder / f".{name}.link"
        aside.unlink(missing_ok=True)
        aside.symlink_to(target)
        aside.replace(self.folder / name)

    def _discard_incomplete(self) -> None:
        """Remove versions whose writers were killed before the pointer referred to them."""
        for incomplete in (self.folder / VERSIONS).glob(".*"):
            shutil.rmtree(incomplete, ignore_errors=True)
        versions, current = self._versions(), self._version()
        if current in versions:
            for later in versions[versions.index(current) + 1 :]:
                shutil.rmtree(later, ignore_errors=True)

    def _prune(self) -> None:
        """Remove old versions that no reader can still be reading."""
        oldest = time.time() - _GRACE_S
        for version, successor in pairwise(self._versions()[: 1 - _RETAINED]):
            if successor.stat().st_mtime < oldest:
                shutil.rmtree(version, ignore_errors=True)

    def _version(self, name: str | None = None) -> Path | None:
        """Return the folder of a version (default: the current one); None for a plain folder."""
        for version in reversed(self._versions() if name else []):
            if version.name.endswith(f"-{name}"):
                return version
        pointer = self.folder / CURRENT
        try:
            return self.folder / pointer.readlink()
        except OSError as error:
            return (
                pointer if error.errno == errno.EINVAL else None
            )  # a folder, not a link: the copy was made without links

    def _versions(self) -> list[Path]:
        """Return the folders of all versions, oldest first."""
        found = (self.folder / VERSIONS).glob("*")
        return sorted((path for path in found if re.match(r"\d+-", path.name)), key=_number)


def name_of(folder: Path) -> str | None:
    """Return the name of the plan in a folder; None if it is not a plan."""
    try:
        return hashlib.sha256((folder / INFO).read_bytes()).hexdigest()[:12]
    except OSError:
        return None


def _number(version: Path) -> int:
    return int(version.name.partition("-")[0])


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in _files(folder)}


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the exclusive writer lock of a folder within a block."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
