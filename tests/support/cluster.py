"""A real Spark cluster on this machine, commands that run on it, and tools to break them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from narrowcast.spark.java import java_home

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Found = TypeVar("Found")

#: The command as users have it.
NARROWCAST = str(Path(sys.executable).with_name("narrowcast"))

#: What makes the many short-lived Javas of a test start sooner.
SHORT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

#: How long anything may take that is waited for, in seconds.
PATIENCE = 240.0


def until(look: Callable[[], Found | None], what: str, *, patience: float = PATIENCE) -> Found:
    """Call a function until it returns something true, and return that."""
    end = time.monotonic() + patience
    while not (found := look()):
        assert time.monotonic() < end, f"after {patience} s there is still no {what}"
        time.sleep(0.02)
    return found


# ----------------------------------------------------------------------------------------------- processes


def children(pid: int) -> list[int]:
    """Return the child processes of a process."""
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it may have ended in the meantime
            if int(_stat(folder)[1]) == pid:
                found.append(int(folder.name))
    return found


def descendants(pid: int) -> list[int]:
    """Return the processes below a process."""
    found = children(pid)
    return found + [below for child in found for below in descendants(child)]


def is_alive(pid: int) -> bool:
    """Return whether a process is there and has not ended."""
    with suppress(OSError):
        return _stat(Path(f"/proc/{pid}"))[0] != "Z"
    return False


def busy_ticks(pid: int) -> int:
    """Return the CPU time of a process, in clock ticks; 0 when it has ended."""
    with suppress(OSError):
        return sum(map(int, _stat(Path(f"/proc/{pid}"))[11:13]))
    return 0


def command_of(pid: int) -> str:
    """Return the command line of a process; empty when it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def log_of(executor: int) -> str:
    """Return the log of an executor, from its working folder; empty when it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{executor}/cwd/stderr").read_text(errors="replace")
    return ""


def end(pid: int) -> None:
    """Kill a process, unless it has ended by itself."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _stat(folder: Path) -> list[str]:
    """Return the fields of `/proc/PID/stat` after the name: state, parent, and so on."""
    return (folder / "stat").read_text().rpartition(")")[2].split()


# ------------------------------------------------------------------------------------------------ commands


@dataclass(slots=True)
class Command:
    """A `narrowcast` command at work."""

    words: tuple[str, ...]
    process: subprocess.Popen[bytes]
    out: Path
    err: Path

    @property
    def pid(self) -> int:
        """Its driver."""
        return self.process.pid

    @property
    def said(self) -> str:
        """Standard error so far."""
        return self.err.read_text(errors="replace")

    @property
    def runs(self) -> bool:
        """Whether it is still at work."""
        return self.process.poll() is None

    def wait(self, patience: float = PATIENCE) -> int:
        """Return its exit code once it has ended."""
        return self.process.wait(patience)

    def until(self, look: Callable[[], Found | None], what: str) -> Found:
        """Call a function until it returns something true before the command ends, and return that."""

        def still() -> Found | None:
            found = look()
            assert found or self.runs, f"the command ended before there was {what}: {self.said[-2000:]}"
            return found

        return until(still, what)


@contextmanager
def command(
    folder: Path, *words: str | Path, env: dict[str, str] | None = None, shell: str = ""
) -> Iterator[Command]:
    """Run a command within the block; at its end kill it and all processes that it started.

    Parameters
    ----------
    folder
        Folder for its output.
    words
        Arguments of `narrowcast`.
    env
        Additional environment variables.
    shell
        Shell commands to run first, such as setting a limit; the command replaces the shell.
    """
    folder.mkdir(parents=True, exist_ok=True)
    number = len(list(folder.glob("*.err")))
    out, err = folder / f"{number}.out", folder / f"{number}.err"
    called = [NARROWCAST, *map(str, words)]
    if shell:
        called = ["/bin/sh", "-c", f'{shell} && exec "$0" "$@"', *called]
    told = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "NO_COLOR": "1", **(env or {})}
    with out.open("wb") as to, err.open("wb") as errors:
        process = subprocess.Popen(called, stdout=to, stderr=errors, env=told, stdin=subprocess.DEVNULL)
    try:
        yield Command(tuple(map(str, words)), process, out, err)
    finally:
        below = descendants(process.pid)
        if process.poll() is None:
            process.kill()
            process.wait()
        for pid in below:
            end(pid)


