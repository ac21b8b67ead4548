"""Plans charged with the trees that they take, and with the messages from one window to the next."""

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
    """A plan's trees on an overlay, from window to window, and those of a channel for each flow beside them.

    Both are on the same ring. Channels are matched by number, and those of a flow alone by its label. What a
    plan leaves to unicast costs what the model says.

    Parameters
    ----------
    overlay
        The ring, and its churn.
    model
        What it costs to hand over an event, ties of clusters, and unicast; trees cost what they are.
    interest, plan
        What there is at first; that takes no message.
    seconds
        How long a window is.

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
        # Neither what the ring draws its ids from, nor the keys.
        self._rng = np.random.default_rng([overlay.seed, 0x6661696C])
        self.subscribers, self.flows = interest.subscribers, interest.flows
        self.trees, self.alone = (ChannelForest(self.ring, seed=overlay.seed) for _ in range(2))
        self.trees.follow(self._listens(plan))
        self.alone.follow(self._wants(interest))
        self._windows = 0

    def window(self, interest: Interest, plan: ChannelPlan) -> dict[str, Any]:
        """Go on to the end of a window: nodes fail and come, then who joined channels and left them does so.

        Returns
        -------
        dict
            `tree_cost`, `tree_maintenance` and `tree_dissemination` of the plan, with links for what a
            channel of so many members costs, and how many `helpers` there are in all trees.

            Messages of this window: `tree_join` and `tree_leave`, of those who joined channels and left
            them, and `churn_detect`, `churn_rejoin`, `churn_repair`, `churn_join` and `churn_leave`, as
            `OverlayUpkeep` has them; keep-alives are maintenance. `tree_messages` are all of these, for each
            interval.

            The same of a channel for each flow: `tree_per_flow`, `tree_per_flow_maintenance`,
            `tree_per_flow_dissemination`, `tree_per_flow_helpers` and `tree_per_flow_messages`.
        """
        self._windows += 1
        self.subscribers = _with(self.subscribers, interest.subscribers, "subscriber")
        self.flows = _with(self.flows, interest.flows, "flow")
        of_ring, mended, mended_alone = self._churned()
        joined, left = (int(each.sum()) for each in self.trees.follow(self._listens(plan)))
        alone = sum(int(each.sum()) for each in self.alone.follow(self._wants(interest)))
        maintenance, dissemination = self._cost(interest, plan)
        kept, sent = self._cost_alone(interest)
        churned, churned_alone = (_counted(of_ring + each) for each in (mended, mended_alone))
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
            "tree_per_flow": kept + sent,
            "tree_per_flow_maintenance": kept,
            "tree_per_flow_dissemination": sent,
            "tree_per_flow_helpers": int(self.alone.helpers.sum()),
            "tree_per_flow_messages": (alone + sum(churned_alone.values())) / intervals,
        }

    def _churned(self) -> tuple[OverlayUpkeep, OverlayUpkeep, OverlayUpkeep]:
        """Let nodes fail and come; return the messages of the ring, and those of both kinds of trees."""
        ring, n = self.ring, self.ring.n_nodes
        failed = np.sort(self._rng.choice(n, self.overlay.churn, replace=False))
        new = ring.renewed(failed, seed=self._windows).joined(max(0, len(self.subscribers) - n))
        came = np.append(failed, np.arange(n, new.n_nodes))
        if not len(came):
            return OverlayUpkeep(), OverlayUpkeep(), OverlayUpkeep()
        self.ring = new
        messages = settled(ring, ring.without(failed), new, failed, came, self._rng)
        return messages, self.trees.move(new), self.alone.move(new)

    def _cost(self, interest: Interest, plan: ChannelPlan) -> tuple[float, float]:
        """Return maintenance and dissemination of a plan: `Overall.score`, with links for sizes."""
        model, length = self.model, self.trees.links[: plan.n_channels]
        carries = relation_of(rows_of(plan.carries), plan.groups()[plan.carries.indices], plan.carries.shape)
        flows = np.bincount(carries.indices, minlength=plan.n_channels)
        shared = flows >= 2
        frequency = plan.rate_of_flows(interest) * model.interval
        pairs = np.bincount(plan.unicast.indices, minlength=plan.n_flows)
        kept = float(length.sum()) + float(model.association_of(flows[shared]).sum())
        each = np.asarray(carries @ (length + np.where(shared, model.cost_n, 0.0)))
        handed = float(model.frequencies(interest).sum()) * model.cost_n
        return (
            kept + plan.unicast.nnz * float(model.maintenance_of(1)),
            handed + float(frequency @ each) + float(frequency @ pairs) * float(model.dissemination_of(1)),
        )

    def _cost_alone(self, interest: Interest) -> tuple[float, float]:
        """Return maintenance and dissemination of a channel for each flow."""
        length = self.alone.links
        of_flow = length[positions("flow", interest.flows, self.flows)]
        return float(length.sum()), float(self.model.frequencies(interest) @ (self.model.cost_n + of_flow))

    def _listens(self, plan: ChannelPlan) -> Relation:
        """Return which nodes listen to which groups."""
        node = positions("subscriber", plan.subscribers, self.subscribers)[rows_of(plan.listens)]
        if len(node) and node.min() < 0:
            who = plan.subscribers[int(rows_of(plan.listens)[np.argmin(node)])].as_py()
            raise ParameterError(
                f"plan: its subscriber {who!r} is not in the interest; fit the planner to this interest",
                parameter="plan",
                value=who,
            )
        group = plan.groups()[plan.listens.indices]
        return relation_of(node, group, (len(self.subscribers), plan.n_channels))

    def _wants(self, interest: Interest) -> Relation:
        """Return which nodes want which flows."""
        node = positions("subscriber", interest.subscribers, self.subscribers)[rows_of(interest.wants)]
        flow = positions("flow", interest.flows, self.flows)[interest.wants.indices]
        return relation_of(node, flow, (len(self.subscribers), len(self.flows)))


def _counted(messages: OverlayUpkeep) -> dict[str, int]:
    """Return the messages of churn by kind, without the keep-alives that there are anyway."""
    return {f"churn_{kind}": count for kind, count in asdict(messages).items() if kind != "keep_alive"}


def _with(known: Labels, now: Labels, what: str) -> Labels:
    """Return labels in the order in which they turned up."""
    new = now.filter(pa.array(positions(what, now, known) < 0))
    return pa.concat_arrays([known.cast(now.type), new]) if len(new) else known
