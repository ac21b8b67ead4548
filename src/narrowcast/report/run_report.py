"""What a run tells of itself: a summary, tables of text, and a page with pictures."""

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

#: The pictures of a report, and what it is made of.
PICTURES = ("cost-bars", "interest-matrix", "load-per-channel", "matches-per-event")
FILES = ("summary.json", "report.html", *(f"{name}.{kind}" for name in PICTURES for kind in ("png", "svg")))


def summary_of(facts: Mapping[str, Mapping[str, Any]], seconds: Mapping[str, float]) -> dict[str, Any]:
    """Return what `summary.json` says.

    Parameters
    ----------
    facts
        What each stage found.
    seconds
        How long each took.
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
    """Return the total of every cost by its name, the terms of the waste, and what else sums costs up.

    The other terms of a network cost are the totals of other methods, some under names of the waste's.
    """
    terms = dict(costs["waste"]["terms"])
    if "network" in costs:
        terms["improvement_pct"] = costs["network"]["terms"]["improvement_pct"]
    if excess_share is not None:
        terms["excess_share"] = excess_share
    return terms | {name: cost["total"] for name, cost in costs.items()}


def rows_of(summary: Mapping[str, Any]) -> Rows:
    """Return the summary as tables of text, the first row of each being its head."""
    counts: list[tuple[str, ...]] = [("", "number")]
    counts += [(name, f"{summary[name]:,}") for name in ("subscriptions", "subscribers", "boxes", "rejected")]
    counts += [(f"  {reason}", f"{count:,}") for reason, count in summary["reasons"].items()]
    counts += [(name, f"{summary[name]:,}") for name in ("events", "matches")]
    counts.append(("matches per event", f"{summary['matches_per_event']:.1f}"))
    nobody = f"{summary['unmatched']:,} ({100 * summary['unmatched_share']:.1f} %)"
    counts.append(("events that match nobody", nobody))
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
    return {"What came out": counts, "Time": times, "What it costs": costs}


def _made(summary: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return what the run was made from, and how."""
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
    """Write `summary.json`, the pictures and `report.html` into a folder.

    Parameters
    ----------
    summary
        What `summary_of` returns.
    sizes
        How many events have each number of matches.
    interest
        A sample of who wants what.
    plan
        The plan that was made.
    folder
        Where they go; it exists.
    channels
        The plan's table of channels, with their rates and members.
    """
    load = pq.read_table(channels, columns=["parent", "rate", "members"])
    groups = load.filter(load["parent"].is_null())
    sent = f"{summary['flows']:,} events that somebody wants, {summary['subscribers']:,} subscribers"
    given = f"{summary['events']:,} events against {summary['subscriptions']:,} subscriptions"
    nobody = f"{100 * summary['unmatched_share']:.0f} % of the events match none"
    costs = {name: (Cost(cost["waste"], cost), cost["channels"]) for name, cost in summary["costs"].items()}
    charts = (
        ("matches-per-event", matches_per_event(sizes), f"{given}; {nobody}"),
        ("cost-bars", cost_bars(costs, events=summary["flows"]), sent),
        (
            "load-per-channel",
            channel_load(groups["rate"].to_numpy(), groups["members"].to_numpy()),
            f"the plan {summary['plan']!r}, {sent}; each event counts as one a second",
        ),
        (
            "interest-matrix",
            interest_matrix(interest, plan),
            "A mark is a flow that a subscriber wants, in a sample of both",
        ),
    )
    drawn = [save_chart(name, data, folder, subtitle=said)[1] for name, data, said in charts]
    tables = {"What was done": _made(summary), **rows_of(summary)}
    (folder / "report.html").write_text(html_page("narrowcast run", tables, drawn), "utf-8")
    text = msgspec.json.format(msgspec.json.encode(summary), indent=2).decode()
    (folder / "summary.json").write_text(text + "\n", "utf-8")
