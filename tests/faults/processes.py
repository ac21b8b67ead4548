"""Real processes of a run: a broker with its server, and clients; all end with their block."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import httpx

from faults.load import Load

TESTS = Path(__file__).parents[1]
COMMAND = (sys.executable, "-c", "from narrowcast.cli.main import main; main()")
#: Seconds for a process to say that it is at work, and to end.
PATIENCE, ENDING = 60.0, 30.0
_STEP = 0.02
#: How many names the files of a process have in theirs.
_NAMED = 8


def free_port() -> int:
    """Return a port that is not in use."""
    with socket.socket() as at:
        at.bind(("127.0.0.1", 0))
        return int(at.getsockname()[1])


def environment() -> dict[str, str]:
    """Return environment variables for processes: the import path, and caches of compiled kernels."""
    cache = str(TESTS.parent / ".cache" / "numba" / "shared")
    return {"NUMBA_CACHE_DIR": cache, **os.environ, "PYTHONPATH": str(TESTS)}


def memory_mb(process: int) -> float:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def cpu_s(process: int) -> float:
    """Return the CPU seconds of all threads of a process."""
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def alive(process: int) -> bool:
    """Return whether a process exists and has not ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def await_that(what: str, is_so: Any, patience: float = PATIENCE) -> float:
    """Wait until a condition is true, and return the seconds that took.

    Raises
    ------
    TimeoutError
        When it is not true in time.
    """
    begun = time.monotonic()
    while not is_so():
        if time.monotonic() - begun > patience:
            raise TimeoutError(f"not within {patience:g} s: {what}")
        time.sleep(_STEP)
    return time.monotonic() - begun


class Process(ABC):
    """A process with output files; it can be killed and started again, as another life.

    Parameters
    ----------
    name
        Base name of its files.
    folder
        Folder of its files.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self._folder = name, folder
        self.life = -1
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command line."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Return whether the process reports that it is working."""

    @property
    def said_in(self) -> Path:
        """File with its messages."""
        return self._folder / f"{self.name}-{self.life:04d}.err"

    @property
    def out(self) -> Path:
        """File with its standard output."""
        return self._folder / f"{self.name}-{self.life:04d}.out"

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    def begin(self) -> None:
        """Start the process."""
        self.life += 1
        with self.said_in.open("wb") as err, self.out.open("wb") as out:
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.PIPE, stdout=out, stderr=err, env=environment()
            )

    def wait_ready(self, patience: float = PATIENCE) -> None:
        """Wait until the process is working.

        Raises
        ------
        AssertionError
            When it has ended instead, with its output.
        """

        def is_so() -> bool:
            if self._process is not None and self._process.poll() is not None:
                said = self.said_in.read_text(errors="replace")[-2000:]
                raise AssertionError(f"{self.name} has ended with {self._process.returncode}: {said}")
            return self.is_ready()

        await_that(f"{self.name} is at work, see {self.said_in}", is_so, patience)

    def start(self) -> Self:
        """Start the process, and wait until it is working."""
        self.begin()
        self.wait_ready()
        return self

    def kill(self) -> float:
        """Kill the process with SIGKILL, and return the time."""
        assert self._process is not None
        now = time.time()
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        return now

    def check(self) -> None:
        """Raise an error when the process has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            said = self.said_in.read_text(errors="replace")[-2000:]
            raise AssertionError(f"{self.name} has ended with {self._process.returncode}: {said}")

    def ask_to_end(self) -> None:
        """Ask the process to end."""
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()

    def end(self) -> int | None:
        """Ask the process to end, kill it if it does not, and return its exit code; None if it had ended."""
        if self._process is None:
            return None
        self.ask_to_end()
        try:
            code = self._process.wait(ENDING)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


class Client(Process):
    """Subscribers or a publisher in a process; see `faults.client`."""

    def __init__(self, kind: str, url: str, folder: Path, load: Load, *names: str) -> None:
        super().__init__(f"{kind}r-{'-'.join(names[:_NAMED])}", folder)
        self.kind, self._url, self._load, self.names = kind, url, load, names

    def command(self) -> list[str]:
        """Return the command line."""
        load = json.dumps(asdict(self._load))
        words = [self.kind, self._url, str(self._folder), str(self.life), load, *self.names]
        return [sys.executable, "-m", "faults.client", *words]

    def is_ready(self) -> bool:
        """Return whether the process reports that it is working."""
        return self.out.exists() and b"ready" in self.out.read_bytes()


class Broker(Process):
    """`narrowcast serve`, by default with a NATS server of its own.

    Parameters
    ----------
    folder
        Folder of all files; the broker's data are in `data` there.
    options
        Additional arguments of the command.
    nats
        An existing server to use.
    data
        Another folder for the broker's data.
    name
        Base name of its files.
    headers
        Headers of requests to its HTTP API.
    """

    def __init__(
        self,
        folder: Path,
        *options: object,
        nats: str = "",
        data: Path | None = None,
        name: str = "broker",
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(name, folder)
        self._headers = headers
        self.data = folder / "data" if data is None else data
        self._options = [str(each) for each in options]
        self._nats, self._port, self._http = nats, free_port(), free_port()

    @property
    def url(self) -> str:
        """URL of its NATS server."""
        return self._nats or f"nats://127.0.0.1:{self._port}"

    @property
    def api(self) -> str:
        """URL of its HTTP API."""
        return f"http://127.0.0.1:{self._http}"

    def command(self) -> list[str]:
        """Return the command line."""
        where = ["--nats", self._nats] if self._nats else ["--port", str(self._port)]
        kept = ["--data", str(self.data), "--delivery", "at-least-once"]
        return [*COMMAND, "serve", *where, "--http", f"127.0.0.1:{self._http}", *kept, *self._options]

    def is_ready(self) -> bool:
        """Return whether the broker serves."""
        return b"serving at" in self.said_in.read_bytes()

    @property
    def server(self) -> int | None:
        """Process id of its NATS server; None without one."""
        try:
            found = int((self.data / "nats" / "nats.pid").read_text())
        except (OSError, ValueError):
            return None
        return found if alive(found) else None

    def kill_server(self) -> float:
        """Kill its NATS server, and return the time."""
        found = self.server
        assert found is not None, "there is no NATS server to kill"
        now = time.time()
        os.kill(found, signal.SIGKILL)
        await_that("the NATS server has ended", lambda: not alive(found))
        return now

    def rollout(self, plan: Path, overlap: float = 2.0) -> str:
        """Request a rollout of a plan, and return the answer."""
        try:
            wanted = {"plan": str(plan), "overlap": overlap}
            answer = httpx.post(f"{self.api}/rollout", json=wanted, headers=self._headers, timeout=PATIENCE)
            return answer.text
        except httpx.HTTPError as error:
            return repr(error)

    def ask_to_end(self) -> None:
        """Ask the broker and its NATS server to end."""
        assert self._process is not None
        with suppress(ProcessLookupError):
            self._process.terminate()

    def end(self) -> int | None:
        """End the broker, and check that its NATS server has ended."""
        code = super().end()
        if not self._nats and (left := self.server) is not None:
            os.kill(left, signal.SIGKILL)
        return code
