"""Reports: charts as Vega-Lite files filled with records, and a page that holds them."""

from __future__ import annotations

from narrowcast.report.charts import (
    CHARTS,
    channel_load,
    cost_bars,
    interest_matrix,
    matches_per_event,
    save_chart,
)
from narrowcast.report.html_page import html_page

__all__ = [
    "CHARTS",
    "channel_load",
    "cost_bars",
    "html_page",
    "interest_matrix",
    "matches_per_event",
    "save_chart",
]
