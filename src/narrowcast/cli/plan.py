"""`narrowcast plan`: channels for an interest, written as a plan folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from narrowcast.cli import choices, inputs, options, panels
from narrowcast.cli.set_option import Settings, for_plan, parameters
from narrowcast.errors import ParameterError, TableError


def plan(
    out: Annotated[
        Path, typer.Option("--out", metavar="PLAN", help="Folder of the new plan; must not exist yet.")
    ],
    method: Annotated[
        str,
        typer.Option(
            "--method",
            metavar="M",
            help=f"Planning method: {', '.join(choices.METHODS)}; for the boxes of filters: "
            f"{', '.join(choices.BOX_METHODS)}.",
            rich_help_panel=panels.PLANNING,
        ),
    ] = "auto",
    channels: Annotated[
        int | None,
        typer.Option(
            "--channels",
            metavar="K",
            help="Maximum number of channels; required by most methods.",
            rich_help_panel=panels.PLANNING,
        ),
    ] = None,
    sessions: Annotated[
        int | None,
        typer.Option(
            "--sessions",
            metavar="L",
            help="Maximum total number of sessions of all channels, for two-level methods such as joint "
            "(default: a one-level plan).",
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
    by: options.By = "subscriber",
    start: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="PLAN",
            help="Earlier plan to start from (default: plan from nothing); `--set moves=N` limits the "
            "changes.",
            rich_help_panel=panels.PLANNING,
        ),
    ] = None,
    pinned: Annotated[
        Path | None,
        typer.Option(
            "--pinned",
            metavar="P",
            help="Table with flow and channel: flows whose channel is fixed (default: none).",
            rich_help_panel=panels.PLANNING,
        ),
    ] = None,
    settings: Settings = None,
    limit: Annotated[
        int,
        typer.Option(
            "--limit",
            metavar="N",
            help="Maximum number of wanted subscriber-flow pairs to plan in the driver process; above it, "
            f"some methods ({', '.join(choices.LARGE_METHODS)}) plan on Spark.",
            rich_help_panel=panels.PLANNING,
        ),
    ] = choices.LIMIT,
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
    """Plan channels for topics, for filters over events or for a stream's state, and write the plan.

    Topics come from --interests, or from a log of --changes, which is applied up to --until. From filters and
    events, flows are made: the last matching events (10,000 unless --recent, --last or --window says
    otherwise), or the cells of a grid over the attributes. A stream's --state has its flows and current
    rates; the stream may keep running.

    Parameters of a method are given by --set; `narrowcast parameters METHOD` lists them. The method joint
    takes limits (memberships, members, rate), and with --from the limit moves, the most group joins and
    leaves. With --from a plan of subscriber clusters, auto uses direct: new clusters take over the channel
    numbers of earlier ones with the fewest moves, as with rassoc and ncut.

    The method auto chooses by the first --cost: partial for network (the default with a topology); joint for
    filtering (the default with --sessions); cover for overall; direct for false-positives; for waste, the
    best of joint, pairwise and macqueen.

    With --by subscription, methods that cluster subscribers by events (direct, rassoc, ncut, centroid,
    box-overlap, r-tree) cluster subscriptions instead: a subscriber with several kinds of interest is in
    several clusters, and an event goes to the clusters of the subscriptions that it matches.

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
    import numpy as np

    from narrowcast.cli.replanning import EarlierPlan, PlanningProgress, method_for
    from narrowcast.costs import COSTS
    from narrowcast.files import rows_in
    from narrowcast.model.artefact import read_info, write_plan
    from narrowcast.model.schema import Schema
    from narrowcast.planning.base import PLANNERS
    from narrowcast.planning.progress import observe_costs
    from narrowcast.spark.planning.plan import check_large, costs_of, make_plan
    from narrowcast.spark.planning.planner_parameters import check_planner, parameters_of
    from narrowcast.spark.progress import watched
    from narrowcast.spark.session import sized
    from narrowcast.spark.spark_errors import plainly
    from narrowcast.spark.stages.changes import instant_of
    from narrowcast.spark.stages.network import NetworkTables
    from narrowcast.spark.stages.ownership import check_by, interest_by_subscription, plan_by_subscriber
    from narrowcast.spark.stages.plan_inputs import PlanInputs, load_interest
    from narrowcast.spark.storage import write_table

    needs_start = PLANNERS[method].capabilities.warm_start == "required"
    options.one_of("strategy", strategy, choices.STRATEGIES)
    if out.exists() or out.is_symlink():
        raise TableError(f"{out}: exists already; name another folder, or remove it")
    params = parameters(settings or [])
    target = costs[0] if costs else params.get("cost")
    before = None if start is None else read_info(start).method
    asked, method = method, method_for(method, params, (start, pinned, sessions), target, before)
    if asked != method:
        params.pop("cost", None)  # a parameter of auto, which has chosen by it
    if needs_start and start is None:
        raise ParameterError(f"--from: method {method!r} needs an earlier plan", parameter="start")
    earlier = EarlierPlan.read(start, pinned, method, by)
    if sessions is not None:
        if "sessions" not in parameters_of(method):
            raise ParameterError(
                f"--sessions={sessions}: method {method!r} makes one-level plans; leave it out",
                parameter="sessions",
                value=sessions,
            )
        if channels is None and start is None:
            raise ParameterError(
                f"--sessions={sessions}: needs --channels, the maximum number of groups that hold the "
                "sessions",
                parameter="sessions",
                value=sessions,
            )
        params["sessions"] = sessions
    if method == "auto" and costs:
        params.setdefault("cost", costs[0])
    network = NetworkTables.read(topology, locations, publishers)
    params, scoring = for_plan(params, method, costs, network.given)
    COSTS.made(costs, **network.given, **scoring)  # refuses bad parameters before Spark starts
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
    if state is None:  # the flows of a state are known once its files are read
        earlier.check_space("topics" if subscriptions is None else flows)
    request: dict[str, Any] = {"channels": channels, "seed": seed, "params": params | earlier.params}
    check_by(by, method, given, **request, network=network)
    check_planner(method, **request, network=network, filters=subscriptions is not None and flows == "events")
    pairs = rows_in(interests) if interests is not None and changes is None else None
    check_large(method, **request, network=network, pairs=pairs, limit=limit)
    with options.spark_at(master, conf, ui=ui) as at, sized(at.spark, given.size(at.spark)):
        loaded = load_interest(at.spark, given, at.progress, at.tell)
        if rejected is not None and loaded.rejected is not None:
            write_table(loaded.rejected, rejected, doing=f"write {rejected}")
        with (
            watched(at.spark, at.progress, "plan") as show,
            observe_costs(PlanningProgress(show)),
            plainly("plan"),
        ):
            network = network.fitting(text=loaded.frames.text)
            earlier.check_space(loaded.frames.flow_space)
            earlier = earlier.fitting(text=loaded.frames.text)
            wanted = interest_by_subscription(loaded, given) if by == "subscription" else loaded.frames
            planned = make_plan(
                wanted,
                method,
                **request | {"params": params | earlier.params},
                network=network,
                limit=limit,
            )
            if by == "subscription":
                planned = plan_by_subscriber(wanted, planned)
            made, method = planned.plan, planned.method
            networked = PLANNERS[method].capabilities.network
            totals = costs_of(loaded.frames, planned, costs=costs, params=scoring, network=network)
            bounds = None if loaded.frames.cells is None else loaded.frames.cells.toArrow().sort_by("flow")
        described: dict[str, Any] = {"channels": channels, **params, **earlier.names}
        if given.until is not None:
            described["until"] = given.until.isoformat()
        if loaded.edges is not None:
            described |= {"top": top, "grid": loaded.edges}
        elif loaded.frames.flow_space == "events":
            described |= {name: value for name, value in given.selection.items() if value is not None}
        if by == "subscription":
            described["by"] = by
        described |= planned.how
        files = earlier.files(planned)
        write_plan(
            made,
            out,
            method=method,
            params=described,
            seed=seed,
            flow_space=loaded.frames.flow_space,
            costs=totals,
            inputs=loaded.fingerprints | (network.fingerprints if networked else {}),
            interest=planned.interest,
            cells=bounds,
            extra_files=files,
        )
    facts = {
        "command": "plan",
        "out": str(out),
        "method": method,
        "path": planned.path,
        **loaded.facts,
        "subscribers": made.n_subscribers,
        "channels": int(np.count_nonzero(made.used() & (made.parent < 0))),
        "sessions": int(np.count_nonzero(made.used() & (made.parent >= 0))) or None,
        "direct": int(made.unicast.nnz),
        "balance": made.balance(),
        "costs": totals,
        **earlier.facts(planned, files),
    }
    if by == "subscription":
        facts |= {"by": by, "memberships": int(made.listens.nnz)}
    names = ("rejected", "subscribers", "flows", "wants", "channels")
    rows: list[tuple[str, ...]] = [("", "number"), *((name, f"{facts[name]:,}") for name in names)]
    if facts["sessions"]:
        rows += [("sessions", f"{facts['sessions']:,}")]
    if facts["balance"] is not None:
        rows += [("members of the largest channel / mean", f"{facts['balance']:.2f}")]
    rows += [(f"cost: {name}", options.number(value)) for name, value in totals.items()]
    if made.unicast.nnz:
        rows += [("wanted pairs sent directly", f"{made.unicast.nnz:,}")]
    if by == "subscription":
        each = made.listens.nnz / max(1, made.n_subscribers)
        rows += [("channels per subscriber, mean", options.number(each))]
    rows += [("planned on", planned.path)]
    tables = {f"The plan in {out}": rows, **earlier.tables(planned, files)}
    if facts["rejected"]:
        tables = {"Rejected rows": options.reasons(facts), **tables}
    options.show(facts, tables, as_json=as_json)
    for note in (planned.note, *earlier.notes(planned)):
        if note:
            typer.echo(note, err=True)
    if unwanted := earlier.unwanted(planned):
        n, first = len(unwanted), repr(unwanted[0])
        typer.echo(
            f"{n:,} pinned flows, such as {first}, are wanted by no subscriber: no channel has them", err=True
        )
