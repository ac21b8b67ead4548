"""`narrowcast plan`: channels for an interest, as a plan artefact."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from narrowcast.cli import inputs, options
from narrowcast.cli.replanning import EarlierPlan, PlanningProgress, method_for
from narrowcast.cli.set_option import Settings, for_plan, parameters
from narrowcast.costs import COSTS
from narrowcast.errors import ParameterError, TableError
from narrowcast.files import rows_in
from narrowcast.model.artefact import read_info, write_plan
from narrowcast.model.schema import Schema
from narrowcast.planning.base import PLANNERS, planners
from narrowcast.planning.progress import watching
from narrowcast.spark.planning.large_planner import LARGE_PLANNERS
from narrowcast.spark.planning.plan import check_large, costs_of, make_plan
from narrowcast.spark.planning.planner_parameters import check_planner, parameters_of
from narrowcast.spark.progress import watched
from narrowcast.spark.session import sized
from narrowcast.spark.spark_errors import plainly
from narrowcast.spark.stages.changes import instant_of
from narrowcast.spark.stages.interest_collection import LIMIT
from narrowcast.spark.stages.match import STRATEGIES
from narrowcast.spark.stages.network import NetworkTables
from narrowcast.spark.stages.ownership import check_by, gathered, subscribed
from narrowcast.spark.stages.plan_inputs import PlanInputs, take
from narrowcast.spark.stages.run import RECENT
from narrowcast.spark.storage import write_table


def plan(
    out: Annotated[Path, typer.Option("--out", metavar="PLAN", help="A folder that does not exist yet.")],
    method: Annotated[
        str,
        typer.Option(
            "--method",
            metavar="M",
            help=f"How: {', '.join(planners(boxes=False))}; "
            f"by the boxes of filters: {', '.join(planners(boxes=True))}.",
        ),
    ] = "auto",
    channels: Annotated[
        int | None,
        typer.Option("--channels", metavar="K", help="The most channels; most methods need it."),
    ] = None,
    sessions: Annotated[
        int | None,
        typer.Option("--sessions", metavar="L", help="The most sessions in them, for methods of two levels."),
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
    by: options.By = "subscriber",
    start: Annotated[
        Path | None,
        typer.Option("--from", metavar="PLAN", help="A plan to go on from; --set moves=N limits changes."),
    ] = None,
    pinned: Annotated[
        Path | None,
        typer.Option("--pinned", metavar="P", help="Table: flow, channel: flows that have their channel."),
    ] = None,
    settings: Settings = None,
    limit: Annotated[
        int,
        typer.Option(
            "--limit",
            metavar="N",
            help="The most wanted pairs on the driver; above it some methods "
            f"({', '.join(LARGE_PLANNERS)}) plan on Spark.",
        ),
    ] = LIMIT,
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
    """Plan channels, from topics, from filters and events or from a stream's state, and write the plan.

    Out of filters and events flows are made: the last events that somebody wanted (10,000 unless --recent,
    --last or --window says otherwise), or the cells of a grid over the event space. The state of a stream has
    its flows and their rates, as they are at this moment: the stream may go on meanwhile. A log of changes,
    after --interests or from nothing, is planned for as it leaves things, at the end or at --until.

    What a method takes besides is given by --set: joint has seconds, sweeps, restarts, alpha and beta, and
    limits to keep: memberships (groups of a subscriber), members and rate (of a group). With --from it has
    moves, the most groups to be joined and left. So has direct, which auto is from an earlier plan of
    clusters: new clusters take over the numbers of earlier ones with the fewest moves, as those of rassoc and
    ncut do.

    The method auto is the one that is best for the first --cost: partial for network, which is the default
    with a topology; joint for filtering, which is with --sessions; cover for overall; direct for
    false-positives; for waste that of joint, pairwise and macqueen which wastes least.

    With --by subscription, methods that cluster subscribers by events (direct, rassoc, ncut, centroid,
    box-overlap, r-tree) cluster their subscriptions instead: who asks for unlike things is in several
    clusters, and an event goes to those of the subscriptions that it matches.

    Examples:

        narrowcast plan --interests i.parquet --rates r.csv --channels 16 --out plan

        narrowcast plan --changes c.parquet --until 2026-11-16T09:00:00 --channels 16 --out plan

        narrowcast plan --subscriptions s.jsonl --events e.csv --flows cells --method per-flow --out plan

        narrowcast plan --state out/state --method macqueen --channels 16 --out plan

        narrowcast plan --interests i.csv --topology t.csv --method partial --channels 9 --out plan

        narrowcast plan --interests i.parquet --method joint --channels 50 --sessions 1000 --out plan

        narrowcast plan --interests i.parquet --channels 50 --set memberships=20 --pinned p.csv --out plan

        narrowcast plan --interests new.parquet --from plan --set moves=500 --out next

        narrowcast plan --subscriptions s --events e --by subscription --method direct --channels 9 --out p

        narrowcast plan --subscriptions s --events new --method direct --from p --set moves=500 --out next
    """
    needs_start = PLANNERS[method].capabilities.warm_start == "required"
    options.one_of("--strategy", strategy, STRATEGIES)
    if out.exists() or out.is_symlink():
        raise TableError(f"{out} exists already; name another folder or remove it")
    params = parameters(settings or [])
    wish = costs[0] if costs else params.get("cost")
    before = None if start is None else read_info(start).method
    asked, method = method, method_for(method, params, (start, pinned, sessions), wish, before)
    if asked != method:
        params.pop("cost", None)  # auto's own, which has been heard
    if needs_start and start is None:
        raise ParameterError(f"method {method!r} keeps an earlier plan; name it by --from PLAN")
    onward = EarlierPlan.read(start, pinned, method, by)
    if sessions is not None:
        if "sessions" not in parameters_of(method):
            raise ParameterError(f"--sessions is given, and method {method!r} has one level; leave it out")
        if channels is None and start is None:
            raise ParameterError(
                f"--sessions is {sessions} and --channels is not given; give it: the most groups they are in"
            )
        params["sessions"] = sessions
    if method == "auto" and costs:
        params.setdefault("cost", costs[0])
    network = NetworkTables.read(topology, locations, publishers)
    params, told = for_plan(params, method, costs, network.given)
    COSTS.made(costs, **network.given, **told)  # what is wrong with them is told before Spark starts
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
    if state is None:  # of which only its files tell what its flows are
        onward.check_space("topics" if subscriptions is None else flows)
    asks: dict[str, Any] = {"channels": channels, "seed": seed, "params": params | onward.params}
    check_by(by, method, given, **asks, network=network)
    check_planner(method, **asks, network=network, filters=subscriptions is not None and flows == "events")
    pairs = rows_in(interests) if interests is not None and changes is None else None
    check_large(method, **asks, network=network, pairs=pairs, limit=limit)
    with options.spark_at(master, conf, ui=ui) as at, sized(at.spark, given.size(at.spark)):
        taken = take(at.spark, given, at.progress, at.tell)
        if rejected is not None and taken.rejected is not None:
            write_table(taken.rejected, rejected, doing=f"write {rejected}")
        with (
            watched(at.spark, at.progress, "plan") as say,
            watching(PlanningProgress(say)),
            plainly("plan"),
        ):
            network = network.fitting(text=taken.frames.text)
            onward.check_space(taken.frames.flow_space)
            onward = onward.fitting(text=taken.frames.text)
            wanted = subscribed(taken, given) if by == "subscription" else taken.frames
            planned = make_plan(
                wanted,
                method,
                **asks | {"params": params | onward.params},
                network=network,
                limit=limit,
            )
            if by == "subscription":
                planned = gathered(wanted, planned)
            made, method = planned.plan, planned.method
            networked = PLANNERS[method].capabilities.network
            totals = costs_of(taken.frames, planned, costs=costs, params=told, network=network)
            bounds = None if taken.frames.cells is None else taken.frames.cells.toArrow().sort_by("flow")
        said: dict[str, Any] = {"channels": channels, **params, **onward.names}
        if given.until is not None:
            said["until"] = given.until.isoformat()
        if taken.edges is not None:
            said |= {"top": top, "grid": taken.edges}
        elif taken.frames.flow_space == "events":
            said |= {name: value for name, value in given.chosen.items() if value is not None}
        if by == "subscription":
            said["by"] = by
        said |= planned.how
        beside = onward.files(planned)
        write_plan(
            made,
            out,
            method=method,
            params=said,
            seed=seed,
            flow_space=taken.frames.flow_space,
            costs=totals,
            inputs=taken.fingerprints | (network.fingerprints if networked else {}),
            interest=planned.interest,
            cells=bounds,
            beside=beside,
        )
    facts = {
        "command": "plan",
        "out": str(out),
        "method": method,
        "path": planned.path,
        **taken.facts,
        "subscribers": made.n_subscribers,
        "channels": int(np.count_nonzero(made.used() & (made.parent < 0))),
        "sessions": int(np.count_nonzero(made.used() & (made.parent >= 0))) or None,
        "direct": int(made.unicast.nnz),
        "balance": made.balance(),
        "costs": totals,
        **onward.facts(planned, beside),
    }
    if by == "subscription":
        facts |= {"by": by, "memberships": int(made.listens.nnz)}
    names = ("rejected", "subscribers", "flows", "wants", "channels")
    rows: list[tuple[str, ...]] = [("", "number"), *((name, f"{facts[name]:,}") for name in names)]
    if facts["sessions"]:
        rows += [("sessions", f"{facts['sessions']:,}")]
    if facts["balance"] is not None:
        rows += [("largest channel, of the mean", f"{facts['balance']:.2f}")]
    rows += [(f"cost: {name}", options.number(value)) for name, value in totals.items()]
    if made.unicast.nnz:
        rows += [("wants sent directly", f"{made.unicast.nnz:,}")]
    if by == "subscription":
        each = made.listens.nnz / max(1, made.n_subscribers)
        rows += [("channels of a subscriber, in the mean", options.number(each))]
    rows += [("planned on", planned.path)]
    tables = {f"The plan in {out}": rows, **onward.tables(planned, beside)}
    if facts["rejected"]:
        tables = {"Rows that were set aside": options.reasons(facts), **tables}
    options.show(facts, tables, as_json=as_json)
    for note in (planned.note, *onward.notes(planned)):
        if note:
            typer.echo(note, err=True)
    if unwanted := onward.unwanted(planned):
        n, first = len(unwanted), repr(unwanted[0])
        typer.echo(f"nobody wants {n:,} of the pinned flows, such as {first}: no channel has them", err=True)
