"""Who connects to NATS servers, and what it means when they do not want that."""

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

#: What servers say to somebody whom they do not know.
_UNKNOWN = ("authorization violation", "authentication expired", "authentication revoked")


@dataclass(frozen=True, slots=True)
class Login:
    """Servers, and who comes to them.

    Parameters
    ----------
    servers
        Their URLs, without secrets.
    user, password
        Who comes; empty for nobody in particular.
    tls
        What connections are encrypted by, if they have to be.

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
        """Return who comes to servers; names and secrets may also be in their URLs."""
        given = servers.split(",") if isinstance(servers, str) else list(servers)
        urls = [url.strip() for url in given if url.strip()]
        if not urls:
            raise ParameterError(f"servers is {servers!r}; name one, as nats://host:4222")
        bare: list[str] = []
        for url in urls:
            scheme, slashes, rest = url.rpartition("://")
            own, at, place = rest.rpartition("@")
            bare.append(f"{scheme}{slashes}{place}")
            if at and user is None:
                name, colon, secret = own.partition(":")
                if not colon:
                    raise ParameterError(
                        f"{scheme}{slashes}...@{place} has a user without a password; give USER:PASSWORD, or "
                        "--user and --token"
                    )
                user, password = unquote(name), unquote(secret)
            if tls is None and urlsplit(url).scheme in ("tls", "wss"):
                tls = ssl.create_default_context()
        if password and not user:
            raise ParameterError("there is a token and no user; give --user, or NARROWCAST_USER")
        return cls(bare, user or "", password or "", tls)

    @property
    def where(self) -> str:
        """The servers, to be shown."""
        return ", ".join(self.servers)

    @property
    def who(self) -> str:
        """The user, to be shown."""
        return f"user {self.user!r}" if self.user else "who gives no user"

    def refusal(self, error: BaseException) -> str | None:
        """Return what to say of an error after which there is no use to try again; None for any other.

        Examples
        --------
        >>> Login(["nats://one:4222"], "ann").refusal(OSError("'Authorization Violation'"))
        "the NATS server at nats://one:4222 refuses user 'ann': check --user and --token"
        >>> Login(["nats://one:4222"]).refusal(ConnectionRefusedError())
        """
        said = first_line(error)
        if isinstance(error, PlainError):
            return f"the NATS server at {self.where} has no TLS, and would be told secrets openly; {said}"
        if isinstance(error, ssl.SSLError):
            return (
                f"the NATS server at {self.where} and this side do not agree on TLS: "
                f"{getattr(error, 'verify_message', '') or error.reason or said}; check --tls-ca, --tls-cert "
                "and --tls-key"
            )
        if any(text in said.lower() for text in _UNKNOWN):
            return f"the NATS server at {self.where} refuses {self.who}: check --user and --token"
        return None
