"""Payloads as events: the fast way and one by one give the same, and bad ones do no harm to others."""

from __future__ import annotations

import json
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import narrowcast as nc
from narrowcast.broker.data.decode import Decoder
from narrowcast.errors import ParameterError
from support.errors import refused

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
        reason.startswith("event is not a JSON object: ") for reason in (reasons[2], reasons[3], reasons[6])
    )
    assert "price" in reasons[4]
    assert "52 bytes" in reasons[5]
    assert "25,000 bytes" in reasons[7]
    assert all("40" in reason and "payload" in reason for reason in (reasons[5], reasons[7]))
    assert Decoder(SCHEMA).decode([bad[7]]).bad[0].reason.startswith("event is not a JSON object")


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


TYPES = nc.Schema.of(
    {
        "b": "boolean",
        "tiny": "tinyint",
        "n": "bigint",
        "f": "float",
        "x": "double",
        "d": "decimal(10,2)",
        "s": "string",
        "day": "date",
        "at": "timestamp",
        "clock": "timestamp_ntz",
        "tags": "array",
        "place": "struct",
        "place.city": "string",
        "place.spot": "struct",
        "place.spot.lat": "double",
    }
)
odd_numbers = st.sampled_from(
    [0, -0.0, 1.5, 127, 128, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 10**30, 10**400, 1e18, 1e19, 3.5e38,
     1e308, 99999999, 100000000, 0.01, 0.001, 5e-324, -128.0]
)  # fmt: skip
odd_texts = st.sampled_from(
    ["", "x", "2024-02-29", "2023-02-29", "1900-02-29", "2000-02-29", "2024-13-01", "2024-1-1", "0000-01-01",
     "2024-01-01T24:00", "2024-01-01T23:59", "2024-01-01 01:02:03.123456789Z", "2024-01-01T01:02:03.1",
     "2024-01-01T01:02:03+01:00", "2024-01-01T01:02:03-0030", "2024-01-01T01:02:03+24", "2024-01-01Z",
     "99999-01-01", "2024-01-01T01Z", "\uff12024-01-01", "2024-01-01\n"]
)  # fmt: skip
inner = st.dictionaries(st.sampled_from(["city", "CITY", "spot", "a"]), st.one_of(odd_texts, odd_numbers))
anything = st.one_of(
    odd_numbers,
    odd_texts,
    st.integers(),
    numbers,
    st.text(max_size=4),
    st.booleans(),
    st.none(),
    st.lists(odd_numbers, max_size=2),
    inner,
)
of_types = st.dictionaries(st.sampled_from([n for n in TYPES.names if "." not in n]), anything, max_size=3)


def read(decoder: Decoder, payloads: list[bytes]) -> dict[int, tuple[int, ...]]:
    """Return the keys of events by position; all others have a reason of one short line."""
    found = decoder.decode(payloads)
    rows: dict[int, tuple[int, ...]] = {}
    for events, position in found.good:
        keys = zip(*(events.keys(i).tolist() for i in range(len(TYPES))), strict=True)
        rows |= dict(zip(position.tolist(), keys, strict=True))
    for _, reason in found.bad:
        assert len(reason.splitlines()) == 1
        assert len(reason) < 400
    assert sorted([*rows, *(each.position for each in found.bad)]) == list(range(len(payloads)))
    return rows


@given(st.lists(of_types, max_size=6))
def test_each_event_means_the_same_beside_any_other(events: list[dict[str, Any]]) -> None:
    decoder = Decoder(TYPES)
    payloads = [json.dumps(event).encode() for event in events]
    alone = {i: found[0] for i, payload in enumerate(payloads) if (found := read(decoder, [payload]))}
    assert read(decoder, payloads) == alone


@given(st.lists(st.one_of(st.binary(max_size=40), st.text(max_size=20).map(str.encode)), max_size=5))
def test_any_bytes_are_an_event_or_have_a_reason(payloads: list[bytes]) -> None:
    read(Decoder(TYPES), payloads)


@pytest.mark.parametrize(
    "payload",
    [
        b"[" * 1_000_000,
        b'{"a":' * 200_000,
        b'{"place":' + b"[" * 900_000,
        b'{"place": {"a": ' * 60_000,
        b'{"x": ' + b"9" * 1_000_000 + b"}",
        b'{"x": -' + b"9" * 4_000 + b"}",
        b'{"x": 1e999}',
        b'{"x": NaN}',
        b'{"day": "' + b"x" * 1_000_000 + b'"}',
        b'{"s": "\\ud800"}',
        b'{"s": "\xed\xa0\x80"}',
        b'{"s": "\xff"}',
        b'{"\xff": 1}',
        b"\xef\xbb\xbf{}",
        b'{"x": 1}{"x": 2}',
        b'{"x": 1, "x": "dear"}',
        b'{"specversion": 1, "data": {"x": "dear"}}',
        json.dumps({"x": 1}).encode("utf-16"),
        b" " * 1_000_000,
    ],
)
def test_garbage_is_refused_in_time(payload: bytes) -> None:
    begun = time.process_time()
    found = Decoder(TYPES).decode([b'{"x": 1}', payload[:1_000_000], b'{"x": 2}'])
    assert time.process_time() - begun < 2
    [(events, position)] = found.good
    assert position.tolist() == [0, 2]
    assert events.columns[4].to_pylist() == [1.0, 2.0]


