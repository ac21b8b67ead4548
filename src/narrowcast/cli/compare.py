"""`narrowcast compare`: every method beside every other on one data set, as a table and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import pyarrow.parquet as pq
import typer

from narrowcast import __version__
from narrowcast.cli import inputs, options, set_option
from narrowcast.costs import COSTS
from narrowcast.errors import ParameterError, TableError
from narrowcast.files import new_folder
from narrowcast.model.schema import Schema
from narrowcast.planning.base import PLANNERS, capabilities_of, planners, router_for
from narrowcast.report.charts import compared_methods, save_chart
from narrowcast.spark.planning.planner_parameters import COMMON
from narrowcast.spark.progress import watched
from narrowcast.spark.session import sized
from narrowcast.spark.spark_errors import plainly
from narrowcast.spark.stages.bounding_boxes import boxes_taken
from narrowcast.spark.stages.changes import instant_of
from narrowcast.spark.stages.compare import IDEAL, Comparison, counts_of, methods_of
from narrowcast.spark.stages.compare import compare as compare_methods
from narrowcast.spark.stages.delivery_results import PlanWithRouter
from narrowcast.spark.stages.interest_collection import to_interest
from narrowcast.spark.stages.match import STRATEGIES
from narrowcast.spark.stages.network import NetworkTables
from narrowcast.spark.stages.plan_inputs import PlanInputs, take
from narrowcast.spark.stages.replay import replay_inputs
from narrowcast.spark.stages.run import RECENT
from narrowcast.spark.storage import write_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from narrowcast.model.plan import ChannelPlan
    from narrowcast.spark.stages.compare import ComparedMethod
    from narrowcast.spark.stages.delivery_results import ReplayResult


def compare(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A folder that does not exist yet.")],
    channels: Annotated[
        str, typer.Option("--channels", metavar="K", help="The most channels; of several, as 11,61, each.")
    ],
    methods: Annotated[
        str | None,
        typer.Option(
            "--methods",
            metavar="A,B",
            help=f"Which: {', '.join(planners(boxes=False))}. Default: all. "
            f"By the boxes of filters, where they are named: {', '.join(planners(boxes=True))}.",
        ),
    ] = None,
    interests: inputs.Interests = None,
    rates: inputs.Rates = None,
    changes: inputs.Changes = None,
    until: inputs.Until = None,
    subscriptions: inputs.Subscriptions = None,
    events: inputs.Events = None,
    state: inputs.State = None,
    flows: inputs.Flows = "events",
    recent: inputs.Recent = None,
    last: inputs.Last = None,
    window: inputs.Window = None,
    cells: inputs.Cells = "auto",
    top: inputs.Top = None,
    topology: inputs.Topology = None,
    locations: inputs.Locations = None,
    publishers: inputs.Publishers = None,
    costs: inputs.Costs = None,
    router: set_option.Router = None,
    again: set_option.Again = True,
    given_settings: set_option.Settings = None,
    rejected: options.Rejected = None,
    seed: options.Seed = 0,
    schema: options.SchemaFile = None,
    strategy: options.Strategy = "auto",
    memory: options.Memory = None,
    strict: options.Strict = False,
    master: options.Master = options.LOCAL,
    conf: options.Conf = None,
    ui: options.Ui = False,
    as_json: options.Json = False,
) -> None:
    """Plan by every method, and say what each plan costs and what making it takes.

    The interest is made once, as for `narrowcast plan`. Each method then has a process of its own on the
    driver; one that fails is told with its reason, and the others go on. The folder gets `compare.json`,
    `compare.parquet` and a picture, `compare.png` and `compare.svg`. Methods that cluster subscribers also
    place those who wanted none of the flows; `largest` is how many times the mean the largest channel has
    members.

    With filters and events, all of the events are also sent by each plan, to those whom they match and the
    way that a --router decides, and rows are ordered by what that costs on the network. Where none is given,
    each plan has the router that fits it, which is told. These are the events that the plans are made from;
    for others there is `narrowcast evaluate`.

    Examples:

        narrowcast compare --interests i.parquet --rates r.csv --channels 16 --out compared

        narrowcast compare --interests i.csv --topology t.csv --channels 11,61 --methods mst,partial --out c

        narrowcast compare --subscriptions s.csv --events e.csv --flows cells --channels 16 --out c

        narrowcast compare --subscriptions s.csv --events e.csv --methods direct,centroid --channels 9 --out c
    """
    counts = _counts(channels)
    chosen = None if methods is None else [name.strip() for name in methods.split(",") if name.strip()]
    options.one_of("--strategy", strategy, STRATEGIES)
    if out.exists() or out.is_symlink():
        raise TableError(f"{out} exists already; name another folder or remove it")
    network = NetworkTables.read(topology, locations, publishers)
    again = set_option.is_replayed(router, able=subscriptions is not None, again=again)
    fitting = dict.fromkeys(router_for(method, flows) for method in planners())
    routers = ([router] if router else list(fitting)) if again else []
    params, costing, routing = _dealt(
        set_option.parameters(given_settings or []), chosen, costs, network, routers
    )
    by_boxes = [name for name in chosen or () if name != IDEAL and PLANNERS[name].capabilities.boxes]
    if by_boxes and subscriptions is None:
        raise ParameterError(
            f"{by_boxes[0]} plans by the boxes of filters; give --subscriptions and --events, or leave it out"
        )
    for name in routers:  # what is wrong with them is told before Spark starts
        set_option.check_router(name, routing)
    COSTS.made(costs, **network.given, **costing)
    if recent is last is window is None and interests is changes is state is None and flows == "events":
        recent = RECENT
    given = PlanInputs(
        interests=interests,
        rates=rates,
        changes=changes,
        until=None if until is None else instant_of(until),
        subscriptions=subscriptions,
        events=events,
        state=state,
        flows=flows,
        recent=recent,
        last=last,
        window=window,
        cells=inputs.cells_of(cells),
        top=top,
        schema=None if schema is None else Schema.read(schema),
        strict=strict,
        strategy=strategy,
        memory=options.memory_of(memory),
        seed=seed,
    )
    with options.spark_at(master, conf, ui=ui) as at, sized(at.spark, given.size(at.spark)):
        taken = take(at.spark, given, at.progress, at.tell)
        if rejected is not None and taken.rejected is not None:
            write_table(taken.rejected, rejected, doing=f"write {rejected}")
        with watched(at.spark, at.progress, "interest"), plainly("bring the interest to the driver"):
            network = network.fitting(text=taken.frames.text)
            interest = to_interest(taken.frames, everybody=True)
            boxes = boxes_taken(taken, interest.subscribers) if by_boxes else None

        def replayed(plans: Mapping[str, tuple[ChannelPlan, str]]) -> ReplayResult:
            sent_by = {
                name: PlanWithRouter.by(plan, method, flows, router, routing)
                for name, (plan, method) in plans.items()
            }
            multicast = costing.get("multicast", "dense")
            with watched(at.spark, at.progress, "replay"):
                return replay_inputs(taken, given, sent_by, network=network, multicast=multicast)

        task = at.progress.add_task("compare")
        found = compare_methods(
            interest,
            channels=counts,
            methods=chosen,
            seed=seed,
            params=params,
            costs=costs,
            network=network,
            boxes=boxes,
            cost_params=costing,
            replay=replayed if again else None,
            tell=lambda name, done, of: at.progress.update(
                task, description=f"compare: {name}", completed=done, total=of
            ),
        )
    facts: dict[str, Any] = {
        "command": "compare",
        "version": __version__,
        **taken.facts,
        "subscribers": interest.n_subscribers,
        "seed": seed,
        "params": {**params, **costing, **routing},
        "inputs": taken.fingerprints | network.fingerprints,
        **found.to_dict(),
    }
    said = f"{interest.n_subscribers:,} subscribers, {interest.n_flows:,} flows{_sent(found)}"
    with new_folder(out) as aside:
        pq.write_table(found.to_table(), aside / "compare.parquet")
        text = msgspec.json.format(msgspec.json.encode(facts), indent=2)
        (aside / "compare.json").write_bytes(text + b"\n")
        save_chart(
            "compare", compared_methods(facts["rows"], found.costs), aside, subtitle=_subtitle(said, found)
        )
    tables = {f"{said}: the comparison in {out}": _rows(found)}
    if failed := [row for row in found.rows if row.problem]:
        tables["Methods that made no plan"] = [("", "why"), *((_name(row), row.problem) for row in failed)]
    if facts["rejected"]:
        tables = {"Rows that were set aside": options.reasons(facts), **tables}
    options.show({**facts, "out": str(out)}, tables, as_json=as_json)
    if not as_json and (how := _routed(found)):
        typer.echo(how)


def _counts(channels: str) -> list[int]:
    """Return the numbers of channels that a text lists.

    >>> _counts("11, 61")
    [11, 61]
    """
    try:
        found = [int(word) for word in channels.split(",")]
    except ValueError:
        raise ParameterError(
            f"--channels is {channels!r}; give a whole number, or several as 11,61"
        ) from None
    return counts_of(found)


def _dealt(
    params: dict[str, Any],
    chosen: list[str] | None,
    costs: list[str] | None,
    network: NetworkTables,
    routers: list[str],
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the parameters of methods, of costs and of routers."""
    for name in params:
        if name in COMMON:
            raise ParameterError(f"{name} is among the parameters of methods; give it as {name} itself")
    own, costing, routing = set_option.dealt(
        params,
        set_option.takers_of_methods(methods_of(chosen, {}), "the methods"),
        set_option.takers_of_costs(costs, network.given),
        set_option.takers_of_routers(routers),
    )
    return own, costing, routing


