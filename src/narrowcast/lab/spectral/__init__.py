"""Clusters of subscribers by the events that they match (tariq2012).

`similarity` and `cosine` say how alike histories are, `rassoc` and `ncut` give coordinates by that, and
`kmeans` makes clusters of them. In a hierarchy `tree` says who is in which group (`groups`, `parts`), `space`
has what each group does by itself and with what it is told (`projection`), `hierarchy` lets all groups do so,
`merging` finds clusters by groups and `traffic` counts what is sent. `points` has what
k-means takes, `homes` clusters for whom coordinates lead to none. `deviation` says whether new clusters
are worth installing, `quality` how good coordinates and clusters are, and `planner` makes plans.
"""

from __future__ import annotations

from narrowcast.lab.spectral.planner import Ncut, Rassoc

__all__ = ["Ncut", "Rassoc"]
