"""Planners that cluster subscribers by the events that they match (tariq2012).

`similarity` and `cosine` compute similarities of histories, `rassoc` and `ncut` turn these into coordinates,
and `kmeans` clusters the coordinates. In a hierarchy, `tree` assigns rows to groups (`groups`, `parts`),
`space` has the work of each group on its own and with data it receives (`projection`), `hierarchy` runs it
for all groups, `merging` clusters by groups, and `traffic` counts messages. `points` has the points for
k-means, and `homes` assigns rows without usable coordinates. `deviation` tests whether new clusters are worth
installing, `fidelity` and `quality` measure coordinates and clusters, and `planner` makes plans.
"""

from __future__ import annotations

from narrowcast.lab.spectral.planner import Ncut, Rassoc

__all__ = ["Ncut", "Rassoc"]
