"""What messages cost on the links of a network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from narrowcast.costs.shortest_paths import NodeDistances, ShortestPathForest
from narrowcast.errors import ParameterError
from narrowcast.kernels.trees import distance_sums, spanning_costs, tree_costs, tree_means
from narrowcast.model.cost import Cost
from narrowcast.model.labels import positions
from narrowcast.model.matches import Matches
from narrowcast.model.relation import rows_of
from narrowcast.model.topology import Locations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike, NDArray

    from narrowcast.model.interest import Interest
    from narrowcast.model.labels import Labels
    from narrowcast.model.plan import ChannelPlan
    from narrowcast.model.topology import Topology

    Doubles: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]
    Numbers: TypeAlias = NDArray[np.int32]

#: Pairs of a set and a publisher that are looked at in one go.
_PAIRS = 1 << 20
#: Sums that differ by less than this share differ by rounding only.
_ROUNDING = 1e-12


class Network:
    """The cost of links that messages pass, on a network (riabov2003, section 5).

    A message to several nodes goes along the publisher's shortest-path tree, cut back to those nodes, and
    pays each link once (`dense`, as dense-mode multicast does); or from one node to the next along a minimum
    spanning tree of publisher and nodes, each step a shortest path (`alm`, application-level multicast). A
    message sent directly pays the whole path. Broadcast pays the whole tree of the publisher, to every node
    there is. What is published at a member's own node costs nothing to bring there.

    In the paper a subscriber is a node. So subscribers on one node count once, for trees and for what is
    sent directly as well: the node gets the message, and hands it on at no cost.

    Trees are computed once for each publisher and kept, up to 256 MB; beyond that, they are computed in
    parts, again each time. The work of `score` grows with publishers x nodes: on a large network give a
    sample of publishers. Where two paths cost the same, the tree is one of several, and costs that hang on
    its shape depend on the numbers of the nodes.

    Parameters
    ----------
    topology
        The network.
    locations
        Where subscribers are: `Locations`, by label; or the number of the node of each of the interest's
        subscribers, in order. Where left out, a subscriber is on the node of the same name.
    publishers
        Numbers of the nodes that events come from, each as often as it is named; all nodes alike where left
        out.
    multicast
        `dense` or `alm`.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> from narrowcast.model.plan import ChannelPlan
    >>> from narrowcast.model.topology import Topology
    >>> line = Topology([0, 1, 2], [1, 2, 3], [1.0, 10.0, 100.0])
    >>> network = Network(line, locations=[2, 3], publishers=[0])
    >>> events, publisher = Matches.from_pairs([0, 0, 1], [2, 3, 1], n_events=2), [0, 3]
    >>> network.unicast(publisher, events).tolist(), network.multicast(publisher, events).tolist()
    ([122.0, 110.0], [111.0, 110.0])
    >>> interest = Interest([[1, 1], [1, 0]], rate=[1.0, 2.0])
    >>> cost = network.score(interest, ChannelPlan(carries=[[1], [1]], listens=[[1], [1]]))
    >>> cost.total, cost.terms["unicast"], cost.terms["ideal"]
    (333.0, 144.0, 133.0)
    """

    #: The improvement is a ratio of sums.
    additive = False

    def __init__(
        self,
        topology: Topology,
        *,
        locations: Locations | ArrayLike | None = None,
        publishers: ArrayLike | None = None,
        multicast: Literal["dense", "alm"] = "dense",
    ) -> None:
        if multicast not in ("dense", "alm"):
            raise ParameterError(f"multicast is {multicast!r}; give one of dense, alm")
        self.topology = topology
        self.mode = multicast
        if locations is None or isinstance(locations, Locations):
            self.locations: Locations | Numbers | None = locations
            if locations is not None:
                topology.check_nodes(locations.node, "location")
        else:
            self.locations = topology.check_nodes(locations, "location")
        every = np.arange(topology.n_nodes) if publishers is None else publishers
        self.publishers, count = np.unique(topology.check_nodes(every, "publisher"), return_counts=True)
        if len(count) == 0:
            raise ParameterError("there are no publishers; give at least one node, or a topology with nodes")
        self._weight = count / count.sum()
        self._forest = ShortestPathForest(topology)
        self._closure = NodeDistances(topology)
        self._means: tuple[Doubles, float] | None = None
        self._against: tuple[Interest, tuple[float, float]] | None = None

    @property
    def shares(self) -> Doubles:
        """How much of all events comes from each of the publishers."""
        found: Doubles = self._weight
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        # Trees are cheaper to compute than to send.
        return _remade, (self.topology, self.locations, self.publishers, self._weight, self.mode)

    def unicast(self, publisher: ArrayLike, sets: Matches) -> Doubles:
        """Return for each event the sum of the distances from its publisher to the nodes of its set."""
        root = self._roots(publisher, sets)
        out = np.zeros(len(root))
        for events, tree in self._in_place(root, sets):
            out[events] = distance_sums(self._forest.distance, tree, events, sets.indptr, sets.index)
        self._check(out, root, sets)
        return out

    def multicast(self, publisher: ArrayLike, sets: Matches) -> Doubles:
        """Return for each event the cost of one message from its publisher to all nodes of its set."""
        root = self._roots(publisher, sets)
        if self.mode == "alm":
            first, kind = sets.distinct()
            out = self._spanning(root, kind, sets.take(first))
        else:
            out = np.zeros(len(root))
            forest = self._forest
            for events, tree in self._in_place(root, sets):
                out[events] = tree_costs(forest.parent, forest.link, tree, events, sets.indptr, sets.index)
        self._check(out, root, sets)
        return out

    def broadcast(self, publisher: ArrayLike) -> Doubles:
        """Return for each event the cost of its publisher's whole tree, to every node."""
        root = self.topology.check_nodes(publisher, "publisher")
        by_node = np.zeros(self.topology.n_nodes)
        for part in self._forest.blocks(root):
            by_node[part] = self._whole_trees(part)
        found = np.asarray(by_node[root], np.float64)
        self._check_whole(found, root)
        return found

    def mean_unicast(self, sets: Matches) -> Doubles:
        """Return for each set the sum of distances, on average over the publishers."""
        nodes = self._members(sets)
        distance, _ = self._far_off()
        sums = np.bincount(sets.rows(), distance[nodes], sets.n_events).astype(np.float64)
        return self._checked_mean(sums, sets)

    def mean_multicast(self, sets: Matches) -> Doubles:
        """Return for each set the cost of one message to all of it, on average over the publishers.

        With the unicast mean this gives the share of a group from which a message to all of it is cheaper
        than one to each of the interested: the break-even of the two.
        """
        self._members(sets)
        first, kind = sets.distinct()
        once = sets.take(first)
        if self.mode == "alm":
            found = self._spanning_means(once)
        else:
            forest, found = self._forest, np.zeros(once.n_events)
            for part, weight in self._weighted():
                rows = forest.slot[part]
                # The rows of a block mostly lie side by side: then nothing is copied.
                at = slice(rows[0], rows[-1] + 1) if (np.diff(rows) == 1).all() else rows
                found += tree_means(forest.parent[at], forest.link[at], weight, once.indptr, once.index)
        return self._checked_mean(found[kind], sets)

    def mean_broadcast(self) -> float:
        """Return the cost of a whole tree, on average over the publishers."""
        found = self._far_off()[1]
        self._check_whole(np.array([found]), self.publishers[:1])
        return found

    @staticmethod
    def improvement(costs: ArrayLike, unicast: ArrayLike, ideal: ArrayLike) -> float:
        """Return how far costs are from all unicast (0) to the ideal (100): a ratio of sums over events.

        Where the ideal saves nothing over unicast it is 0. Below 0 means dearer than unicast.

        Examples
        --------
        >>> Network.improvement([3.0, 4.0], unicast=[5.0, 6.0], ideal=[3.0, 3.0])
        80.0
        >>> Network.improvement(1, unicast=1, ideal=1)
        0.0
        """
        paid, most, least = (float(np.sum(np.asarray(each, np.float64))) for each in (costs, unicast, ideal))
        if abs(most - least) <= _ROUNDING * max(abs(most), abs(least)):
            return 0.0
        # In this order the ideal is 100 exactly.
        return 100 * ((most - paid) / (most - least))

    def score(self, interest: Interest, plan: ChannelPlan) -> Cost:
        """Return the cost per second of a plan, on average over the publishers.

        Each channel that carries a flow brings it to all its listeners, those of a session to all of its
        group; what the plan sends directly pays its distance. The terms: `unicast`, everything sent directly;
        `ideal`, one message to exactly the interested; `broadcast`, every flow to every node, infinite where
        one cannot be reached; each per second, and `improvement_pct`, from 0 for unicast to 100 for the
        ideal. Flows without a rate cost nothing, and who only listens to those need not be reached.
        """
        self.nodes_of(interest.subscribers)  # that everybody is somewhere is seen before anything is computed
        channels, channel_rate = self._channels(interest, plan)
        direct, direct_rate = self._direct(interest, plan)
        total = float(channel_rate @ self.mean_multicast(channels))
        total += float(direct_rate @ self.mean_unicast(direct))
        return self._cost(total, interest)

    def ideal(self, interest: Interest) -> Cost:
        """Return the cost of one message for each event, to exactly those who want it.

        With `dense` no plan costs less. With `alm` a plan can, by a little: a spanning tree over more nodes
        may be shorter.
        """
        return self._cost(self._ends(interest)[1], interest)

    def _cost(self, total: float, interest: Interest) -> Cost:
        """Return a cost with its terms."""
        unicast, ideal = self._ends(interest)
        rate = float(interest.rate.sum())
        return Cost(
            total,
            {
                "unicast": unicast,
                "ideal": ideal,
                "broadcast": rate * self._far_off()[1] if rate else 0.0,
                "improvement_pct": self.improvement(total, unicast, ideal),
            },
        )

    def _ends(self, interest: Interest) -> tuple[float, float]:
        """Return what unicast and the ideal cost; kept, since one plan after another is held against them."""
        if self._against is None or self._against[0] is not interest:
            wanted, rate = self._wanted(interest)
            ends = float(rate @ self.mean_unicast(wanted)), float(rate @ self.mean_multicast(wanted))
            self._against = (interest, ends)
        return self._against[1]

    def _wanted(self, interest: Interest) -> tuple[Matches, Doubles]:
        """Return the nodes that want each flow that has a rate, and the rates."""
        node = self.nodes_of(interest.subscribers)
        number, flows = _numbered(interest.rate > 0)
        flow = number[interest.wants.indices]
        sets = Matches.from_pairs(
            flow[flow >= 0], node[rows_of(interest.wants)[flow >= 0]], n_events=len(flows)
        )
        return sets, interest.rate[flows]

    def _channels(self, interest: Interest, plan: ChannelPlan) -> tuple[Matches, Doubles]:
        """Return the nodes that listen to each group that sends something, and the rates."""
        rates = np.where(plan.parent < 0, plan.rates(interest), 0.0)
        number, groups = _numbered(rates > 0)
        group = number[plan.groups()[plan.listens.indices]]
        row = rows_of(plan.listens)[group >= 0]
        node = self.nodes_of(plan.subscribers, row, known=interest.subscribers)
        return Matches.from_pairs(group[group >= 0], node, n_events=len(groups)), rates[groups]

    def _direct(self, interest: Interest, plan: ChannelPlan) -> tuple[Matches, Doubles]:
        """Return the nodes that each flow with a rate is sent to directly, and the rates."""
        rate = plan.rate_of_flows(interest)
        number, flows = _numbered(rate > 0)
        flow = number[plan.unicast.indices]
        row = rows_of(plan.unicast)[flow >= 0]
        node = self.nodes_of(plan.subscribers, row, known=interest.subscribers)
        return Matches.from_pairs(flow[flow >= 0], node, n_events=len(flows)), rate[flows]

    def nodes_of(self, labels: Labels, rows: Ints | None = None, *, known: Labels | None = None) -> Numbers:
        """Return the nodes of subscribers.

        Parameters
        ----------
        labels
            The subscribers.
        rows
            Which of them are asked for: the others need not be anywhere. All where left out.
        known
            Whom a plain list of locations is of, in order; `labels` themselves where left out.
        """
        used, back = np.unique(np.arange(len(labels)) if rows is None else rows, return_inverse=True)
        chosen = labels.take(used)
        if isinstance(self.locations, Locations):
            return self.locations.of(chosen)[back]
        whose = self.topology.nodes if self.locations is None else labels if known is None else known
        if self.locations is not None and len(self.locations) != len(whose):
            raise ParameterError(
                f"{len(self.locations)} locations for {len(whose)} subscribers; give one each"
            )
        place = positions("subscriber", chosen, whose)
        wrong = np.flatnonzero(place < 0)
        if len(wrong):
            who = chosen[int(wrong[0])].as_py()
            raise ParameterError(
                f"subscriber {who!r} has no location; "
                + ("it is no node: give locations" if self.locations is None else "give locations by label")
            )
        if self.locations is None:
            return place.astype(np.int32)[back]
        return np.asarray(self.locations[place][back], np.int32)

    def _roots(self, publisher: ArrayLike, sets: Matches) -> Numbers:
        """Return the publisher of each event, checked together with the sets."""
        root = self.topology.check_nodes(publisher, "publisher")
        if len(root) != sets.n_events:
            raise ParameterError(f"{len(root)} publishers for {sets.n_events} events; give one each")
        self._members(sets)
        return root

    def _members(self, sets: Matches) -> Numbers:
        """Return the nodes of all sets, once it is sure that they are nodes."""
        if sets.n_pairs and int(sets.index.max()) >= self.topology.n_nodes:
            self.topology.check_nodes(sets.index, "member")
        return sets.index

    def _in_place(self, root: Numbers, sets: Matches) -> Iterator[tuple[Ints, Ints]]:
        """Yield events in parts, and the row of each one's tree; events that nobody wants are left out."""
        some = sets.counts() > 0
        loaded = np.zeros(self.topology.n_nodes, np.bool_)
        for part in self._forest.blocks(root[some]):
            loaded[:] = False
            loaded[part] = True
            events = np.flatnonzero(loaded[root] & some)
            yield events, self._forest.slot[root[events]]

    def _weighted(self) -> Iterator[tuple[Ints, Doubles]]:
        """Yield the publishers in parts, with their trees in place, and the share of each."""
        weight = np.zeros(self.topology.n_nodes)
        weight[self.publishers] = self._weight
        for part in self._forest.blocks(self.publishers):
            ordered = part[np.argsort(self._forest.slot[part])]
            yield ordered, weight[ordered]

    def _far_off(self) -> tuple[Doubles, float]:
        """Return the distance of each node and the cost of a whole tree, on average over the publishers."""
        if self._means is None:
            distance, whole = np.zeros(self.topology.n_nodes), 0.0
            for part, weight in self._weighted():
                whole += float(weight @ self._whole_trees(part))
                for row, share in zip(self._forest.slot[part].tolist(), weight.tolist(), strict=True):
                    distance += share * self._forest.distance[row]
            self._means = distance, whole
        return self._means

    def _whole_trees(self, roots: Ints) -> Doubles:
        """Return the cost of trees that are in place, to all nodes."""
        return np.array([self._forest.link[row].sum() for row in self._forest.slot[roots].tolist()])

    def _spanning(self, root: Numbers, kind: Ints, sets: Matches) -> Doubles:
        """Return the cost of a spanning tree for each case: a root, and the number of a set."""
        out = np.zeros(len(root))
        order = np.argsort(kind, kind="stable")
        order = order[sets.counts()[kind[order]] > 0]
        start, ends = 0, iter([len(order)])
        if len(np.unique(np.append(sets.index, root))) > self._closure.limit:
            ends = self._closure.parts(np.append(sets[kind[i]], root[i]) for i in order.tolist())
        for end in ends:
            part = order[start:end]
            start = end
            if len(part) == 0:
                continue
            used = np.unique(kind[part])
            self._closure.add(np.concatenate([root[part], *(sets[s] for s in used.tolist())]))
            place = self._closure.place
            case = np.searchsorted(kind[part], np.arange(sets.n_events + 1))
            out[part] = spanning_costs(
                self._closure.distance, place, place, sets.indptr, sets.index, case, root[part]
            )
        return out

    def _spanning_means(self, sets: Matches) -> Doubles:
        """Return the cost of spanning trees, on average over the publishers."""
        out = np.zeros(sets.n_events)
        n = len(self.publishers)
        step = max(1, _PAIRS // n)
        for start in range(0, sets.n_events, step):
            kind = np.repeat(np.arange(start, min(start + step, sets.n_events)), n)
            cost = self._spanning(np.tile(self.publishers, len(kind) // n), kind, sets)
            out[start : start + step] = cost.reshape(-1, n) @ self._weight
        return out

    def _check(self, cost: Doubles, root: Numbers, sets: Matches) -> None:
        """Refuse costs that are infinite, naming a publisher and a node that it does not reach."""
        wrong = np.flatnonzero(~np.isfinite(cost))
        if len(wrong):
            self.topology.check_reached(root[wrong[0]], sets[int(wrong[0])])

    def _check_whole(self, cost: Doubles, root: Numbers) -> None:
        """Refuse whole trees that are infinite, naming a publisher and a node that it does not reach."""
        wrong = np.flatnonzero(~np.isfinite(cost))
        if len(wrong):
            self.topology.check_reached(root[wrong[0]], np.arange(self.topology.n_nodes))

    def _checked_mean(self, cost: Doubles, sets: Matches) -> Doubles:
        """Return costs unless one is infinite: then name a publisher and a node that it does not reach."""
        wrong = np.flatnonzero(~np.isfinite(cost))
        for node in sets[int(wrong[0])].tolist() if len(wrong) else ():
            self.topology.check_reached(self.publishers, node)
        return cost


def _numbered(some: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Return the number of each position among the true ones, -1 for others, and where those are."""
    number = np.where(some, np.cumsum(some) - 1, -1)
    return number, np.flatnonzero(some)


def _remade(
    topology: Topology, locations: Any, publishers: Numbers, weight: Doubles, mode: Literal["dense", "alm"]
) -> Network:
    """Return a network as it was before it was sent."""
    made = Network(topology, locations=locations, publishers=publishers, multicast=mode)
    made._weight = weight
    return made
