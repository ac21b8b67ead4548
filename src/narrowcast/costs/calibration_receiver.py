"""The receiver of a calibration: a script that runs in its own process and imports the standard library only.

For each packet it does the work that tock2005 counts (figure 3): it reads the packet from the socket and
checks its session; in packets of its own session it checks the flow of every message. It reports the
processor time that this takes.
"""

from __future__ import annotations

import gc
import json
import socket
import struct
import sys
import time
from typing import Any

#: Header of a packet: session, sequence number across both sessions, number of messages.
HEAD = struct.Struct("!HIH")
#: Header of a message: its flow.
FLOW = struct.Struct("!I")
#: Session number of the packet that ends a run; its sequence number is the number of packets sent before it.
END = 0xFFFF
#: Bytes of the largest UDP payload.
MAX_DATAGRAM = 65_507
#: Bytes of the socket's receive buffer; the system may allow less.
_RECEIVE_BUFFER = 1 << 22
#: Seconds without a packet after which the sender is taken for gone.
_TIMEOUT_S = 10


def join_group(group: str, interface: str) -> socket.socket:
    """Return a socket that has joined a multicast group, bound to a free port."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
        # A timeout of the kernel's: one of Python's costs an additional system call per packet.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _TIMEOUT_S, 0))
        sock.bind((group, 0))
        member = socket.inet_aton(group) + socket.inet_aton(interface)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
    except OSError:
        sock.close()
        raise
    return sock


def drain(sock: socket.socket) -> None:
    """Discard packets left over from the previous run."""
    sock.setblocking(False)
    try:
        while True:
            sock.recv(MAX_DATAGRAM)
    except BlockingIOError:
        sock.setblocking(True)


def filter_packets(sock: socket.socket, session_id: int, size: int, wanted: frozenset[int]) -> dict[str, int]:
    """Filter packets until the end packet, and return counts and the time spent.

    Parameters
    ----------
    sock
        The socket that packets arrive on.
    session_id
        The session to listen to; packets of others are dropped after their header is read.
    size
        Bytes per message.
    wanted
        The flows that are wanted.
    """
    buffer = bytearray(MAX_DATAGRAM)
    receive, head, flow, first = sock.recv_into, HEAD.unpack_from, FLOW.unpack_from, HEAD.size
    accepted_packets = dropped_packets = accepted = dropped = n_wanted = lost = expected = 0
    begin, spent = time.perf_counter_ns(), time.process_time_ns()
    while True:
        receive(buffer)
        session, number, count = head(buffer)
        if number != expected:
            lost += number - expected
            expected = number
        expected += 1
        if session == session_id:
            for at in range(first, first + count * size, size):
                if flow(buffer, at)[0] in wanted:
                    n_wanted += 1
            accepted_packets += 1
            accepted += count
        elif session == END:
            break
        else:
            dropped_packets += 1
            dropped += count
    return {
        "cpu_ns": time.process_time_ns() - spent,
        "wall_ns": time.perf_counter_ns() - begin,
        "packets": accepted_packets + dropped_packets,
        "accepted": accepted,
        "dropped": dropped,
        "wanted": n_wanted,
        "lost": lost,
    }


def _print_json(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def main(group: str, interface: str) -> None:
    """Do one run for each line of standard input, and print its result as a line of JSON."""
    try:
        sock = join_group(group, interface)
    except OSError as error:
        _print_json({"problem": error.strerror or str(error)})
        return
    gc.disable()  # a collection during a run would count as work on its packets
    with sock:
        _print_json({"port": sock.getsockname()[1]})
        for line in sys.stdin:
            request = json.loads(line)
            drain(sock)
            _print_json({"ready": True})
            try:
                wanted = frozenset(request["wanted"])
                _print_json(filter_packets(sock, request["session"], request["size"], wanted))
            except BlockingIOError:
                _print_json({"problem": f"no packet received for {_TIMEOUT_S} s"})


if __name__ == "__main__":
    main(*sys.argv[1:])
