"""Stages that are done once: what a run has finished stays finished, until what it was made from changes.

A stage has a key, made from its parameters and the keys or fingerprints of what it reads, never from times or
names of files. Its outputs are written aside, put in place one by one, and only then recorded; outputs
without a record count for nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from narrowcast.errors import TableError
from narrowcast.files import swap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Where the records of a folder are kept.
RECORDS = ".stages.json"


class StageRecord(msgspec.Struct, frozen=True):
    """A stage that is done: its key, how long it took, what it wrote, and what it found."""

    key: str
    seconds: float
    outputs: tuple[str, ...]
    facts: dict[str, Any]


def key_of(stage: str, **parts: Any) -> str:
    """Return the key of a stage from all that its outputs depend on.

    Examples
    --------
    >>> key_of("match", strategy="auto", events="9f2c") == key_of("match", events="9f2c", strategy="auto")
    True
    """
    text = msgspec.json.encode([stage, parts], order="sorted")
    return hashlib.sha256(text).hexdigest()[:32]


class Checkpoints:
    """The stages in a folder.

    Parameters
    ----------
    folder
        Where outputs and records are; it exists.

    Examples
    --------
    >>> def work(aside):
    ...     (aside / "sizes.txt").write_text("7")
    ...     return {"rows": 7}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     stages = Checkpoints(Path(folder))
    ...     first = stages.run("count", key_of("count", of="9f2c"), ("sizes.txt",), work)
    ...     again = Checkpoints(Path(folder)).run("count", first.key, ("sizes.txt",), work)
    >>> first.facts, again == first
    ({'rows': 7}, True)
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.resumed: list[str] = []
        self._records: dict[str, StageRecord] = {}
        with suppress(OSError, msgspec.DecodeError):  # then nothing counts as done
            self._records = msgspec.json.decode((folder / RECORDS).read_bytes(), type=dict[str, StageRecord])
        for left in folder.glob(".stage-*"):
            shutil.rmtree(left, ignore_errors=True)

    def run(
        self, name: str, key: str, outputs: tuple[str, ...], work: Callable[[Path], dict[str, Any]]
    ) -> StageRecord:
        """Return the record of a stage, doing it first unless it is done.

        Parameters
        ----------
        name
            Of the stage.
        key
            What its outputs depend on: see `key_of`.
        outputs
            The files and folders that it may write; what it leaves out is not there afterwards.
        work
            Writes them into the folder it is given, and returns what it found: plain numbers and texts.
        """
        done = self._records.get(name)
        if done is not None and done.key == key and all((self.folder / o).exists() for o in done.outputs):
            self.resumed.append(name)
            return done
        if self._records.pop(name, None) is not None:
            self._write()
        for output in outputs:
            _remove(self.folder / output)
        aside = Path(tempfile.mkdtemp(prefix=f".stage-{name}-", dir=self.folder))
        start = time.perf_counter()
        try:
            facts = work(aside)
            seconds = time.perf_counter() - start
            written = tuple(output for output in outputs if (aside / output).exists())
            for output in written:
                (aside / output).rename(self.folder / output)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        # As they will be read back, so that a run and a resumed one see the same.
        facts = msgspec.json.decode(msgspec.json.encode(facts))
        self._records[name] = StageRecord(key, seconds, written, facts)
        self._write()
        return self._records[name]

    def _write(self) -> None:
        """Put the records in place in one step."""
        aside = self.folder / f"{RECORDS}.part"
        with aside.open("wb") as file:
            file.write(msgspec.json.encode(self._records))
            file.flush()
            os.fsync(file.fileno())
        aside.replace(self.folder / RECORDS)


@contextmanager
def workshop(out: Path, *, fresh: bool = False) -> Iterator[Path]:
    """Give the folder in which a run's output is made, and put it in place when the block ends well.

    It stands beside the output under a hidden name. When the block fails after a stage was finished it stays
    there, to be gone on with.
    It starts with all that an earlier, finished output has. One run at a time works on an output.

    Parameters
    ----------
    out
        Where the output goes; what is there is replaced in one step.
    fresh
        Start over: with nothing.
    """
    work = out.parent / f".{out.name}-work"
    try:
        work.parent.mkdir(parents=True, exist_ok=True)
        handle = _locked(work, out, fresh=fresh)
    except OSError as error:
        raise TableError(f"cannot write {out}: {error.strerror}") from error
    try:
        yield work
        work.chmod(0o755)
        swap(work, out)
    except BaseException:
        if _records(work) == _records(out):  # nothing came of it
            shutil.rmtree(work, ignore_errors=True)
        raise
    finally:
        os.close(handle)


def _records(folder: Path) -> bytes:
    """Return the records of a folder as they are written, none where there are none."""
    try:
        return (folder / RECORDS).read_bytes()
    except OSError:
        return b""


def _locked(work: Path, out: Path, *, fresh: bool) -> int:
    """Return a handle that keeps other runs out of the folder, which is made where it is missing."""
    while True:
        if not work.is_dir():
            _start(work, None if fresh else out)
        with suppress(FileNotFoundError):
            handle = os.open(work, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(handle)
                raise TableError(f"another run is writing {out}; wait for it, or name another") from None
            with suppress(FileNotFoundError):
                if os.fstat(handle).st_ino == work.stat().st_ino:
                    break
            os.close(handle)  # put in place by another run in the meantime: this is no longer it
    if fresh:
        for path in work.iterdir():
            _remove(path)
    return handle


def _start(work: Path, earlier: Path | None) -> None:
    """Make the folder with all that an earlier output has, or with nothing."""
    aside = Path(tempfile.mkdtemp(prefix=f"{work.name}-", dir=work.parent))
    try:
        if earlier is not None and earlier.is_dir():
            shutil.copytree(earlier, aside, copy_function=_link, dirs_exist_ok=True)
        with suppress(FileExistsError, OSError):  # another run was first
            aside.rename(work)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _link(source: str, target: str) -> str:
    """Give a file a second name, or copy it where that fails: outputs are never written to again."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
