"""Payloads as events: the fast way and one by one give the same, and bad ones do no harm to others."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import narrowcast as nc
from narrowcast.broker.decode import Decoder
from narrowcast.errors import ParameterError

SCHEMA = nc.Schema.of(
    {"price": "double", "name": "string", "day": "date", "place": "struct", "place.city": "string"}
)

numbers = st.floats(allow_nan=False, allow_infinity=False)
nested = st.dictionaries(st.sampled_from(["city", "zip"]), st.text(max_size=3))
plain = st.one_of(st.none(), st.booleans(), st.integers(), numbers, st.text(max_size=5))
values = st.one_of(plain, st.lists(st.integers(), max_size=2), nested)
objects = st.dictionaries(
    st.sampled_from(["price", "name", "PRICE", "day", "place", "other"]), values, max_size=4
)
payloads = st.one_of(
    objects.map(msgspec.json.encode),
    st.binary(max_size=12),
    st.sampled_from(
        [b"", b"[1]", b"7", b'{"price": 1', b'{"price": [1', b'2]}, {"price": 3}', b'{"price": 1e999}']
    ),
)


@given(st.lists(payloads, max_size=8))
def test_a_batch_is_its_events_one_by_one(some: list[bytes]) -> None:
    decoder = Decoder(SCHEMA, largest=200)
    together = decoder.decode(some)
    alone = [decoder.decode([payload]) for payload in some]
    good = [i for i, each in enumerate(alone) if not each.bad]
    assert [i for part in together.good for i in part.position.tolist()] == good
    assert [each.position for each in together.bad] == [i for i, each in enumerate(alone) if each.bad]
    rows = [part.events.row(i) for part in together.good for i in range(len(part.events))]
    assert rows == [alone[i].good[0].events.row(0) for i in good]


def test_reasons() -> None:
    decoder = Decoder(SCHEMA, largest=40)
    bad = [
        b"",
        b" ",
        b"?",
        b"[1]",
        b'{"price": "dear"}',
        b'{"name": "%s"}' % (b"x" * 40),
        b"\xff",
        b'{"a":' * 5000,
    ]
    found = decoder.decode([b'{"price": 1}', *bad, b'{"price": 2}'])
    [(events, position)] = found.good
    assert position.tolist() == [0, len(bad) + 1]
    assert events.columns[0].to_pylist() == [1.0, 2.0]
    reasons = [each.reason for each in found.bad]
    assert reasons[:2] == ["event is empty"] * 2
    assert all(
        reason.startswith("event is no JSON object: ") for reason in (reasons[2], reasons[3], reasons[6])
    )
    assert "price" in reasons[4]
    fix = "; send less at once, or raise serve --limit payload="
    assert reasons[5] == f"event of 52 bytes is larger than 40{fix}"
    assert reasons[7] == f"event of 25,000 bytes is larger than 40{fix}"
    assert Decoder(SCHEMA).decode([bad[7]]).bad[0].reason.startswith("event is no JSON object")


def test_payloads_do_not_join() -> None:
    found = Decoder(SCHEMA).decode([b'{"price": [1', b'2]}, {"price": 3}'])
    assert [each.position for each in found.bad] == [0, 1]


def test_cloud_events() -> None:
    schema = nc.Schema.of({"price": "double", "type": "string", "source": "string"})
    about = {"specversion": "1.0", "id": "7", "source": "/desk", "type": "tick"}
    sent = [about | {"data": {"price": 5, "type": "mine"}}, about | {"data": "text"}, about]
    found = Decoder(schema).decode([msgspec.json.encode(event) for event in sent])
    [(events, _)] = found.good
    assert [events.row(i) for i in range(3)] == [
        {"price": 5.0, "type": "mine", "source": "/desk"},
        {"price": None, "type": "tick", "source": "/desk"},
        {"price": None, "type": "tick", "source": "/desk"},
    ]


def test_what_no_filter_names_does_not_matter() -> None:
    [(events, _)] = Decoder(SCHEMA).decode([b'{"event_id": "x", "PRICE": 1, "a": 1}', b'{"a": "b"}']).good
    assert events.columns[0].to_pylist() == [1.0, None]
    assert Decoder(SCHEMA).decode([]).good == []


def test_room() -> None:
    with pytest.raises(ParameterError, match="largest is 1; let events have at least 2 bytes"):
        Decoder(SCHEMA, largest=1)
