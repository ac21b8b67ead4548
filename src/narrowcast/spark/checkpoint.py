"""Checkpoints: finished stages of a run, which are skipped until their inputs or parameters change.

A stage has a key, made from its parameters and the keys or fingerprints of its inputs, never from times or
file names. Its outputs are written to a temporary folder, moved into place one by one, and only then
recorded; outputs without a record are ignored.
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

#: The file that holds the records of a folder.
RECORDS = ".stages.json"


class StageRecord(msgspec.Struct, frozen=True):
    """The record of a finished stage.

    Parameters
    ----------
    key
        The stage's key: see `key_of`.
    seconds
        Run time.
    outputs
        Files and folders that the stage wrote.
    facts
        Numbers and texts that the stage returned.
    """

    key: str
    seconds: float
    outputs: tuple[str, ...]
    facts: dict[str, Any]


def key_of(stage: str, **parts: Any) -> str:
    """Return the key of a stage: a hash of its name and of everything its outputs depend on.

    Examples
    --------
    >>> key_of("match", strategy="auto", events="9f2c") == key_of("match", events="9f2c", strategy="auto")
    True
    """
    text = msgspec.json.encode([stage, parts], order="sorted")
    return hashlib.sha256(text).hexdigest()[:32]


class Checkpoints:
    """The finished stages of a folder. `resumed` lists the stages that were skipped.

    Parameters
    ----------
    folder
        The existing folder of the outputs and the records.

    Examples
    --------
    >>> def work(folder):
    ...     (folder / "sizes.txt").write_text("7")
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
        with suppress(OSError, msgspec.DecodeError):  # without readable records every stage runs again
            self._records = msgspec.json.decode((folder / RECORDS).read_bytes(), type=dict[str, StageRecord])
        for leftover in folder.glob(".stage-*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def run(
        self, name: str, key: str, outputs: tuple[str, ...], work: Callable[[Path], dict[str, Any]]
    ) -> StageRecord:
        """Run a stage unless it is already finished, and return its record.

        Parameters
        ----------
        name
            Name of the stage.
        key
            Key of the stage: see `key_of`. A recorded stage with another key runs again.
        outputs
            The files and folders that the stage may write. Outputs of an earlier run that it does not write
            again are removed.
        work
            Writes the outputs into the folder it is given, and returns facts: plain numbers and texts.
        """
        done = self._records.get(name)
        if done is not None and done.key == key and all((self.folder / o).exists() for o in done.outputs):
            self.resumed.append(name)
            return done
        if self._records.pop(name, None) is not None:
            self._write()
        for output in outputs:
            _remove(self.folder / output)
        temporary = Path(tempfile.mkdtemp(prefix=f".stage-{name}-", dir=self.folder))
        start = time.perf_counter()
        try:
            facts = work(temporary)
            seconds = time.perf_counter() - start
            written = tuple(output for output in outputs if (temporary / output).exists())
            for output in written:
                (temporary / output).rename(self.folder / output)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        # Encode and decode, so that a first run and a resumed run see the same values.
        facts = msgspec.json.decode(msgspec.json.encode(facts))
        self._records[name] = StageRecord(key, seconds, written, facts)
        self._write()
        return self._records[name]

    def _write(self) -> None:
        """Replace the file of records atomically."""
        temporary = self.folder / f"{RECORDS}.part"
        with temporary.open("wb") as file:
            file.write(msgspec.json.encode(self._records))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.folder / RECORDS)


@contextmanager
def staging_folder(out: Path, *, fresh: bool = False) -> Iterator[Path]:
    """Yield the folder in which a run builds its output; move it to `out` when the block succeeds.

    The folder is a hidden sibling of `out`. It starts with the files of an earlier output at `out`. When the
    block fails after a stage was finished, the folder remains, and the next run resumes from it. A lock
    allows one run at a time for each output.

    Parameters
    ----------
    out
        Path of the output; an existing output is replaced atomically.
    fresh
        Whether to start with an empty folder.

    Raises
    ------
    TableError
        When another run is writing the same output, or the folder cannot be written.
    """
    work = out.parent / f".{out.name}-work"
    try:
        work.parent.mkdir(parents=True, exist_ok=True)
        handle = _lock(work, out, fresh=fresh)
    except OSError as error:
        raise TableError(f"cannot write {out}: {error.strerror}", parameter="out", value=str(out)) from error
    try:
        yield work
        work.chmod(0o755)
        swap(work, out)
    except BaseException:
        if _records(work) == _records(out):  # no stage was finished, so there is nothing to resume
            shutil.rmtree(work, ignore_errors=True)
        raise
    finally:
        os.close(handle)


def _records(folder: Path) -> bytes:
    """Return the file of records of a folder, empty when there is none."""
    try:
        return (folder / RECORDS).read_bytes()
    except OSError:
        return b""


def _lock(work: Path, out: Path, *, fresh: bool) -> int:
    """Lock the staging folder, creating it when it is missing, and return the lock's file descriptor."""
    while True:
        if not work.is_dir():
            _create(work, None if fresh else out)
        with suppress(FileNotFoundError):
            handle = os.open(work, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(handle)
                raise TableError(
                    f"{out}: another run is writing this output; wait for it or choose another path",
                    parameter="out",
                    value=str(out),
                ) from None
            with suppress(FileNotFoundError):
                if os.fstat(handle).st_ino == work.stat().st_ino:
                    break
            os.close(handle)  # another run has moved this folder into place meanwhile
    if fresh:
        for path in work.iterdir():
            _remove(path)
    return handle


def _create(work: Path, earlier: Path | None) -> None:
    """Create the staging folder with the files of an earlier output, or empty."""
    temporary = Path(tempfile.mkdtemp(prefix=f"{work.name}-", dir=work.parent))
    try:
        if earlier is not None and earlier.is_dir():
            shutil.copytree(earlier, temporary, copy_function=_link, dirs_exist_ok=True)
        with suppress(FileExistsError, OSError):  # another run was first
            temporary.rename(work)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _link(source: str, target: str) -> str:
    """Hard-link a file, or copy it when that fails. Linking is safe: outputs are never modified in place."""
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
