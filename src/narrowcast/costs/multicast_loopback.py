"""Real multicast within this machine, and what it costs a receiver (tock2005, section 5.2)."""

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
from narrowcast.costs.calibration import Calibration, ReceiverReading, solved
from narrowcast.errors import ParameterError, TransportError
from narrowcast.validation import check_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: Messages to a packet that are measured; the paper's figure has 1 to 40.
AGGREGATION = (1, 2, 4, 8, 16, 24, 32, 40)
#: Rates of the session that is listened to and of the other, as shares of a full rate.
PAIRS = ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.5, 1.0), (1.0, 0.5), (0.5, 0.5))
#: Bytes of a message, and flows of a session, of which a receiver wants every other.
MESSAGE, FLOWS = 200, 8
#: Where packets go: within this machine, in the range that nobody else has.
GROUP, INTERFACE = "239.255.71.4", "127.0.0.1"
#: How often each pair of rates is measured: the middle one counts, whatever else the machine did meanwhile.
TURNS = 5
#: How long all runs take together, and the least that one takes.
SECONDS, LEAST = 20.0, 0.004

#: A full rate: packets a second, and the most messages a second.
_PACKETS, _MESSAGES = 15_000.0, 300_000.0
#: Packets that are sent one right after the other: as many for any rate, so that waking up is a part of the
#: cost of a packet and not of a second.
_BURST = 8
#: The sender does not catch up on more seconds than these: what cannot be sent in time is not sent.
_BEHIND = 0.05
#: Seconds in which the receiver has to answer.
_PATIENCE = 5.0
_MEND = "allow it (Linux: ip link set lo multicast on), or name another place with --interface"


class MulticastLoopback:
    """A group with two sessions, and a receiver in a process of its own that listens to the first of them.

    Parameters
    ----------
    process
        The receiver.
    to
        The address and port of the group.
    sock
        Where packets are sent from.
    size, seed
        Bytes of a message, and what the order of flows comes from.
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
        self._patience = _PATIENCE

    def run(self, h: int, heard: float, passed: float, seconds: float) -> ReceiverReading:
        """Send packets of both sessions for some time, and return what it was for the receiver.

        Parameters
        ----------
        h
            Messages of each packet.
        heard, passed
            Packets a second of the session that is listened to, and of the other.
        seconds
            How long.
        """
        flows = list(range(1, FLOWS + 1))
        asked = {"accepted": 1, "size": self._size, "wanted": flows[::2]}
        _write(self._process, asked)
        _answer(self._process, "ready")
        packets = [bytearray(self._packet(h)) for _ in range(2)]
        sent = self._send(packets, h, (heard, passed), seconds)
        end = calibration_receiver.HEAD.pack(calibration_receiver.END, sent, 0)
        # The last packet may be lost as any other; one is enough.
        found = None
        until = time.monotonic() + self._patience
        while found is None and time.monotonic() < until:
            self._sock.sendto(end, self._to)
            found = _waited(self._process, 0.02)
        if found is None or (sent and not found["packets"]):
            raise TransportError(f"multicast sent to {self._to[0]} does not arrive on this machine; {_MEND}")
        wall = found["wall_ns"] * 1e-9
        return ReceiverReading(
            h=h,
            heard=found["heard"] / wall,
            passed=found["passed"] / wall,
            cpu=found["cpu_ns"] * 1e-9 / wall,
            packets=found["packets"],
            lost=found["lost"],
        )

    def _packet(self, h: int) -> bytes:
        """Return a packet of messages of several flows, in any order; its head is still empty."""
        of = [1 + number % FLOWS for number in range(h)]
        self._random.shuffle(of)
        rest = bytes(self._size - calibration_receiver.FLOW.size)
        return bytes(calibration_receiver.HEAD.size) + b"".join(
            calibration_receiver.FLOW.pack(flow) + rest for flow in of
        )

    def _send(self, packets: list[bytearray], h: int, rates: tuple[float, float], seconds: float) -> int:
        """Send packets of both sessions in proportion to their rates, and return how many."""
        total = sum(rates)
        share, pace = rates[0] / total, _BURST / total
        send, head, to = self._sock.sendto, calibration_receiver.HEAD.pack_into, self._to
        begin = due = time.perf_counter()
        sent, first = 0, 0.0
        while due < begin + seconds:
            late = time.perf_counter() - due
            if late < 0:
                time.sleep(-late)
            elif late > _BEHIND:
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
    """Give a group with a receiver for the length of a block.

    Raises
    ------
    TransportError
        When this machine does not do multicast there.

    Examples
    --------
    >>> with loopback() as both:
    ...     reading = both.run(4, heard=500, passed=500, seconds=0.1)
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
            to = group, _answer(process, "port")["port"]
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(interface))
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 0)  # never beyond this machine
            yield MulticastLoopback(process, to, sock, size=size, seed=seed)
        except OSError as error:
            raise TransportError(
                f"no multicast to {group} on {interface}: {error.strerror or error}; {_MEND}"
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
    tell: Callable[[str, int, int], None] | None = None,
) -> Calibration:
    """Measure what filtering costs a receiver on this machine, and fit alpha(h) and beta(h) to it.

    Two sessions of several flows go to one multicast group, and the receiver listens to the first. For each
    h, messages to a packet, several pairs of rates are measured, alpha(h) and beta(h) are those of least
    squares in equation 9 of tock2005, and the curves a0 + a1 / h those of least squares over h. Runs come in
    an order by chance, so that what else the machine does meanwhile is nobody's alone.

    Parameters
    ----------
    aggregation
        Which h: at least two.
    seconds
        How long all runs take together; longer is more exact.
    seed
        What random choices come from.
    size
        Bytes of a message.
    group, interface
        A multicast address, and the address of the interface that is used.
    tell
        Told before each run which it is, how many are done and how many there are.

    Raises
    ------
    ParameterError
        When a parameter is out of range.
    TransportError
        When this machine does not do multicast there.
    """
    _check(aggregation, seconds, size, group, interface)
    check_seed(seed)
    runs = [(h, pair) for h in aggregation for pair in PAIRS for _ in range(TURNS)]
    each = seconds / len(runs)
    if each < LEAST:
        raise ParameterError(
            f"seconds is {seconds:g} for {len(runs)} runs; give at least {LEAST * len(runs):g}"
        )
    random.Random(seed).shuffle(runs)  # noqa: S311
    readings: dict[tuple[int, tuple[float, float]], list[ReceiverReading]] = {run: [] for run in runs}
    with loopback(group=group, interface=interface, size=size, seed=seed) as both:
        both.run(aggregation[0], _PACKETS, _PACKETS, min(each, 0.1))  # the first is slower than the others
        for done, (h, (heard, passed)) in enumerate(runs):
            if tell is not None:
                tell(f"packets of {h}", done, len(runs))
            full = min(_PACKETS, _MESSAGES / h)
            readings[h, (heard, passed)].append(both.run(h, full * heard, full * passed, each))
    points = []
    for h in sorted(aggregation):
        some = [readings[h, pair] for pair in PAIRS]
        came, lost = (
            sum(getattr(one, name) for turns in some for one in turns) for name in ("packets", "lost")
        )
        points.append(replace(solved([_middle(turns) for turns in some]), packets=came, lost=lost))
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


