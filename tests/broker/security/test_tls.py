"""Connections that nobody else can read: to a server with a certificate, and with one of both sides."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from narrowcast.broker import Connection, NatsTransport
from narrowcast.broker.security.tls import Tls
from narrowcast.broker.server.nats_server import NatsServer
from narrowcast.errors import InputError, TransportError
from support.certificates import with_openssl, write_certificates

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.nats, with_openssl]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_certificates(tmp_path_factory.mktemp("certificates"))


async def connected(server: NatsServer, tls: Tls | None) -> None:
    context = None if tls is None else tls.context()
    transport = await NatsTransport.connect(server.url, tls=context, patience=5)
    await transport.flush()
    await transport.aclose()


def test_a_server_with_a_certificate(files: Path, tmp_path: Path) -> None:
    own = Tls(cert=files / "cert.pem", key=files / "key.pem")
    with NatsServer(tmp_path, tls=own) as server:
        asyncio.run(connected(server, Tls(ca=files / "ca.pem")))
        with pytest.raises(TransportError, match=r"do not agree on TLS: .*; check --tls-ca, --tls-cert"):
            asyncio.run(connected(server, None))  # it is trusted by nobody else
        server.reload(['{ user: "ann", password: "p" }'])  # by a connection of its own
        with Connection(server.url, user="ann", token="p", tls=Tls(ca=files / "ca.pem")):
            pass
        with pytest.raises(TransportError, match="refuses user 'ann'"):
            Connection(server.url, user="ann", token="q", tls=Tls(ca=files / "ca.pem")).open()


def test_a_server_that_goes_is_not_spoken_of_in_riddles(
    files: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        with NatsServer(tmp_path, tls=Tls(cert=files / "cert.pem", key=files / "key.pem")) as server:
            transport = await NatsTransport.connect(server.url, tls=Tls(ca=files / "ca.pem").context())
            server.stop()
            async with asyncio.timeout(10):
                while transport.connected:
                    await asyncio.sleep(0.01)
            await transport.aclose()

    asyncio.run(run())
    assert [record.getMessage() for record in caplog.records] == ["the connection to NATS is lost"]


def test_a_server_that_asks_for_certificates(files: Path, tmp_path: Path) -> None:
    both = Tls(ca=files / "ca.pem", cert=files / "cert.pem", key=files / "key.pem")
    with NatsServer(tmp_path, tls=both) as server:
        asyncio.run(connected(server, both))
        server.reload(['{ user: "ann", password: "p" }'])
        with pytest.raises(TransportError):
            asyncio.run(connected(server, Tls(ca=files / "ca.pem")))


def test_no_secret_is_told_openly(files: Path, tmp_path: Path) -> None:
    with (
        NatsServer(tmp_path) as server,
        pytest.raises(TransportError, match="has no TLS, and would be told secrets openly"),
    ):
        asyncio.run(connected(server, Tls(ca=files / "ca.pem")))


def test_files_that_cannot_be_used(files: Path) -> None:
    with pytest.raises(InputError, match=r"none\.pem: No such file or directory; give certificates"):
        Tls(ca=files / "none.pem").context()
    with pytest.raises(InputError, match=r"cannot use .*names"):
        Tls(ca=files / "names").context()
    with pytest.raises(InputError, match=r"cannot use .*; give a certificate and its key in PEM"):
        Tls(cert=files / "names", key=files / "key.pem").own()
