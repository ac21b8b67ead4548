"""The report of `narrowcast run`: a summary, tables of text, and a page with charts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow.parquet as pq

from narrowcast import __version__
from narrowcast.model.cost import Cost
from narrowcast.report.charts import (
    channel_load,
    cost_bars,
    interest_matrix,
    matches_per_event,
    save_chart,
)
from narrowcast.report.html_page import html_page

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from narrowcast.model.interest import Interest
    from narrowcast.model.plan import ChannelPlan

    Rows = dict[str, list[tuple[str, ...]]]

#: Charts of a report, and all files of a report.
PICTURES = ("cost-bars", "interest-matrix", "load-per-channel", "matches-per-event")
FILES = ("summary.json", "report.html", *(f"{name}.{kind}" for name in PICTURES for kind in ("png", "svg")))


def summary_of(facts: Mapping[str, Mapping[str, Any]], seconds: Mapping[str, float]) -> dict[str, Any]:
    """Return the content of `summary.json`.

    Parameters
    ----------
    facts
        Results of the stages by name: `job`, `compile`, `match`, `interest`, `plan` and `evaluate`.
    seconds
        Elapsed seconds of each stage.
    """
    compiled, matched, costs = facts["compile"], facts["match"], facts["evaluate"]
    n_events = matched["events"]
    return {
        "command": "run",
        "version": __version__,
        **facts["job"],
        **compiled,
        "events": n_events,
        "matches": matched["matches"],
        "matches_per_event": matched["matches"] / max(1, n_events),
        "unmatched": matched["unmatched"],
        "unmatched_share": matched["unmatched"] / max(1, n_events),
        "flows": facts["interest"]["flows"],
        "wants": facts["interest"]["wants"],
        "channels": facts["plan"]["channels"],
        "plan": costs["name"],
        "costs": {
            name: {"channels": each["channels"], **_flat(each["costs"], each.get("excess_share"))}
            for name, each in costs["methods"].items()
        },
        "stages": {name: {"seconds": value} for name, value in seconds.items()},
    }


def _flat(costs: Mapping[str, Mapping[str, Any]], excess_share: float | None) -> dict[str, float]:
    """Return the total of every cost by name, the terms of `waste`, and derived percentages.

    Other terms of a network cost are left out: they are totals of other methods, and some of their names
    are also names of terms of `waste`.
    """
    terms = dict(costs["waste"]["terms"])
    if "network" in costs:
        terms["improvement_pct"] = costs["network"]["terms"]["improvement_pct"]
    if excess_share is not None:
        terms["excess_share"] = excess_share
    return terms | {name: cost["total"] for name, cost in costs.items()}


def rows_of(summary: Mapping[str, Any]) -> Rows:
    """Return the summary as tables of text by heading; the first row of a table has the column names."""
    counts: list[tuple[str, ...]] = [("", "number")]
    counts += [(name, f"{summary[name]:,}") for name in ("subscriptions", "subscribers", "boxes", "rejected")]
    counts += [(f"  {reason}", f"{count:,}") for reason, count in summary["reasons"].items()]
    counts += [(name, f"{summary[name]:,}") for name in ("events", "matches")]
    counts.append(("matches per event", f"{summary['matches_per_event']:.1f}"))
    unmatched = f"{summary['unmatched']:,} ({100 * summary['unmatched_share']:.1f} %)"
    counts.append(("events without a match", unmatched))
    times: list[tuple[str, ...]] = [("stage", "seconds")]
    times += [(name, f"{stage['seconds']:.2f}") for name, stage in summary["stages"].items()]
    costs: list[tuple[str, ...]] = [
        ("messages per event sent", "channels", "wanted", "wasted", "sent directly")
    ]
    terms = ["wanted", "wasted", "unicast"]
    if all("network" in cost for cost in summary["costs"].values()):
        terms += ["network"]
        costs[0] += ("network cost", "improvement %")
    elif all("excess_share" in cost for cost in summary["costs"].values()):
        costs[0] += ("excess %",)
    for name, cost in summary["costs"].items():
        each = [cost[term] / max(1, summary["flows"]) for term in terms]
        if "improvement %" in costs[0]:
            each.append(cost["improvement_pct"])
        if "excess %" in costs[0]:
            each.append(100 * cost["excess_share"])
        channels = "" if cost["channels"] is None else f"{cost['channels']:,}"
        costs.append((name, channels, *(f"{value:,.1f}" for value in each)))
    return {"Result": counts, "Time": times, "Cost": costs}


def _input_rows(summary: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the source, the method and the seed of the run as rows of a table."""
    source = summary["source"]
    rows: list[tuple[str, ...]] = [("", "")]
    if "workload" in source:
        rows.append(("workload", source["workload"]))
        rows += [(f"  {name}", str(value)) for name, value in source.get("parameters", {}).items()]
    else:
        rows += [(name, str(path)) for name, path in source.items()]
    rows += [("method", summary["method"]), ("channels", f"{summary['channels']:,}")]
    return [*rows, ("seed", str(summary["seed"])), ("narrowcast", summary["version"])]


def write_report(
    summary: Mapping[str, Any],
    sizes: Mapping[int, int],
    interest: Interest,
    plan: ChannelPlan,
    folder: Path,
    *,
    channels: Path,
) -> None:
    """Write `summary.json`, the charts and `report.html` into an existing folder.

    Parameters
    ----------
    summary
        The result of `summary_of`.
    sizes
        Number of events by number of matches.
    interest
        The interest, or a sample of it.
    plan
        The plan of the run.
    folder
        An existing folder.
    channels
        Path of the plan's table of channels, with `parent`, `rate` and `members`.
    """
    load = pq.read_table(channels, columns=["parent", "rate", "members"])
    groups = load.filter(load["parent"].is_null())
    planned = f"{summary['flows']:,} events with subscribers, {summary['subscribers']:,} subscribers"
    matched = f"{summary['events']:,} events against {summary['subscriptions']:,} subscriptions"
    unmatched = f"{100 * summary['unmatched_share']:.0f} % of the events match none"
    costs = {name: (Cost(cost["waste"], cost), cost["channels"]) for name, cost in summary["costs"].items()}
    charts = (
        ("matches-per-event", matches_per_event(sizes), f"{matched}; {unmatched}"),
        ("cost-bars", cost_bars(costs, events=summary["flows"]), planned),
        (
            "load-per-channel",
            channel_load(groups["rate"].to_numpy(), groups["members"].to_numpy()),
            f"the plan {summary['plan']!r}, {planned}; each event counts as one per second",
        ),
        (
            "interest-matrix",
            interest_matrix(interest, plan),
            "A mark is a flow that a subscriber wants; a sample of flows and subscribers",
        ),
    )
    images = [save_chart(name, data, folder, subtitle=subtitle)[1] for name, data, subtitle in charts]
    tables = {"Input and method": _input_rows(summary), **rows_of(summary)}
    (folder / "report.html").write_text(html_page("narrowcast run", tables, images), "utf-8")
    text = msgspec.json.format(msgspec.json.encode(summary), indent=2).decode()
    (folder / "summary.json").write_text(text + "\n", "utf-8")
