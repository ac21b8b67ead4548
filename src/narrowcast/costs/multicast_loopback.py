"""Real multicast on the loopback interface, and its cost for a receiver (tock2005, section 5.2)."""

from __future__ import annotations

import ipaddress
import json
import math
import random
import select
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from narrowcast.costs import calibration_receiver
from narrowcast.costs.calibration import Calibration, ReceiverReading, solve_point
from narrowcast.errors import ParameterError, TransportError
from narrowcast.validation import check_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: Numbers of messages per packet that are measured; the paper's figure has 1 to 40.
AGGREGATION = (1, 2, 4, 8, 16, 24, 32, 40)
#: Rates of the session listened to and of the other session, as shares of the full rate.
PAIRS = ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.5, 1.0), (1.0, 0.5), (0.5, 0.5))
#: Bytes of a message, and flows of a session, of which the receiver wants every other one.
MESSAGE, FLOWS = 200, 8
#: Destination of packets: the loopback interface, and a group of the administratively scoped range.
GROUP, INTERFACE = "239.255.71.4", "127.0.0.1"
#: Runs of each pair of rates: the median counts, which discards runs disturbed by other work of the machine.
TURNS = 5
#: Seconds of all runs together, and the least seconds of one run.
SECONDS, LEAST = 20.0, 0.004

#: The full rate: packets per second, and the most messages per second.
_PACKETS, _MESSAGES = 15_000.0, 300_000.0
#: Packets sent back to back: the same number at any rate, so that the cost of waking up is a part of the cost
#: per packet and not per second.
_BURST = 8
#: Seconds of delay that the sender makes up for; packets that are later than this are not sent.
_MAX_DELAY_S = 0.05
#: Seconds within which the receiver has to answer.
_ANSWER_TIMEOUT_S = 5.0
_MULTICAST_FIX = "allow multicast (Linux: ip link set lo multicast on), or use another interface"


class MulticastLoopback:
    """A multicast group with two sessions, and a receiver process that listens to the first of them.

    Parameters
    ----------
    process
        The receiver process.
    to
        Address and port of the group.
    sock
        The socket that packets are sent from.
    size, seed
        Bytes of a message, and the seed for the order of flows.
    """

    def __init__(
        self,
        process: subprocess.Popen[str],
        to: tuple[str, int],
        sock: socket.socket,
        *,
        size: int = MESSAGE,
        seed: int = 0,
    ) -> None:
        self._process, self._to, self._sock = process, to, sock
        self._size, self._random = size, random.Random(seed)  # noqa: S311
        self._patience = _ANSWER_TIMEOUT_S

    def run(self, h: int, accepted: float, dropped: float, seconds: float) -> ReceiverReading:
        """Send packets of both sessions for some seconds, and return what the receiver measured.

        Parameters
        ----------
        h
            Messages per packet.
        accepted, dropped
            Packets per second of the session listened to, and of the other.
        seconds
            Duration of the run.
        """
        flows = list(range(1, FLOWS + 1))
        request = {"session": 1, "size": self._size, "wanted": flows[::2]}
        _send_request(self._process, request)
        _read_answer(self._process, "ready")
        packets = [bytearray(self._packet(h)) for _ in range(2)]
        sent = self._send(packets, h, (accepted, dropped), seconds)
        end = calibration_receiver.HEAD.pack(calibration_receiver.END, sent, 0)
        # The end packet may be lost like any other: it is repeated until the receiver answers.
        found = None
        until = time.monotonic() + self._patience
        while found is None and time.monotonic() < until:
            self._sock.sendto(end, self._to)
            found = _read_line(self._process, 0.02)
        if found is None or (sent and not found["packets"]):
            raise TransportError(
                f"group={self._to[0]}: multicast packets do not arrive on this machine; {_MULTICAST_FIX}",
                parameter="group",
                value=self._to[0],
            )
        wall = found["wall_ns"] * 1e-9
        return ReceiverReading(
            h=h,
            accepted=found["accepted"] / wall,
            dropped=found["dropped"] / wall,
            cpu=found["cpu_ns"] * 1e-9 / wall,
            packets=found["packets"],
            lost=found["lost"],
        )

    def _packet(self, h: int) -> bytes:
        """Return a packet with an empty header and messages of several flows in random order."""
        of = [1 + number % FLOWS for number in range(h)]
        self._random.shuffle(of)
        rest = bytes(self._size - calibration_receiver.FLOW.size)
        return bytes(calibration_receiver.HEAD.size) + b"".join(
            calibration_receiver.FLOW.pack(flow) + rest for flow in of
        )

    def _send(self, packets: list[bytearray], h: int, rates: tuple[float, float], seconds: float) -> int:
        """Send packets of both sessions in proportion to their rates, and return their number."""
        total = sum(rates)
        share, pace = rates[0] / total, _BURST / total
        send, head, to = self._sock.sendto, calibration_receiver.HEAD.pack_into, self._to
        begin = due = time.perf_counter()
        sent, first = 0, 0.0
        while due < begin + seconds:
            late = time.perf_counter() - due
            if late < 0:
                time.sleep(-late)
            elif late > _MAX_DELAY_S:
                due += late
            for _ in range(_BURST):
                first += share
                which = 0 if first >= 1 else 1
                first -= 1 - which
                head(packets[which], 0, which + 1, sent, h)
                send(packets[which], to)
                sent += 1
            due += pace
        return sent


