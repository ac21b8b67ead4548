"""On which ring plans run, and what becomes of its nodes."""

from __future__ import annotations

from dataclasses import dataclass

from narrowcast.errors import ParameterError
from narrowcast.lab.overlay.ring import Ring
from narrowcast.validation import check_seed, check_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayRing:
    """A ring that subscribers are nodes of, and how often one of its nodes fails.

    Subscriber i is node i, in the order of the first interest; those who come later have the next numbers,
    by their labels where several come in one window. They take nodes that nobody has yet; where there are
    none the ring grows by as many.

    In each window some nodes, drawn from all, fail without a word, and as many come, with ids of their own,
    who take over their numbers: the one that comes in place of a subscriber subscribes to what that one had.
    So the ring keeps its size, and whoever a plan serves is there.

    Parameters
    ----------
    nodes
        How many nodes there are at first, subscribers or not; as many as subscribers where left out.
    churn
        How many of them fail in each window, and are replaced.
    seed
        What the ring, the keys of channels and the nodes that fail are drawn from.
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
        Ring(1, digit_bits=self.digit_bits, leaves=self.leaves)  # refuses what is none

    def ring(self, subscribers: int) -> Ring:
        """Return the ring at first, of so many subscribers, and refuse one that is too small."""
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
