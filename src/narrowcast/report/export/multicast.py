"""Export of a plan as IP multicast: addresses of groups, and the groups that each subscriber joins."""

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

#: Default base: the organisation-local scope (RFC 2365).
BASE = "239.192.0.0/14"
PORT = 5000
LAST_PORT = 65_535

#: Number of low bits of an IPv4 address that its MAC address has.
_MAC_BITS = 23
#: Reserved IPv4 blocks: control (RFC 5771), single source (RFC 4607), the ends of scopes (RFC 2365).
_RESERVED = tuple(
    map(
        IPv4Network,
        ("224.0.0.0/23", "232.0.0.0/8", "239.195.255.0/24", "239.255.255.0/24"),
    )
)
#: Range of IPv6 group ids that hosts may choose (RFC 3307), without neighbour discovery (RFC 4291).
_DYNAMIC = (0x8000_0000, 0xFF00_0000)
#: Bases that an error message suggests, the narrowest first.
_LARGER = {4: (BASE, "239.0.0.0/9"), 6: ("ff18::/16",)}


def group_addresses(base: str, n: int, avoid: Iterable[str] = ()) -> list[Address]:
    """Return the first `n` usable multicast addresses of a network, no two with the same MAC address.

    The MAC address of an IPv4 group has the low 23 bits of the IP address, that of an IPv6 group the low 32
    bits: hosts and switches cannot distinguish groups in which these are equal. Addresses that share them
    with 224.0.0.x, which every switch floods, are excluded, and so are reserved blocks.

    Parameters
    ----------
    base
        A network of multicast addresses, such as ``239.192.0.0/14`` or ``ff18::/16``.
    n
        Number of addresses.
    avoid
        Addresses of groups in use on the network; no returned address has the MAC address of one of them.

    Raises
    ------
    ParameterError
        When the base is not a multicast network or has too few usable addresses, or an address in `avoid` is
        not a multicast address.

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
    avoided = [_address(text) for text in avoid]
    n_avoided = len({mac_address(address) for address in avoided})
    # At most n_avoided of the candidates are unusable, so that n remain if the network is large enough.
    first = np.asarray(offsets[: n + n_avoided], np.int64)
    mask = (1 << _MAC_BITS) - 1 if network.version == 4 else 0xFFFFFFFF
    avoided_bits = [int(address) & mask for address in avoided if address.version == network.version]
    bits = ((int(network.network_address) & mask) + first) & mask
    found = first[~np.isin(bits, np.array(avoided_bits, np.int64))][:n]
    if n > len(found):
        larger = next((each for each in _wider(network) if len(_offsets(each)) >= n + n_avoided), None)
        raise ParameterError(
            parameter="base",
            value=base,
            limit=f"a network with {n:,} addresses of distinct MAC addresses; it has {len(found):,}",
            fix="plan fewer channels" if larger is None else f"use a larger base, such as {larger}",
        )
    return [network[offset] for offset in found.tolist()]


def mac_address(address: Address) -> str:
    """Return the MAC address of a multicast group (RFC 1112, RFC 2464).

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
    """Parse a multicast address."""
    try:
        address = ip_address(text)
    except ValueError as error:
        limit = "IP addresses of multicast groups, such as 239.1.2.3"
        raise ParameterError(parameter="avoid", value=text, limit=limit) from error
    if not address.is_multicast:
        raise ParameterError(parameter="avoid", value=text, limit="IP addresses of multicast groups")
    return address


def _network(base: str) -> Network:
    """Parse a multicast network."""
    try:
        network = ip_network(base)
    except ValueError as error:
        raise ParameterError(
            f"base={base!r}: must be a multicast network such as {BASE}: {error}",
            parameter="base",
            value=base,
            limit=f"a multicast network such as {BASE}",
        ) from error
    if not network.is_multicast:
        limit = "a multicast network, within 224.0.0.0/4 or ff00::/8"
        raise ParameterError(parameter="base", value=base, limit=limit)
    return network


def _offsets(network: Network) -> Positions | range:
    """Return the offsets of the usable addresses in a network; no two of them have the same MAC address."""
    first = int(network.network_address)
    if isinstance(network, IPv6Network):
        low, size = first & 0xFFFFFFFF, min(network.num_addresses, 1 << 32)
        return range(max(_DYNAMIC[0] - low, 0), max(min(_DYNAMIC[1] - low, size), 0))
    # As many consecutive addresses as there are MAC addresses have distinct ones.
    offset = np.arange(min(network.num_addresses, 1 << _MAC_BITS))
    address = first + offset
    usable = (address & ((1 << _MAC_BITS) - 1)) > 0xFF
    for block in _RESERVED:
        if block.overlaps(network):
            usable &= (address < int(block[0])) | (address > int(block[-1]))
    found: Positions = offset[usable]
    return found


