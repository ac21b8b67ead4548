"""Inputs that nobody should send: made by a seed, and with what is known of each."""

from __future__ import annotations

import json
import random
from typing import Any, NamedTuple

import msgspec

from narrowcast.broker import wire
from narrowcast.broker.storage.record_subjects import RecordSubjects

#: Names that are nobody's, and texts that are odd in some way.
ODD = ("", "\x00", "fuzz", "a.b", "*", ">", "é" * 40, "x" * 600, "../..", "'; DROP TABLE", "%00", "💥")
#: Filters, most of which are none; nothing matches the others, so that nothing is stored for who never reads.
FILTERS = (
    "", "price >", "price > 1e999", "name = 5", "price = 'x'", "a" * 3000, "(" * 2000 + "price > 1",
    "price > 1 AND " * 200 + "price < 0", "NOT " * 500 + "price > 1", "price IN ()", "SELECT 1",
    "price > 99999999999999999999999999", "name LIKE '%~%'", "other.member = 1", "\x00", "price > 1000 --",
    "name = '" + "y" * 5000 + "'",
)  # fmt: skip
#: Events of a full batch, and bytes of the longest of them.
_MANY, _LONG = 20, 40_000


class Sent(NamedTuple):
    """A message with garbage: its subject, what it holds, how many events that is, and how many are bad.

    None of them may be, or all, where nothing is said.
    """

    subject: str
    payload: bytes
    events: int = 0
    bad: int | None = 0


def _bytes(rng: random.Random) -> bytes:
    return rng.randbytes(int(rng.expovariate(1 / 60)))


