"""`narrowcast permissions`: users and their permissions as configuration of NATS servers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from narrowcast.cli import broker_options

if TYPE_CHECKING:
    from collections.abc import Callable


def permissions(
    users: Annotated[
        Path, typer.Option("--users", metavar="FILE", help="File of users: see `narrowcast users`.")
    ],
    plan: Annotated[
        Path | None,
        typer.Option(
            "--plan",
            metavar="PLAN",
            help="Plan whose channels subscribers may listen to (default: none, all events are sent "
            "directly).",
        ),
    ] = None,
    prefix: broker_options.Prefix = "nc",
) -> None:
    """Print users and their permissions as configuration for NATS servers.

    Use it for a cluster of your own; `narrowcast serve` configures the server that it starts. Put the output
    into a file that only the server may read, since it contains the tokens, include that file in an account,
    and reload the servers.

    Examples:

        narrowcast permissions --users users.json

        narrowcast permissions --users users.json --plan plan --prefix market > market-users.conf
    """
    from narrowcast.broker.security.permissions import fragment, no_channels
    from narrowcast.broker.security.users import Users
    from narrowcast.broker.wire import Subjects

    subjects, found = Subjects(prefix), Users.read(users)
    typer.echo(fragment(found, subjects, no_channels if plan is None else _channels(plan, subjects.prefix)))


def _channels(plan: Path, prefix: str) -> Callable[[str], list[str]]:
    """Return a function from a subscriber to its channel subjects, in plans of any epoch."""
    from narrowcast.broker.data.routing_state import PlanEpoch
    from narrowcast.model.artefact import read_plan
    from narrowcast.routing.plan_routes import PlanRoutes

    epoch = PlanEpoch(0, PlanRoutes("", read_plan(plan)[0], None))
    return lambda name: [f"{prefix}.out.channel.*.{number}" for number in epoch.channels(name)]
