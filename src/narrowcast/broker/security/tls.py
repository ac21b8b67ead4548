"""Certificates: how a connection to NATS is made that nobody else can read."""

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
    """Files of certificates and keys, in PEM.

    Parameters
    ----------
    ca
        Whom to trust: those whose certificate one of these has signed. A client without it trusts whom the
        machine trusts; a server with it takes only clients that have such a certificate.
    cert, key
        The certificate of one's own, and its key.

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
            raise ParameterError("a certificate and its key go together; give --tls-cert and --tls-key")

    @property
    def given(self) -> bool:
        """Whether there is any."""
        return self.ca is not None or self.cert is not None

    def context(self) -> ssl.SSLContext:
        """Return what a client connects by."""
        try:
            made = ssl.create_default_context(cafile=self.ca)
            if self.cert is not None:
                made.load_cert_chain(self.cert, self.key)
        except OSError as error:
            files = ", ".join(str(each) for each in (self.ca, self.cert, self.key) if each is not None)
            raise InputError(
                f"cannot use {files}: {error.strerror or error}; give certificates and keys in PEM"
            ) from error
        return made

    def own(self) -> ssl.SSLContext:
        """Return what whoever runs a server with this certificate connects to it by.

        It trusts this one certificate, whatever name it is for: the server is at an address of the machine.
        """
        assert self.cert is not None
        try:
            made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            made.check_hostname = False
            made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            made.load_verify_locations(cafile=self.cert)
            if self.ca is not None:  # it asks for one
                made.load_cert_chain(self.cert, self.key)
        except OSError as error:
            raise InputError(
                f"cannot use {self.cert} and {self.key}: {error.strerror or error}; give a certificate and "
                "its key in PEM"
            ) from error
        return made

    def lines(self) -> list[str]:
        """Return the configuration of a server."""
        if self.cert is None:
            return []
        files = {"cert_file": self.cert, "key_file": self.key, "ca_file": self.ca}
        inner = [f"  {name}: {quoted(str(path))}" for name, path in files.items() if path is not None]
        if self.ca is not None:
            inner.append("  verify: true")
        return ["tls {", *inner, "}"]
