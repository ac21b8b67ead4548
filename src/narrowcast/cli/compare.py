"""`narrowcast compare`: several planning methods on one data set, as a table and a chart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from narrowcast import __version__
from narrowcast.cli import choices, inputs, options, panels, set_option
from narrowcast.errors import ParameterError, TableError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from narrowcast.model.plan import ChannelPlan
    from narrowcast.spark.stages.compare import ComparedMethod, Comparison
    from narrowcast.spark.stages.delivery_results import ReplayResult
    from narrowcast.spark.stages.network import NetworkTables


def compare(
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder of the results; must not exist yet.")
    ],
    channels: Annotated[
        str,
        typer.Option(
            "--channels",
            metavar="K",
            help="Maximum number of channels; several, such as 11,61, to compare each.",
            rich_help_panel=panels.PLANNING,
        ),
    ],
    methods: Annotated[
        str | None,
        typer.Option(
            "--methods",
            metavar="A,B",
            help=f"Methods to compare: {', '.join(choices.METHODS)} (default: all of these); and, for the "
            f"boxes of filters, {', '.join(choices.BOX_METHODS)}.",
            rich_help_panel=panels.PLANNING,
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
    again: set_option.Replay = True,
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
    """Plan with several methods, and compare costs, run time and memory in a table and a chart.

    The interest is computed once, as for `narrowcast plan`. Each method then runs in a process of its own on
    the driver; a method that fails is listed with the reason, and the others go on. The folder gets
    `compare.json`, `compare.parquet`, `compare.png` and `compare.svg`. Methods that cluster subscribers also
    place subscribers that want none of the flows; the column `largest` is the size of the largest channel as
    a multiple of the mean.

    With filters and events, all events are also sent by each plan to the subscribers that they match, as the
    --router decides, and rows are ordered by what that costs on the network. By default each plan has the
    router that suits it, which is printed. The events are those that the plans were made from; for others
    use `narrowcast evaluate`.

    Examples:

        narrowcast compare --interests i.parquet --rates r.csv --channels 16 --out compared

        narrowcast compare --interests i.csv --topology t.csv --channels 11,61 --methods mst,partial --out c

        narrowcast compare --subscriptions s.csv --events e.csv --flows cells --channels 16 --out c

        narrowcast compare --subscriptions s.csv --events e.csv --methods direct,centroid --channels 9 --out c
    """
    import pyarrow.parquet as pq

    from narrowcast.costs import COSTS
    from narrowcast.files import new_folder
    from narrowcast.model.schema import Schema
    from narrowcast.planning.base import PLANNERS, planners, router_for
    from narrowcast.report.charts import compared_methods, save_chart
    from narrowcast.spark.progress import watched
    from narrowcast.spark.session import sized
    from narrowcast.spark.spark_errors import plainly
    from narrowcast.spark.stages.bounding_boxes import load_boxes
    from narrowcast.spark.stages.changes import instant_of
    from narrowcast.spark.stages.compare import IDEAL
    from narrowcast.spark.stages.compare import compare as compare_methods
    from narrowcast.spark.stages.delivery_results import PlanWithRouter
    from narrowcast.spark.stages.interest_collection import to_interest
    from narrowcast.spark.stages.network import NetworkTables
    from narrowcast.spark.stages.plan_inputs import PlanInputs, load_interest
    from narrowcast.spark.stages.replay import replay_inputs
    from narrowcast.spark.storage import write_table

    counts = _counts(channels)
    chosen = None if methods is None else [name.strip() for name in methods.split(",") if name.strip()]
    options.one_of("strategy", strategy, choices.STRATEGIES)
    if out.exists() or out.is_symlink():
        raise TableError(f"{out}: exists already; name another folder, or remove it")
    network = NetworkTables.read(topology, locations, publishers)
    again = set_option.is_replayed(router, able=subscriptions is not None, again=again)
    fitting = dict.fromkeys(router_for(method, flows) for method in planners())
    routers = ([router] if router else list(fitting)) if again else []
    params, scoring, routing = _assigned(
        set_option.parameters(given_settings or []), chosen, costs, network, routers
    )
    by_boxes = [name for name in chosen or () if name != IDEAL and PLANNERS[name].capabilities.boxes]
    if by_boxes and subscriptions is None:
        raise ParameterError(
            f"--methods: {by_boxes[0]!r} needs the boxes of filters; give --subscriptions and --events",
            parameter="methods",
            value=by_boxes[0],
        )
    for name in routers:  # before Spark starts
        set_option.check_router(name, routing)
    COSTS.made(costs, **network.given, **scoring)
    if recent is last is window is None and interests is changes is state is None and flows == "events":
        recent = choices.RECENT
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
        loaded = load_interest(at.spark, given, at.progress, at.tell)
        if rejected is not None and loaded.rejected is not None:
            write_table(loaded.rejected, rejected, doing=f"write {rejected}")
        with watched(at.spark, at.progress, "interest"), plainly("bring the interest to the driver"):
            network = network.fitting(text=loaded.frames.text)
            interest = to_interest(loaded.frames, all_subscribers=True)
            boxes = load_boxes(loaded, interest.subscribers) if by_boxes else None

        def replayed(plans: Mapping[str, tuple[ChannelPlan, str]]) -> ReplayResult:
            sent_by = {
                name: PlanWithRouter.by(plan, method, flows, router, routing)
                for name, (plan, method) in plans.items()
            }
            multicast = scoring.get("multicast", "dense")
            with watched(at.spark, at.progress, "replay"):
                return replay_inputs(loaded, given, sent_by, network=network, multicast=multicast)

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
            cost_params=scoring,
            replay=replayed if again else None,
            on_progress=lambda name, done, of: at.progress.update(
                task, description=f"compare: {name}", completed=done, total=of
            ),
        )
    facts: dict[str, Any] = {
        "command": "compare",
        "version": __version__,
        **loaded.facts,
        "subscribers": interest.n_subscribers,
        "seed": seed,
        "params": {**params, **scoring, **routing},
        "inputs": loaded.fingerprints | network.fingerprints,
        **found.to_dict(),
    }
    title = f"{interest.n_subscribers:,} subscribers, {interest.n_flows:,} flows{_sent(found)}"
    with new_folder(out) as aside:
        pq.write_table(found.to_table(), aside / "compare.parquet")
        text = msgspec.json.format(msgspec.json.encode(facts), indent=2)
        (aside / "compare.json").write_bytes(text + b"\n")
        save_chart(
            "compare", compared_methods(facts["rows"], found.costs), aside, subtitle=_subtitle(title, found)
        )
    tables = {f"{title}: the comparison in {out}": _rows(found)}
    if failed := [row for row in found.rows if row.problem]:
        tables["Methods without a plan"] = [("", "why"), *((_name(row), row.problem) for row in failed)]
    if facts["rejected"]:
        tables = {"Rejected rows": options.reasons(facts), **tables}
    options.show({**facts, "out": str(out)}, tables, as_json=as_json)
    if not as_json and (how := _routed(found)):
        typer.echo(how)


def _counts(channels: str) -> list[int]:
    """Read a list of numbers of channels.

    >>> _counts("11, 61")
    [11, 61]
    """
    from narrowcast.spark.stages.compare import counts_of

    try:
        found = [int(word) for word in channels.split(",")]
    except ValueError:
        raise ParameterError(
            parameter="channels", value=channels, limit="an integer, or several such as 11,61"
        ) from None
    return counts_of(found)


def _assigned(
    params: dict[str, Any],
    chosen: list[str] | None,
    costs: list[str] | None,
    network: NetworkTables,
    routers: list[str],
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the parameters of methods, of cost models and of routers."""
    from narrowcast.spark.planning.planner_parameters import COMMON
    from narrowcast.spark.stages.compare import methods_of

    for name in params:
        if name in COMMON:
            raise ParameterError(
                f"{name}: not a parameter for --set; it has an option of its own",
                parameter=name,
                value=params[name],
            )
    own, scoring, routing = set_option.assigned(
        params,
        set_option.takers_of_methods(methods_of(chosen, {}), "the methods"),
        set_option.takers_of_costs(costs, network.given),
        set_option.takers_of_routers(routers),
    )
    return own, scoring, routing


