"""A broker's own server: it outlives the broker, is started again, and takes up who may come."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from narrowcast.broker import NatsTransport
from narrowcast.broker.server.nats_server import NatsServer
from narrowcast.broker.server.system_account import SystemAccount
from narrowcast.errors import ParameterError, TransportError

pytestmark = pytest.mark.nats

ANN = '{ user: "ann", password: "p" }'


def left_behind(folder: Path) -> tuple[int, int]:
    """Start a server in a process that is killed; return its port and process."""
    program = (
        "import sys, time\n"
        "from narrowcast.broker.server.nats_server import NatsServer\n"
        "server = NatsServer(sys.argv[1])\n"
        "server.start()\n"
        "print(server.port, server._process.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    words = [sys.executable, "-c", program, str(folder)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        port, process = map(int, started.stdout.readline().split())
        started.kill()
    return port, process


async def comes(url: str, user: str | None = None, password: str | None = None) -> bool:
    """Return whether a user may come."""
    try:
        transport = await NatsTransport.connect(url, user=user, password=password)
    except TransportError as error:
        if "refuses" not in str(error):
            raise
        return False
    await transport.aclose()
    return True


def test_a_server_that_was_left_behind_is_used_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    port, process = left_behind(tmp_path)
    caplog.set_level("INFO")
    with NatsServer(tmp_path, users=[ANN]) as server:
        assert server.port == port
        assert "still runs, and is used on" in caplog.text
        assert asyncio.run(comes(server.url, "ann", "p"))  # it knows who may come now
        assert not asyncio.run(comes(server.url))
        server.check()
    assert not SystemAccount("127.0.0.1", port, "", "").listens()
    with suppress(ProcessLookupError):  # where nobody asks how it ended it is still listed
        os.kill(process, 0)
        assert Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_one_that_was_left_behind_at_another_port_is_ended(tmp_path: Path) -> None:
    port, _ = left_behind(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        other = free.getsockname()[1]
    with NatsServer(tmp_path, port=other) as server:
        assert server.port == other
        assert not SystemAccount("127.0.0.1", port, "", "").listens()


def test_a_copy_of_the_folder_is_anothers(tmp_path: Path) -> None:
    port, _ = left_behind(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    with NatsServer(tmp_path / "two") as copy:
        assert copy.port != port
    with NatsServer(tmp_path / "one") as server:
        assert server.port == port


def test_whoever_listens_there_by_now_is_left_alone(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "one") as one:
        with NatsServer(tmp_path / "two") as two:
            ports = list((tmp_path / "two" / "ports").glob("*.ports"))
            text = ports[0].read_text().replace(str(two.port), str(one.port))
        (tmp_path / "two" / "ports" / "left_1.ports").write_text(text)
        with NatsServer(tmp_path / "two") as again:
            assert again.port != one.port
        one.check()


def test_two_brokers_do_not_share_a_folder(tmp_path: Path) -> None:
    with NatsServer(tmp_path) as server:
        with pytest.raises(TransportError, match=r"another broker uses .*; end it, or give this one another"):
            NatsServer(tmp_path).start()
        server.check()
    with NatsServer(tmp_path):
        pass


def test_a_server_that_dies_is_started_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        with NatsServer(tmp_path, users=[ANN]) as server:
            port = server.port
            transport = await NatsTransport.connect(server.url, user="ann", password="p")
            inbox = await transport.subscribe("a")
            for _ in range(4):
                assert server._process is not None
                server._process.kill()
                server._process.wait()
                await asyncio.to_thread(server.keep)
                assert server.port == port
            async with asyncio.timeout(20):
                while transport.connections < 2 or not transport.connected:
                    await asyncio.sleep(0.05)
                await transport.publish("a", b"again")
                assert (await anext(inbox)).payload == b"again"
            await transport.aclose()
            assert server._process is not None
            server._process.send_signal(signal.SIGKILL)
            server._process.wait()
            with pytest.raises(TransportError, match=r"has ended with -9; see .*, and start again"):
                server.keep()

    asyncio.run(run())
    assert caplog.text.count("it is started again") == 4


def test_users_change_while_it_runs(tmp_path: Path) -> None:
    with NatsServer(tmp_path) as server:
        assert asyncio.run(comes(server.url))  # everybody
        server.reload([ANN])
        assert asyncio.run(comes(server.url, "ann", "p"))
        assert not asyncio.run(comes(server.url, "ann", "q"))
        assert not asyncio.run(comes(server.url, "bob", "p"))
        assert not asyncio.run(comes(server.url))
        config = tmp_path / "nats.conf"
        good = config.read_text()
        with pytest.raises(TransportError, match=r"refuses its configuration: .*arse error"):
            server.reload(['{ user: "ann'])
        assert config.read_text() == good
        assert asyncio.run(comes(server.url, "ann", "p"))
        assert config.stat().st_mode & 0o777 == 0o600
        assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600


def test_a_change_that_the_server_does_not_hear_of_holds_when_it_is_there_again(tmp_path: Path) -> None:
    with NatsServer(tmp_path) as server:
        assert server._process is not None
        server._process.kill()
        server._process.wait()
        with pytest.raises(TransportError, match="does not take up its configuration"):
            server.reload([ANN])
        server.restart()
        assert not asyncio.run(comes(server.url))
        assert asyncio.run(comes(server.url, "ann", "p"))


def test_settings_of_its_store(tmp_path: Path) -> None:
    with NatsServer(tmp_path, store={"sync_interval": "5s", "max_file": 1 << 30}):
        pass
    assert 'sync_interval: "5s", max_file: 1073741824 }' in (tmp_path / "nats.conf").read_text()
    assert "Max Storage:     1.00 GB" in (tmp_path / "nats.log").read_text()


def test_refusals(tmp_path: Path) -> None:
    from narrowcast.broker.security.tls import Tls

    with pytest.raises(ParameterError, match="a certificate and its key go together"):
        Tls(cert=tmp_path)
    with pytest.raises(ParameterError, match="--tls-ca needs a certificate of its own"):
        NatsServer(tmp_path, tls=Tls(ca=tmp_path))
    assert SystemAccount("127.0.0.1", 1, "", "").info() is None
    with pytest.raises(TransportError, match=r"does not take up its configuration: .*refused"):
        SystemAccount("127.0.0.1", 1, "", "").reload()


def test_who_is_no_nats_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            for _ in range(2):
                made, _ = other.accept()
                made.sendall(b"HTTP/1.1 400 Bad Request\r\n")
                made.close()

        thread = threading.Thread(target=answer)
        thread.start()
        system = SystemAccount("127.0.0.1", other.getsockname()[1], "", "")
        assert system.info() is None
        with pytest.raises(TransportError, match="it is no NATS server"):
            system.reload()
        thread.join()


@pytest.mark.slow
def test_connections_that_are_half_dead_are_noticed(tmp_path: Path) -> None:
    """A client that answers nothing is let go after about ten seconds: see `ping_interval`."""
    with NatsServer(tmp_path) as server, socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(b'CONNECT {"verbose": false}\r\nPING\r\n')
        client.settimeout(20)
        begun, said = time.monotonic(), b""
        while some := client.recv(4096):
            said += some
        assert b"Stale Connection" in said
        assert 5 < time.monotonic() - begun < 18
