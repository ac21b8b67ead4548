"""The ring that plans run on, and its churn."""

from __future__ import annotations

from dataclasses import dataclass

from narrowcast.errors import ParameterError
from narrowcast.lab.overlay.ring import Ring
from narrowcast.validation import check_seed, check_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayRing:
    """A ring whose nodes are the subscribers, and the number of its nodes that fail in each window.

    Subscriber i is node i, in the order of the initial interest; later subscribers get the next numbers, by
    their labels if several come in one window. They get nodes without a subscriber; if there are none left,
    the ring grows by one node for each.

    In each window some nodes, drawn from all, fail without notice, and each is replaced by a new node with
    another id and the same number, which subscribes to the same channels. So the ring keeps its size, and
    every subscriber of a plan has a node.

    Parameters
    ----------
    nodes
        Initial number of nodes, with or without a subscriber (default: the number of subscribers).
    churn
        Number of nodes that fail and are replaced in each window.
    seed
        Seed of the ring, the keys of channels and the nodes that fail.
    digit_bits, leaves
        Of the `Ring`.

    Examples
    --------
    >>> OverlayRing(nodes=500, churn=5).ring(200)
    Ring(500 nodes, digits of 4 bits, 16 leaves)
    """

    nodes: int | None = None
    churn: int = 0
    seed: int = 0
    digit_bits: int = 4
    leaves: int = 16

    def __post_init__(self) -> None:
        if self.nodes is not None:
            check_whole("nodes", self.nodes)
        check_whole("churn", self.churn, least=0)
        check_seed(self.seed)
        Ring(1, digit_bits=self.digit_bits, leaves=self.leaves)  # refuses invalid values

    def ring(self, subscribers: int) -> Ring:
        """Return the initial ring for a number of subscribers, and refuse one that is too small."""
        if self.nodes is not None and self.nodes < subscribers:
            raise ParameterError(
                parameter="nodes",
                value=self.nodes,
                limit=f"at least {subscribers}, one for each subscriber",
            )
        n = max(subscribers, 1) if self.nodes is None else self.nodes
        if self.churn >= n:
            raise ParameterError(
                parameter="churn",
                value=self.churn,
                limit=f"below the number of nodes, {n}",
                fix="lower it, or give more nodes",
            )
        return Ring(n, seed=self.seed, digit_bits=self.digit_bits, leaves=self.leaves)