def _name(row: ComparedMethod) -> str:
    return row.method if row.asked is None else f"{row.method} {row.asked}"


def _sent(found: Comparison) -> str:
    """Return what was sent, and by which routers.

    >>> _sent(Comparison((), ()))
    ''
    """
    if found.replayed is None:
        return ""
    routers = dict.fromkeys(sent.router for sent in found.replayed.plans.values() if sent.router)
    several = "s" if len(routers) > 1 else ""
    return f"; {found.replayed.n_events:,} events sent with the router{several} {' and '.join(routers)}"


def _routed(found: Comparison) -> str:
    """Return which rows were sent with which router, where these differ: then they do not compare alike.

    >>> _routed(Comparison((), ()))
    ''
    """
    by: dict[str, list[str]] = {}
    for row in found.rows:
        if row.replayed is not None and row.replayed.router is not None:
            by.setdefault(row.replayed.router, []).append(row.method)
    if len(by) < 2:
        return ""
    *few, most = sorted(by, key=lambda router: len(by[router]))
    said = "; ".join(f"{', '.join(dict.fromkeys(by[router]))} with {router}" for router in few)
    return (
        f"Each is sent with the router that fits: {said}; the others with {most}. --router sends all alike."
    )


def _subtitle(said: str, found: Comparison) -> str:
    """Return what the picture is of, and what is missing from it."""
    failed = [_name(row) for row in found.rows if row.problem]
    return said + (f"; no plan: {'; '.join(failed)}" if failed else "")


