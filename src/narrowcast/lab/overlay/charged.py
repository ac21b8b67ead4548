"""The cost of plans on an overlay: their multicast trees, and the messages between windows of time."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from narrowcast.errors import ParameterError
from narrowcast.lab.overlay.churn import OverlayUpkeep, settled
from narrowcast.lab.overlay.forest import ChannelForest
from narrowcast.model.labels import positions
from narrowcast.model.relation import relation_of, rows_of

if TYPE_CHECKING:
    from narrowcast.costs.overall import Overall
    from narrowcast.lab.overlay.overlay import OverlayRing
    from narrowcast.model.interest import Interest
    from narrowcast.model.labels import Labels
    from narrowcast.model.plan import ChannelPlan
    from narrowcast.model.relation import Relation


class Charged:
    """The trees of a plan on an overlay, window by window, compared with a channel for each flow.

    Both kinds of trees are on the same ring. Channels of the plan are matched by number from window to
    window, channels of single flows by the flow's label. Flows that a plan sends by unicast cost what the
    cost model says.

    Parameters
    ----------
    overlay
        The ring, and its churn.
    model
        Costs of handing over an event, of ties between clusters, and of unicast. The costs of trees are
        counted instead.
    interest, plan
        The initial interest and plan. Building their trees is not charged.
    seconds
        Length of a window in seconds.

    Examples
    --------
    >>> from narrowcast.costs.overall import Overall
    >>> from narrowcast.model.interest import Interest
    >>> from narrowcast.planning.baselines.simple import PerFlow
    >>> from narrowcast.lab.overlay import OverlayRing
    >>> interest = Interest(np.arange(300)[:, None] < [300, 30], rate=[0.001, 0.01])
    >>> plan = PerFlow().fit(interest).plan_
    >>> row = Charged(OverlayRing(churn=3), Overall(), interest, plan, seconds=3600).window(interest, plan)
    >>> row["tree_maintenance"], row["helpers"], row["churn_detect"], row["churn_rejoin"]
    (337.0, 9, 4, 9)
    """

    def __init__(
        self, overlay: OverlayRing, model: Overall, interest: Interest, plan: ChannelPlan, *, seconds: float
    ) -> None:
        self.overlay, self.model, self.seconds = overlay, model, seconds
        self.ring = overlay.ring(interest.n_subscribers)
        # A stream of its own: independent of the ids of the ring and of the keys of channels.
        self._rng = np.random.default_rng([overlay.seed, 0x6661696C])
        self.subscribers, self.flows = interest.subscribers, interest.flows
        self.trees, self.alone = (ChannelForest(self.ring, seed=overlay.seed) for _ in range(2))
        self.trees.follow(self._listening_nodes(plan))
        self.alone.follow(self._interested_nodes(interest))
        self._windows = 0

    def window(self, interest: Interest, plan: ChannelPlan) -> dict[str, Any]:
        """Advance by one window: nodes fail and are replaced, then subscribers join and leave channels.

        Returns
        -------
        dict
            `tree_cost`, `tree_maintenance` and `tree_dissemination` of the plan, with counted links in place
            of the model's cost by channel size, and the number of `helpers` in all trees.

            Messages of this window: `tree_join` and `tree_leave`, of subscribers that join and leave
            channels, and `churn_detect`, `churn_rejoin`, `churn_repair`, `churn_join` and `churn_leave`, as
            in `OverlayUpkeep`; keep-alives are part of maintenance. `tree_messages` is their sum per
            interval.

            The same for a channel for each flow: `tree_per_flow`, `tree_per_flow_maintenance`,
            `tree_per_flow_dissemination`, `tree_per_flow_helpers` and `tree_per_flow_messages`.
        """
        self._windows += 1
        self.subscribers = _with_new_labels(self.subscribers, interest.subscribers, "subscriber")
        self.flows = _with_new_labels(self.flows, interest.flows, "flow")
        of_ring, mended, mended_alone = self._churn()
        joined, left = (int(each.sum()) for each in self.trees.follow(self._listening_nodes(plan)))
        alone = sum(int(each.sum()) for each in self.alone.follow(self._interested_nodes(interest)))
        maintenance, dissemination = self._cost(interest, plan)
        maintained, sent = self._cost_alone(interest)
        churned, churned_alone = (_churn_counts(of_ring + each) for each in (mended, mended_alone))
        intervals = self.seconds / self.model.interval
        return {
            "tree_cost": maintenance + dissemination,
            "tree_maintenance": maintenance,
            "tree_dissemination": dissemination,
            "helpers": int(self.trees.helpers.sum()),
            "tree_join": joined,
            "tree_leave": left,
            **churned,
            "tree_messages": (joined + left + sum(churned.values())) / intervals,
            "tree_per_flow": maintained + sent,
            "tree_per_flow_maintenance": maintained,
            "tree_per_flow_dissemination": sent,
            "tree_per_flow_helpers": int(self.alone.helpers.sum()),
            "tree_per_flow_messages": (alone + sum(churned_alone.values())) / intervals,
        }

    def _churn(self) -> tuple[OverlayUpkeep, OverlayUpkeep, OverlayUpkeep]:
        """Let nodes fail and be replaced; return messages of the ring, the plan's and the flows' trees."""
        ring, n = self.ring, self.ring.n_nodes
        failed = np.sort(self._rng.choice(n, self.overlay.churn, replace=False))
        new = ring.renewed(failed, seed=self._windows).joined(max(0, len(self.subscribers) - n))
        new_nodes = np.append(failed, np.arange(n, new.n_nodes))
        if not len(new_nodes):
            return OverlayUpkeep(), OverlayUpkeep(), OverlayUpkeep()
        self.ring = new
        messages = settled(ring, ring.without(failed), new, failed, new_nodes, self._rng)
        return messages, self.trees.move(new), self.alone.move(new)

    def _cost(self, interest: Interest, plan: ChannelPlan) -> tuple[float, float]:
        """Return maintenance and dissemination of a plan, from the counted links of its trees."""
        model, length = self.model, self.trees.links[: plan.n_channels]
        carries = relation_of(rows_of(plan.carries), plan.groups()[plan.carries.indices], plan.carries.shape)
        flows = np.bincount(carries.indices, minlength=plan.n_channels)
        shared = flows >= 2
        frequency = plan.rate_of_flows(interest) * model.interval
        pairs = np.bincount(plan.unicast.indices, minlength=plan.n_flows)
        maintenance = float(length.sum()) + float(model.association_of(flows[shared]).sum())
        each = np.asarray(carries @ (length + np.where(shared, model.cost_n, 0.0)))
        handed = float(model.frequencies(interest).sum()) * model.cost_n
        return (
            maintenance + plan.unicast.nnz * float(model.maintenance_of(1)),
            handed + float(frequency @ each) + float(frequency @ pairs) * float(model.dissemination_of(1)),
        )

    def _cost_alone(self, interest: Interest) -> tuple[float, float]:
        """Return maintenance and dissemination of a channel for each flow."""
        length = self.alone.links
        of_flow = length[positions("flow", interest.flows, self.flows)]
        return float(length.sum()), float(self.model.frequencies(interest) @ (self.model.cost_n + of_flow))

    def _listening_nodes(self, plan: ChannelPlan) -> Relation:
        """Return which nodes listen to which groups, as a nodes x groups relation."""
        node = positions("subscriber", plan.subscribers, self.subscribers)[rows_of(plan.listens)]
        if len(node) and node.min() < 0:
            subscriber = plan.subscribers[int(rows_of(plan.listens)[np.argmin(node)])].as_py()
            raise ParameterError(
                f"plan: subscriber {subscriber!r} is not in the interest; fit the planner to this interest",
                parameter="plan",
                value=subscriber,
            )
        group = plan.groups()[plan.listens.indices]
        return relation_of(node, group, (len(self.subscribers), plan.n_channels))

    def _interested_nodes(self, interest: Interest) -> Relation:
        """Return which nodes want which flows, as a nodes x flows relation."""
        node = positions("subscriber", interest.subscribers, self.subscribers)[rows_of(interest.wants)]
        flow = positions("flow", interest.flows, self.flows)[interest.wants.indices]
        return relation_of(node, flow, (len(self.subscribers), len(self.flows)))


def _churn_counts(messages: OverlayUpkeep) -> dict[str, int]:
    """Return the messages of churn by kind, without keep-alives, which are sent with or without churn."""
    return {f"churn_{kind}": count for kind, count in asdict(messages).items() if kind != "keep_alive"}


def _with_new_labels(known: Labels, now: Labels, what: str) -> Labels:
    """Append new labels, sorted, to the known ones."""
    new = now.filter(pa.array(positions(what, now, known) < 0))
    return pa.concat_arrays([known.cast(now.type), new]) if len(new) else known
