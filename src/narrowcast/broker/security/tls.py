"""Certificates for encrypted connections to NATS."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

from narrowcast.broker.server.server_config import quoted
from narrowcast.errors import InputError, ParameterError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Tls:
    """Files with certificates and keys, in PEM format.

    Parameters
    ----------
    ca
        Certificate authorities to trust. A client without it trusts the system's authorities; a server with
        it accepts only clients with a certificate that is signed by one of them.
    cert, key
        Own certificate and its key; both or neither.

    Examples
    --------
    >>> Tls().given, Tls().lines()
    (False, [])
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            missing = "cert" if self.cert is None else "key"
            raise ParameterError(
                f"{missing} is missing: a certificate and its key must be given together",
                parameter=missing,
                limit="given together with the other",
            )

    @property
    def given(self) -> bool:
        """Whether any file is given."""
        return self.ca is not None or self.cert is not None

    def context(self) -> ssl.SSLContext:
        """Return the TLS context of a client.

        Raises
        ------
        InputError
            When a file cannot be read, or is not in PEM format.
        """
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        except OSError as error:
            files = ", ".join(str(each) for each in (self.ca, self.cert, self.key) if each is not None)
            raise InputError(
                f"{files}: cannot be used: {error.strerror or error}; must be certificates and keys in PEM"
            ) from error
        return context

    def own_context(self) -> ssl.SSLContext:
        """Return the TLS context of a client on the machine of a server that has this certificate.

        It trusts only this certificate, and does not check the host name in it.

        Raises
        ------
        InputError
            When a file cannot be read, or is not in PEM format.
        """
        assert self.cert is not None
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            context.load_verify_locations(cafile=self.cert)
            if self.ca is not None:  # the server requires client certificates
                context.load_cert_chain(self.cert, self.key)
        except OSError as error:
            raise InputError(
                f"{self.cert}, {self.key}: cannot be used: {error.strerror or error}; must be a certificate "
                "and its key in PEM"
            ) from error
        return context

    def lines(self) -> list[str]:
        """Return the lines of a NATS server's configuration; none without a certificate."""
        if self.cert is None:
            return []
        files = {"cert_file": self.cert, "key_file": self.key, "ca_file": self.ca}
        inner = [f"  {name}: {quoted(str(path))}" for name, path in files.items() if path is not None]
        if self.ca is not None:
            inner.append("  verify: true")
        return ["tls {", *inner, "}"]
