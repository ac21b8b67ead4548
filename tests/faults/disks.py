"""The disk is full for a while: of the server that stores events, or of what a node keeps in SQLite."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from faults.load import Load
from faults.setting import Run, Setting
from narrowcast.broker import NatsServer

#: Bytes of the small disk, and of those that the broker may store there.
SIZE, STORE = 128 << 20, 64 << 20
#: Seconds under load before the disk is full, while it is, and afterwards.
BEFORE, FULL, AFTER = 4.0, 10.0, 6.0
_CHUNK = 1 << 16


class NoDiskError(Exception):
    """A small disk cannot be made here."""


@contextmanager
def small_disk(folder: Path, size: int = SIZE) -> Iterator[Path]:
    """Give a file system of a few bytes for the length of a block.

    Raises
    ------
    NoDiskError
        When nobody here may mount one.
    """
    folder.mkdir(parents=True)
    try:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    except OSError as error:
        raise NoDiskError(f"mount is not there: {error}") from error
    if done.returncode:
        raise NoDiskError(f"mounting is not permitted: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


def fill(disk: Path) -> Path:
    """Leave no byte free, and return the file to be removed for that."""
    ballast = disk / "ballast"
    with ballast.open("ab", buffering=0) as out:
        with suppress(OSError):
            os.posix_fallocate(out.fileno(), 0, os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize)
        for size in (_CHUNK, 1 << 12, 1):
            with suppress(OSError):
                while True:
                    out.seek(0, os.SEEK_END)
                    out.write(bytes(size))
    return ballast


@dataclass
class FullRun:
    """What came of a run with a full disk, beside deliveries.

    Parameters
    ----------
    run
        What came of deliveries; times to recover are from when there was room again.
    refusals
        What publishers, or those who subscribe, were told while the disk was full.
    letters
        Dead letters that should be kept, and that are.
    """

    run: Run
    refusals: list[str]
    letters: tuple[int, int] = (0, 0)


def stored(folder: Path, load: Load, *, full: float = FULL) -> FullRun:
    """Fill the disk of the NATS server that stores events while they are published."""
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(folder / "disk"))
        setting = Setting(stack, folder, load, "--store", STORE, data=disk / "data")
        setting.start()
        time.sleep(BEFORE)
        ballast = fill(disk)
        begun = time.time()
        while time.time() < begun + full:
            time.sleep(1.0)
            fill(disk)  # what was forgotten meanwhile made room
        ballast.unlink()
        free = time.time()
        time.sleep(AFTER)
        setting.end()
        run = setting.judge([free])
        return FullRun(run, sorted({each.why.partition(":")[2].strip() for each in run.refused}))


def kept(folder: Path, load: Load, *, bad: int = 50, full: float = FULL) -> FullRun:
    """Fill the disk on which a node keeps subscriptions and dead letters; events are stored elsewhere."""
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(folder / "disk", 16 << 20))
        server = stack.enter_context(NatsServer(folder / "nats"))
        setting = Setting(stack, folder, load, nats=server.url, data=disk / "data")
        setting.start()
        api = httpx.Client(base_url=setting.broker.api, timeout=30)
        stack.enter_context(api)
        time.sleep(BEFORE)
        ballast = fill(disk)
        said = []
        wanted = {"subscriber": "new", "filter": "price > 1e9"}
        for _ in range(3):
            answer = api.post("/subscriptions", json=wanted)
            said.append(f"{answer.status_code} {answer.json().get('detail')}")
        for i in range(bad):
            api.post("/events", json={"price": f"no number {i}", "name": "x" * 2000}).raise_for_status()
        time.sleep(full)
        ballast.unlink()
        free = time.time()
        time.sleep(AFTER)
        answer = api.post("/subscriptions", json=wanted)
        said.append(f"{answer.status_code}")
        setting.end()
        letters = len(_letters(setting.broker.data))
        return FullRun(setting.judge([free]), said, (bad, letters))


def _letters(data: Path) -> list[object]:
    """Return the dead letters of a broker."""
    from narrowcast.broker.storage.dead_letters import DeadLetters
    from narrowcast.cli.dead_letters import FILE

    letters = DeadLetters(data / FILE)
    try:
        return list(letters.read(most=1 << 20))
    finally:
        letters.close()
