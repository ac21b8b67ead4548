"""What a NATS server says of itself, and what its system account may ask of it."""

from __future__ import annotations

import json
import secrets
import socket
from contextlib import closing
from typing import TYPE_CHECKING, Any

from narrowcast.errors import TransportError

if TYPE_CHECKING:
    import ssl

#: Seconds to wait for a server, and for what it is asked to do.
PATIENCE, _LONG = 2.0, 20.0


class SystemAccount:
    """The system account of a server, by its user.

    It speaks the protocol itself, one connection for each question: a broker asks before it has an event
    loop, and rarely.

    Parameters
    ----------
    host, port
        Where the server is.
    user, password
        Of its system account.
    tls
        What to connect by when the server asks for TLS.
    """

    def __init__(
        self, host: str, port: int, user: str, password: str, tls: ssl.SSLContext | None = None
    ) -> None:
        self._host, self._port, self._tls = host, port, tls
        self._user, self._password = user, password

    def info(self) -> dict[str, Any] | None:
        """Return what the server says to whoever comes, its name and id among it; None without a server."""
        try:
            with closing(socket.create_connection((self._host, self._port), PATIENCE)) as made:
                made.settimeout(PATIENCE)
                return _info(made)
        except (OSError, ValueError):
            return None

    def listens(self) -> bool:
        """Return whether anybody listens there, however slowly they answer."""
        try:
            socket.create_connection((self._host, self._port), PATIENCE).close()
        except ConnectionRefusedError:
            return False
        except OSError:
            pass
        return True

    def reload(self) -> str | None:
        """Let the server read its configuration again, and return when it holds.

        Where the server refuses it, the old one still holds, and this returns why.

        Raises
        ------
        TransportError
            When it does not answer.
        """
        try:
            answer = self._ask("RELOAD")
        except (OSError, ValueError) as error:
            raise TransportError(
                f"the NATS server at {self._host}:{self._port} does not take up its configuration: {error}"
            ) from error
        fault = answer.get("error")
        return None if fault is None else str(fault.get("description", fault))

    def trouble(self) -> str:
        """Return what keeps the server from storing anything; nothing where all is well, or it is silent."""
        try:
            found = self._ask("HEALTHZ").get("data", {})
        except (OSError, ValueError):
            return ""
        return "" if found.get("status") == "ok" else str(found.get("error", "it is not well"))

    def _ask(self, what: str) -> dict[str, Any]:
        """Ask the server something, and return its answer."""
        with socket.create_connection((self._host, self._port), PATIENCE) as plain:
            plain.settimeout(_LONG)
            said = _info(plain)
            made: socket.socket = plain
            if said.get("tls_required") and self._tls is not None:
                made = self._tls.wrap_socket(plain, server_hostname=self._host)
            with closing(made):
                inbox = f"_INBOX.{secrets.token_hex(8)}"
                login = json.dumps(
                    {"user": self._user, "pass": self._password, "verbose": False, "pedantic": False}
                )
                made.sendall(
                    f"CONNECT {login}\r\nSUB {inbox} 1\r\n"
                    f"PUB $SYS.REQ.SERVER.{said['server_id']}.{what} {inbox} 0\r\n\r\n".encode()
                )
                return _answer(made)


def _info(made: socket.socket) -> dict[str, Any]:
    """Read the first line of a server: byte by byte, since what comes behind it may be encrypted."""
    line = bytearray()
    while not line.endswith(b"\r\n"):
        some = made.recv(1)
        if not some or len(line) > 65_536:
            raise ValueError("it is no NATS server")
        line += some
    word, _, rest = line.partition(b" ")
    if word != b"INFO":
        raise ValueError("it is no NATS server")
    found: dict[str, Any] = json.loads(rest)
    return found


def _answer(made: socket.socket) -> dict[str, Any]:
    """Read on to the first message, and return it."""
    with made.makefile("rb") as lines:
        while line := lines.readline():
            if line.startswith(b"PING"):
                made.sendall(b"PONG\r\n")
            elif line.startswith(b"-ERR"):
                raise ValueError(line.decode(errors="replace").removeprefix("-ERR").strip())
            elif line.startswith(b"MSG"):
                found: dict[str, Any] = json.loads(lines.read(int(line.split()[-1])))
                return found
    raise ValueError("it ends the connection")
