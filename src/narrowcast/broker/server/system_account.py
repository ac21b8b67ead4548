"""Client for the system account of a NATS server: server information, reload and health."""

from __future__ import annotations

import json
import secrets
import socket
from contextlib import closing
from typing import TYPE_CHECKING, Any

from narrowcast.errors import TransportError

if TYPE_CHECKING:
    import ssl

#: Timeouts in seconds: to connect to a server, and for its answer to a request.
PATIENCE, _LONG = 2.0, 20.0


class SystemAccount:
    """Requests to the system account of a server.

    It implements the NATS protocol itself, with blocking sockets and one connection per request: a broker
    needs it before it has an event loop, and rarely.

    Parameters
    ----------
    host, port
        Address of the server.
    user, password
        Credentials of its system account.
    tls
        TLS context, for a server that requires TLS.
    """

    def __init__(
        self, host: str, port: int, user: str, password: str, tls: ssl.SSLContext | None = None
    ) -> None:
        self._host, self._port, self._tls = host, port, tls
        self._user, self._password = user, password

    def info(self) -> dict[str, Any] | None:
        """Return the information that the server sends to each client, such as its name; None if offline."""
        try:
            with closing(socket.create_connection((self._host, self._port), PATIENCE)) as connection:
                connection.settimeout(PATIENCE)
                return _read_info(connection)
        except (OSError, ValueError):
            return None

    def is_listening(self) -> bool:
        """Return whether a process listens at the address, even one that answers slowly."""
        try:
            socket.create_connection((self._host, self._port), PATIENCE).close()
        except ConnectionRefusedError:
            return False
        except OSError:
            pass
        return True

    def reload(self) -> str | None:
        """Let the server reload its configuration, and wait until it is in effect.

        Returns
        -------
        str or None
            Why the server refuses the configuration and keeps the earlier one; None if it is in effect.

        Raises
        ------
        TransportError
            When the server does not answer.
        """
        try:
            answer = self._request("RELOAD")
        except (OSError, ValueError) as error:
            raise TransportError(
                f"NATS server {self._host}:{self._port}: cannot reload its configuration: {error}"
            ) from error
        fault = answer.get("error")
        return None if fault is None else str(fault.get("description", fault))

    def health_error(self) -> str:
        """Return why the server is unhealthy, such as a full disk; empty if it is healthy or offline."""
        try:
            found = self._request("HEALTHZ").get("data", {})
        except (OSError, ValueError):
            return ""
        return "" if found.get("status") == "ok" else str(found.get("error", "unhealthy, without a reason"))

    def _request(self, request: str) -> dict[str, Any]:
        """Send a request to the server, and return its answer."""
        with socket.create_connection((self._host, self._port), PATIENCE) as plain:
            plain.settimeout(_LONG)
            info = _read_info(plain)
            connection: socket.socket = plain
            if info.get("tls_required") and self._tls is not None:
                connection = self._tls.wrap_socket(plain, server_hostname=self._host)
            with closing(connection):
                inbox = f"_INBOX.{secrets.token_hex(8)}"
                login = json.dumps(
                    {"user": self._user, "pass": self._password, "verbose": False, "pedantic": False}
                )
                connection.sendall(
                    f"CONNECT {login}\r\nSUB {inbox} 1\r\n"
                    f"PUB $SYS.REQ.SERVER.{info['server_id']}.{request} {inbox} 0\r\n\r\n".encode()
                )
                return _read_answer(connection)


def _read_info(connection: socket.socket) -> dict[str, Any]:
    """Read the first line of a server: byte by byte, since the bytes after it may be encrypted."""
    line = bytearray()
    while not line.endswith(b"\r\n"):
        byte = connection.recv(1)
        if not byte or len(line) > 65_536:
            raise ValueError("not a NATS server")
        line += byte
    word, _, rest = line.partition(b" ")
    if word != b"INFO":
        raise ValueError("not a NATS server")
    found: dict[str, Any] = json.loads(rest)
    return found


def _read_answer(connection: socket.socket) -> dict[str, Any]:
    """Return the first message, parsed as JSON."""
    with connection.makefile("rb") as lines:
        while line := lines.readline():
            if line.startswith(b"PING"):
                connection.sendall(b"PONG\r\n")
            elif line.startswith(b"-ERR"):
                raise ValueError(line.decode(errors="replace").removeprefix("-ERR").strip())
            elif line.startswith(b"MSG"):
                found: dict[str, Any] = json.loads(lines.read(int(line.split()[-1])))
                return found
    raise ValueError("the server closed the connection")
