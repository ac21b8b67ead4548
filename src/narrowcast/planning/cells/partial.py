"""The planner `partial`: groups that may leave out interested subscribers, which are served directly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
from scipy.sparse import diags_array

from narrowcast.costs.network import Network
from narrowcast.kernels import partial
from narrowcast.kernels.trees import tree_costs
from narrowcast.model.interest import Interest
from narrowcast.model.matches import Matches
from narrowcast.model.plan import ChannelPlan
from narrowcast.model.relation import relation_of, rows_of
from narrowcast.model.topology import ShortestPathTrees
from narrowcast.planning.base import BasePlanner, Capabilities
from narrowcast.planning.cells.clusterings import MacQueen, Pairwise
from narrowcast.validation import check_channels, check_seed, check_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike, NDArray

    from narrowcast.model.topology import Locations, Topology

    Doubles = NDArray[np.float64]
    Flags = NDArray[np.bool_]
    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]

#: The most publishers' trees that samples are measured on: memory grows with trees x nodes.
_ROOTS = 2048
#: Passes of the clustering that initial groups come from.
_PASSES = 3
#: How often an unused group is given new members.
_SEEDINGS = 3
#: Gains smaller than this share of the cost are rounding.
_ROUNDING = 1e-9
#: Sets x sets x nodes up to which `Pairwise` is used: a second.
_PAIRWISE_WORK = 10**11
#: Without a network, the saving of a message over a channel compared with a direct one.
_SHARED = 1e-6


class Partial(BasePlanner):
    """Learns groups of subscribers; a flow is sent to one group, and directly to interested others.

    A flow goes to the members of one group, and directly to interested subscribers outside of it; or directly
    to all. Alternately, flows choose the cheapest group, and groups add or remove the nodes by which their
    flows become cheaper, at the exact change of the multicast trees. Neither step can raise the cost, so it
    ends. An unused group is given to the nodes that gain most by one. It is the product's own answer to
    riabov2003: that a group must have every subscriber interested in any of its flows is what makes groups
    large and wasteful.

    Groups are learned by node. On a node with several subscribers, only those that want a flow of the group
    become members; the messages that others would get are unwanted, though they cost the network nothing.

    With a topology it minimizes the network cost; without, the number of messages: one for each member
    reached, and one for each subscriber sent to directly.

    Parameters
    ----------
    channels
        The most groups; required.
    seed
        Seed of the samples of flows and publishers.
    topology, locations, publishers
        The network, the nodes of subscribers, and the publishing nodes: see `Network`.
    samples
        Number of pairs of a flow and a publisher to learn from (default: 12,000).
    rounds
        The most alternations of the two steps (default: 40).

    Examples
    --------
    >>> from narrowcast.model.topology import Topology
    >>> star = Topology([0, 0, 0, 0], [1, 2, 3, 4], [9.0, 1.0, 1.0, 1.0])
    >>> interest = Interest([[1, 1, 0], [1, 1, 0], [1, 0, 1]], subscribers=[2, 3, 4], rate=[5, 4, 3])
    >>> plan = Partial(channels=1, topology=star, publishers=[1]).fit(interest).plan_
    >>> plan.listens.toarray().ravel().tolist(), plan.unicast.toarray().astype(int).tolist()
    ([True, True, True], [[0, 0, 0], [0, 0, 0], [0, 0, 1]])
    """

    capabilities = Capabilities(network=True, partial_groups=True)
    plan_: ChannelPlan
    #: Alternations in the last `fit`.
    rounds_: int

    def __init__(
        self,
        *,
        channels: int | None = None,
        seed: int = 0,
        topology: Topology | None = None,
        locations: Locations | ArrayLike | None = None,
        publishers: ArrayLike | None = None,
        samples: int = 12_000,
        rounds: int = 40,
    ) -> None:
        self.channels = channels
        self.seed = seed
        self.topology = topology
        self.locations = locations
        self.publishers = publishers
        self.samples = samples
        self.rounds = rounds

    def fit(self, interest: Interest) -> Self:
        """Learn groups for an interest, choose one for each flow, and set `plan_`; return self."""
        check_channels(self.channels, required="partial")
        check_seed(self.seed)
        check_whole("samples", self.samples)
        check_whole("rounds", self.rounds)
        assert self.channels is not None
        rng = np.random.default_rng(self.seed)
        node, trees, share = self._network(interest, rng)
        sets = Matches.from_pairs(interest.wants.indices, node[rows_of(interest.wants)], interest.n_flows)
        worth = np.flatnonzero((interest.rate > 0) & (sets.counts() > 0))
        members = np.zeros((0, trees.parent.shape[1]), np.bool_)
        self.rounds_ = 0
        if len(worth):
            flow, tree, weight = self._sample(interest.rate[worth], share, rng)
            members = self._learn(sets.take(worth[flow]), tree, weight, trees)
        groups = [members[:, node]]
        if len(worth) ** 2 * trees.parent.shape[1] <= _PAIRWISE_WORK:
            # Samples choose a group by publisher, a plan must choose one for all: samples may mislead.
            alike = Pairwise(channels=self.channels).fit(interest).plan_
            groups.append(alike.listens.toarray().T)
        settled = [_assign(interest, node, trees, share, listens) for listens in groups]
        self.plan_ = _plan(
            interest, *min(settled, key=lambda each: _cost(interest, node, trees, share, *each))
        )
        return self

    def _network(
        self, interest: Interest, rng: np.random.Generator
    ) -> tuple[Numbers, ShortestPathTrees, Doubles]:
        """Return subscribers' nodes, the trees of publishers, and each publisher's share of events."""
        if self.topology is None:
            n = interest.n_subscribers
            parent = np.append(np.full(n, n), -1).astype(np.int32)[None]
            far = np.append(np.ones(n), 0.0)[None]
            trees = ShortestPathTrees(np.array([n], np.int32), parent, far, far * (1 - _SHARED))
            return np.arange(n, dtype=np.int32), trees, np.ones(1)
        network = Network(self.topology, locations=self.locations, publishers=self.publishers)
        roots, share = network.publishers, network.shares
        if len(roots) > _ROOTS:
            some = np.sort(rng.choice(len(roots), _ROOTS, replace=False, p=share))
            roots, share = roots[some], share[some] / share[some].sum()
        node = network.nodes_of(interest.subscribers)
        self.topology.check_reached(np.full(len(node), roots[0]), node)
        self.topology.check_reached(roots, np.full(len(roots), roots[0]))
        return node, self.topology.trees(roots), share

    def _sample(self, rate: Doubles, share: Doubles, rng: np.random.Generator) -> tuple[Ints, Ints, Doubles]:
        """Draw pairs of a flow and a publisher to learn from; return flows, publishers and weights."""
        n_roots = len(share)
        if len(rate) > self.samples:
            flow = rng.choice(len(rate), self.samples, p=rate / rate.sum())
            return flow, rng.choice(n_roots, len(flow), p=share), np.ones(len(flow))
        each = max(1, self.samples // len(rate))
        each = min(n_roots, each) if (share == share[0]).all() else each
        flow = np.repeat(np.arange(len(rate)), each)
        # Systematic sampling: publishers at even steps along their cumulated shares, from a random start.
        along = (rng.random(len(rate))[:, None] + np.arange(each) / each) % 1
        tree = np.minimum(np.searchsorted(np.cumsum(share), along, side="right"), n_roots - 1)
        return flow, tree.ravel(), np.repeat(rate / each, each)

    def _learn(
        self, sets: Matches, tree: Ints, weight: NDArray[np.float64], trees: ShortestPathTrees
    ) -> Flags:
        """Learn groups of nodes from several starts; return the members where the samples cost least."""
        assert self.channels is not None
        found = [
            self._improve(members, sets, tree, weight, trees)
            for members in _starts(sets, weight, self.channels, trees.parent.shape[1])
        ]
        return min(found, key=lambda each: each[0])[1]

    def _improve(
        self, members: Flags, sets: Matches, tree: Ints, weight: Doubles, trees: ShortestPathTrees
    ) -> tuple[float, Flags]:
        """Improve groups in turns from one start; return the cost of the samples, and the members."""
        nodes = np.unique(sets.index).astype(np.int32)
        group, paid = np.empty(sets.n_events, np.int64), np.empty(sets.n_events)
        seedings = np.zeros(len(members), np.int64)
        first, kind = sets.distinct()
        exact = tree_costs(trees.parent, trees.link, tree, np.arange(len(tree)), sets.indptr, sets.index)
        while True:
            self.rounds_ += partial.learn(
                trees.parent, trees.link, trees.distance, tree, weight, sets.indptr, sets.index,
                members, nodes, self.rounds, group, paid,
            )  # fmt: skip
            unused = np.bincount(group[group >= 0], minlength=len(members)) == 0
            # Unused groups are given to those that gain most by a group of their own.
            gain = np.bincount(kind, weight * np.maximum(paid - exact, 0.0))
            gain[gain <= _ROUNDING * np.bincount(kind, weight * paid)] = 0.0
            best = np.argsort(-gain, kind="stable")[: np.count_nonzero(unused & (seedings < _SEEDINGS))]
            best = best[gain[best] > 0]
            if not len(best):
                return float(weight @ paid), members[~unused]
            free = np.flatnonzero(unused)[: len(best)]
            chosen = sets.take(first[best])
            members[free] = False
            members[free[chosen.rows()], chosen.index] = True
            seedings[free] += 1


def _starts(sets: Matches, weight: Doubles, channels: int, n_nodes: int) -> Iterator[Flags]:
    """Yield initial groups of nodes: the nodes of each flow if few, else those that want most of a cluster.

    Where that is quick, also all nodes of the clusters of `Pairwise`: as groups only change to what costs
    less, the result never costs more than these.
    """
    first, kind = sets.distinct()
    kinds = sets.take(first)
    members = np.zeros((min(channels, kinds.n_events), n_nodes), np.bool_)
    if kinds.n_events <= channels:
        members[kinds.rows(), kinds.index] = True
        yield members
        return
    load = np.bincount(kind, weight).astype(np.float64)
    wants = relation_of(kinds.index, kinds.rows(), (n_nodes, kinds.n_events))
    interest = Interest(wants, load)
    clusters: list[tuple[Any, float]] = [(MacQueen(channels=channels, passes=_PASSES), 0.5)]
    if kinds.n_events**2 * n_nodes <= _PAIRWISE_WORK:
        clusters.append((Pairwise(channels=channels), 0.0))
    for planner, least in clusters:
        groups: Any = planner.fit(interest).plan_.carries.T
        shares = (groups @ diags_array(load) @ wants.T).tocoo()
        enough = shares.data >= least * (groups @ load)[shares.row]
        members[:] = False
        members[shares.row[enough], shares.col[enough]] = True
        yield members.copy()


def _assign(
    interest: Interest, node: Numbers, trees: ShortestPathTrees, share: Doubles, listens: Flags
) -> tuple[Ints, Flags]:
    """Return the group of each flow (-1 for none), and the members of groups that want a flow of it."""
    far = share @ trees.distance
    for _ in range(2):  # a group that lost members costs less, and flows may move to it
        channel = _choose_groups(interest, node, trees, share, listens)
        listens = listens & _interested(interest, channel, len(listens), far[node] > 0)
    used = listens.any(axis=1)
    number = np.append(np.where(used, np.cumsum(used) - 1, -1), -1)
    return number[channel], listens[used]


def _cost(
    interest: Interest, node: Numbers, trees: ShortestPathTrees, share: Doubles, channel: Ints, listens: Flags
) -> float:
    """Return the cost of all flows, averaged over the publishers: group messages and direct ones."""
    members = np.zeros((len(listens), trees.parent.shape[1]), np.bool_)
    number, who = np.nonzero(listens)
    members[number, node[who]] = True
    group = share @ partial.group_costs(trees.parent, trees.link, members)
    carried = np.flatnonzero(channel >= 0)
    flow, who = interest.wants.indices, rows_of(interest.wants)
    reached = np.zeros(len(flow), np.bool_)
    if len(listens):
        reached = (channel[flow] >= 0) & listens[channel[flow], who]
    pairs = np.unique(np.stack([flow[~reached], node[who[~reached]]]), axis=1)  # one message per node
    direct = interest.rate[pairs[0]] @ (share @ trees.distance)[pairs[1]]
    return float(interest.rate[carried] @ group[channel[carried]] + direct)


def _choose_groups(
    interest: Interest, node: Numbers, trees: ShortestPathTrees, share: Doubles, listens: Flags
) -> Ints:
    """Return for each flow the group of least cost, averaged over the publishers; -1 if direct is cheaper."""
    n_flows, n_nodes = interest.n_flows, trees.parent.shape[1]
    group, paid = np.empty(n_flows, np.int64), np.empty(n_flows)
    members = np.zeros((len(listens), n_nodes), np.bool_)
    number, who = np.nonzero(listens)
    members[number, node[who]] = True
    mean = (share @ partial.group_costs(trees.parent, trees.link, members))[None]
    flow, who = interest.wants.indices, rows_of(interest.wants)
    order = np.lexsort((node[who], flow))  # subscribers on one node are adjacent
    start = np.append(0, np.cumsum(np.bincount(flow, minlength=n_flows)))
    partial.choose(
        (share @ trees.distance)[None], np.zeros(n_flows, np.int64), start, who[order].astype(np.int32), node,
        mean, listens, 0, group, paid,
    )  # fmt: skip
    return group


def _interested(interest: Interest, channel: Ints, n_groups: int, far: Flags) -> Flags:
    """Return for each group the subscribers that want at least one flow with a rate of it.

    At a distance of 0, as on the only publisher's node, direct messages cost nothing and waste nothing: there
    only subscribers that want all flows of a group are members.
    """
    carried = np.flatnonzero((channel >= 0) & (interest.rate > 0))
    carries = relation_of(carried, channel[carried], (interest.n_flows, n_groups)).astype(np.int64)
    found: Any = (carries.T @ interest.wants.T.astype(np.int64)).tocoo()
    flows = np.bincount(channel[carried], minlength=n_groups)
    kept = far[found.col] | (found.data == flows[found.row])
    wanting = np.zeros((n_groups, interest.n_subscribers), np.bool_)
    wanting[found.row[kept], found.col[kept]] = True
    return wanting


def _plan(interest: Interest, channel: Ints, listens: Flags) -> ChannelPlan:
    """Return the plan that sends each flow to its group, and directly to subscribers outside of it."""
    carried = np.flatnonzero(channel >= 0)
    row, flow = rows_of(interest.wants), interest.wants.indices
    reached = (channel[flow] >= 0) & listens[channel[flow], row] if len(listens) else np.zeros(len(row), bool)
    group, who = np.nonzero(listens)
    return ChannelPlan(
        relation_of(carried, channel[carried], (interest.n_flows, len(listens))),
        relation_of(who, group, (interest.n_subscribers, len(listens))),
        unicast=relation_of(row[~reached], flow[~reached], interest.wants.shape),
        subscribers=interest.subscribers,
        flows=interest.flows,
    )
