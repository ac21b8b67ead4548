"""The seam between plans and what they cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from narrowcast.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from narrowcast.model.cost import Cost
    from narrowcast.model.interest import Interest
    from narrowcast.model.plan import ChannelPlan


class CostModel(Protocol):
    """Something that scores a plan for an interest; parameters, if any, are given when it is made.

    A model that is additive can be scored in parts, each with some of the flows and all who want them,
    under one plan: totals and terms of the parts add up to those of the whole. For that, what a part does
    not know costs nothing there: neither do the plan's other flows and pairs, nor channels that carry none
    of its flows; and a subscriber who wants nothing is as good as one that is not named.
    """

    @property
    def additive(self) -> bool:
        """Whether disjoint sets of flows add up; where not, all has to fit into one process."""
        ...

    def score(self, interest: Interest, plan: ChannelPlan) -> Cost:
        """Return what the plan costs; plan and interest are brought together by label."""
        ...

    def ideal(self, interest: Interest) -> Cost:
        """Return what no plan can beat, with the terms that `score` has."""
        ...


#: Cost models by the name that `--cost` takes; each entry makes a model from keyword parameters.
COSTS: Registry[Callable[..., CostModel]] = Registry("cost")
