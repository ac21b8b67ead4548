"""Credentials of a client for NATS servers, and messages for refused connections."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from narrowcast.errors import ParameterError
from narrowcast.files import first_line
from narrowcast.jetstream.errors import PlainError

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Errors of a server for an unknown user or a wrong password.
_UNKNOWN = ("authorization violation", "authentication expired", "authentication revoked")


@dataclass(frozen=True, slots=True)
class Login:
    """Servers, and the credentials for them.

    Parameters
    ----------
    servers
        URLs of the servers, without credentials.
    user, password
        User name and password; empty for an anonymous client.
    tls
        TLS context, if connections are to be encrypted.

    Examples
    --------
    >>> made = Login.of("nats://ann:s%40cret@one:4222, nats://two:4222")
    >>> made.servers, made.user, made.password
    (['nats://one:4222', 'nats://two:4222'], 'ann', 's@cret')
    """

    servers: list[str]
    user: str = ""
    password: str = ""
    tls: ssl.SSLContext | None = None

    @classmethod
    def of(
        cls,
        servers: str | Sequence[str],
        user: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> Login:
        """Parse URLs of servers, which may contain credentials.

        Parameters
        ----------
        servers
            URLs: a list, or a text separated by commas.
        user, password
            User name and password; they take precedence over those in the URLs.
        tls
            TLS context (default: one that trusts the system's authorities, if a URL begins with ``tls://``).

        Raises
        ------
        ParameterError
            When there is no URL, a user in a URL has no password, or there is a password without a user.
        """
        given = servers.split(",") if isinstance(servers, str) else list(servers)
        urls = [url.strip() for url in given if url.strip()]
        if not urls:
            raise ParameterError(
                f"servers={servers!r}: must contain a URL, such as nats://host:4222",
                parameter="servers",
                value=servers,
                limit="a URL, such as nats://host:4222",
            )
        bare: list[str] = []
        for url in urls:
            scheme, slashes, rest = url.rpartition("://")
            own, at, place = rest.rpartition("@")
            bare.append(f"{scheme}{slashes}{place}")
            if at and user is None:
                name, colon, secret = own.partition(":")
                if not colon:
                    raise ParameterError(
                        f"servers={scheme}{slashes}...@{place}: a user without a password; give USER:PASSWORD"
                        ", or both as parameters",
                        parameter="servers",
                    )
                user, password = unquote(name), unquote(secret)
            if tls is None and urlsplit(url).scheme in ("tls", "wss"):
                tls = ssl.create_default_context()
        if password and not user:
            raise ParameterError(
                "user is missing: a password without a user; give the user, or set NARROWCAST_USER",
                parameter="user",
                limit="given with a password",
            )
        return cls(bare, user or "", password or "", tls)

    @property
    def where(self) -> str:
        """URLs of the servers, for messages."""
        return ", ".join(self.servers)

    @property
    def who(self) -> str:
        """The user, for messages."""
        return f"user {self.user!r}" if self.user else "an anonymous client"

    def refusal(self, error: BaseException) -> str | None:
        """Return the message for an error after which connecting again is useless; None for any other.

        Examples
        --------
        >>> Login(["nats://one:4222"], "ann").refusal(OSError("'Authorization Violation'"))
        "NATS server nats://one:4222: it refuses user 'ann'; check the user and the token"
        >>> Login(["nats://one:4222"]).refusal(ConnectionRefusedError())
        """
        text = first_line(error)
        if isinstance(error, PlainError):
            return (
                f"NATS server {self.where}: it has no TLS, so credentials would be sent unencrypted; {text}"
            )
        if isinstance(error, ssl.SSLError):
            return (
                f"NATS server {self.where}: the TLS handshake failed: "
                f"{getattr(error, 'verify_message', '') or error.reason or text}; check the certificate "
                "authority, the certificate and its key"
            )
        if any(refusal in text.lower() for refusal in _UNKNOWN):
            return f"NATS server {self.where}: it refuses {self.who}; check the user and the token"
        return None