@contextmanager
def loopback(
    *, group: str = GROUP, interface: str = INTERFACE, size: int = MESSAGE, seed: int = 0
) -> Iterator[MulticastLoopback]:
    """Create a multicast group with a receiver process, for the duration of a block.

    Raises
    ------
    TransportError
        When this machine does not support multicast on the interface.

    Examples
    --------
    >>> with loopback() as both:
    ...     reading = both.run(4, accepted=500, dropped=500, seconds=0.1)
    >>> reading.packets > 0 and reading.cpu > 0
    True
    """
    words = [sys.executable, "-I", calibration_receiver.__file__, group, interface]
    pipe = subprocess.PIPE
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock,
        subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process,
    ):
        try:
            to = group, _read_answer(process, "port")["port"]
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(interface))
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 0)  # never beyond this machine
            yield MulticastLoopback(process, to, sock, size=size, seed=seed)
        except OSError as error:
            raise TransportError(
                f"interface={interface}: no multicast to {group}: {error.strerror or error}; "
                f"{_MULTICAST_FIX}",
                parameter="interface",
                value=interface,
            ) from error
        finally:
            process.kill()


def calibrate(
    *,
    aggregation: Sequence[int] = AGGREGATION,
    seconds: float = SECONDS,
    seed: int = 0,
    size: int = MESSAGE,
    group: str = GROUP,
    interface: str = INTERFACE,
    progress: Callable[[str, int, int], None] | None = None,
) -> Calibration:
    """Measure the cost of filtering for a receiver on this machine, and fit alpha(h) and beta(h).

    Two sessions of several flows go to one multicast group, and the receiver listens to the first. For each
    h (messages per packet) several pairs of rates are measured. Alpha(h) and beta(h) are the least-squares
    solution of equation 9 of tock2005, and the curves a0 + a1 / h least-squares fits over h. The order of the
    runs is random, so that other work of the machine affects all pairs alike.

    Parameters
    ----------
    aggregation
        Values of h: at least two, all different.
    seconds
        Duration of all runs together (default: 20); longer is more exact.
    seed
        Seed of the random choices.
    size
        Bytes per message.
    group, interface
        A multicast address, and the address of the interface to use.
    tell
        Called before each run with its description, the number of finished runs and that of all runs.

    Raises
    ------
    ParameterError
        When a parameter is out of range.
    TransportError
        When this machine does not support multicast on the interface.
    """
    _check(aggregation, seconds, size, group, interface)
    check_seed(seed)
    runs = [(h, pair) for h in aggregation for pair in PAIRS for _ in range(TURNS)]
    each = seconds / len(runs)
    if each < LEAST:
        least = f"at least {LEAST * len(runs):g} for {len(runs)} runs"
        raise ParameterError(parameter="seconds", value=seconds, limit=least)
    random.Random(seed).shuffle(runs)  # noqa: S311
    readings: dict[tuple[int, tuple[float, float]], list[ReceiverReading]] = {run: [] for run in runs}
    with loopback(group=group, interface=interface, size=size, seed=seed) as both:
        # The first run is slower than the others and does not count.
        both.run(aggregation[0], _PACKETS, _PACKETS, min(each, 0.1))
        for done, (h, (accepted, dropped)) in enumerate(runs):
            if progress is not None:
                progress(f"packets of {h}", done, len(runs))
            full = min(_PACKETS, _MESSAGES / h)
            readings[h, (accepted, dropped)].append(both.run(h, full * accepted, full * dropped, each))
    points = []
    for h in sorted(aggregation):
        by_pair = [readings[h, pair] for pair in PAIRS]
        packets, lost = (
            sum(getattr(one, name) for turns in by_pair for one in turns) for name in ("packets", "lost")
        )
        median = [_median(turns) for turns in by_pair]
        points.append(replace(solve_point(median), packets=packets, lost=lost))
    words = ["narrowcast calibrate", f"--seconds {seconds:g}", f"--seed {seed}"]
    words += ["--h " + ",".join(map(str, aggregation))] * (tuple(aggregation) != AGGREGATION)
    words += [f"--size {size}"] * (size != MESSAGE) + [f"--group {group}"] * (group != GROUP)
    words.append("--out FILE")
    return Calibration.of(
        points,
        message_bytes=size,
        flows=FLOWS,
        pairs=list(PAIRS),
        seconds=seconds,
        seed=seed,
        command=" ".join(words),
    )


