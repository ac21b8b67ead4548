"""Generate the stock workload, match it and draw the interest of subscribers in quotes.

    python examples/stocks.py [FOLDER]

The chart goes to FOLDER, or to the working folder, as a PNG and an SVG. The README's is made this way.
"""

from __future__ import annotations

import sys
from pathlib import Path

import narrowcast as nc
from narrowcast.report import interest_matrix, save_chart
from narrowcast.workloads import Stocks

# A thousand subscriptions, written as filters, and two thousand events: the same ones for the same seed.
tables = Stocks(n_subscriptions=1000, n_events=2000, seed=0).tables()
print(tables["subscriptions"]["filter"][0])

# Events decide which attributes there are; filters become boxes over them.
events = nc.EventBatch.from_arrow(tables["events"])
subscriptions = nc.compile_filters(events.schema, tables["subscriptions"]).subscriptions

# Which subscriptions does each event match?
matches = nc.Scan().fit(subscriptions).match(events)
print(f"{matches.n_pairs / len(events):.1f} matches per event")

# A subscriber wants an event when one of its subscriptions matches. Each event is a flow of its own here.
interest = nc.Interest.of_events(matches, events.event_id, subscriptions)
print(interest)

folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
subtitle = "A mark is an event that a subscriber wants, in a sample of both"
for path in save_chart("interest-matrix", interest_matrix(interest), folder, subtitle=subtitle):
    print(path)
