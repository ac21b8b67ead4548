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
    """Something that scores a plan for an interest; parameters, if any, are given when it is made."""

    def score(self, interest: Interest, plan: ChannelPlan) -> Cost:
        """Return what the plan costs; plan and interest are brought together by label."""
        ...


#: Cost models by the name that `--cost` takes; each entry makes a model from keyword parameters.
COSTS: Registry[Callable[..., CostModel]] = Registry("cost")
