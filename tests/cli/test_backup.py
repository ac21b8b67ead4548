"""A broker lost and found again through the commands, as people run them."""

from __future__ import annotations

import hashlib
import io
import json
import re
import resource
import shutil
import stat
import subprocess
import tarfile
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import narrowcast as nc
from narrowcast.broker import Connection, SubscriptionStore
from narrowcast.broker.server.nats_server import NatsServer
from support.command import outcome, refusal, shows
from support.live import NARROWCAST, line_with, running

if TYPE_CHECKING:
    from collections.abc import Iterator

STORED = ("--delivery", "at-least-once")


@contextmanager
def serving(data: Path, *words: str | Path) -> Iterator[str]:
    """Serve a folder for the length of a block, and give the address."""
    with running("serve", "--port", "0", "--data", data, *words) as broker:
        yield re.findall(r"nats://\S+?:\d+", line_with(broker, "serving at"))[0]


def publish(url: str, *numbers: int) -> None:
    """Publish events one by one, so that each is stored by itself."""
    with Connection(url) as broker:
        publisher = broker.publisher("p")
        for number in numbers:
            publisher.publish({"n": number})
            publisher.flush()
            time.sleep(0.1)  # longer than a node waits for more


def receive(url: str, name: str, many: int, *, patience: float = 20.0) -> list[int]:
    """Return the events that somebody gets, so many and what comes right behind them."""
    found: list[int] = []
    with Connection(url) as broker:
        reader = broker.subscriber(name)
        end = time.monotonic() + patience
        while time.monotonic() < end and len(found) < many:
            found += [event.data["n"] for event in reader.take(many, timeout=0.5)]
        found += [event.data["n"] for event in reader.take(1000, timeout=0.7)]
    return found


def heard_some(url: str, name: str, many: int) -> list[int]:
    """Return the first events that somebody reads, who then goes."""
    found: list[int] = []
    with Connection(url) as broker:
        reader = broker.subscriber(name)
        while len(found) < many:
            found += [event.data["n"] for event in reader.take(1, timeout=20)]
    return found


