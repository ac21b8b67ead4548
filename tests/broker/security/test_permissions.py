"""What users may do at a real NATS server: what is their own, and nothing else."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

import narrowcast as nc
from narrowcast.broker import ControlPlane, NatsTransport, Node, Publisher, Subscriber, SubscriptionIndex
from narrowcast.broker.security import permissions as module
from narrowcast.broker.security.permissions import Permission, PermissionGuard, fragment, line_of, lines
from narrowcast.broker.security.users import OWN, ROLES, User, Users, UsersFile
from narrowcast.broker.server.nats_server import NatsServer
from narrowcast.broker.wire import Subjects
from narrowcast.errors import TransportError
from narrowcast.routing.plan_routes import PlanRoutes
from support.strangers import CLOSED, MUTE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from narrowcast.broker import Message, Transport

TOKEN = "0123456789abcdef"
NC = Subjects("nc")
#: Names that mean something in subjects, in configurations, or to nobody.
NASTY = (
    "*", ">", "a.b", "a b", 'quote"d', "back\\slash", "'", "#", "//", "{", "}", "$VAR", "line\nbreak",
    "tab\t", "bell\a", "\x7f", "größe", "名前", "\U0001f600", "%2E", "true", "123", "include x", "a,b", "-",
    "~", "\u2028", "\x85",
)  # fmt: skip
names = st.text(min_size=1, max_size=30).filter(
    lambda text: "\0" not in text and len(text.encode()) <= 256 and text not in OWN
)


def user(name: str, *roles: str) -> User:
    return User(name, roles or ("subscriber",), TOKEN)


def fits(pattern: str, subject: str) -> bool:
    """Return whether a pattern of NATS takes in a subject."""
    want, have = pattern.split("."), subject.split(".")
    for i, word in enumerate(want):
        if word == ">":
            return len(have) > i
        if i >= len(have) or word not in ("*", have[i]):
            return False
    return len(want) == len(have)


def test_what_roles_may_do() -> None:
    ann = Permission.of(user("ann"), NC, lambda _: [NC.channel(3, 7)])
    assert ann.publish == ["nc.ask.ann", "nc.at.position.*.ann", "$JS.ACK.nc_out.ann.>"]
    assert ann.subscribe == [
        "nc.answer.ann.>", "nc.out.to.ann", "nc.out.all", "nc.control.ann", "nc.beats", "nc.replay.ann.>",
        "nc.out.channel.3.7",
    ]  # fmt: skip
    both = Permission.of(user("p", "publisher", "operator"), Subjects("a.b"))
    assert both.publish == [Subjects("a.b").ingress("p", 16), "a.b.orders"]
    assert both.subscribe == ["a.b.answer.p.>", "a.b.beats"]
    assert Permission.of(user("n", "node", "subscriber"), NC) == Permission(None, None)


roles = st.lists(st.sampled_from(ROLES), min_size=1, unique=True)
pairs = st.tuples(st.integers(0, 3), st.integers(0, 3))


@given(st.dictionaries(names, st.tuples(roles, st.lists(pairs))), st.sampled_from(["nc", "a.b"]))
def test_what_is_kept_of_users_changes_nothing(
    found: dict[str, tuple[list[str], list[tuple[int, int]]]], prefix: str
) -> None:
    subjects = Subjects(prefix)
    users = Users.of(User(name, tuple(found[name][0]), f"{TOKEN}{i}") for i, name in enumerate(found))
    for turn in range(2):

        def channels(name: str, turn: int = turn) -> list[str]:
            return [subjects.channel(turn, number) for _, number in found[name][1]]

        by_name = sorted(users, key=lambda each: each.name)
        assert lines(users, subjects, channels) == [line_of(each, subjects, channels) for each in by_name]


@given(names, names)
def test_nobody_may_do_what_is_anothers(one: str, other: str) -> None:
    mine, theirs = (Permission.of(user(name, "subscriber", "publisher"), NC) for name in (one, other))
    assert mine.publish is not None
    assert mine.subscribe is not None
    assert theirs.publish is not None
    assert theirs.subscribe is not None
    shared = {"nc.out.all", "nc.beats"}
    if one != other:
        for subject in (*theirs.publish, *theirs.subscribe):
            for pattern in (*mine.publish, *mine.subscribe):
                assert subject in shared or not fits(pattern, subject.replace(">", "x"))
    for pattern in (*mine.publish, *mine.subscribe):
        assert "*" not in pattern.replace("nc.at.position.*.", "")  # whose name is behind it
        assert ">" not in pattern.removesuffix(".>")


def test_the_fragment_has_a_line_for_each() -> None:
    users = Users.of([user("b"), User('a"', ("node",), TOKEN + "2")])
    assert fragment(users, NC).splitlines() == ["users: [", *(f"  {line}" for line in lines(users, NC)), "]"]
    assert lines(users, NC)[0] == '{ user: "a\\"", password: "0123456789abcdef2" }'


# ---- a real server


@asynccontextmanager
async def came(server: NatsServer, name: str, token: str) -> AsyncIterator[NatsTransport]:
    transport = await NatsTransport.connect(server.url, user=name, password=token, inbox=NC.inbox(name))
    try:
        yield transport
    finally:
        await transport.aclose()


async def as_node(server: NatsServer) -> NatsTransport:
    return await NatsTransport.connect(server.url, user=server.user, password=server.password)


@pytest.mark.nats
def test_any_name_may_come(tmp_path: Path) -> None:
    users = Users.of([])
    for name in NASTY:
        users, _ = users.add(name, ["subscriber"])

    async def run() -> None:
        node = await as_node(server)
        for each in users:
            async with came(server, each.name, each.token) as transport:
                inbox = await transport.subscribe(NC.to(each.name))
                await node.publish(NC.to(each.name), each.name.encode())
                async with asyncio.timeout(10):
                    assert (await anext(inbox)).payload.decode() == each.name
        await node.aclose()

    with NatsServer(tmp_path, users=lines(users, NC)) as server:
        asyncio.run(run())


@pytest.mark.nats
def test_who_may_not_publish_is_told_why(tmp_path: Path) -> None:
    users, ann = Users.of([]).add("ann", ["subscriber"])

    async def run() -> None:
        async with came(server, ann.name, ann.token) as transport:
            publisher = await Publisher(transport, "ann").start()
            await publisher.publish({"price": 1})
            begun = time.monotonic()
            with pytest.raises(TransportError, match="does not let user 'ann' publish to"):
                await publisher.flush()
            assert time.monotonic() - begun < 5  # no node is waited for
            await publisher._end()

    with NatsServer(tmp_path, users=lines(users, NC)) as server:
        asyncio.run(run())


@pytest.mark.nats
def test_she_gets_nothing_that_is_not_her_own(tmp_path: Path) -> None:
    users, ann = Users.of([]).add("ann", ["subscriber"])
    users, bob = users.add("bob", ["subscriber"])

    async def run() -> None:
        async with AsyncExitStack() as stack:
            node = await as_node(server)
            stack.push_async_callback(node.aclose)
            heard: list[Message] = []
            await node.subscribe(">", heard.append)
            hers = await stack.enter_async_context(came(server, ann.name, ann.token))
            got: list[Message] = []
            for subject in CLOSED:
                with pytest.raises(TransportError, match="does not let user 'ann' listen to "):
                    await hers.subscribe(subject, got.append)
            own = ("nc.out.to.ann", "nc.out.all", "nc.control.ann", "nc.beats", "nc.out.channel.1.1")
            for subject in (*own, "nc.answer.ann.*", "nc.replay.ann.x"):
                await hers.subscribe(subject, got.append)
            for subject in MUTE:
                await hers.publish(subject, b"forged")
            for subject in ("nc.ask.ann", "nc.at.position.x.ann", "$JS.ACK.nc_out.ann.1.2.3.4.5"):
                await hers.publish(subject, b"true")
            await hers.flush()
            for subject in (*own, "nc.out.to.bob", "nc.control.bob", "nc.out.channel.1.2", "nc.answer.bob.x"):
                await node.publish(subject, b"")
            await node.flush()
            await hers.flush()
            async with asyncio.timeout(10):
                while len(got) < len(own):
                    await asyncio.sleep(0.01)
            assert sorted(message.subject for message in got) == sorted(own)
            assert [m.subject for m in heard if m.payload == b"forged"] == []
            assert len([m for m in heard if m.payload == b"true"]) == 3
            wrong = [("bob", ann.token), ("ann", bob.token), ("ann", ""), ("eve", TOKEN), (None, None)]
            for name, token in wrong:
                begun = time.monotonic()
                with pytest.raises(TransportError, match=r"refuses .*: check --user and --token"):
                    await NatsTransport.connect(server.url, user=name, password=token)
                assert time.monotonic() - begun < 5
            with pytest.raises(TransportError, match="refuses user 'ann'"):
                await NatsTransport.connect(server.url.replace("//", f"//ann:{bob.token}@"))
            there = await NatsTransport.connect(server.url.replace("//", f"//ann:{ann.token}@"))
            await there.aclose()

    allowed = lines(users, NC, lambda name: [NC.channel(1, 1 if name == "ann" else 2)])
    with NatsServer(tmp_path, users=allowed) as server:
        asyncio.run(run())


@pytest.mark.nats
def test_a_channel_is_lost_at_once_and_no_connection(tmp_path: Path) -> None:
    users, ann = Users.of([]).add("ann", ["subscriber"])

    async def run() -> None:
        node = await as_node(server)
        async with came(server, "ann", ann.token) as hers:
            got: list[str] = []
            for subject in ("nc.out.to.ann", "nc.out.channel.1.1"):
                await hers.subscribe(subject, lambda message: got.append(message.subject))
            for number, expected in ((1, ["nc.out.channel.1.1", "nc.out.to.ann"]), (2, ["nc.out.to.ann"])):
                await asyncio.to_thread(server.reload, lines(users, NC, lambda _: [NC.channel(1, number)]))  # noqa: B023
                got.clear()
                for subject in ("nc.out.channel.1.1", "nc.out.to.ann"):
                    await node.publish(subject, b"")
                await node.flush()
                await hers.flush()
                await asyncio.sleep(0.1)
                assert got == expected
            with pytest.raises(
                TransportError, match=r"does not let user 'ann' listen to nc\.out\.channel\.1\.1"
            ):
                await hers.subscribe("nc.out.channel.1.1")
            await hers.subscribe("nc.out.channel.1.2")
            assert hers.connections == 1
        await node.aclose()

    with NatsServer(tmp_path, users=lines(users, NC, lambda _: [NC.channel(1, 1)])) as server:
        asyncio.run(run())


@pytest.mark.nats
def test_a_thousand_users_change_without_a_disconnect(tmp_path: Path) -> None:
    users = Users.of([User(f"u{i}", ("subscriber",), f"{TOKEN}{i}") for i in range(1000)])
    path = tmp_path / "users.json"
    users.write(path)

    async def run() -> list[float]:
        guard = PermissionGuard(UsersFile(path), NC)
        guard.at(server)
        took: list[float] = []
        async with AsyncExitStack() as stack:
            there = [await stack.enter_async_context(came(server, u.name, u.token)) for u in users]
            for number in range(5):
                guard.channels = lambda name: [(number, int(name[1:]) % 16)]  # noqa: B023
                begun = time.monotonic()
                await guard.permit()
                took.append(time.monotonic() - begun)
                some = there[:: 1000 // 16]
                await asyncio.gather(
                    *(each.subscribe(NC.channel(number, 1000 // 16 * i % 16)) for i, each in enumerate(some))
                )
                await asyncio.sleep(0.2)
            assert all(each.connected and each.connections == 1 for each in there)
        return took

    with NatsServer(tmp_path / "nats", users=lines(users, NC)) as server:
        took = asyncio.run(run())
    print("seconds for each reload of 1,000 users:", [f"{seconds:.3f}" for seconds in took])
    assert sorted(took)[2] < 1


@pytest.mark.nats
def test_many_changes_are_one_reload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK", 0.05)
    path = tmp_path / "users.json"
    users, _ = Users.of([]).add("ann", ["subscriber"])
    users.write(path)

    async def run() -> None:
        guard = PermissionGuard(UsersFile(path), NC)
        guard.at(server)
        await guard.permit()
        before = guard.reloads
        await asyncio.gather(*(guard.permit() for _ in range(50)))
        assert guard.reloads == before + 1
        watching = asyncio.create_task(guard.watch())
        after, bob = users.add("bob", ["subscriber"])
        with pytest.raises(TransportError, match="refuses user 'bob'"):
            await NatsTransport.connect(server.url, user="bob", password=bob.token)
        after.write(path)
        async with asyncio.timeout(10):
            while guard.reloads < before + 2:
                await asyncio.sleep(0.02)
        async with came(server, "bob", bob.token) as his:
            refused: list[str] = []
            hers = await NatsTransport.connect(
                server.url, user="bob", password=bob.token, refused=refused.append
            )
            publisher = await Publisher(his, "bob").start()
            users.write(path)  # he is gone
            async with asyncio.timeout(10):
                while not refused or not his.refusal:
                    await asyncio.sleep(0.02)
            with pytest.raises(TransportError, match="refuses user 'bob': check --user and --token"):
                await publisher.publish({"price": 1})
            assert refused == [
                f"the NATS server at {server.url} refuses user 'bob': check --user and --token"
            ]
            assert not his.connected
            await hers.aclose()
        # One that cannot be told is told when it is there again.
        assert server._process is not None
        server._process.kill()
        server._process.wait()
        after.write(path)
        await asyncio.sleep(0.5)
        server.restart()
        async with asyncio.timeout(10), came(server, "bob", bob.token):
            pass
        watching.cancel()

    with NatsServer(tmp_path / "nats", users=lines(users, NC)) as server:
        asyncio.run(run())


@pytest.mark.nats
def test_plans_change_under_permissions(tmp_path: Path) -> None:
    """Everybody gets what they want, by channels, and may no longer listen to those of an old plan."""
    path = tmp_path / "users.json"
    users = Users.of([])
    for name, role in (("ann", "subscriber"), ("bob", "subscriber"), ("desk", "publisher")):
        users, _ = users.add(name, [role])
    users.write(path)
    interest = nc.Interest([[1, 0], [1, 1]], subscribers=["ann", "bob"])
    together = PlanRoutes("together", nc.Broadcast().fit(interest).plan_, None)

    async def run() -> None:
        async with AsyncExitStack() as stack:
            transport = await as_node(server)
            stack.push_async_callback(transport.aclose)
            desk = ControlPlane(transport, SubscriptionIndex())
            node = Node(transport, desk)
            guard = PermissionGuard(UsersFile(path), NC)
            guard.at(server)
            guard.channels, desk.permit = desk.channels, guard.permit
            await node.start()
            stack.push_async_callback(node.stop)
            links: dict[str, Transport] = {
                each.name: await stack.enter_async_context(came(server, each.name, each.token))
                for each in users
            }
            ann, bob = [
                await stack.enter_async_context(Subscriber(links[name], name)) for name in ("ann", "bob")
            ]
            await ann.subscribe("price > 10")
            await bob.subscribe("price > 20")
            publisher = await stack.enter_async_context(Publisher(links["desk"], "desk"))
            for number in range(3):
                assert await desk.rollout(together, overlap=10) == 2
                for price in (15, 25):
                    await publisher.publish({"price": price})
                async with asyncio.timeout(10):
                    assert [(await anext(ann)).data["price"] for _ in range(2)] == [15, 25]
                    event = await anext(bob)
                assert (event.data["price"], event.subject) == (25, NC.channel(number + 1, 0))
                assert desk.channels("ann") == [(number + 1, 0)]
                if number:
                    with pytest.raises(TransportError, match="does not let user 'ann' listen"):
                        await links["ann"].subscribe(NC.channel(number, 0))

    with NatsServer(tmp_path / "nats", users=lines(users, NC)) as server:
        asyncio.run(run())
