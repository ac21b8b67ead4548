"""Real multicast within this machine: what arrives, what is lost, what it costs."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from narrowcast.costs import calibration_receiver
from narrowcast.costs.calibration import ReceiverReading
from narrowcast.costs.multicast_loopback import FLOWS, PAIRS, TURNS, _median, calibrate, loopback
from narrowcast.errors import ParameterError, TransportError
from support.errors import refused


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Return a socket that packets are sent from, and one that they come to."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taker,
    ):
        taker.bind(("127.0.0.1", 0))
        sender.connect(taker.getsockname())
        yield sender, taker


def packet(session: int, number: int, *flows: int, size: int = 16) -> bytes:
    messages = (struct.pack("!I", flow) + bytes(size - 4) for flow in flows)
    return struct.pack("!HIH", session, number, len(flows)) + b"".join(messages)


@pytest.mark.parametrize(
    ("numbers", "lost"),
    [([0, 1, 2, 3], 0), ([0, 1, 3], 1), ([2, 3], 2), ([0], 3), ([], 4), ([1, 0, 2, 3], 0), ([3, 2, 1], 1)],
)
def test_lost_packets_are_seen_in_their_numbers(
    ends: tuple[socket.socket, socket.socket], numbers: list[int], lost: int
) -> None:
    sender, taker = ends
    for number in numbers:
        sender.send(packet(1, number, 5))
    sender.send(calibration_receiver.HEAD.pack(calibration_receiver.END, 4, 0))
    found = calibration_receiver.filter_packets(taker, 1, 16, frozenset({5}))
    assert (found["packets"], found["lost"]) == (len(numbers), lost)


def test_two_steps_of_filtering(ends: tuple[socket.socket, socket.socket]) -> None:
    sender, taker = ends
    sender.send(packet(1, 99, 5))
    calibration_receiver.drain(taker)  # packets of an earlier run
    assert taker.getblocking()
    for each in (packet(1, 0, 5, 6, 5), packet(2, 1, 5, 5), packet(1, 2, 7), packet(2, 3, 5)):
        sender.send(each)
    sender.send(calibration_receiver.HEAD.pack(calibration_receiver.END, 4, 0))
    found = calibration_receiver.filter_packets(taker, 1, 16, frozenset({5, 9}))
    assert {name: found[name] for name in ("packets", "accepted", "dropped", "wanted", "lost")} == {
        "packets": 4,
        "accepted": 4,  # messages of the session that is listened to
        "dropped": 3,
        "wanted": 2,  # accepted messages of a wanted flow
        "lost": 0,
    }
    assert found["cpu_ns"] > 0
    assert found["wall_ns"] > 0


def test_rates_are_those_asked_for() -> None:
    with loopback(seed=3) as both:
        one, two = both.run(4, 1000, 500, 0.4), both.run(1, 0, 800, 0.2)
    assert one.packets + one.lost == pytest.approx(600, abs=16)
    # What the machine allows: others may be at work.
    assert 0 < one.accepted <= 4 * 1000 * 1.1
    assert one.accepted == pytest.approx(2 * one.dropped, rel=0.05) or one.lost
    assert two.accepted == 0
    assert 0 < two.dropped <= 800 * 1.2
    assert 0 < two.cpu < 1


def test_a_real_measurement() -> None:
    calls: list[tuple[str, int, int]] = []
    found = calibrate(aggregation=(40, 1), seconds=1.5, seed=2, progress=lambda *args: calls.append(args))
    runs = 2 * len(PAIRS) * TURNS
    assert [call[1:] for call in calls] == [(done, runs) for done in range(runs)]
    assert {call[0] for call in calls} == {"packets of 1", "packets of 40"}
    single, many = found.points
    assert (single.h, many.h) == (1, 40)
    # A packet costs more than what a message adds to it.
    assert single.alpha > 5 * many.alpha > 0
    assert found.alpha.c1 > found.alpha.c0
    assert found.packets == single.packets + many.packets > 1000
    assert found.lost >= 0
    assert found.command == "narrowcast calibrate --seconds 1.5 --seed 2 --h 40,1 --out FILE"
    assert (found.seconds, found.seed, found.flows, found.message_bytes) == (1.5, 2, FLOWS, 200)
    assert found.at(8).alpha == pytest.approx(found.alpha.at(8))


def test_no_multicast() -> None:
    fields = {"parameter": "interface", "value": "192.0.2.1"}
    with (
        refused(TransportError, "239.255.71.4", "192.0.2.1", "No such device", **fields),
        loopback(interface="192.0.2.1"),
    ):
        pass


def test_packets_that_do_not_arrive() -> None:
    # A member on another port than the one that packets are sent to.
    with loopback() as both:
        both._to = both._to[0], 9
        both._patience = 0.2
        with refused(TransportError, "239.255.71.4", parameter="group", value="239.255.71.4"):
            both.run(1, 100, 100, 0.05)


def test_the_median() -> None:
    some = [ReceiverReading(1, 100, 0, cpu) for cpu in (0.5, 0.1, 0.9)]
    assert _median(some).cpu == 0.5
    assert _median([ReceiverReading(1, 0, 0, 0.0)]).cpu == 0


@pytest.mark.parametrize(
    ("params", "shown"),
    [
        ({"aggregation": [8]}, "[8]"),
        ({"aggregation": [8, 8]}, "[8, 8]"),
        ({"aggregation": [0, 8]}, "from 1 to 327"),
        ({"aggregation": [1, 328]}, "=328"),
        ({"size": 3}, "from 4 to 65499"),
        ({"size": 70_000}, "from 4 to 65499"),
        ({"seconds": 0.1}, "0.96"),
        ({"seconds": float("nan")}, "nan"),
        ({"seconds": -1.0}, "-1.0"),
        ({"seed": -1}, "-1"),
        ({"group": "10.0.0.1"}, "224.0.0.0 to 239.255.255.255"),
        ({"group": "all"}, "'all'"),
        ({"interface": "eth0"}, "'eth0'"),
        ({"interface": "239.1.1.1"}, "239.1.1.1"),
    ],
)
def test_invalid_parameters(params: dict[str, Any], shown: str) -> None:
    with refused(ParameterError, shown, parameter=next(iter(params))):
        calibrate(**params)