def _median(readings: list[ReceiverReading]) -> ReceiverReading:
    """Return the median reading by processor time per message."""
    ordered = sorted(readings, key=lambda one: one.cpu / max(one.accepted + one.dropped, 1.0))
    return ordered[len(ordered) // 2]


def _check(aggregation: Sequence[int], seconds: float, size: int, group: str, interface: str) -> None:
    head, least = calibration_receiver.HEAD.size, calibration_receiver.FLOW.size
    most = calibration_receiver.MAX_DATAGRAM - head
    if not least <= size <= most:
        raise ParameterError(parameter="size", value=size, limit=f"from {least} to {most} bytes")
    if len(set(aggregation)) < 2 or len(set(aggregation)) < len(aggregation):
        limit = "at least two different numbers of messages"
        raise ParameterError(parameter="aggregation", value=list(aggregation), limit=limit)
    most //= size
    for h in aggregation:
        if not 1 <= h <= most:
            limit = f"from 1 to {most} messages of {size} bytes"
            raise ParameterError(parameter="aggregation", value=h, limit=limit)
    if not 0 < seconds < math.inf:
        raise ParameterError(parameter="seconds", value=seconds, limit="a finite number above 0")
    for name, text, like in (("group", group, GROUP), ("interface", interface, INTERFACE)):
        try:
            address = ipaddress.IPv4Address(text)
        except ValueError:
            limit = f"an IPv4 address such as {like}"
            raise ParameterError(parameter=name, value=text, limit=limit) from None
        if address.is_multicast != (name == "group"):
            limit = (
                "a multicast address, 224.0.0.0 to 239.255.255.255"
                if name == "group"
                else "an address of this machine"
            )
            raise ParameterError(parameter=name, value=text, limit=limit)


def _send_request(process: subprocess.Popen[str], request: dict[str, Any]) -> None:
    """Send a request to the receiver as a line of JSON."""
    assert process.stdin is not None
    process.stdin.write(json.dumps(request) + "\n")
    process.stdin.flush()


def _read_answer(process: subprocess.Popen[str], name: str) -> dict[str, Any]:
    """Return the receiver's next answer, which must contain a certain key."""
    found = _read_line(process, _ANSWER_TIMEOUT_S)
    if found is None or name not in found:
        raise OSError("the receiver does not answer" if found is None else found.get("problem", str(found)))
    return found


def _read_line(process: subprocess.Popen[str], seconds: float) -> dict[str, Any] | None:
    """Return the receiver's next line of JSON, or None after a timeout."""
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], seconds)[0]:
        return None
    line = process.stdout.readline()
    if not line:
        raise OSError("the receiver ended")
    found: dict[str, Any] = json.loads(line)
    return found