def _wider(network: Network) -> Iterator[Network]:
    """Yield larger networks: those that contain this one, then the usual ones."""
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

    A group is a channel without a parent and gets an address. A session has its channel number as id and is
    sent to the address of its group, at a common port or at a port of its own. Unused channels are omitted,
    but their addresses and ports stay reserved, so that those of other channels do not change when a later
    plan uses them.

    Parameters
    ----------
    source
        The plan.
    base
        The network that groups get their addresses from, in the order of channels; default
        ``239.192.0.0/14``.
    avoid
        Addresses of groups in use on the network; no group of the plan gets the MAC address of one of them.
    port
        The port of all sessions or, with `port_per_session`, of the first one: 1 to 65535, default 5000.
    port_per_session
        Whether each session has a port of its own, unique in the whole plan. This helps receivers on Linux:
        a socket that is bound to a port only receives from every group that its host has joined.

    Returns
    -------
    Files
        The tables `sessions`, `groups`, `flows` (address, port and session of each flow), `subscribers`
        (address, port and session of each membership) and `unicast` (flows that are sent directly).

    Raises
    ------
    ParameterError
        When the base is not a multicast network with enough addresses, or a port is out of range.
    """
    plan, sessions, groups = source.plan, source.sessions, source.groups
    _check_ports(port, len(source.places) if port_per_session else 1)
    numbers = np.flatnonzero(plan.parent < 0)
    addresses = group_addresses(base, len(numbers), avoid)
    place = np.zeros(plan.n_channels, np.int64)
    place[numbers] = np.arange(len(numbers))
    address_texts = pa.array(map(str, addresses), pa.string())
    ports = np.full(plan.n_channels, port, np.int32)
    if port_per_session:
        ports[source.places] = port + np.arange(len(source.places))
    group_of = plan.groups()

    def destination(session: Positions) -> dict[str, pa.Array]:
        """Return the columns of address, port and id of sessions."""
        group = group_of[session]
        return {
            "address": address_texts.take(place[group]),
            "port": pa.array(ports[session]),
            "session": pa.array(session, pa.int32()),
        }

    flow, carrier = source.carried()
    subscriber, listened = source.listened()
    direct_subscriber, direct_flow = source.direct()
    sizes = np.bincount(group_of[sessions], minlength=plan.n_channels)[groups]
    totals = source.channels.select(["rate", "members"])
    group_ports = pa.nulls(len(groups), pa.int32()) if port_per_session else pa.array(ports[groups])
    return {
        "sessions.csv": pa.table(
            {
                **destination(sessions),
                "group": pa.array(group_of[sessions], pa.int32()),
                **_columns(totals, sessions),
            }
        ),
        "groups.csv": pa.table(
            {
                "group": pa.array(groups, pa.int32()),
                "address": address_texts.take(place[groups]),
                "mac": pa.array([mac_address(addresses[i]) for i in place[groups].tolist()], pa.string()),
                "port": group_ports,
                "sessions": pa.array(sizes, pa.int32()),
                **_columns(totals, groups),
            }
        ),
        "flows.csv": pa.table({**source.flow_columns(flow), **destination(carrier)}),
        "subscribers.csv": pa.table(
            {"subscriber": plan.subscribers.take(subscriber), **destination(listened)}
        ),
        "unicast.csv": pa.table(
            {
                "subscriber": plan.subscribers.take(direct_subscriber),
                **source.flow_columns(direct_flow),
            }
        ),
    }


def _columns(table: pa.Table, rows: Positions) -> dict[str, pa.ChunkedArray]:
    """Return the columns of the given rows of a table by name."""
    found = table.take(pa.array(rows))
    return {name: found[name] for name in found.column_names}


def _check_ports(port: int, n: int) -> None:
    """Raise a `ParameterError` unless `n` consecutive ports from `port` on are valid."""
    if not 1 <= port <= LAST_PORT:
        raise ParameterError(parameter="port", value=port, limit=f"from 1 to {LAST_PORT}")
    first = LAST_PORT - n + 1
    if first < 1:
        raise ParameterError(
            parameter="port_per_session",
            value=True,
            limit=f"False for {n:,} sessions, more than there are ports",
        )
    if port > first:
        raise ParameterError(
            parameter="port",
            value=port,
            limit=f"at most {first} for ports of {n:,} sessions up to {LAST_PORT}",
        )
