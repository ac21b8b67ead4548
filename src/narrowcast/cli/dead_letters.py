"""`narrowcast dead-letters`: events that a live broker could not use, to look at and to send again."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from narrowcast.cli import broker_options, options
from narrowcast.cli.command import Command
from narrowcast.errors import InputError, PaceError, ParameterError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from narrowcast.broker.security.login import Login
    from narrowcast.broker.storage.dead_letters import DeadLetter, DeadLetters

#: The file in the folder of a broker's data.
FILE = "dead-letters.db"
#: Letters that are sent again between two looks at the file.
_STEP = 1000
#: Seconds to wait when they came too fast.
_SLOWER = 1.0
#: Reasons that are told, the most frequent.
_REASONS = 100
#: Characters of a payload that a table shows.
_SHOWN = 60

app = typer.Typer(no_args_is_help=True, help="Events that a live broker could not use: list, or send again.")

Data = Annotated[Path, typer.Option("--data", metavar="DIR", help="The folder that serve has as --data.")]
Reason = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Only those whose reason has this text.")
]


@app.command("list", cls=Command)
def list_(
    data: Data,
    reason: Reason = "",
    limit: Annotated[int, typer.Option("--limit", metavar="N", help="How many are shown, at most.")] = 20,
    as_json: options.Json = False,
) -> None:
    """Tell why events could not be used, and show the first of them.

    Examples:

        narrowcast dead-letters list --data broker

        narrowcast dead-letters list --data broker --reason "no JSON" --limit 1000 --json
    """
    if limit < 0:
        raise ParameterError(f"--limit is {limit}; give 0 or more")
    kept = _open(data)
    reasons, letters = kept.reasons(reason), kept.read(0, limit, reason)
    many = sum(reasons.values())
    if len(reasons) > _REASONS:  # each piece of garbage may have its own
        reasons = dict(list(reasons.items())[:_REASONS])
        reasons["other reasons"] = many - sum(reasons.values())
    facts = {
        "command": "dead-letters list",
        "letters": many,
        "reasons": reasons,
        "first": [_row(letter) for letter in letters],
    }
    tables = {f"{many:,} dead letters": [("why", "number"), *((w, f"{n:,}") for w, n in reasons.items())]}
    if letters:
        head = ("letter", "came", "publisher", "payload")
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
    """Publish dead letters again, and forget them once nodes have taken them.

    One that still cannot be used comes back as a new letter.

    Examples:

        narrowcast dead-letters replay --data broker

        narrowcast dead-letters replay --data broker --reason "attribute 'price'"

        NARROWCAST_TOKEN=... narrowcast dead-letters replay --data broker --user desk
    """
    who = broker_options.login(nats, user, token, tls_ca, tls_cert, tls_key)
    kept = _open(data)
    done: list[int] = []
    broker_options.until_interrupted(_replay(kept, reason, who, prefix, done))
    many = sum(done)
    rows = [("", "number"), ("letters", f"{many:,}")]
    options.show(
        {"command": "dead-letters replay", "letters": many}, {"Published again": rows}, as_json=as_json
    )


async def _replay(kept: DeadLetters, reason: str, who: Login, prefix: str, done: list[int]) -> None:
    """Publish letters, those that are there now."""
    from narrowcast.broker import Publisher

    last = kept.last
    async with broker_options.connected(who, "narrowcast dead-letters", prefix) as transport:
        publisher = await Publisher(transport, who.user or None, prefix=prefix).start()
        try:
            after = 0
            while some := [each for each in kept.read(after, _STEP, reason) if each.letter <= last]:
                for letter in some:
                    await _unhurried(publisher.publish, letter.payload)
                await _unhurried(publisher.settle)
                kept.forget([letter.letter for letter in some])
                done.append(len(some))
                after = some[-1].letter
        finally:
            await publisher.aclose()


async def _unhurried(work: Callable[..., Awaitable[None]], *given: bytes) -> None:
    """Publish something, or wait until all is taken; what came too fast before is kept anew, and told."""
    while True:
        try:
            await work(*given)
            return
        except PaceError as error:
            print(f"warning: {error}", file=sys.stderr)
            await asyncio.sleep(_SLOWER)


def _open(data: Path) -> DeadLetters:
    """Return the letters of a broker."""
    from narrowcast.broker.storage.dead_letters import DeadLetters

    if not (data / FILE).exists():
        raise InputError(f"{data} has no {FILE}; name the folder that narrowcast serve has as --data")
    return DeadLetters(data / FILE)


def _row(letter: DeadLetter) -> dict[str, Any]:
    """Return a letter as JSON has it."""
    return {
        "letter": letter.letter,
        "time": letter.time.isoformat(),
        "publisher": letter.publisher,
        "number": letter.number,
        "reason": letter.reason,
        "payload": letter.payload.decode(errors="backslashreplace"),
    }


def _short(payload: bytes) -> str:
    """Return the beginning of a payload."""
    text = payload[: 4 * _SHOWN].decode(errors="backslashreplace")
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
