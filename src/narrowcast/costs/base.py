"""The seam between plans and what they cost."""

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


class Costs(Registry[Callable[..., CostModel]]):
    """Cost models by name; some need more than an interest and a plan, such as a topology: see `needs`."""

    def needs(self, name: str) -> list[str]:
        """Return the parameters that a cost model cannot be made without.

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
        """Return models by name, each made with those of the given parameters that it has.

        Parameters
        ----------
        names
            Which; all that what is given suffices for where left out.
        given
            Parameters of any of them, such as `topology`; None stands for one that is not given.

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
        narrowcast.errors.ParameterError: cost 'network' needs topology; give it, or leave the cost out
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
                raise ParameterError(
                    f"cost {name!r} needs {' and '.join(missing)}; give it, or leave the cost out"
                )
        return found


#: Cost models by the name that `--cost` takes; each entry makes a model from keyword parameters; an
#: installed package adds its own by entry points of the group `narrowcast.costs`.
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
