"""`narrowcast permissions`: what users may do, for NATS servers that are there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from narrowcast.cli import broker_options

if TYPE_CHECKING:
    from collections.abc import Callable


def permissions(
    users: Annotated[
        Path, typer.Option("--users", metavar="FILE", help="Who there is: see narrowcast users.")
    ],
    plan: Annotated[
        Path | None,
        typer.Option("--plan", metavar="PLAN", help="The plan whose channels subscribers may listen to."),
    ] = None,
    prefix: broker_options.Prefix = "nc",
) -> None:
    """Print the users and their permissions as a part of the configuration of NATS servers.

    It is for a cluster of your own; narrowcast serve sees to its own server by itself. Put it into a file
    that only the server may read, since it holds the tokens, include that in an account, and reload the
    servers. Without --plan nobody may listen to a channel, and everything is sent directly.

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
    """Return what gives the channels of somebody, in plans of any number: a broker counts them itself."""
    from narrowcast.broker.data.routing_state import PlanEpoch
    from narrowcast.model.artefact import read_plan
    from narrowcast.routing.plan_routes import PlanRoutes

    epoch = PlanEpoch(0, PlanRoutes("", read_plan(plan)[0], None))
    return lambda name: [f"{prefix}.out.channel.*.{number}" for number in epoch.channels(name)]