def test_objects_take_no_more_time_than_they_have_names_for() -> None:
    deep = b'{"place": ' + b'{"a": ' * 500 + b"1" + b"}" * 500 + b"}"
    wide = json.dumps({"place": {f"k{i}": [i, "x"] for i in range(40_000)}}).encode()
    begun = time.process_time()
    assert Decoder(TYPES).decode([b'{"place": {"city": "Ulm"}}', wide]).bad == []
    assert "nested" in Decoder(TYPES).decode([deep]).bad[0].reason
    assert time.process_time() - begun < 2


def test_values() -> None:
    events = [
        {"x": 2**60 + 1, "n": 5.0, "d": 0.1, "at": "2024-01-01T01:02:03.123456789+01:00", "tags": [1, "x"]},
        {"x": 0.5, "n": 2**62, "d": 3, "at": "2024-01-01", "place": {"CITY": "Ulm", "a": [1, "x"]}},
        {"clock": "2024-01-01 05", "day": "2024-02-29", "place": {"spot": {"lat": 1}}},
    ]
    [(found, _)] = Decoder(TYPES).decode([msgspec.json.encode(event) for event in events]).good
    rows = [found.row(i) for i in range(3)]
    none = dict.fromkeys(TYPES.names)
    first = {"x": float(2**60), "n": 5, "d": Decimal("0.10"), "tags": True}
    assert rows[0] == none | first | {"at": datetime(2024, 1, 1, 0, 2, 3, 123456, UTC)}
    second = {"x": 0.5, "n": 2**62, "d": Decimal("3.00"), "place.city": "Ulm"}
    ulm = {"place": {"city": "Ulm", "spot": None}}
    assert rows[1] == none | second | ulm | {"at": datetime(2024, 1, 1, tzinfo=UTC)}
    third = {"place.spot.lat": 1.0, "day": date(2024, 2, 29), "clock": datetime(2024, 1, 1, 5)}
    spot = {"lat": 1.0}
    assert rows[2] == none | third | {"place.spot": spot, "place": {"city": None, "spot": spot}}


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ({"n": 1.5}, "attribute 'n' is bigint, not 1.5"),
        ({"n": 2**63}, f"attribute 'n' is bigint, not {2**63}"),
        ({"tiny": 128}, "attribute 'tiny' is tinyint, not 128"),
        ({"x": 10**400}, "attribute 'x' is double, not a number of 1,329 bits"),
        ({"f": 3.5e38}, "attribute 'f' is float, not 3.5e+38"),
        ({"d": 0.001}, "attribute 'd' is decimal(10,2), not 0.001"),
        ({"d": 10**8}, "attribute 'd' is decimal(10,2), not 100000000"),
        ({"day": "2023-02-29"}, "attribute 'day' is date, not '2023-02-29'"),
        ({"day": "x" * 99}, f"attribute 'day' is date, not '{'x' * 40}...'"),
        ({"clock": "2024-01-01T00Z"}, "attribute 'clock' is timestamp_ntz, not '2024-01-01T00Z'"),
        ({"place": {"city": 1}}, "attribute 'place.city' is string, not a number"),
        ({"b": 1, "x": "y"}, "attribute 'b' is boolean, not a number"),
    ],
)
def test_reasons_of_values(event: dict[str, Any], reason: str) -> None:
    found = Decoder(TYPES).decode([b"{}", json.dumps(event).encode()])
    assert [tuple(each) for each in found.bad] == [(1, reason)]


@pytest.mark.parametrize("kind", ["cut", "type", "date", "number", "all"])
def test_bad_events_take_about_as_long_as_good_ones(kind: str) -> None:
    good = [
        msgspec.json.encode({"x": i, "n": i, "day": "2024-01-01", "at": "2024-01-01T00:00Z", "s": "a"})
        for i in range(2000)
    ]
    bad = {
        "cut": b'{"x": 1, "n"',
        "type": b'{"x": "dear", "n": 7}',
        "date": b'{"x": 1, "day": "2023-02-29"}',
        "number": b'{"n": 1.5}',
    }
    some = list(bad.values()) if kind == "all" else [bad[kind]]
    mixed = [some[i // 5 % len(some)] if i % 5 == 4 else each for i, each in enumerate(good)]
    decoder = Decoder(TYPES)

    def seconds(payloads: list[bytes]) -> float:
        def once() -> float:
            begun = time.process_time()
            decoder.decode(payloads)
            return time.process_time() - begun

        return min(once() for _ in range(5))

    assert len(decoder.decode(mixed).bad) == 400
    assert seconds(mixed) < 6 * seconds(good)  # to try halves of them took 200 times as long


def test_room() -> None:
    with refused(ParameterError, parameter="largest", value=1):
        Decoder(SCHEMA, largest=1)
