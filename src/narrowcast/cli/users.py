"""`narrowcast users`: the users of a live broker and their roles."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from narrowcast.cli import options
from narrowcast.cli.command import Command, CommandGroup

#: The roles of `narrowcast.broker.security.users`, which is not imported for the help.
_ROLES = "subscriber, publisher, operator or node"

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="""Manage the users of a live broker: add, list or remove.

    Example: `narrowcast users add ann --role subscriber --users users.json`
    """,
)

File = Annotated[
    Path,
    typer.Option(
        "--users", metavar="FILE", help="File of users, the same as for `narrowcast serve --users`."
    ),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="User name.")]


@app.command(cls=Command)
def add(
    name: Name,
    role: Annotated[list[str], typer.Option("--role", metavar="R", help=f"Role: {_ROLES}; repeatable.")],
    users: File,
    as_json: options.Json = False,
) -> None:
    """Add a user and print its token.

    The token is shown only once; it is also in FILE, which only you may read. A subscriber may subscribe and
    receive its own events. A publisher may publish under its own name. An operator may roll out plans, and
    use all of the HTTP API. A node is a broker process and has full access over NATS. A running broker reads
    changes of FILE within two seconds.

    Examples:

        narrowcast users add ann --role subscriber --users users.json

        narrowcast users add desk --role publisher --role operator --users users.json
    """
    from narrowcast.broker.security.users import Users, locked

    with locked(users):
        before = Users.read(users) if users.exists() else Users.of([])
        after, made = before.add(name, role)
        after.write(users)
    if as_json:
        facts = {"command": "users add", "name": made.name, "roles": list(made.roles), "token": made.token}
        options.show(facts, {}, as_json=True)
    else:
        typer.echo(made.token)


@app.command("list", cls=Command)
def list_(users: File, as_json: options.Json = False) -> None:
    """List users and their roles, without their tokens.

    Examples:

        narrowcast users list --users users.json
    """
    from narrowcast.broker.security.users import Users

    found = [{"name": user.name, "roles": list(user.roles)} for user in Users.read(users)]
    rows = [("name", "roles"), *((str(user["name"]), ", ".join(user["roles"])) for user in found)]
    options.show({"command": "users list", "users": found}, {f"{len(found):,} users": rows}, as_json=as_json)


@app.command(cls=Command)
def remove(name: Name, users: File) -> None:
    """Remove a user: its token becomes invalid, and a running broker closes its connections.

    Examples:

        narrowcast users remove ann --users users.json
    """
    from narrowcast.broker.security.users import Users, locked

    with locked(users):
        Users.read(users).remove(name).write(users)