def told(*words: str | Path) -> dict[str, Any]:
    """Run a command that goes well, and return what it tells."""
    done = outcome(*words, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.nats
def test_a_broker_is_lost_and_goes_on_elsewhere(tmp_path: Path) -> None:
    data, elsewhere, file = tmp_path / "data", tmp_path / "elsewhere", tmp_path / "b.tar"
    interest = nc.Interest([[1], [1]], subscribers=["ann", "bob"])
    nc.write_plan(
        nc.Broadcast().fit(interest).plan_, tmp_path / "plan", method="broadcast", flow_space="events"
    )
    with serving(data, *STORED, "--plan", tmp_path / "plan") as url:
        with Connection(url) as broker:
            broker.subscriber("ann").subscribe("n >= 0")
            broker.subscriber("bob").subscribe("n > 100")
        publish(url, *range(10))
        assert heard_some(url, "ann", 5) == [0, 1, 2, 3, 4]
        made = told("backup", "--data", data, "--out", file)
        assert (made["subscriptions"], made["subscribers"], made["positions"]) == (2, 2, 2)
        assert (made["delivery"], made["prefix"], made["format"]) == ("at-least-once", "nc", 1)
        assert [each["name"] for each in made["streams"]] == ["nc_in", "nc_at", "nc_out"]
        assert made["streams"][2]["messages"] == 10
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        publish(url, 10)  # the backup does not have it
    shutil.rmtree(data)
    assert told("restore", file, "--dry-run")["restored"] is False
    assert told("restore", file, "--data", elsewhere)["restored"] is True
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar", "elsewhere", "plan"]
    with serving(elsewhere, *STORED) as url:
        assert receive(url, "ann", 5) == [5, 6, 7, 8, 9]
        publish(url, 11, 101)
        assert receive(url, "ann", 2) == [11, 101]
        assert receive(url, "bob", 1) == [101]


@pytest.mark.slow
@pytest.mark.nats
def test_who_stays_connected_goes_on_with_a_restored_broker(tmp_path: Path) -> None:
    """Numbers of what is stored begin again where the backup was: nothing new is taken for something old."""
    data, file = tmp_path / "data", tmp_path / "b.tar"
    with ExitStack() as stack:
        serve = stack.enter_context(ExitStack())
        url = serve.enter_context(serving(data, *STORED))
        reader = stack.enter_context(Connection(url)).subscriber("ann")
        reader.subscribe("n >= 0")
        found: list[int] = []

        def read(many: int) -> list[int]:
            end = time.monotonic() + 30
            del found[:]
            while time.monotonic() < end and len(found) < many:
                found.extend(event.data["n"] for event in reader.take(many, timeout=0.5))
            found.extend(event.data["n"] for event in reader.take(1000, timeout=0.7))
            return found

        publish(url, *range(5))
        assert read(5) == [0, 1, 2, 3, 4]
        time.sleep(1.0)  # and it is written down
        told("backup", "--data", data, "--out", file)
        reader.subscribe("n < -100")
        publish(url, *range(5, 25))
        assert read(20) == list(range(5, 25))
        serve.close()
        shutil.rmtree(data)
        told("restore", file, "--data", data)
        serve.enter_context(serving(data, *STORED, "--port", url.rpartition(":")[2]))
        publish(url, *range(25, 30))
        assert read(5) == [25, 26, 27, 28, 29]
        publish(url, -200)  # what it has subscribed to since then
        assert read(1) == [-200]


@pytest.mark.slow
@pytest.mark.nats
def test_while_events_flow_nothing_is_lost(tmp_path: Path) -> None:
    data, many = tmp_path / "data", 2
    sent, read, done = [0], list[int](), threading.Event()

    def send(url: str) -> None:
        with Connection(url) as broker:
            publisher = broker.publisher("p")
            while not done.is_set():
                publisher.publish(*({"n": n} for n in range(sent[0], sent[0] + 20)))
                publisher.flush()
                sent[0] += 20
                time.sleep(0.002)

    def hear(url: str) -> None:
        with Connection(url) as broker:
            reader = broker.subscriber("ann")
            while not done.is_set():
                read.extend(event.data["n"] for event in reader.take(200, timeout=0.2))

    with serving(data, *STORED) as url:
        with Connection(url) as broker:
            for name in ("ann", "bob"):
                broker.subscriber(name).subscribe("n >= 0")
        threads = [threading.Thread(target=work, args=(url,)) for work in (send, hear)]
        for thread in threads:
            thread.start()
        try:
            before = []
            for i in range(many):
                time.sleep(0.7)
                before.append(sent[0])
                told("backup", "--data", data, "--out", tmp_path / f"b{i}.tar.gz")
        finally:
            done.set()
            for thread in threads:
                thread.join()
    assert before[0] > 100
    for i in range(many):
        told("restore", tmp_path / f"b{i}.tar.gz", "--data", tmp_path / f"again{i}")
        with serving(tmp_path / f"again{i}") as url:  # it remembers what it promises
            publish(url, -1, 10**6)
            for name, had in (("bob", set[int]()), ("ann", set(read))):
                found = receive(url, name, before[i] - len(had) + 1)
                while found[-1] != 10**6:
                    found += receive(url, name, 1)
                assert set(range(before[i])) <= had | set(found)
                assert len(found) == len(set(found))
                assert found == sorted(found)


@pytest.mark.slow
@pytest.mark.nats
@pytest.mark.parametrize("runs", [True, False])
def test_at_most_once_has_no_streams(tmp_path: Path, runs: bool) -> None:
    data = tmp_path / "data"
    (tmp_path / "types.json").write_text('{"n": "double"}')
    with ExitStack() as stack:
        url = stack.enter_context(serving(data, "--schema", tmp_path / "types.json"))
        with Connection(url) as broker:
            broker.subscriber("ann").subscribe("n > 0", "n < -5")
            publisher = broker.publisher("p")
            publisher.publish({"n": "x"}, {"n": 1})
            publisher.flush()
        if not runs:
            stack.close()
        made = told("backup", "--data", data, "--out", tmp_path / "b.tgz")
    assert (made["delivery"], made["streams"], made["positions"]) == ("at-most-once", [], 0)
    assert (made["subscriptions"], made["letters"]) == (2, 1)
    shown = outcome("restore", tmp_path / "b.tgz", "--data", tmp_path / "again").stdout
    assert "delivers at-most-once" in shown
    assert (
        json.loads(outcome("dead-letters", "list", "--data", tmp_path / "again", "--json").stdout)["letters"]
        == 1
    )
    with running("serve", "--port", "0", "--data", tmp_path / "again") as broker_again:
        assert "2 subscriptions" in line_with(broker_again, "serving at")


@pytest.mark.slow
@pytest.mark.nats
def test_a_broker_that_is_stopped_and_a_server_of_ones_own(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "b.tar"
    words: list[str | Path]
    with (
        serving(data, *STORED, "--prefix", "market.eu") as url,
        Connection(url, prefix="market.eu") as broker,
    ):
        broker.subscriber("ann").subscribe("n >= 0")
        publisher = broker.publisher("p")
        publisher.publish({"n": 1}, {"n": 2})
        publisher.flush()
    made = told("backup", "--data", data, "--out", file)
    assert (made["prefix"], made["positions"]) == ("market.eu", 1)
    assert [each["name"] for each in made["streams"]] == ["market_eu_in", "market_eu_at", "market_eu_out"]
    with NatsServer(tmp_path / "own") as server:
        told("restore", file, "--data", tmp_path / "again", "--nats", server.url)
        assert not (tmp_path / "again" / "nats").exists()
        why = refusal("restore", file, "--data", tmp_path / "more", "--nats", server.url)
        assert f"the NATS server at {server.url} has stream market_eu_in already; remove it" in why
        assert not (tmp_path / "more").exists()
        words = ["--nats", server.url, "--data", tmp_path / "again", "--prefix", "market.eu"]
        with running("serve", *words) as serve:
            line_with(serve, "serving at")
            with Connection(server.url, prefix="market.eu") as broker:
                reader = broker.subscriber("ann")
                assert [event.data for event in reader.take(2, timeout=20)] == [{"n": 1}, {"n": 2}]
            # Where its streams are, its folder does not say.
            why = refusal("backup", "--data", tmp_path / "again", "--out", tmp_path / "c.tar")
            assert "delivers at least once" in why
            assert "give --nats" in why
            again = told(
                "backup", "--data", tmp_path / "again", "--out", tmp_path / "c.tar", "--nats", server.url
            )
            assert again["positions"] == 1
    # The broker whose backup was taken while it was stopped can be served as before.
    with serving(data, "--prefix", "market.eu"):
        pass


@pytest.mark.slow
@pytest.mark.nats
def test_what_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "b.tar"
    with serving(data, *STORED) as url:
        publish(url, 1)
        told("backup", "--data", data, "--out", file)
    members: dict[str, bytes] = {}
    with tarfile.open(file) as tar:
        members = {entry.name: tar.extractfile(entry).read() for entry in tar}  # type: ignore[union-attr]
    # All hashes are right, and the stream that comes last is no stream.
    members["streams/nc_in.snapshot"] = b"no stream at all"
    manifest = json.loads(members["manifest.json"])
    sha = hashlib.sha256(members["streams/nc_in.snapshot"]).hexdigest()
    manifest["members"]["streams/nc_in.snapshot"] = {"size": 16, "sha256": sha}
    members["manifest.json"] = json.dumps(manifest).encode()
    members["manifest.sha256"] = hashlib.sha256(members["manifest.json"]).hexdigest().encode()
    with tarfile.open(tmp_path / "bad.tar", "w") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    assert "stream nc_in" in refusal("restore", tmp_path / "bad.tar", "--data", tmp_path / "again")
    with NatsServer(tmp_path / "own") as server:
        words: list[str | Path] = ["--data", tmp_path / "again", "--nats", server.url]
        assert "stream nc_in" in refusal("restore", tmp_path / "bad.tar", *words)
        told("restore", file, *words)  # there is nothing in the way
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "b.tar", "bad.tar", "data", "own"]


@pytest.mark.slow
@pytest.mark.nats
def test_another_broker_is_moved_aside(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "b.tar"
    with serving(data):
        told("backup", "--data", data, "--out", file)
        said = refusal("restore", file, "--data", data, "--force")
        assert re.search(rf"{data}.* \(process \d+\)", said)
    why = refusal("restore", file, "--data", data)
    assert re.search(r"data: .* broker\.json, dead-letters\.db, \S+ and \d more", why)
    done = outcome("restore", file, "--data", data, "--force", "--json")
    old = json.loads(done.stdout)["old"]
    assert shows(done.stderr, f"{data} {old}\n")
    assert (Path(old) / "nats" / "key").exists()
    assert [path.name for path in data.iterdir() if path.suffix == ".db"]
    assert not (data / "nats").exists()
    assert (data / "subscriptions.db").exists()


def broker_at(data: Path) -> Path:
    """Make the folder of a broker that has some subscriptions, and return it."""
    store = SubscriptionStore(data / "subscriptions.db")
    store.add({n: ("ann", f"n > {n}") for n in range(10_000)})
    store.close()
    return data


def test_a_folder_that_is_there(tmp_path: Path) -> None:
    told("backup", "--data", broker_at(tmp_path / "data"), "--out", tmp_path / "deep" / "b.tar")
    file = tmp_path / "deep" / "b.tar"
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    (tmp_path / "file").touch()
    told("restore", file, "--data", tmp_path / "link")
    assert [path.name for path in (tmp_path / "empty").iterdir()] == ["subscriptions.db"]
    assert str(tmp_path / "file") in refusal("restore", file, "--data", tmp_path / "file")
    assert "subscriptions.db" in refusal("restore", file, "--data", tmp_path / "empty")
    assert "--data" in refusal("restore", file)
    assert str(tmp_path / "file") in refusal("restore", file, "--data", tmp_path / "file" / "deep")


def test_refusals(tmp_path: Path) -> None:
    out = tmp_path / "b.tar"
    assert "subscriptions.db" in refusal("backup", "--data", tmp_path, "--out", out)
    data = broker_at(tmp_path / "data")
    (data / "broker.json").write_text('{"delivery": "at-least-once", "prefix": "eu"}')
    assert "'eu'" in refusal("backup", "--data", data, "--out", out)
    (data / "broker.json").unlink()
    assert "b.tar" in refusal("restore", out, "--data", tmp_path / "again")
    told("backup", "--data", data, "--out", out)
    assert "b.tar" in refusal("backup", "--data", data, "--out", out)
    out.write_bytes(out.read_bytes()[:100_000])
    assert "b.tar" in refusal("restore", out, "--data", tmp_path / "again")
    assert "b.tar" in refusal("restore", out, "--dry-run")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar", "data"]


def test_no_space(tmp_path: Path) -> None:
    data = broker_at(tmp_path / "data")
    told("backup", "--data", data, "--out", tmp_path / "b.tar")

    def small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    for words in (
        ("backup", "--data", data, "--out", tmp_path / "c.tar"),
        ("restore", tmp_path / "b.tar", "--data", tmp_path / "again"),
    ):
        done = subprocess.run(
            [NARROWCAST, *words], capture_output=True, text=True, check=False, preexec_fn=small, timeout=60
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("narrowcast: ")
        assert done.stderr.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar", "data"]
