"""`narrowcast run`: the whole job, from subscriptions and events to a plan, its costs and a report."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from narrowcast import __version__
from narrowcast.costs import COSTS
from narrowcast.errors import ParameterError, TableError
from narrowcast.files import new_folder, read_table
from narrowcast.filters.subscriptions import COLUMNS, compile_filters
from narrowcast.matching import matcher_for
from narrowcast.model.artefact import write_plan
from narrowcast.model.events import EventBatch
from narrowcast.model.interest import Interest
from narrowcast.model.schema import EVENT_ID
from narrowcast.planning import PLANNERS
from narrowcast.planning.base import check_channels
from narrowcast.report import CHARTS, cost_bars, html_page, interest_matrix, matches_per_event, save_chart
from narrowcast.workloads import WORKLOADS, make_workload, values_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from narrowcast.model.cost import Cost
    from narrowcast.model.matches import Matches
    from narrowcast.model.plan import ChannelPlan
    from narrowcast.model.subscriptions import SubscriptionSet
    from narrowcast.planning import Planner

#: What every plan is compared with.
BASELINES = ("unicast", "per-flow", "hash", "broadcast")
#: The events that a plan is made from: the last ones that somebody wanted.
RECENT = 10_000
#: What a run writes, besides its charts.
WRITTEN = (
    "subscriptions.parquet",
    "events.parquet",
    "matches.parquet",
    "rejected.parquet",
    "plan",
    "summary.json",
    "report.html",
)
#: Reasons against subscriptions that are told apart in the summary.
REASONS = 10


def run(
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where results go; an earlier run's are replaced.")
    ],
    workload: Annotated[
        str | None,
        typer.Option(
            "--workload", metavar="NAME", help=f"What to make: {', '.join(WORKLOADS)}. Default: stocks."
        ),
    ] = None,
    method: Annotated[
        str, typer.Option("--method", metavar="M", help=f"How to plan: {', '.join(PLANNERS)}.")
    ] = "hash",
    channels: Annotated[int, typer.Option("--channels", metavar="K", help="The most channels.")] = 16,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of the workload and the plan.")] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A parameter of the workload; can be repeated."),
    ] = None,
    subscriptions: Annotated[
        Path | None,
        typer.Option(
            "--subscriptions", metavar="S", help=f"Own subscriptions, with columns {', '.join(COLUMNS)}."
        ),
    ] = None,
    events: Annotated[
        Path | None,
        typer.Option("--events", metavar="E", help=f"Own events: {EVENT_ID} and a column per attribute."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first bad filter instead of setting it aside.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document and nothing else.")
    ] = False,
) -> None:
    """Match events with subscriptions, plan channels, say what they cost, and write a report.

    All in this process, so far. A plan is made from the last 10,000 events that somebody wanted.

    Example: `narrowcast run --out out --workload stocks --set n_events=5000 --channels 32`
    """
    load, said = _source(workload, settings or [], subscriptions, events, seed)
    out = out.resolve() if out.is_symlink() else out
    replace = _is_earlier_run(out)
    check_channels(channels)
    planner = PLANNERS[method](channels=channels, seed=seed)
    with _stages() as stages:
        with stages.time("generate" if subscriptions is None else "read"):
            tables = load()
        found = _work(tables, planner, stages, strict=strict)
        with stages.time("evaluate"):
            name, costs = _compare(found.interest, found.plan, method, channels)
        summary = {"command": "run", "version": __version__, "source": said, "seed": seed, **found.summary()}
        summary |= {"method": method, "channels": found.plan.n_groups, "costs": _plain(costs)}
        with new_folder(out, replace=replace) as aside:
            with stages.time("write"):
                found.write(tables, aside)
                write_plan(
                    found.plan,
                    aside / "plan",
                    method=method,
                    params={"channels": channels},
                    seed=seed,
                    flow_space="events",
                    costs={"waste": costs[name][0].total},
                    inputs={each: _fingerprint(aside / f"{each}.parquet") for each in tables},
                    interest=found.interest,
                )
            with stages.time("draw"):
                charts = _draw(found, costs, aside)
            summary["stages"] = stages.done
            shown = _rows(summary)
            (aside / "report.html").write_text(html_page("narrowcast run", shown, charts), "utf-8")
            text = msgspec.json.format(msgspec.json.encode(summary), indent=2).decode()
            (aside / "summary.json").write_text(text + "\n", "utf-8")
    if as_json:
        typer.echo(text)
    else:
        _print(shown)
        typer.echo(f"report: {out / 'report.html'}")


def _source(
    workload: str | None, settings: list[str], subscriptions: Path | None, events: Path | None, seed: int
) -> tuple[Callable[[], dict[str, pa.Table]], dict[str, Any]]:
    """Return what loads the tables, and what the summary says of where they are from."""
    if subscriptions is None and events is None:
        name = workload or "stocks"
        made = make_workload(name, settings, seed=seed)
        return made.tables, {"workload": name, "parameters": values_of(made)}
    if subscriptions is None or events is None:
        given, lacks = ("events", "subscriptions") if subscriptions is None else ("subscriptions", "events")
        raise ParameterError(f"--{given} is given without --{lacks}; give both, or neither for a workload")
    for option, value in (("--workload", workload), ("--set", settings)):
        if value:
            raise ParameterError(f"{option} makes a workload; leave it out with --subscriptions and --events")

    def load() -> dict[str, pa.Table]:
        return {
            "subscriptions": read_table(subscriptions, COLUMNS),
            "events": read_table(events, (EVENT_ID,)),
        }

    return load, {"subscriptions": str(subscriptions), "events": str(events)}


def _is_earlier_run(out: Path) -> bool:
    """Return whether a folder may be replaced: it is empty, or holds what a run wrote and nothing else."""
    if not out.exists():
        return False
    if not out.is_dir():
        raise TableError(f"{out} is a file; name a folder")
    names = {path.name for path in out.iterdir()}
    try:
        ours = not names or msgspec.json.decode((out / "summary.json").read_bytes())["command"] == "run"
    except (OSError, msgspec.DecodeError, LookupError, TypeError):
        ours = False
    if not ours:
        raise TableError(f"{out} exists and is not an earlier run's; name another folder or remove it")
    charts = {f"{name}.{kind}" for name in CHARTS for kind in ("png", "svg")}
    others = sorted(names - {*WRITTEN, *charts})
    if others:
        raise TableError(
            f"{out} also holds {others[0]!r}, which no run wrote; move it or name another folder"
        )
    return True


@dataclass(frozen=True, slots=True)
class _Found:
    """What came out between reading and writing."""

    subscriptions: SubscriptionSet
    rejected: pa.Table
    events: EventBatch
    matches: Matches
    interest: Interest
    plan: ChannelPlan

    def summary(self) -> dict[str, Any]:
        """Return the counts."""
        n_events = len(self.events)
        reasons = Counter(self.rejected["reason"].to_pylist())
        return {
            "subscriptions": len(self.subscriptions),
            "subscribers": self.subscriptions.n_subscribers,
            "boxes": len(self.subscriptions.boxes),
            "rejected": self.rejected.num_rows,
            "reasons": dict(reasons.most_common(REASONS)),
            "events": n_events,
            "matches": self.matches.n_pairs,
            "matches_per_event": self.matches.n_pairs / max(1, n_events),
            "unmatched_share": float((self.matches.counts() == 0).sum() / max(1, n_events)),
            "flows": self.interest.n_flows,
        }

    def write(self, tables: dict[str, pa.Table], folder: Path) -> None:
        """Write the tables given, the matches and what was set aside."""
        matches = self.matches.to_arrow(self.events.event_id, self.subscriptions.subscription_id)
        for name, table in {**tables, "matches": matches}.items():
            pq.write_table(table, folder / f"{name}.parquet")
        if self.rejected.num_rows:
            pq.write_table(self.rejected, folder / "rejected.parquet")


def _work(tables: dict[str, pa.Table], planner: Planner, stages: _Stages, *, strict: bool) -> _Found:
    """Compile, match and plan, in this process."""
    events = EventBatch.from_arrow(tables["events"])
    ids, counts = np.unique(events.event_id, return_counts=True)
    if len(ids) < len(events):
        raise TableError(f"event_id {ids[counts > 1][0]} is used by two events; give each its own")
    with stages.time("compile", tables["subscriptions"].num_rows, "filters"):
        compiled = compile_filters(events.schema, tables["subscriptions"], strict=strict)
    subscriptions = compiled.subscriptions
    with stages.time("match", len(events), "events"):
        matches = matcher_for(len(subscriptions), len(events)).fit(subscriptions).match(events)
    with stages.time("plan"):
        interest = Interest.of_events(matches, events.event_id, subscriptions, last=RECENT)
        plan = planner.fit(interest).plan_
        plan.validate(interest)
    return _Found(subscriptions, compiled.rejected, events, matches, interest, plan)


def _compare(
    interest: Interest, plan: ChannelPlan, method: str, channels: int
) -> tuple[str, dict[str, tuple[Cost, int]]]:
    """Return the plan's name among all that are compared, and of each its waste and number of channels."""
    plans = {
        name: PLANNERS[name](channels=channels if name == "hash" else None).fit(interest).plan_
        for name in BASELINES
    }
    # As a baseline it has all the channels it takes.
    name = "per-flow, limited" if method == "per-flow" else method
    plans[name] = plan
    waste = COSTS["waste"]()
    return name, {name: (waste.score(interest, each), each.n_groups) for name, each in plans.items()}


