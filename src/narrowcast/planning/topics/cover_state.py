"""The state of the planner `cover`: overlapping clusters of flows, their members, and direct subscriptions.

A cluster is a set of flows that share a channel. A subscriber gets a flow from a cluster it is a member of,
or by a direct subscription. Subscribers that want the same flows are of one kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np

from narrowcast.kernels import cover
from narrowcast.model.matches import Matches
from narrowcast.model.plan import ChannelPlan
from narrowcast.model.relation import relation_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.costs.overall import Overall
    from narrowcast.kernels.cover import Growths, Lists, Rows, State
    from narrowcast.model.interest import Interest

    Doubles: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]

#: The depth of exchanges: how many clusters a subscriber gives up at once for others.
DEPTH = 1
#: A removal that changes the cost by no less than this saves nothing.
_NOTHING = -1e-9
#: The share of the cost that a pass must save for another one to follow.
_LEAST = 1e-4


class CoverState:
    """An assignment of subscribers to clusters and of flows to clusters; initially without clusters.

    Subscribers with the same interest form a kind; the order of kinds depends on their interests only.

    Parameters
    ----------
    rows
        The flows that each kind wants, and the number of subscribers of each kind.
    model
        The cost model.
    frequency
        Events of each flow per interval.
    room
        The most clusters.

    Examples
    --------
    >>> from narrowcast.costs.overall import Overall
    >>> from narrowcast.model.interest import Interest
    >>> interest = Interest([[1, 1, 1]] * 9 + [[1, 0, 1]], rate=[0.1, 0.2, 0.1])
    >>> covering, kind = CoverState.of(interest, Overall(interval=1), room=1)
    >>> covering.begin([[0, 1, 2]], all_members=True)
    >>> before, after = covering.total, covering.settle(9)
    >>> round(before, 1), round(after, 1), covering.has.tolist()
    (17.8, 17.8, [[1, 1, 1]])
    """

    def __init__(self, rows: Rows, model: Overall, frequency: Doubles, room: int) -> None:
        start, wanted, weight = self.rows = rows
        n, n_flows = int(weight.sum()), len(frequency)
        growths = (model.maintenance_of, model.dissemination_of)
        keep, send = (np.array(grow(np.arange(n + 1)), np.float64) for grow in growths)
        tie = np.array(model.association_of(np.arange(n_flows + 2)), np.float64)
        self.growths: Growths = (keep, tie, send, float(model.cost_n), frequency)
        # For clusters without members: the first member does not pay for their flows.
        self._open: Growths = (keep, np.zeros_like(tie), send, 0.0, frequency)
        each = np.repeat(weight, np.diff(start))
        direct = np.zeros(n_flows, np.int64)
        np.add.at(direct, wanted, each)
        self.state: State = (
            np.full(len(wanted), -1, np.int32),
            np.zeros(len(weight), np.int32),
            np.zeros(len(wanted), np.int32),
            direct,
            np.zeros((room, n_flows), np.uint8),
            np.zeros(room, np.int64),
            np.zeros(room, np.int64),
            np.zeros(room),
        )

    @classmethod
    def of(cls, interest: Interest, model: Overall, room: int, *, times: int = 1) -> tuple[Self, Ints]:
        """Return a state without clusters for an interest, and for each subscriber the number of its kind.

        Each subscriber counts `times` times, for an interest that is a sample.
        """
        order = _order(interest)
        wants = interest.wants[order]
        sets = Matches.trusted(wants.indptr.astype(np.int64), wants.indices.astype(np.int32))
        first, number = sets.distinct()
        kinds = sets.take(first)
        kind = np.empty(len(order), np.int64)
        kind[order] = number
        weight = times * np.bincount(number, minlength=len(first)).astype(np.int64)
        rows = np.array(kinds.indptr, np.int64), np.array(kinds.index, np.int32), weight
        return cls(rows, model, model.frequencies(interest), room), kind

    @property
    def has(self) -> NDArray[np.uint8]:
        """Flags of the flows that each cluster contains: clusters x flows."""
        return self.state[4]

    @property
    def direct(self) -> Ints:
        """Number of direct subscribers of each flow."""
        return self.state[3]

    @property
    def live(self) -> Ints:
        """Numbers of the clusters that have flows."""
        return np.flatnonzero(self.state[6])

    @property
    def total(self) -> float:
        """The overall cost, where each direct subscription uses a channel of its flow alone."""
        return cover.total(self.growths, self.state)

    def within(self, channels: int | None) -> float:
        """Return the overall cost with at most `channels` channels; other direct subscriptions by unicast."""
        left = self._left(channels)
        keep, _, send, _, frequency = self.growths
        alone = keep[1] + frequency[left] * send[1] if len(left) else np.zeros(0)
        n = self.direct[left]
        return self.total + float((n * alone - keep[n] - frequency[left] * send[n]).sum())

    def _left(self, channels: int | None) -> Ints:
        """Return the flows with direct subscribers that get no channel: those for which one saves least."""
        some = np.flatnonzero(self.direct)
        if channels is None or len(some) == 0:
            return some[:0]
        keep, _, send, _, frequency = self.growths
        n, f = self.direct[some], frequency[some]
        saves = n * (keep[1] + f * send[1]) - keep[n] - f * send[n]
        order = np.lexsort((some, -f * n, -n, -saves))
        return np.sort(some[order[max(0, channels - len(self.live)) :]])

    def begin(self, sets: Any, *, all_members: bool = False) -> None:
        """Make new clusters of flows while there are free ones; subscribers that save by one join it.

        Parameters
        ----------
        sets
            The flows of each new cluster.
        all_members
            Whether all subscribers that want any of its flows join, even if it does not save.
        """
        has, flows, rate = self.state[4], self.state[6], self.state[7]
        for c, flow in zip(np.flatnonzero(flows == 0).tolist(), sets, strict=False):
            has[c, flow] = 1
            flows[c] = len(flow)
            rate[c] = self.growths[4][flow].sum()
            if all_members:
                cover.enter_all(self.rows, c, self.state)
        if not all_members:
            cover.choose(self.rows, self._open, self._lists(), self.state, DEPTH)

    def wanted_by(self, kinds: Ints) -> list[NDArray[np.int32]]:
        """Return the flows that each of the given kinds of subscribers wants."""
        start, wanted, _ = self.rows
        return [wanted[start[u] : start[u + 1]] for u in kinds.tolist()]

    def settle(self, passes: int) -> float:
        """Let clusters choose flows, and subscribers clusters, in turns while that saves; return the cost."""
        now = self.total
        for _ in range(passes):
            was = now
            cover.refit_all(self.rows, self.growths, self.state)
            cover.choose(self.rows, self.growths, self._lists(), self.state, DEPTH)
            now = self.total
            if was - now <= _LEAST * was:
                break
        return now

    def prune(self) -> int:
        """Remove clusters whose removal lowers the cost; return the number of removed clusters."""
        return self._prune(_NOTHING)[0]

    def limit(self, n: int) -> None:
        """Keep at most n clusters: those whose removal costs least are removed first."""
        while (over := len(self.live) - n) > 0:
            _, change = self._prune(-np.inf)
            out = np.argsort(change, kind="stable")[: max(1, over // 4)]
            start = np.zeros(len(change) + 1, np.int64)
            members = cover.members_of(self.rows, self.state, start)
            for c in out.tolist():
                cover.dissolve(self.rows, self.state, members[start[c] : start[c + 1]], c)
            cover.choose(self.rows, self.growths, self._lists(), self.state, DEPTH)

    def _prune(self, below: float) -> tuple[int, Doubles]:
        change = np.zeros(len(self.state[5]))
        args = self.rows, self.growths, self._lists(), self.state, DEPTH
        return cover.prune(*args, below, change), change

    def _lists(self) -> Lists:
        """Return, for each flow, the clusters that contain it, in compressed rows."""
        start = np.zeros(self.has.shape[1] + 1, np.int64)
        return start, cover.clusters_of_flows(self.has, start)

    def saved(self) -> tuple[Any, ...]:
        """Return a copy of clusters, members and choices, for `restore`."""
        return tuple(each.copy() for each in self.state)

    def restore(self, saved: tuple[Any, ...]) -> None:
        """Return to the clusters, members and choices that `saved` returned."""
        for now, then in zip(self.state, saved, strict=True):
            np.copyto(np.asarray(now), then)

    def served(self, number: Ints, channel: Ints) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints]]:
        """Return pairs of subscriber and channel, and pairs of subscriber and flow that go by unicast.

        Parameters
        ----------
        number
            The channel of each cluster.
        channel
            The channel of each flow on its own, -1 for none.
        """
        start, wanted, weight = self.rows
        choice, chosen, count = self.state[:3]
        row = np.repeat(np.arange(len(weight)), np.diff(start))
        first = np.arange(len(wanted)) - start[row] < chosen[row]
        alone = (count == 0) & (channel[wanted] < 0)
        bare = (count == 0) & ~alone
        who = np.append(row[first], row[bare])
        what = np.append(number[choice[first]], channel[wanted[bare]])
        return (who, what), (row[alone], wanted[alone])

    def plan(self, interest: Interest, kind: Ints, channels: int | None) -> ChannelPlan:
        """Return the plan: a channel for each cluster, then one for each flow with direct subscribers.

        Parameters
        ----------
        interest
            The interest that the state was made from.
        kind
            The kind of each subscriber.
        channels
            The most channels (default: no limit): further direct subscriptions go by unicast.
        """
        live, n_flows, n_kinds = self.live, len(self.direct), len(self.rows[2])
        own = np.zeros(n_flows, np.bool_)
        own[np.flatnonzero(self.direct)] = True
        own[self._left(channels)] = False
        number = np.full(len(self.has), -1)
        number[live] = np.arange(len(live))
        channel = np.where(own, len(live) + np.cumsum(own) - 1, -1)
        n_channels = len(live) + int(own.sum())
        listened, alone = self.served(number, channel)
        listens = relation_of(*listened, (n_kinds, n_channels))
        unicast = relation_of(*alone, (n_kinds, n_flows))
        cluster, flow = np.nonzero(self.has[live])
        return ChannelPlan(
            relation_of(
                np.append(flow, np.flatnonzero(own)), np.append(cluster, channel[own]), (n_flows, n_channels)
            ),
            listens[kind],
            unicast=unicast[kind],
            subscribers=interest.subscribers,
            flows=interest.flows,
        )


def _order(interest: Interest) -> Ints:
    """Return subscribers in an order that depends on their interests only."""
    wants = interest.wants
    key = np.random.default_rng(0).integers(0, 2**63, interest.n_flows, np.uint64)
    # A hash of the wanted flows; the sum may wrap around.
    total = np.append(np.uint64(0), np.cumsum(key[wants.indices], dtype=np.uint64))
    return np.argsort(total[wants.indptr[1:]] - total[wants.indptr[:-1]], kind="stable")
