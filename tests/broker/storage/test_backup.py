"""Backups hold what a broker had, and none that is damaged is taken for whole."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import random
import sqlite3
import tarfile
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import narrowcast as nc
from narrowcast.broker import SubscriptionStore
from narrowcast.broker.data.routing_state import PlanEpoch
from narrowcast.broker.nats_transport import NatsTransport
from narrowcast.broker.server.nats_server import NatsServer
from narrowcast.broker.storage import stream_snapshots
from narrowcast.broker.storage.backup import BackupManifest, positions_in, read
from narrowcast.broker.storage.backup_writer import draft, facts_of
from narrowcast.broker.storage.broker_state import BrokerState, DeliveryGuarantee
from narrowcast.broker.storage.dead_letters import DeadLetters
from narrowcast.broker.storage.stream_snapshots import StreamSnapshots
from narrowcast.broker.wire import Subjects
from narrowcast.errors import InputError, TableError, TransportError
from narrowcast.model.plan_store import PlanStore
from narrowcast.routing.plan_routes import read_routes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from narrowcast.broker.storage.streams import EventStreams

NAMES = st.text(min_size=1, max_size=40) | st.sampled_from(
    ["a.b", "*", ">", "../x", "ann\0", "Ä ß 日", "'; --"]
)
FILTERS = st.text(max_size=60) | st.sampled_from(
    ["name LIKE '%\\_'", "name = ''''", "price > 75 AND (x IS NULL)"]
)


def backup(data: Path, out: Path) -> BackupManifest:
    """Make a backup without streams."""
    with draft(data, out) as made:
        made.copy()
        return made.pack(out, delivery=DeliveryGuarantee.AT_MOST_ONCE, prefix="nc")


def broker_at(data: Path) -> Path:
    """Make the folder of a broker with one of everything, and return it."""
    store = SubscriptionStore(data / "subscriptions.db")
    store.add({7: ("ann", "price > 75")})
    store.close()
    letters = DeadLetters(data / "dead-letters.db")
    letters.keep([("p", 1, "no JSON", b"{")])
    letters.close()
    plan = nc.Broadcast().fit(nc.Interest([[1], [1]], subscribers=["ann", "bob"])).plan_
    nc.write_plan(plan, data / "plan", method="broadcast", flow_space="events")
    (data / "broker.json").write_text('{"format": 1, "plan": "x"}')
    (data / "users.json").write_text("{}")
    return data


@settings(max_examples=60)
@given(st.dictionaries(st.integers(0, 1 << 40), st.tuples(NAMES, FILTERS), max_size=20), st.booleans())
@example({3: ("ann", "price > 75"), 4: ("ann", "price > 75")}, True)
def test_subscriptions_survive(held: dict[int, tuple[str, str]], packed: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        store = SubscriptionStore(here / "data" / "subscriptions.db")
        store.add(held)
        file = here / ("b.tar.gz" if packed else "b.tar")
        made = backup(here / "data", file)  # while it is open
        then = store.next_id
        store.close()
        assert (made.subscriptions, made.subscribers) == (len(held), len({name for name, _ in held.values()}))
        (here / "again").mkdir()
        assert read(file, here / "again") == made
        again = SubscriptionStore(here / "again" / "subscriptions.db")
        assert (again.read(), again.next_id) == (held, then)
        again.close()


def test_all_files_come_again(tmp_path: Path) -> None:
    data = broker_at(tmp_path / "data")
    made = backup(data, tmp_path / "b.tar")
    assert (made.letters, made.plan is not None, made.streams) == (1, True, [])
    read(tmp_path / "b.tar", tmp_path / "again")
    for name in made.members:
        if not name.endswith(".db"):
            assert (tmp_path / "again" / name).read_bytes() == (data / name).read_bytes()
    letters = DeadLetters(tmp_path / "again" / "dead-letters.db")
    assert [letter.payload for letter in letters.read()] == [b"{"]
    letters.close()
    found = facts_of(tmp_path / "again")
    assert found is not None
    assert found.plan == "x"
    assert set(nc.read_plan(tmp_path / "again" / "plan")[0].subscribers.to_pylist()) == {"ann", "bob"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "b.tar", "data"]


def test_the_plan_is_the_one_that_the_facts_name(tmp_path: Path) -> None:
    data = broker_at(tmp_path / "data")
    plan, name = data / "plan", PlanStore(data / "plan").name
    (data / "broker.json").write_text(f'{{"format": 1, "plan": "{name}"}}')
    later = nc.Broadcast().fit(nc.Interest([[1]], subscribers=["cid"])).plan_
    nc.write_plan(later, plan, method="broadcast", flow_space="events", replace=True)
    made = backup(data, tmp_path / "b.tar")
    assert made.plan == name != PlanStore(plan).name
    read(tmp_path / "b.tar", tmp_path / "again")
    assert set(nc.read_plan(tmp_path / "again" / "plan")[0].subscribers.to_pylist()) == {"ann", "bob"}
    # The plan that is current, where the facts name none that is there.
    (data / "broker.json").write_text('{"format": 1, "plan": "other"}')
    assert backup(data, tmp_path / "c.tar").plan == PlanStore(plan).name
    assert not any("versions" in member or "CURRENT" in member for member in made.members)


def test_the_plan_in_use_is_remembered_by_its_name(tmp_path: Path) -> None:
    offered, lasting = tmp_path / "plan", BrokerState(tmp_path / "data")
    (tmp_path / "data").mkdir()
    schema = nc.Schema.of({"price": "double"})
    for number, name in enumerate(["ann", "bob", "cid"]):
        plan = nc.Broadcast().fit(nc.Interest([[1]], subscribers=[name])).plan_
        nc.write_plan(plan, offered, method="broadcast", flow_space="events", replace=True)
        routes = read_routes(offered, schema)
        nc.write_plan(plan, offered, method="unicast", flow_space="events", replace=True)
        lasting.use(PlanEpoch(number, routes, str(offered)), given=None)
        assert PlanStore(lasting.plan).name == routes.name == BrokerState(tmp_path / "data").facts.plan
        assert nc.read_plan(lasting.plan)[0].subscribers.to_pylist() == [name]


def test_what_is_written_meanwhile_is_there_or_not(tmp_path: Path) -> None:
    store = SubscriptionStore(tmp_path / "data" / "subscriptions.db")
    store.add({n: ("ann", f"price > {n}") for n in range(1000)})
    with sqlite3.connect(tmp_path / "data" / "subscriptions.db", isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("DELETE FROM subscriptions")
        made = backup(tmp_path / "data", tmp_path / "b.tar")  # nobody waits for anybody
        other.execute("COMMIT")
    other.close()
    store.close()
    assert made.subscriptions == 1000


# ---- damage


def members(file: Path) -> dict[str, bytes]:
    """Return what an archive holds, in its order."""
    with tarfile.open(file) as tar:
        return {entry.name: tar.extractfile(entry).read() for entry in tar}  # type: ignore[union-attr]


def archive(
    file: Path, held: dict[str, bytes], change: Callable[[tarfile.TarInfo], None] = lambda _: None
) -> None:
    """Write an archive."""
    if "manifest.sha256" in held:
        held = held | {"manifest.sha256": hashlib.sha256(held.get("manifest.json", b"")).hexdigest().encode()}
    with tarfile.open(file, "w") as tar:
        for name, content in held.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            change(entry)
            tar.addfile(entry, io.BytesIO(content))


def with_manifest(held: dict[str, bytes], **changes: Any) -> dict[str, bytes]:
    """Return an archive whose manifest says something else."""
    told = json.loads(held["manifest.json"]) | changes
    return {**held, "manifest.json": json.dumps(told).encode()}


def told_of(held: dict[str, bytes]) -> dict[str, bytes]:
    """Return an archive whose manifest tells of all that it holds."""
    listed = {
        name: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in held.items()
        if not name.startswith("manifest")
    }
    return with_manifest(held, members=listed)


def without(held: dict[str, bytes], name: str) -> dict[str, bytes]:
    return {each: content for each, content in held.items() if each != name}


def stream(name: str) -> dict[str, Any]:
    return {"name": name, "messages": 0, "bytes": 0, "config": {}, "state": {}}


DAMAGES: dict[str, tuple[Callable[[dict[str, bytes]], dict[str, bytes]], str]] = {
    "nothing": (lambda _: {}, "does not begin with a manifest"),
    "no manifest": (lambda held: without(held, "manifest.json"), "does not begin with a manifest"),
    "manifest last": (lambda held: dict(reversed(held.items())), "does not begin with a manifest"),
    "no hash": (lambda held: without(held, "manifest.sha256"), "does not begin with a manifest"),
    "no JSON": (lambda held: held | {"manifest.json": b"{"}, "its manifest says"),
    "another JSON": (lambda held: held | {"manifest.json": b"[]"}, "its manifest says"),
    "not all": (lambda held: held | {"manifest.json": b'{"format": 1}'}, "its manifest says"),
    "later": (lambda held: with_manifest(held, format=2), "is of format 2, and this Narrowcast reads 1"),
    "no subscriptions": (
        lambda held: told_of(without(held, "subscriptions.db")), "its manifest has no subscriptions.db"
    ),
    "missing": (lambda held: without(held, "plan/plan.json"), "plan/plan.json is missing"),
    "more": (lambda held: held | {"plan/more": b""}, "holds 'plan/more'"),
    "other bytes": (lambda held: held | {"users.json": b"[]"}, "users.json is not what it was"),
    "longer": (lambda held: held | {"users.json": b"{} "}, "users.json is not what it was"),
    "above": (lambda held: told_of(held | {"../evil": b"x"}), "holds '../evil'"),
    "above, by the plan": (lambda held: told_of(held | {"plan/../../evil": b"x"}), "holds 'plan/../../evil'"),
    "absolute": (lambda held: told_of(held | {"/tmp/evil": b"x"}), "holds '/tmp/evil'"),
    "hidden": (lambda held: told_of(held | {"plan/.evil": b"x"}), "holds 'plan/.evil'"),
    "a program": (lambda held: told_of(held | {"nats/nats.conf": b"x"}), "holds 'nats/nats.conf'"),
    "line": (lambda held: told_of(held | {"users.json\n": b"x"}), r"holds 'users.json\\n'"),
    "no stream": (
        lambda held: with_manifest(held, streams=[stream("nc_in")]), "has no streams/nc_in.snapshot"
    ),
    "no positions": (lambda held: with_manifest(held, streams=[stream("x_at")]), "has no streams/positions"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged(name: str, tmp_path: Path) -> None:
    change, why = DAMAGES[name]
    backup(broker_at(tmp_path / "data"), tmp_path / "b.tar")
    archive(tmp_path / "bad.tar", change(members(tmp_path / "b.tar")))
    into = tmp_path / "into" / "deep"
    for _ in range(2):
        with pytest.raises(InputError, match=why) as error:
            read(tmp_path / "bad.tar", into)
        assert "\n" not in str(error.value)
    assert not list(tmp_path.rglob("evil"))


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
)
def test_no_links(kind: bytes, tmp_path: Path) -> None:
    backup(broker_at(tmp_path / "data"), tmp_path / "b.tar")

    def change(entry: tarfile.TarInfo) -> None:
        if entry.name == "users.json":
            entry.type, entry.linkname, entry.size = kind, "../evil", 0

    archive(tmp_path / "bad.tar", members(tmp_path / "b.tar"), change)
    with pytest.raises(InputError, match=r"holds 'users\.json', which a backup does not have"):
        read(tmp_path / "bad.tar", tmp_path / "into")


def test_twice_the_same(tmp_path: Path) -> None:
    backup(broker_at(tmp_path / "data"), tmp_path / "b.tar")
    with tarfile.open(tmp_path / "b.tar", "a") as tar:
        tar.addfile(tarfile.TarInfo("users.json"), io.BytesIO())
    with pytest.raises(InputError, match=r"holds 'users\.json', which a backup does not have"):
        read(tmp_path / "b.tar", tmp_path / "into")


@pytest.mark.parametrize("name", ["b.tar", "b.tar.gz"])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.6])
def test_cut(name: str, share: float, tmp_path: Path) -> None:
    backup(broker_at(tmp_path / "data"), tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(InputError, match=r"is no backup|is damaged"):
        read(tmp_path / name, tmp_path / "into")


@pytest.mark.parametrize(
    "content", [b"", b"no backup at all", b"\0" * 20_000, b"\x1f\x8b" + b"x" * 5000, b"PK\3\4"]
)
def test_no_backup(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "b.tar").write_bytes(content)
    with pytest.raises(InputError, match="is no backup"):
        read(tmp_path / "b.tar")
    with pytest.raises(InputError, match="is not there; name a file"):
        read(tmp_path / "none.tar")
    with pytest.raises(InputError, match="Is a directory"):
        read(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """Return a backup as it is, and compressed."""
    here = tmp_path_factory.mktemp("whole")
    data = broker_at(here / "data")
    backup(data, here / "b.tar")
    backup(data, here / "b.tgz")
    return (here / "b.tar").read_bytes(), (here / "b.tgz").read_bytes()


@settings(max_examples=80)
@given(data=st.data(), packed=st.booleans())
def test_a_byte_that_is_another(whole: tuple[bytes, bytes], data: st.DataObject, packed: bool) -> None:
    content = bytearray(whole[packed])
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    with tempfile.TemporaryDirectory() as folder:
        good, bad = Path(folder, "good"), Path(folder, "bad")
        Path(folder, "good.tar").write_bytes(whole[packed])
        Path(folder, "bad.tar").write_bytes(content)
        told = read(Path(folder, "good.tar"), good)
        try:
            found = read(Path(folder, "bad.tar"), bad)
        except InputError:
            return
        assert found == told  # it was in what nobody reads
        for name in told.members:
            assert (bad / name).read_bytes() == (good / name).read_bytes()


# ---- refusals


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no subscriptions\.db; name the folder"):
        backup(tmp_path, tmp_path / "b.tar")
    data = broker_at(tmp_path / "data")
    (tmp_path / "there.tar").touch()
    with pytest.raises(TableError, match="exists already; name another file or remove it"):
        backup(data, tmp_path / "there.tar")
    (data / "plan" / "an odd name").touch()
    with pytest.raises(InputError, match="has a name that no backup holds"):
        backup(data, tmp_path / "b.tar")
    (data / "plan" / "an odd name").unlink()
    (data / "broker.json").write_text("{")
    with pytest.raises(InputError, match=r"broker\.json cannot be read"):
        facts_of(data)
    (data / "subscriptions.db").write_bytes(b"no database" * 1000)
    with pytest.raises(TableError, match=r"cannot copy the subscriptions in .*: file is not a database"):
        backup(data, tmp_path / "b.tar")
    (data / "subscriptions.db").unlink()
    with closing(sqlite3.connect(data / "subscriptions.db")) as other:
        other.execute("CREATE TABLE others (x)")
    with pytest.raises(InputError, match="is none of a broker's: no such table"):
        backup(data, tmp_path / "b.tar")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "there.tar"]


def test_positions_of_somebody_else_are_refused(tmp_path: Path) -> None:
    import msgspec

    made = backup(broker_at(tmp_path / "data"), tmp_path / "b.tar")
    (tmp_path / "streams").mkdir()
    for content, why in (
        (msgspec.msgpack.encode([("nc.in.1.p", b"1")]), "not below nc.at."),
        (b"\xc1", "no positions that can be read"),
    ):
        (tmp_path / "streams" / "positions").write_bytes(content)
        with pytest.raises(InputError, match=why):
            positions_in(tmp_path, made)


# ---- streams


@pytest.mark.nats
def test_streams_come_again(nats_url: str, tmp_path: Path) -> None:
    names = ["ann", "a.b", "Ä ß 日", "*", "x" * 100]

    async def run(other: str) -> None:
        of = Subjects("snap")
        here, there = await NatsTransport.connect(nats_url), await NatsTransport.connect(other)
        async with StreamSnapshots(here, of) as source, StreamSnapshots(there, of) as target:
            # What is stored after positions were taken must not lie before them.
            assert source.names == ("snap_in", "snap_at", "snap_out")
            assert await source.there() == []
            await source.streams.make()
            for n in range(300):
                await source.streams.put(of.stored(of.to(names[n % 5])), b"%d" % n * 1000)
                await source.streams.put(of.position(names[n % 5], "k"), b"%d" % n)
            await source.streams.trim(101)
            taken = {}
            for name in (source.streams.ingress, source.streams.out):
                held = io.BytesIO()
                taken[name] = await source.take(name, held.write), held
            at, records = await source.records(source.streams.at)
            assert dict(records) == {
                of.position(name, "k"): b"%d" % (295 + i) for i, name in enumerate(names)
            }
            assert (at.messages, taken[source.streams.out][0].messages) == (5, 200)
            for name, (each, held) in taken.items():
                held.seek(0)
                await target.give(each, held.read)
                with pytest.raises(InputError, match=f"has stream {name} already; remove it"):
                    await target.give(each, held.read)
            await target.give_records(at, records)
            assert await target.there() == list(target.names)
            for n in (100, 299):
                subject = of.stored(of.to(names[n % 5]))
                assert await target.streams.following(target.streams.out, subject, n) == n + 1
            assert await target.streams.get(target.streams.at, of.position("a.b", "k")) == b"296"
            # What is stored next comes behind all that was there.
            await target.streams.put(of.stored(of.everybody), b"next")
            assert await target.streams.last() == 301
            # Of bytes that are cut nothing is left.
            each, held = taken[source.streams.out]
            await target.remove(each.name)
            short = io.BytesIO(held.getvalue()[: len(held.getvalue()) // 2])
            with pytest.raises(TransportError, match=f"does not take stream {each.name}"):
                await target.give(each, short.read)
            with pytest.raises(
                TransportError, match=r"refuses STREAM\.SNAPSHOT\.snap_none: stream not found"
            ):
                await source.take("snap_none", short.write)
        await here.aclose()
        await there.aclose()

    with NatsServer(tmp_path / "nats") as server:
        asyncio.run(run(server.url))


@pytest.mark.nats
def test_positions_that_change_while_they_are_taken(nats_url: str) -> None:
    many = 3000

    async def write(streams: EventStreams, numbers: Iterable[int], ended: asyncio.Event) -> None:
        """Write positions, the last that were written first: a snapshot would miss some."""
        for n in numbers:
            await streams.put(f"moving.at.position.s{n}", b"%d" % n)
            if ended.is_set():
                return

    async def run() -> None:
        here, there = await NatsTransport.connect(nats_url), await NatsTransport.connect(nats_url)
        of, ended = Subjects("moving"), asyncio.Event()
        async with StreamSnapshots(here, of) as source, StreamSnapshots(there, of) as other:
            await source.streams.make()
            await asyncio.gather(*(write(other.streams, range(i, many, 50), ended) for i in range(50)))
            writers = [
                asyncio.create_task(write(other.streams, reversed(range(i, many, 50)), ended))
                for i in range(50)
            ]
            for _ in range(3):
                _, records = await source.records(source.streams.at)
                assert dict(records) == {f"moving.at.position.s{n}": b"%d" % n for n in range(many)}
            ended.set()
            await asyncio.gather(*writers)
            assert await source.streams.consumer_names(source.streams.at) == []
        await here.aclose()
        await there.aclose()

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.nats
def test_a_server_that_dies_meanwhile(tmp_path: Path) -> None:
    async def run(server: NatsServer) -> None:
        transport = await NatsTransport.connect(server.url)
        async with StreamSnapshots(transport, Subjects("gone")) as source:
            await source.streams.make()
            for n in range(20):
                await source.streams.put(f"gone.keep.to.s{n}", random.Random(n).randbytes(900_000))

            def dies(_: bytes) -> None:
                server.stop()

            with pytest.raises(TransportError, match="run it again"):
                await source.take(source.streams.out, dies)
        await transport.aclose()

    with NatsServer(tmp_path / "nats") as server, patch.object(stream_snapshots, "_PATIENCE", 2.0):
        asyncio.run(asyncio.wait_for(run(server), 60))