# ------------------------------------------------------------------------------------------------- cluster


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker of the cluster: its process, and the folder in which its executors keep their files."""

    pid: int
    folder: Path

    @property
    def executors(self) -> list[int]:
        """The executors that it has started."""
        return [pid for pid in children(self.pid) if "CoarseGrainedExecutorBackend" in command_of(pid)]

    @property
    def pythons(self) -> list[int]:
        """The Python workers of its executors: what their daemon has forked."""
        daemons = [pid for executor in self.executors for pid in children(executor)]
        return [
            pid for daemon in daemons if "pyspark.daemon" in command_of(daemon) for pid in children(daemon)
        ]

    @property
    def shuffled(self) -> set[Path]:
        """The files that its executors have for a shuffle."""
        with suppress(OSError):  # folders go while they are looked through
            return {path for path in self.folder.rglob("shuffle_*.data") if path.stat().st_size}
        return set()


@dataclass(frozen=True, slots=True)
class Cluster:
    """A master and its workers."""

    url: str
    workers: tuple[Worker, ...]

    @property
    def options(self) -> list[str]:
        """Options of a command that runs here, with one small executor on each worker."""
        conf = {
            "spark.executor.memory": "1g",
            "spark.executor.cores": "1",
            "spark.executor.extraJavaOptions": SHORT,
            "spark.driver.extraJavaOptions": SHORT,
            "spark.driver.host": "127.0.0.1",
        }
        return ["--master", self.url, *(word for k, v in conf.items() for word in ("--conf", f"{k}={v}"))]


@contextmanager
def cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """Give a standalone cluster on free ports of this machine, each worker with one core.

    Parameters
    ----------
    folder
        Where all of them keep their files and logs.
    workers
        How many there are.
    """
    with ExitStack() as stack:
        start = partial(_daemon, stack, folder)
        log, _ = start("master", "master.Master", "--port", "0")
        address = re.compile(r"Starting Spark master at (spark://\S+)")
        url = until(lambda: address.search(log.read_text()), "address of the master")[1]
        made: list[Worker] = []
        for i in range(workers):
            name = f"worker-{i}"
            words = ("--port", "0", "--cores", "1", "--memory", "1500m", "--work-dir", folder / name / "work")
            _, pid = start(name, "worker.Worker", *words, url)
            made.append(Worker(pid, folder / name / "local"))
        until(lambda: log.read_text().count("Registering worker ") == workers, "worker at the master")
        yield Cluster(url, tuple(made))


def _daemon(stack: ExitStack, folder: Path, name: str, kind: str, *words: str | Path) -> tuple[Path, int]:
    """Start a part of a cluster, to be ended with the stack, and return its log and its process."""
    import pyspark

    home = Path(pyspark.__file__).parent
    (folder / name).mkdir(parents=True)
    log = folder / name / "log"
    env = {
        **os.environ,
        "JAVA_HOME": str(java_home().home),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_DIRS": str(folder / name / "local"),
        "SPARK_DAEMON_MEMORY": "512m",
        "SPARK_DAEMON_JAVA_OPTS": SHORT,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    called: list[str | Path] = [home / "bin" / "spark-class", f"org.apache.spark.deploy.{kind}"]
    where = ["--host", "127.0.0.1", "--webui-port", "0"]
    with log.open("wb") as to:
        process = subprocess.Popen([*called, *where, *words], stdout=to, stderr=to, env=env)
    stack.callback(_end_all, process)
    return log, process.pid


def _end_all(process: subprocess.Popen[bytes]) -> None:
    """End a process and all below it."""
    below = descendants(process.pid)
    process.kill()
    process.wait()
    for pid in below:
        end(pid)
