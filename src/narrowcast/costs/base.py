"""The contract of cost models, and the registry of those that are known by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from narrowcast.errors import ParameterError
from narrowcast.registry import Registry

if TYPE_CHECKING:
    from narrowcast.model.cost import Cost
    from narrowcast.model.interest import Interest
    from narrowcast.model.plan import ChannelPlan


class CostModel(Protocol):
    """Scores a plan for an interest; parameters, if any, are given to the constructor.

    An additive model can score parts separately: each part has some of the flows and all subscribers that
    want them, and all parts are scored under the same plan; totals and terms of the parts add up to those of
    the whole. This requires that what is absent from a part costs nothing there: flows and pairs of the plan
    that the part does not have, and channels that carry none of its flows. A subscriber that wants nothing
    must cost the same as one that is absent.
    """

    @property
    def additive(self) -> bool:
        """Whether costs of disjoint sets of flows add up; if not, one process scores the whole plan."""
        ...

    def score(self, interest: Interest, plan: ChannelPlan) -> Cost:
        """Return the cost of a plan; plan and interest are joined by label."""
        ...

    def ideal(self, interest: Interest) -> Cost:
        """Return a lower bound on the cost of any plan, with the same terms as `score`."""
        ...


class Costs(Registry[Callable[..., CostModel]]):
    """Cost models by name; a model may require parameters such as a topology, which `needs` lists."""

    def needs(self, name: str) -> list[str]:
        """Return the required parameters of a cost model.

        Examples
        --------
        >>> COSTS.needs("network"), COSTS.needs("waste")
        (['topology'], [])
        """
        empty = inspect.Parameter.empty
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        parameters = inspect.signature(self[name]).parameters.values()
        return [each.name for each in parameters if each.default is empty and each.kind not in variadic]

    def made(self, names: Iterable[str] | None = None, **given: Any) -> dict[str, CostModel]:
        """Create cost models, passing to each the given parameters that it accepts.

        Parameters
        ----------
        names
            Names of the models (default: all models whose required parameters are given).
        given
            Parameters of any of the models, such as `topology`; None means not given.

        Examples
        --------
        >>> from narrowcast.costs import false_positives, filtering, network, overall, waste
        >>> from narrowcast.model.topology import Topology
        >>> sorted(COSTS.made())
        ['false-positives', 'filtering', 'forwarding', 'overall', 'waste']
        >>> sorted(COSTS.made(topology=Topology([0], [1], [1.0])))
        ['false-positives', 'filtering', 'forwarding', 'network', 'overall', 'waste']
        >>> COSTS.made(["network"])
        Traceback (most recent call last):
        narrowcast.errors.ParameterError: cost 'network': requires topology; give it, or leave the cost out
        """
        known = {key: value for key, value in given.items() if value is not None}
        chosen = list(self) if names is None else list(names)
        found: dict[str, CostModel] = {}
        for name in chosen:
            missing = [each for each in self.needs(name) if each not in known]
            if not missing:
                takes = inspect.signature(self[name]).parameters
                found[name] = self[name](**{key: value for key, value in known.items() if key in takes})
            elif names is not None:
                need = " and ".join(missing)
                raise ParameterError(
                    f"cost {name!r}: requires {need}; give it, or leave the cost out",
                    parameter=missing[0],
                    value=None,
                )
        return found


#: Cost models by the name that a user gives; each entry creates a model from keyword parameters. An installed
#: package adds its own through entry points of the group `narrowcast.costs`.
COSTS = Costs(
    "cost",
    {
        "false-positives": "narrowcast.costs.false_positives:FalsePositives",
        "filtering": "narrowcast.costs.filtering:Filtering",
        "forwarding": "narrowcast.costs.forwarding:Forwarding",
        "network": "narrowcast.costs.network:Network",
        "overall": "narrowcast.costs.overall:Overall",
        "waste": "narrowcast.costs.waste:Waste",
    },
    group="narrowcast.costs",
)
