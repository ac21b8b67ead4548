"""Real multicast within this machine: what arrives, what is lost, what it costs."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from narrowcast.costs import calibration_receiver
from narrowcast.costs.calibration import ReceiverReading
from narrowcast.costs.multicast_loopback import FLOWS, PAIRS, TURNS, _middle, calibrate, loopback
from narrowcast.errors import ParameterError, TransportError


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
    found = calibration_receiver.filtered(taker, 1, 16, frozenset({5}))
    assert (found["packets"], found["lost"]) == (len(numbers), lost)


def test_two_steps_of_filtering(ends: tuple[socket.socket, socket.socket]) -> None:
    sender, taker = ends
    sender.send(packet(1, 99, 5))
    calibration_receiver.emptied(taker)  # what waits from before is nobody's
    assert taker.getblocking()
    for each in (packet(1, 0, 5, 6, 5), packet(2, 1, 5, 5), packet(1, 2, 7), packet(2, 3, 5)):
        sender.send(each)
    sender.send(calibration_receiver.HEAD.pack(calibration_receiver.END, 4, 0))
    found = calibration_receiver.filtered(taker, 1, 16, frozenset({5, 9}))
    assert {name: found[name] for name in ("packets", "heard", "passed", "taken", "lost")} == {
        "packets": 4,
        "heard": 4,  # messages of the session that is listened to
        "passed": 3,
        "taken": 2,  # of those, of a flow that is wanted
        "lost": 0,
    }
    assert found["cpu_ns"] > 0
    assert found["wall_ns"] > 0


def test_rates_are_those_asked_for() -> None:
    with loopback(seed=3) as both:
        one, two = both.run(4, 1000, 500, 0.4), both.run(1, 0, 800, 0.2)
    assert one.packets + one.lost == pytest.approx(600, abs=16)
    # What the machine allows: others may be at work.
    assert 0 < one.heard <= 4 * 1000 * 1.1
    assert one.heard == pytest.approx(2 * one.passed, rel=0.05) or one.lost
    assert two.heard == 0
    assert 0 < two.passed <= 800 * 1.2
    assert 0 < two.cpu < 1


def test_a_real_measurement() -> None:
    told: list[tuple[str, int, int]] = []
    found = calibrate(aggregation=(40, 1), seconds=1.5, seed=2, tell=lambda *said: told.append(said))
    runs = 2 * len(PAIRS) * TURNS
    assert [said[1:] for said in told] == [(done, runs) for done in range(runs)]
    assert {said[0] for said in told} == {"packets of 1", "packets of 40"}
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
    with pytest.raises(TransportError) as failure, loopback(interface="192.0.2.1"):
        pass
    assert str(failure.value) == (
        "no multicast to 239.255.71.4 on 192.0.2.1: No such device; allow it (Linux: ip link set lo "
        "multicast on), or name another place with --interface"
    )


def test_what_is_not_to_arrive() -> None:
    # A member on another port than the one that packets are sent to.
    with loopback() as both:
        both._to = both._to[0], 9
        both._patience = 0.2
        with pytest.raises(TransportError, match=r"multicast sent to 239\.255\.71\.4 does not arrive"):
            both.run(1, 100, 100, 0.05)


def test_the_middle() -> None:
    some = [ReceiverReading(1, 100, 0, cpu) for cpu in (0.5, 0.1, 0.9)]
    assert _middle(some).cpu == 0.5
    assert _middle([ReceiverReading(1, 0, 0, 0.0)]).cpu == 0


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"aggregation": [8]}, "h is [8]; give at least two numbers of messages, each once"),
        ({"aggregation": [8, 8]}, "h is [8, 8]; give at least two numbers"),
        ({"aggregation": [0, 8]}, "h is 0; a packet takes 1 to 327 messages of 200 bytes"),
        ({"aggregation": [1, 328]}, "h is 328; a packet takes 1 to 327 messages of 200 bytes"),
        ({"size": 3}, "size is 3; give bytes of a message: from 4 to 65499"),
        ({"size": 70_000}, "size is 70000; give bytes of a message: from 4 to 65499"),
        ({"seconds": 0.1}, "seconds is 0.1 for 240 runs; give at least 0.96"),
        ({"seconds": float("nan")}, "seconds is nan; give a number above 0"),
        ({"seconds": -1.0}, "seconds is -1.0; give a number above 0"),
        ({"seed": -1}, "seed is -1"),
        ({"group": "10.0.0.1"}, "group is 10.0.0.1; give a multicast address, 224.0.0.0 to 239.255.255.255"),
        ({"group": "all"}, "group is 'all'; give an address such as 239.255.71.4"),
        ({"interface": "eth0"}, "interface is 'eth0'; give an address such as 127.0.0.1"),
        ({"interface": "239.1.1.1"}, "interface is 239.1.1.1; give one of this machine"),
    ],
)
def test_parameters_that_do_not_do(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError) as failure:
        calibrate(**params)
    assert str(failure.value).startswith(message)