def _name(row: ComparedMethod) -> str:
    return row.method if row.asked is None else f"{row.method} {row.asked}"


def _sent(found: Comparison) -> str:
    """Return the replayed events and their routers, as the end of a title.

    >>> from narrowcast.spark.stages.compare import Comparison
    >>> _sent(Comparison((), ()))
    ''
    """
    if found.replayed is None:
        return ""
    routers = dict.fromkeys(sent.router for sent in found.replayed.plans.values() if sent.router)
    plural = "s" if len(routers) > 1 else ""
    return f"; {found.replayed.n_events:,} events sent with router{plural} {' and '.join(routers)}"


def _routed(found: Comparison) -> str:
    """Return which methods were replayed with which router, where these differ.

    >>> from narrowcast.spark.stages.compare import Comparison
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
    listed = "; ".join(f"{', '.join(dict.fromkeys(by[router]))} with {router}" for router in few)
    return (
        f"Each method is replayed with the router that suits it: {listed}; the others with {most}. "
        "--router uses one for all."
    )


def _subtitle(title: str, found: Comparison) -> str:
    failed = [_name(row) for row in found.rows if row.problem]
    return title + (f"; no plan: {'; '.join(failed)}" if failed else "")


def _rows(found: Comparison) -> list[tuple[str, ...]]:
    """Return the rows of the comparison, with the columns that fit a terminal of 80 characters."""
    from narrowcast.planning.base import capabilities_of

    several = len({row.asked for row in found.rows if row.asked is not None}) > 1
    costs, with_excess = options.columns_of(found.costs)
    gain = ("gain %",) if "network" in found.costs else ()
    excess = ("excess %",) if with_excess else ()
    again: tuple[str, ...] = ()
    if found.replayed is not None:
        on_links = found.replayed.unit == "links"
        again = ("replayed", "gain %" if on_links else "wasted")
        excess = ()  # no room for all columns
        if gain and on_links:
            costs = [name for name in costs if name != "waste"]
    direct = () if again else ("direct %",)
    # Beside the columns of a network there is no room. For clusters the overall cost says little.
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
    """Return the cost of the replayed events, and their gain over unicast or their waste."""
    sent = row.replayed
    assert sent is not None
    how = f"{sent.wasted:,}" if sent.improvement_pct is None else f"{sent.improvement_pct:.1f}"
    return _number(sent.cost), how


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:,.5g}"