def _value(rng: random.Random, depth: int = 3) -> Any:
    """Return anything that JSON can hold, but for the names of attributes."""
    kind = rng.randrange(9 if depth else 7)
    if kind == 7:
        return [_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind == 8:
        return {f"k{i}": _value(rng, depth - 1) for i in range(rng.randrange(4))}
    return (None, True, rng.randint(-(1 << 70), 1 << 70), rng.random() * 10 ** rng.randint(-300, 300), "",
            rng.choice(ODD), 10 ** rng.randrange(400))[kind]  # fmt: skip


def payload(rng: random.Random) -> tuple[bytes, bool | None]:
    """Return something sent as an event, and whether it is bad; None where it may be."""
    kind = rng.randrange(10)
    if kind == 0:
        return b"\xff" + _bytes(rng), True
    if kind == 1:
        text = json.dumps({"price": rng.random(), "name": rng.choice(ODD)}).encode()
        return text[: rng.randrange(len(text))], True
    if kind == 2:
        return json.dumps(rng.choice([[1], "x", 5, None, [{"price": 1}], True])).encode(), True
    if kind == 3:
        wrong: dict[str, Any] = rng.choice(
            [{"price": "x"}, {"price": [1]}, {"price": {}}, {"name": 5}, {"name": []}]
        )
        return json.dumps(wrong).encode(), True
    if kind == 4:
        huge = rng.choice(["1e999", "-1e999", "9" * 400, "1" * 5000, "0." + "1" * 5000, "1e-999"])
        return f'{{"{rng.choice(["price", "other"])}": {huge}}}'.encode(), None
    if kind == 5:
        depth = rng.choice([10, 200, 5_000, 50_000])
        opening, closing = rng.choice([('{"a":', "}"), ("[", "]"), ('{"price":', "}")])
        return ('{"deep":' + opening * depth + "1" + closing * depth + "}").encode(), None
    if kind == 6:
        return json.dumps({"other": _value(rng), f"k{rng.randrange(10**6)}": _value(rng)}).encode(), False
    if kind == 7:
        return json.dumps(
            {"specversion": "1.0", "id": 1, "data": _value(rng), "source": _value(rng)}
        ).encode(), None
    if kind == 8:
        return b"", True
    return rng.choice(
        [b'{"price": NaN}', b'{"price": Infinity}', b"{'price': 1}", b'{"price": 1,}', b"{price: 1}"]
    ), True


def ingress(rng: random.Random) -> Sent:
    """Return something where publishers send events."""
    kind = rng.randrange(6)
    name = f"fuzz{rng.randrange(100)}"
    of = wire.Subjects("nc")
    if kind <= 2:
        some, bad = payload(rng)
        return Sent(of.plain, some, 1, None if bad is None else int(bad))
    if kind == 3:  # a batch, as publishers send it
        rows = [row for row in (payload(rng) for _ in range(rng.randrange(1, _MANY))) if len(row[0]) < _LONG]
        flags = [bad for _, bad in rows]
        batch = wire.PublishedBatch(
            name, rng.randrange(1 << 62), [some for some, _ in rows], rng.choice([0.0, -1.0, 1e300])
        )
        known = None if None in flags else sum(map(bool, flags))
        return Sent(of.ingress(name, 16), wire.encode(batch), len(rows), known)
    if kind == 4:  # one that claims to be another's
        batch = wire.PublishedBatch("p0", rng.randrange(1 << 62), [b"{}"] * rng.randrange(3))
        return Sent(of.ingress(name, 16), wire.encode(batch), 1, 1)
    odd = rng.choice([
        b"\x93" + _bytes(rng),
        b"\xdc\xff\xff" + _bytes(rng),
        msgspec.msgpack.encode([name, -1, [b"{}"]]),
        msgspec.msgpack.encode([name, 1 << 63, [b"{}"]]),
        msgspec.msgpack.encode([name, 1, ["text"], "x"]),
        msgspec.msgpack.encode([5, 1, [b"{}"]]),
    ])  # fmt: skip
    return Sent(of.ingress(name, 16), odd, 1, 1)


def position(rng: random.Random, store: str) -> bytes:
    """Return how far somebody has read, who may write down anything."""
    huge = 10 ** rng.randrange(40)
    read = rng.choice([b"9" * rng.choice([17, 18, 19, 20, 5000]), b"-1", b"", b"x y", b"1", _bytes(rng)])
    had = rng.choice([
        b"", b"{", b"[]", b'{"events": 5}', _bytes(rng),
        json.dumps({"events": {rng.choice(ODD): [huge, -huge]}}).encode(),
        json.dumps({"subjects": {rng.choice(ODD): rng.choice([huge, -huge])}}).encode(),
    ])  # fmt: skip
    return b" ".join([read, rng.choice([b"", b"0" * 16, store.encode(), store.encode()]), had])


def control(rng: random.Random, epoch: int, records: RecordSubjects, store: str) -> Sent:
    """Return something where subscribers, nodes and those who run the broker speak, by all they know.

    What is well-formed is of nobody who is there, so that who wants what stays as it is.
    """
    of = wire.Subjects("nc")
    name = f"fuzz{rng.randrange(50)}"
    many = [rng.randint(-(1 << 63), 1 << 63) for _ in range(rng.randrange(4))]
    kind = rng.randrange(10)
    if kind <= 1 and rng.random() < 0.2:
        place = rng.choice(
            [records.subject("position", name), of.position(name, "x"), "nc.at.position.x.%FF"]
        )
        return Sent(place, position(rng, store))
    if kind <= 1:  # garbage, also in the name of who is there
        place = rng.choice([of.ask("s0"), of.ask(name), of.orders, of.control("s1"), of.beats, of.changes,
                            f"{of.inbox('s2')}.x.1", of.to("s3"), of.everybody])  # fmt: skip
        return Sent(place, _bytes(rng))
    if kind == 2:
        odd = rng.choice([{}, {"type": rng.choice(["hello", "add", "replay", "nothing"])}, [], 5, "x",
                          {"type": "add", "subscriber": 5, "filters": "x"},
                          {"type": "listening", "subscriber": name, "epoch": "", "channels": 1}])  # fmt: skip
        return Sent(rng.choice([of.ask(name), of.orders, of.beats, of.changes]), msgspec.msgpack.encode(odd))
    asked: Any = {
        3: wire.AddFilters(name, [rng.choice(FILTERS) for _ in range(rng.randrange(3))]),
        4: wire.RemoveSubscriptions(name, [abs(n) % (1 << 62) for n in many]),
        5: wire.ChannelsJoined(
            name, rng.choice([epoch, epoch + 1, -1, 1 << 40]), [n % 10_000 - 100 for n in many]
        ),
        6: wire.SubscriberReport(
            name, [1] * rng.choice([0, 15, 16]), rng.choice([0.0, float("inf"), float("nan")]), 1, -5, 0
        ),
        7: wire.ReplayRequest(
            name,
            rng.choice([0, -1, 1 << 62]),
            rng.choice(["", "x", "0" * 16, "g" * 16, "*"]),
            rng.choice(["", store]),
        ),
    }.get(kind)
    if asked is not None:
        asker = rng.choice([name, name, "s4", "s5"])  # who asks in the name of another is refused
        return Sent(of.ask(asker), wire.encode(asked))
    if kind == 8:
        plan = rng.choice(["", "/nowhere", "\x00", "/etc", "x" * 5000])
        return Sent(
            of.orders,
            wire.encode(
                wire.RolloutRequest(plan, None, rng.choice([0.0, -1.0, 1e9]), rng.choice([0.0, 2.0]))
            ),
        )
    return Sent(of.ask(name), wire.encode(wire.Hello(name, rng.choice(ODD))))


def request(rng: random.Random) -> tuple[str, str, bytes]:
    """Return method, path and body of something that a web server should survive."""
    method = rng.choice(["GET", "POST", "POST", "POST", "DELETE", "PUT", "PATCH", "OPTIONS"])
    path = rng.choice([
        "/events", "/events", "/subscriptions", "/explain", "/rollout", "/health", "/nothing", "/%00",
        f"/subscriptions?subscriber={'x' * rng.randrange(3000)}",
        f"/subscriptions/{rng.randint(-9, 1 << 70)}?subscriber=a",
        f"/subscriptions?subscriber=a&after={rng.randint(-9, 1 << 70)}&limit={rng.randint(-5, 5000)}",
    ])  # fmt: skip
    body = rng.choice([
        _bytes(rng),
        payload(rng)[0],
        json.dumps([_value(rng) for _ in range(rng.randrange(4))]).encode(),
        json.dumps({"subscriber": _value(rng), "filter": rng.choice(FILTERS)}).encode(),
        json.dumps({"plan": _value(rng), "overlap": _value(rng), "least": _value(rng)}).encode(),
    ])  # fmt: skip
    return method, path, body
