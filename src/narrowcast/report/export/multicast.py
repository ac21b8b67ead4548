"""A plan as IP multicast: an address for each group, and who joins which."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from narrowcast.errors import ParameterError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from narrowcast.model.relation import Positions
    from narrowcast.report.export.plan_tables import Files, PlanFolder

Network: TypeAlias = "IPv4Network | IPv6Network"
Address: TypeAlias = "IPv4Address | IPv6Address"

#: The organisation's own scope (RFC 2365).
BASE = "239.192.0.0/14"
PORT = 5000
LAST_PORT = 65_535

#: How many bits of an address of IPv4 its MAC address keeps.
_MAC_BITS = 23
#: Blocks of IPv4 with owners: control (RFC 5771), one source only (RFC 4607), the ends of scopes (RFC 2365).
_TAKEN = tuple(
    map(
        IPv4Network,
        ("224.0.0.0/23", "232.0.0.0/8", "239.195.255.0/24", "239.255.255.0/24"),
    )
)
#: The group ids of IPv6 that hosts may choose (RFC 3307), without those of neighbour discovery (RFC 4291).
_DYNAMIC = (0x8000_0000, 0xFF00_0000)
#: Bases to point at, the narrowest first.
_LARGER = {4: (BASE, "239.0.0.0/9"), 6: ("ff18::/16",)}


def group_addresses(base: str, n: int, avoid: Iterable[str] = ()) -> list[Address]:
    """Return `n` multicast addresses of a network, the first ones of which no two share a MAC address.

    An Ethernet frame to a group of IPv4 has the low 23 bits of its address in its own, of IPv6 the low 32:
    hosts and switches cannot tell groups with the same ones apart. Addresses that share them with
    224.0.0.x, which every switch floods, are left out, and so are blocks with owners of their own.

    Parameters
    ----------
    base
        A network of multicast addresses, such as ``239.192.0.0/14`` or ``ff18::/16``.
    n
        How many.
    avoid
        Addresses of groups that others on the network use: none of these shares a MAC address with them.

    Raises
    ------
    ParameterError
        When the base is no multicast network, or has fewer usable addresses, or one to avoid is no address.

    Examples
    --------
    >>> [str(address) for address in group_addresses("239.192.0.0/14", 2)]
    ['239.192.0.0', '239.192.0.1']
    >>> [str(address) for address in group_addresses("239.0.0.0/16", 2)]
    ['239.0.1.0', '239.0.1.1']
    >>> [str(address) for address in group_addresses("239.192.0.0/14", 2, avoid=["224.64.0.0"])]
    ['239.192.0.1', '239.192.0.2']
    >>> [str(address) for address in group_addresses("ff18::/16", 2)]
    ['ff18::8000:0', 'ff18::8000:1']
    """
    network = _network(base)
    offsets = _offsets(network)
    others = [_address(text) for text in avoid]
    taken = {mac_address(address) for address in others}
    # Of so many at the beginning at least n are not taken, where there are as many.
    first = np.asarray(offsets[: n + len(taken)], np.int64)
    mask = (1 << _MAC_BITS) - 1 if network.version == 4 else 0xFFFFFFFF
    theirs = [int(address) & mask for address in others if address.version == network.version]
    mine = ((int(network.network_address) & mask) + first) & mask
    found = first[~np.isin(mine, np.array(theirs, np.int64))][:n]
    if n > len(found):
        larger = next((each for each in _wider(network) if len(_offsets(each)) >= n + len(taken)), None)
        fix = "plan fewer channels" if larger is None else f"use a larger base, such as {larger}"
        raise ParameterError(
            f"base {base} has {len(found):,} of the {n:,} addresses that the plan's groups need, "
            f"each with a MAC address of its own; {fix}"
        )
    return [network[offset] for offset in found.tolist()]


def mac_address(address: Address) -> str:
    """Return the Ethernet address that frames to a multicast group have (RFC 1112, RFC 2464).

    >>> mac_address(IPv4Address("239.192.1.2")), mac_address(IPv4Address("224.64.1.2"))
    ('01:00:5e:40:01:02', '01:00:5e:40:01:02')
    >>> mac_address(IPv6Address("ff18::8000:1"))
    '33:33:80:00:00:01'
    """
    if address.version == 4:
        number = 0x01005E000000 | (int(address) & ((1 << _MAC_BITS) - 1))
    else:
        number = 0x333300000000 | (int(address) & 0xFFFFFFFF)
    return number.to_bytes(6).hex(":")


def _address(text: str) -> Address:
    """Return the multicast address that a text names."""
    try:
        address = ip_address(text)
    except ValueError as error:
        raise ParameterError(
            f"avoid has {text!r}, which is no address; give one such as 239.1.2.3"
        ) from error
    if not address.is_multicast:
        raise ParameterError(f"avoid has {text}, which is no address of a multicast group; leave it out")
    return address


def _network(base: str) -> Network:
    """Return the network that a text names."""
    try:
        network = ip_network(base)
    except ValueError as error:
        raise ParameterError(f"base {base!r} is no network: {error}; give one such as {BASE}") from error
    if not network.is_multicast:
        raise ParameterError(f"base {base} is no multicast network; use one within 224.0.0.0/4 or ff00::/8")
    return network


def _offsets(network: Network) -> Positions | range:
    """Return where in a network the usable addresses are, each with a MAC address of its own."""
    first = int(network.network_address)
    if isinstance(network, IPv6Network):
        low, size = first & 0xFFFFFFFF, min(network.num_addresses, 1 << 32)
        return range(max(_DYNAMIC[0] - low, 0), max(min(_DYNAMIC[1] - low, size), 0))
    # As many as there are MAC addresses follow each other without sharing one.
    offset = np.arange(min(network.num_addresses, 1 << _MAC_BITS))
    address = first + offset
    usable = (address & ((1 << _MAC_BITS) - 1)) > 0xFF
    for block in _TAKEN:
        if block.overlaps(network):
            usable &= (address < int(block[0])) | (address > int(block[-1]))
    found: Positions = offset[usable]
    return found


def _wider(network: Network) -> Iterator[Network]:
    """Yield larger networks: those around this one, then the usual ones."""
    around = network
    while around.prefixlen > 1 and (around := around.supernet()).is_multicast:
        if around.version == 6 or around.num_addresses <= 1 << _MAC_BITS:
            yield around
    yield from map(ip_network, _LARGER[network.version])


def multicast_files(
    source: PlanFolder,
    *,
    base: str = BASE,
    avoid: Iterable[str] = (),
    port: int = PORT,
    port_per_session: bool = False,
) -> Files:
    """Return a plan as tables for a multicast network.

    A group, which is a channel without a parent, gets an address; a session, whose id is its channel's
    number, is sent in its group, at the port of all or at one of its own. Channels that nothing uses are left
    out, but keep their address and port: so those of the others stay as they are when a plan goes on.

    Parameters
    ----------
    source
        The plan.
    base
        The network that groups get their addresses from, in the order of channels.
    avoid
        Addresses of other groups, with which none of these is to share a MAC address.
    port
        The port of all sessions, or of the first one.
    port_per_session
        Whether each session has a port of its own. No two of the whole plan share one: where a socket of
        Linux is bound to a port only, it hears every group that its host has joined.

    Returns
    -------
    Files
        `sessions`, `groups`, `flows` (where each is sent), `subscribers` (what each joins and accepts) and
        `unicast` (what is sent directly).

    Raises
    ------
    ParameterError
        When base or port cannot be used.
    """
    plan, sessions, groups = source.plan, source.sessions, source.groups
    _check_ports(port, len(source.places) if port_per_session else 1)
    numbers = np.flatnonzero(plan.parent < 0)
    addresses = group_addresses(base, len(numbers), avoid)
    place = np.zeros(plan.n_channels, np.int64)
    place[numbers] = np.arange(len(numbers))
    named = pa.array(map(str, addresses), pa.string())
    ports = np.full(plan.n_channels, port, np.int32)
    if port_per_session:
        ports[source.places] = port + np.arange(len(source.places))
    group_of = plan.groups()

    def sent(session: Positions) -> dict[str, pa.Array]:
        """Return where sessions are sent."""
        group = group_of[session]
        return {
            "address": named.take(place[group]),
            "port": pa.array(ports[session]),
            "session": pa.array(session, pa.int32()),
        }

    flow, carrier = source.carried()
    subscriber, heard = source.listened()
    person, own = source.direct()
    sizes = np.bincount(group_of[sessions], minlength=plan.n_channels)[groups]
    totals = source.channels.select(["rate", "members"])
    group_ports = pa.nulls(len(groups), pa.int32()) if port_per_session else pa.array(ports[groups])
    return {
        "sessions.csv": pa.table(
            {
                **sent(sessions),
                "group": pa.array(group_of[sessions], pa.int32()),
                **_columns(totals, sessions),
            }
        ),
        "groups.csv": pa.table(
            {
                "group": pa.array(groups, pa.int32()),
                "address": named.take(place[groups]),
                "mac": pa.array([mac_address(addresses[i]) for i in place[groups].tolist()], pa.string()),
                "port": group_ports,
                "sessions": pa.array(sizes, pa.int32()),
                **_columns(totals, groups),
            }
        ),
        "flows.csv": pa.table({**source.flow_columns(flow), **sent(carrier)}),
        "subscribers.csv": pa.table({"subscriber": plan.subscribers.take(subscriber), **sent(heard)}),
        "unicast.csv": pa.table({"subscriber": plan.subscribers.take(person), **source.flow_columns(own)}),
    }


def _columns(table: pa.Table, rows: Positions) -> dict[str, pa.ChunkedArray]:
    """Return the columns of some rows of a table."""
    found = table.take(pa.array(rows))
    return {name: found[name] for name in found.column_names}


def _check_ports(port: int, n: int) -> None:
    """Refuse ports that are none."""
    if not 1 <= port <= LAST_PORT:
        raise ParameterError(f"port is {port}; use one of 1 to {LAST_PORT}")
    if port + n - 1 > LAST_PORT:
        first = LAST_PORT - n + 1
        fix = f"start at {first} or below" if first >= 1 else "let sessions share a port"
        raise ParameterError(
            f"{n:,} sessions from port {port} on end at {port + n - 1}, past {LAST_PORT}; {fix}"
        )