def _plain(costs: dict[str, tuple[Cost, int]]) -> dict[str, Any]:
    """Return costs as JSON has them: messages over all flows."""
    return {name: {"channels": n, "waste": cost.total, **cost.terms} for name, (cost, n) in costs.items()}


def _fingerprint(path: Path) -> str:
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _draw(found: _Found, costs: dict[str, tuple[Cost, int]], folder: Path) -> list[Path]:
    """Draw every chart, and return the SVG files."""
    seen = found.summary()
    sizes = f"{seen['events']:,} events against {seen['subscriptions']:,} subscriptions"
    sent = f"{seen['flows']:,} events that somebody wants, {seen['subscribers']:,} subscribers"
    sample = "A mark is an event that a subscriber wants, in a sample of both"
    charts = (
        (
            "matches-per-event",
            matches_per_event(found.matches),
            f"{sizes}; {100 * seen['unmatched_share']:.0f} % of the events match none",
        ),
        ("cost-bars", cost_bars(costs, events=seen["flows"]), sent),
        ("interest-matrix", interest_matrix(found.interest), sample),
    )
    return [save_chart(name, data, folder, subtitle=said)[1] for name, data, said in charts]


def _rows(summary: dict[str, Any]) -> dict[str, list[tuple[str, ...]]]:
    """Return the summary as tables of text, the first row of each being its head."""
    counts: list[tuple[str, ...]] = [("", "number")]
    counts += [(name, f"{summary[name]:,}") for name in ("subscriptions", "subscribers", "boxes", "rejected")]
    counts += [(f"  {reason}", f"{count:,}") for reason, count in summary["reasons"].items()]
    counts += [(name, f"{summary[name]:,}") for name in ("events", "matches")]
    counts.append(("matches per event", f"{summary['matches_per_event']:.1f}"))
    counts.append(("events that match nobody", f"{100 * summary['unmatched_share']:.1f} %"))
    times: list[tuple[str, ...]] = [("stage", "seconds", "per second")]
    for name, stage in summary["stages"].items():
        rate = f"{stage['rate']:,.0f} {stage['unit']}" if "rate" in stage else ""
        times.append((name, f"{stage['seconds']:.2f}", rate))
    costs: list[tuple[str, ...]] = [
        ("messages per event sent", "channels", "wanted", "wasted", "sent directly")
    ]
    for name, cost in summary["costs"].items():
        each = (cost[term] / max(1, summary["flows"]) for term in ("wanted", "wasted", "unicast"))
        costs.append((name, f"{cost['channels']:,}", *(f"{value:,.1f}" for value in each)))
    return {"What came out": counts, "Time": times, "What it costs": costs}


def _print(tables: dict[str, list[tuple[str, ...]]]) -> None:
    console = Console()
    for title, (head, *rows) in tables.items():
        table = Table(title=title, title_justify="left", title_style="bold")
        for i, name in enumerate(head):
            table.add_column(name, justify="right" if i else "left")
        for row in rows:
            table.add_row(*map(escape, row))
        console.print(table)


@dataclass(slots=True)
class _Stages:
    """What has been done so far and how long it took, shown as a line when somebody looks on."""

    progress: Progress
    done: dict[str, dict[str, Any]] = field(default_factory=dict)

    @contextmanager
    def time(self, name: str, count: int = 0, unit: str = "") -> Iterator[None]:
        """Time a stage; with a count, its rate is told too."""
        task = self.progress.add_task(name, total=None)
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        self.progress.update(task, total=1, completed=1)
        self.done[name] = {"seconds": seconds}
        if unit:
            self.done[name] |= {"rate": count / seconds, "unit": unit}


@contextmanager
def _stages() -> Iterator[_Stages]:
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        yield _Stages(progress)