def _rows(found: Comparison) -> list[tuple[str, ...]]:
    """Return the comparison as rows of text, narrow enough for most terminals."""
    several = len({row.asked for row in found.rows if row.asked is not None}) > 1
    costs, with_excess = options.columns_of(found.costs)
    gain = ("gain %",) if "network" in found.costs else ()
    excess = ("excess %",) if with_excess else ()
    again: tuple[str, ...] = ()
    if found.replayed is not None:
        on_links = found.replayed.unit == "links"
        again = ("replayed", "gain %" if on_links else "in vain")
        excess = ()  # there is no room for all
        if gain and on_links:
            costs = [name for name in costs if name != "waste"]
    direct = () if again else ("direct %",)
    # Beside columns of a network there is no room; what channels cost in all says little of clusters.
    clusters = not gain and any(
        capabilities_of(row.method).clusters == "subscribers" and not row.problem for row in found.rows
    )
    largest = ("largest",) if clusters else ()
    if clusters and len(costs) > 1:
        costs = [name for name in costs if name != "overall"]
    rows: list[tuple[str, ...]] = [
        ("method", "used", *largest, *costs, *gain, *excess, *again, *direct, "sec", "MB"),
    ]
    for row in found.rows:
        if row.problem:
            continue
        share = None if row.direct_share is None else 100 * row.direct_share
        totals = (row.costs[name].total for name in costs)
        numbers = [(row.improvement_pct, 1)] if gain else []
        numbers += [(None if row.excess_share is None else 100 * row.excess_share, 1)] if excess else []
        rows.append(
            (
                _name(row) if several else row.method,
                "" if row.channels is None else f"{row.channels:,}",
                *("" if row.balance is None else f"{row.balance:.2f}" for _ in largest),
                *map(_number, totals),
                *("" if value is None else f"{value:.{digits}f}" for value, digits in numbers),
                *(_again(row) if again else ()),
                *(
                    "" if value is None else f"{value:.{digits}f}"
                    for value, digits in (*([(share, 1)] * len(direct)), (row.seconds, 2), (row.peak_mb, 1))
                ),
            )
        )
    return rows


def _again(row: ComparedMethod) -> tuple[str, str]:
    """Return what replayed events cost, and how good or bad that is."""
    sent = row.replayed
    assert sent is not None
    how = f"{sent.wasted:,}" if sent.improvement_pct is None else f"{sent.improvement_pct:.1f}"
    return _number(sent.cost), how


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:,.5g}"