def _middle(readings: list[ReceiverReading]) -> ReceiverReading:
    """Return the reading in the middle, by what a message cost."""
    ordered = sorted(readings, key=lambda one: one.cpu / max(one.heard + one.passed, 1.0))
    return ordered[len(ordered) // 2]


def _check(aggregation: Sequence[int], seconds: float, size: int, group: str, interface: str) -> None:
    """Refuse parameters that are out of range."""
    if (
        not calibration_receiver.FLOW.size
        <= size
        <= calibration_receiver.MOST - calibration_receiver.HEAD.size
    ):
        most = calibration_receiver.MOST - calibration_receiver.HEAD.size
        raise ParameterError(
            f"size is {size}; give bytes of a message: from {calibration_receiver.FLOW.size} to {most}"
        )
    most = (calibration_receiver.MOST - calibration_receiver.HEAD.size) // size
    if len(set(aggregation)) < 2 or len(set(aggregation)) < len(aggregation):
        raise ParameterError(f"h is {list(aggregation)}; give at least two numbers of messages, each once")
    for h in aggregation:
        if not 1 <= h <= most:
            raise ParameterError(f"h is {h}; a packet takes 1 to {most} messages of {size} bytes")
    if not 0 < seconds < math.inf:
        raise ParameterError(f"seconds is {seconds}; give a number above 0")
    for name, text, like in (("group", group, GROUP), ("interface", interface, INTERFACE)):
        try:
            address = ipaddress.IPv4Address(text)
        except ValueError:
            raise ParameterError(f"{name} is {text!r}; give an address such as {like}") from None
        if address.is_multicast != (name == "group"):
            kind = (
                "a multicast address, 224.0.0.0 to 239.255.255.255"
                if name == "group"
                else "one of this machine"
            )
            raise ParameterError(f"{name} is {text}; give {kind}")


def _write(process: subprocess.Popen[str], what: dict[str, Any]) -> None:
    """Ask the receiver for something."""
    assert process.stdin is not None
    process.stdin.write(json.dumps(what) + "\n")
    process.stdin.flush()


def _answer(process: subprocess.Popen[str], name: str) -> dict[str, Any]:
    """Return the receiver's answer, which has a name in it."""
    found = _waited(process, _PATIENCE)
    if found is None or name not in found:
        raise OSError("the receiver does not answer" if found is None else found.get("problem", str(found)))
    return found


def _waited(process: subprocess.Popen[str], seconds: float) -> dict[str, Any] | None:
    """Return the next line of the receiver, or None when there is none in time."""
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], seconds)[0]:
        return None
    line = process.stdout.readline()
    if not line:
        raise OSError("the receiver ended")
    found: dict[str, Any] = json.loads(line)
    return found
