"""The receiving end of a calibration: a script for a process of its own, with nothing but Python's own.

What it does with a packet is what tock2005 counts (figure 3): it takes it from the socket and looks which
session it is of, and of the session it listens to it looks at every message, which flow that is of. What it
spends on that is the time of its processor, which it reports.
"""

from __future__ import annotations

import gc
import json
import socket
import struct
import sys
import time
from typing import Any

#: What a packet begins with: its session, its number among all of the group, and how many messages it has.
HEAD = struct.Struct("!HIH")
#: What a message begins with: its flow.
FLOW = struct.Struct("!I")
#: The session whose packet ends a run; its number is how many were sent before it.
END = 0xFFFF
#: The most that a packet of UDP holds.
MOST = 65_507
#: Bytes of packets that may wait; the system may allow less.
_WAITING = 1 << 22
#: Seconds without a packet after which the sender must be gone.
_GONE = 10


def opened(group: str, interface: str) -> socket.socket:
    """Return a socket that is a member of a group, at a port that is free."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _WAITING)
        # By the system, and not by Python, which would ask before every packet whether one is there.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _GONE, 0))
        sock.bind((group, 0))
        member = socket.inet_aton(group) + socket.inet_aton(interface)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
    except OSError:
        sock.close()
        raise
    return sock


def emptied(sock: socket.socket) -> None:
    """Throw away what waits from the run before."""
    sock.setblocking(False)
    try:
        while True:
            sock.recv(MOST)
    except BlockingIOError:
        sock.setblocking(True)


def filtered(sock: socket.socket, accepted: int, size: int, wanted: frozenset[int]) -> dict[str, int]:
    """Filter packets until one says that it is the last, and return what came and what it took.

    Parameters
    ----------
    sock
        Where packets come from.
    accepted
        The session that is listened to; all others are dropped as soon as they are known.
    size
        Bytes of a message.
    wanted
        The flows that are wanted.
    """
    buffer = bytearray(MOST)
    receive, head, flow, first = sock.recv_into, HEAD.unpack_from, FLOW.unpack_from, HEAD.size
    heard = passed = heard_messages = passed_messages = taken = lost = expected = 0
    begin, spent = time.perf_counter_ns(), time.process_time_ns()
    while True:
        receive(buffer)
        session, number, count = head(buffer)
        if number != expected:
            lost += number - expected
            expected = number
        expected += 1
        if session == accepted:
            for at in range(first, first + count * size, size):
                if flow(buffer, at)[0] in wanted:
                    taken += 1
            heard += 1
            heard_messages += count
        elif session == END:
            break
        else:
            passed += 1
            passed_messages += count
    return {
        "cpu_ns": time.process_time_ns() - spent,
        "wall_ns": time.perf_counter_ns() - begin,
        "packets": heard + passed,
        "heard": heard_messages,
        "passed": passed_messages,
        "taken": taken,
        "lost": lost,
    }


def _tell(what: dict[str, Any]) -> None:
    """Print an answer, a line of JSON."""
    print(json.dumps(what), flush=True)


def main(group: str, interface: str) -> None:
    """Answer the lines of standard input, a run each, until there are no more."""
    try:
        sock = opened(group, interface)
    except OSError as error:
        _tell({"problem": error.strerror or str(error)})
        return
    gc.disable()  # a collection in the middle of a run would count as work on its packets
    with sock:
        _tell({"port": sock.getsockname()[1]})
        for line in sys.stdin:
            asked = json.loads(line)
            emptied(sock)
            _tell({"ready": True})
            try:
                _tell(filtered(sock, asked["accepted"], asked["size"], frozenset(asked["wanted"])))
            except BlockingIOError:
                _tell({"problem": f"no packet came for {_GONE} s"})


if __name__ == "__main__":
    main(*sys.argv[1:])
