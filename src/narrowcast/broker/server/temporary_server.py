"""Temporary use of the NATS server of a broker's folder, such as for a backup."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from narrowcast.broker.security.login import Login
from narrowcast.broker.server.nats_server import NatsServer
from narrowcast.errors import ParameterError

if TYPE_CHECKING:
    from pathlib import Path

    from narrowcast.broker.security.tls import Tls


class TemporaryServer(NatsServer):
    """The server of a folder: a running one is used and left running, otherwise one is started and stopped.

    A server that is started here accepts no other user.

    Parameters
    ----------
    folder
        Folder of its store, configuration and log.
    tls
        Certificate with which a running server was started.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, NatsServer(folder) as server:
    ...     with TemporaryServer(folder) as same:
    ...         same.url == server.url, same.was_running
    (True, True)
    """

    def __init__(self, folder: str | Path, *, tls: Tls | None = None) -> None:
        super().__init__(folder, users=[])
        self._tls_files = tls
        #: Whether the server was running already.
        self.was_running = False

    def start(self) -> None:
        """Find the running server, or start one and wait until it listens.

        Raises
        ------
        TransportError
            When it does not start.
        """
        self.was_running = self.find()
        if not self.was_running:
            self._host, self.port = "127.0.0.1", 0
            super().start()

    def find(self) -> bool:
        """Return whether a server of this folder is running; if so, set its address."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._read_identity()
        found = self._listening_port()
        if found is None:
            return False
        self.port, self._host = found, self._address()
        return self._is_own_server()

    @property
    def process(self) -> str:
        """Process id of the running server for messages, such as `` (process 17)``; empty if unknown."""
        try:
            return f" (process {int((self._folder / 'nats.pid').read_text())})"
        except (OSError, ValueError):
            return ""

    def _address(self) -> str:
        """Return the host at which the running server listens."""
        for file in (self._folder / "ports").glob("*.ports"):
            return urlsplit(json.loads(file.read_text())["nats"][0]).hostname or self._host
        return self._host

    def stop(self) -> None:
        """Stop the server if it was started here."""
        if not self.was_running:
            super().stop()

    @property
    def login(self) -> Login:
        """Credentials for the server's own user.

        Raises
        ------
        ParameterError
            When the server requires TLS and no certificate is given.
        """
        tls = None
        if self.was_running and (self._system().info() or {}).get("tls_required"):
            if self._tls_files is None or not self._tls_files.given:
                raise ParameterError(
                    f"cert is missing: NATS server {self.url} requires TLS; give its certificate and key",
                    parameter="cert",
                    limit="the certificate of the server",
                )
            tls = self._tls_files.context() if self._tls_files.cert is None else self._tls_files.own_context()
        return Login([self.url], self.user, self.password, tls)
