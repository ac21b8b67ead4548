"""`narrowcast users`: who may use a live broker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from narrowcast.cli import options
from narrowcast.cli.command import Command

#: As `narrowcast.broker.security.users` has them, which is not loaded for the help.
_ROLES = "subscriber, publisher, operator or node"

app = typer.Typer(no_args_is_help=True, help="Who may use a live broker, and for what: add, list, or remove.")

File = Annotated[Path, typer.Option("--users", metavar="FILE", help="The file that serve has as --users.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Who.")]


@app.command(cls=Command)
def add(
    name: Name,
    role: Annotated[
        list[str], typer.Option("--role", metavar="R", help=f"What it may be: {_ROLES}; can be repeated.")
    ],
    users: File,
    as_json: options.Json = False,
) -> None:
    """Add a user, and print its token: it is shown this once, and is in FILE, which only you may read.

    A subscriber may subscribe, and receive what is its own. A publisher may publish as itself. An operator
    may roll out plans, and do everything over HTTP. A node is a broker: it may do everything over NATS. A
    broker that runs takes up what changes in FILE within two seconds.

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
    """List users and what they may do, without their tokens.

    Examples:

        narrowcast users list --users users.json
    """
    from narrowcast.broker.security.users import Users

    found = [{"name": user.name, "roles": list(user.roles)} for user in Users.read(users)]
    rows = [("name", "roles"), *((str(user["name"]), ", ".join(user["roles"])) for user in found)]
    options.show({"command": "users list", "users": found}, {f"{len(found):,} users": rows}, as_json=as_json)


@app.command(cls=Command)
def remove(name: Name, users: File) -> None:
    """Remove a user: its token is worth nothing any more, and a broker that runs ends its connections.

    Examples:

        narrowcast users remove ann --users users.json
    """
    from narrowcast.broker.security.users import Users, locked

    with locked(users):
        Users.read(users).remove(name).write(users)
