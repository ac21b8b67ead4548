"""The contract between methods and Spark for an interest that is too large for the driver."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

from narrowcast.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from narrowcast.model.interest import Interest
    from narrowcast.model.plan import ChannelPlan
    from narrowcast.spark.stages.interest import InterestFrames


class LargePlan(NamedTuple):
    """A plan for an interest that is too large for the driver.

    Parameters
    ----------
    plan
        The plan.
    interest
        The flows of the plan with their rates, and no subscriber.
    path
        `spark`, or `driver` where the interest fitted there after all, in a shorter form.
    how
        What it takes to make the same plan again, beside the planner's parameters.
    costs
        The costs that the method itself knows, by the cost model's name.
    note
        What was done otherwise than on the driver, where the user should know.
    """

    plan: ChannelPlan
    interest: Interest
    path: Literal["driver", "spark"] = "spark"
    how: Mapping[str, Any] = MappingProxyType({})
    costs: Mapping[str, float] = MappingProxyType({})
    note: str = ""


class LargePlanner(Protocol):
    """Plans on Spark as one of `PLANNERS` does on the driver; made from that planner."""

    #: The planner's parameters that it knows as well.
    parameters: ClassVar[tuple[str, ...]]

    def __init__(self, planner: Any) -> None: ...

    def plan(self, frames: InterestFrames, *, limit: int) -> LargePlan:
        """Return a plan for an interest where it is; `limit` is the most wanted pairs on the driver."""
        ...


#: What plans an interest that is too large for the driver, by the name of the method in `PLANNERS`; an
#: installed package adds its own by entry points of the group `narrowcast.large_planners`.
LARGE_PLANNERS: Registry[type[LargePlanner]] = Registry(
    "large method",
    {
        "cover": "narrowcast.spark.planning.large_cover:LargeCover",
        "direct": "narrowcast.spark.planning.large_direct:LargeDirect",
        "joint": "narrowcast.spark.planning.large_joint:LargeJoint",
        "ncut": "narrowcast.lab.spark.spectral:LargeNcut",
        "rassoc": "narrowcast.lab.spark.spectral:LargeRassoc",
    },
    group="narrowcast.large_planners",
)
