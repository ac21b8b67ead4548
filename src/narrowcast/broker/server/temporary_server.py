"""The NATS server of a broker's folder, for whoever needs it for a moment."""

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
    """The server of a folder: one that runs is used as it is and left alone, else one is started and ended.

    One that is started lets nobody in but who starts it.

    Parameters
    ----------
    folder
        Where its store, configuration and log are.
    tls
        The certificate of one that runs, as whoever started it has given it.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, NatsServer(folder) as server:
    ...     with TemporaryServer(folder) as same:
    ...         same.url == server.url, same.runs
    (True, True)
    """

    def __init__(self, folder: str | Path, *, tls: Tls | None = None) -> None:
        super().__init__(folder, users=[])
        self._given = tls
        #: Whether somebody else runs it.
        self.runs = False

    def start(self) -> None:
        """Find it, or start it and wait until it listens."""
        self.runs = self.find()
        if not self.runs:
            self._host, self.port = "127.0.0.1", 0
            super().start()

    def find(self) -> bool:
        """Return whether one runs; then its address is known."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._know()
        found = self._listens()
        if found is None:
            return False
        self.port, self._host = found, self._address()
        return self._answers()

    @property
    def process(self) -> str:
        """The process of the one that runs, in brackets; nothing where it does not say."""
        try:
            return f" (process {int((self._folder / 'nats.pid').read_text())})"
        except (OSError, ValueError):
            return ""

    def _address(self) -> str:
        """Return the host that the one that runs says it listens at."""
        for file in (self._folder / "ports").glob("*.ports"):
            return urlsplit(json.loads(file.read_text())["nats"][0]).hostname or self._host
        return self._host

    def stop(self) -> None:
        """End it if it was started here."""
        if not self.runs:
            super().stop()

    @property
    def login(self) -> Login:
        """How to connect to it, as its node does.

        Raises
        ------
        ParameterError
            When it asks for TLS, and there is no certificate to know it by.
        """
        tls = None
        if self.runs and (self._system().info() or {}).get("tls_required"):
            if self._given is None or not self._given.given:
                raise ParameterError(
                    f"the NATS server at {self.url} asks for TLS; give --tls-cert and --tls-key as "
                    "narrowcast serve has them"
                )
            tls = self._given.context() if self._given.cert is None else self._given.own()
        return Login([self.url], self.user, self.password, tls)
