"""`narrowcast dead-letters`: list and replay the events that a live broker could not use."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from narrowcast.cli import broker_options, options
from narrowcast.cli.command import Command, CommandGroup
from narrowcast.errors import InputError, PaceError, ParameterError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from narrowcast.broker.security.login import Login
    from narrowcast.broker.storage.dead_letters import DeadLetter, DeadLetters

#: Name of the file in a broker's data folder.
FILE = "dead-letters.db"
#: Dead letters per read of the file.
_STEP = 1000
#: Seconds to wait after exceeding the broker's rate limit.
_SLOWER = 1.0
#: Maximum number of reasons to report, the most frequent first.
_REASONS = 100
#: Characters of a payload in a table.
_SHOWN = 60

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="""List or replay dead letters: events that a live broker could not use.

    Example: `narrowcast dead-letters list --data broker`
    """,
)

Data = Annotated[
    Path,
    typer.Option(
        "--data", metavar="DIR", help="Data folder of the broker, the same as for `narrowcast serve --data`."
    ),
]
Reason = Annotated[
    str,
    typer.Option(
        "--reason", metavar="TEXT", help="Only dead letters whose reason contains this text (default: all)."
    ),
]


@app.command("list", cls=Command)
def list_(
    data: Data,
    reason: Reason = "",
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", help="Maximum number of dead letters to list.")
    ] = 20,
    as_json: options.Json = False,
) -> None:
    """List the reasons of dead letters with their counts, and the first dead letters.

    Examples:

        narrowcast dead-letters list --data broker

        narrowcast dead-letters list --data broker --reason "no JSON" --limit 1000 --json
    """
    if limit < 0:
        raise ParameterError(parameter="limit", value=limit, limit="at least 0")
    store = _open(data)
    reasons, letters = store.reasons(reason), store.read(0, limit, reason)
    many = sum(reasons.values())
    if len(reasons) > _REASONS:  # invalid events may each have a reason of their own
        reasons = dict(list(reasons.items())[:_REASONS])
        reasons["other reasons"] = many - sum(reasons.values())
    facts = {
        "command": "dead-letters list",
        "letters": many,
        "reasons": reasons,
        "first": [_row(letter) for letter in letters],
    }
    tables = {
        f"{many:,} dead letters": [("reason", "number"), *((why, f"{n:,}") for why, n in reasons.items())]
    }
    if letters:
        head = ("letter", "received", "publisher", "payload")
        rows = [
            (str(letter.letter), f"{letter.time:%Y-%m-%d %H:%M:%S}", letter.publisher, _short(letter.payload))
            for letter in letters
        ]
        tables[f"The first {len(letters):,}"] = [head, *rows]  # type: ignore[list-item]
    options.show(facts, tables, as_json=as_json)


@app.command(cls=Command)
def replay(
    data: Data,
    reason: Reason = "",
    nats: broker_options.Nats = broker_options.HERE,
    prefix: broker_options.Prefix = "nc",
    user: broker_options.User = None,
    token: broker_options.Token = None,
    tls_ca: broker_options.TlsCa = None,
    tls_cert: broker_options.TlsCert = None,
    tls_key: broker_options.TlsKey = None,
    as_json: options.Json = False,
) -> None:
    """Publish dead letters again, and delete them once a node has accepted them.

    An event that still cannot be used becomes a new dead letter.

    Examples:

        narrowcast dead-letters replay --data broker

        narrowcast dead-letters replay --data broker --reason "attribute 'price'"

        NARROWCAST_TOKEN=... narrowcast dead-letters replay --data broker --user desk
    """
    access = broker_options.login(nats, user, token, tls_ca, tls_cert, tls_key)
    store = _open(data)
    done: list[int] = []
    broker_options.until_interrupted(_replay(store, reason, access, prefix, done))
    many = sum(done)
    rows = [("", "number"), ("letters", f"{many:,}")]
    options.show({"command": "dead-letters replay", "letters": many}, {"Replayed": rows}, as_json=as_json)


async def _replay(store: DeadLetters, reason: str, access: Login, prefix: str, done: list[int]) -> None:
    """Publish the dead letters that are stored now; later ones may come from these."""
    from narrowcast.broker import Publisher

    last = store.last
    async with broker_options.connected(access, "narrowcast dead-letters", prefix) as transport:
        publisher = await Publisher(transport, access.user or None, prefix=prefix).start()
        try:
            after = 0
            while some := [each for each in store.read(after, _STEP, reason) if each.letter <= last]:
                for letter in some:
                    await _publish_slowly(publisher.publish, letter.payload)
                await _publish_slowly(publisher.settle)
                store.remove([letter.letter for letter in some])
                done.append(len(some))
                after = some[-1].letter
        finally:
            await publisher.aclose()


async def _publish_slowly(work: Callable[..., Awaitable[None]], *given: bytes) -> None:
    """Publish or settle, waiting and trying again as long as the broker's rate limit is exceeded."""
    while True:
        try:
            await work(*given)
            return
        except PaceError as error:
            print(f"warning: {error}", file=sys.stderr)
            await asyncio.sleep(_SLOWER)


def _open(data: Path) -> DeadLetters:
    from narrowcast.broker.storage.dead_letters import DeadLetters

    if not (data / FILE).exists():
        raise InputError(
            f"--data={str(data)!r}: has no {FILE}; give the folder that narrowcast serve has as --data"
        )
    return DeadLetters(data / FILE)


def _row(letter: DeadLetter) -> dict[str, Any]:
    return {
        "letter": letter.letter,
        "time": letter.time.isoformat(),
        "publisher": letter.publisher,
        "number": letter.number,
        "reason": letter.reason,
        "payload": letter.payload.decode(errors="backslashreplace"),
    }


def _short(payload: bytes) -> str:
    text = payload[: 4 * _SHOWN].decode(errors="backslashreplace")
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
