"""The interface of planners on Spark, for an interest that is too large for the driver."""

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
        An interest with the plan's flows and their rates, but no subscribers.
    path
        Where the plan was made: `spark`, or `driver` if the interest fits there in packed form.
    how
        Values needed to reproduce the plan, besides the planner's parameters.
    costs
        Costs that the planner computed itself, by the name of the cost model.
    note
        A difference from planning on the driver that the user should know; empty if there is none.
    """

    plan: ChannelPlan
    interest: Interest
    path: Literal["driver", "spark"] = "spark"
    how: Mapping[str, Any] = MappingProxyType({})
    costs: Mapping[str, float] = MappingProxyType({})
    note: str = ""


class LargePlanner(Protocol):
    """The executor on Spark of one of `PLANNERS`; it is created from a fitted planner of that class."""

    #: The planner's parameters that the executor supports.
    parameters: ClassVar[tuple[str, ...]]

    def __init__(self, planner: Any) -> None: ...

    def plan(self, frames: InterestFrames, *, limit: int) -> LargePlan:
        """Plan for an interest that stays on Spark.

        Parameters
        ----------
        frames
            The interest as Spark tables.
        limit
            Maximum number of wanted pairs on the driver.
        """
        ...


#: Executors of planners on Spark, by the name of the method in `PLANNERS`. An installed package adds its own
#: by entry points of the group `narrowcast.large_planners`.
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
