"""`narrowcast rollout`: another plan for a live broker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from narrowcast.cli import broker_options, options
from narrowcast.errors import ParameterError, PlanError, TransportError

if TYPE_CHECKING:
    from narrowcast.broker.security.login import Login
    from narrowcast.broker.transport import Message
    from narrowcast.broker.wire import RolloutRequest

#: Seconds that a rollout may take: channels may be joined slowly.
_LONG = 86_400.0
_ENDED = "the broker has ended meanwhile; see which plan it uses, and roll this one out again"


def rollout(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan's folder, as the broker sees it.")],
    flow: Annotated[
        str | None,
        typer.Option(
            "--flow", metavar="A", help="For a plan of topics: the attribute that names an event's."
        ),
    ] = None,
    overlap: Annotated[
        float, typer.Option("--overlap", metavar="SECONDS", help="How long subscribers may take to join.")
    ] = 5.0,
    least: Annotated[
        float,
        typer.Option("--least", metavar="P", help="The share of them who have to, or the old plan stays."),
    ] = 0.0,
    joins: Annotated[
        float | None,
        typer.Option("--joins", metavar="N", help="Channels joined a second, at most."),
    ] = None,
    nats: broker_options.Nats = broker_options.HERE,
    prefix: broker_options.Prefix = "nc",
    user: broker_options.User = None,
    token: broker_options.Token = None,
    tls_ca: broker_options.TlsCa = None,
    tls_cert: broker_options.TlsCert = None,
    tls_key: broker_options.TlsKey = None,
    as_json: options.Json = False,
) -> None:
    """Let a live broker take up a plan while events flow.

    Subscribers join the channels of the new plan while the old one is in use; then events go by the new one,
    and the old channels are given up. Nobody misses an event or gets one twice: who has not joined in time is
    sent to directly. A plan that cannot be used is refused, and the old one stays.

    Examples:

        narrowcast rollout plan

        narrowcast rollout plan --nats nats://broker:4222 --overlap 30

        narrowcast rollout plan --joins 500 --least 0.9

        NARROWCAST_TOKEN=... narrowcast rollout plan --user boss
    """
    if not 0 <= overlap <= 600:
        raise ParameterError(f"--overlap is {overlap}; give seconds from 0 to 600")
    if not 0 <= least <= 1:
        raise ParameterError(f"--least is {least}; give a share from 0 to 1")
    if joins is not None and not joins > 0:
        raise ParameterError(f"--joins is {joins}; give a number above 0")
    done: list[dict[str, Any]] = []
    from narrowcast.broker.wire import RolloutRequest

    order = RolloutRequest(str(plan.absolute()), flow, overlap, least, joins)
    who = broker_options.login(nats, user, token, tls_ca, tls_cert, tls_key)
    broker_options.until_interrupted(_rollout(who, order, prefix, done))
    for facts in done:
        rows = [("", "number"), ("listening to its channels", f"{facts['listening']:,}")]
        options.show(
            {"command": "rollout", **facts}, {f"Plan {facts['plan']} is in use": rows}, as_json=as_json
        )


async def _rollout(who: Login, order: RolloutRequest, prefix: str, done: list[dict[str, Any]]) -> None:
    """Order a node to take up a plan, and note what it says."""
    from narrowcast.broker import wire
    from narrowcast.broker.clients.request_client import RequestClient
    from narrowcast.broker.control.control_plane import BEAT

    async with broker_options.connected(who, "narrowcast rollout", prefix) as transport:
        subjects = wire.Subjects(prefix)
        beats = await transport.subscribe(subjects.beats)
        asking = RequestClient(transport, subjects.inbox(who.user or "rollout"))
        await asking.start()
        # How long it takes to join so many channels only the broker knows; that it is there it says.
        asked = asyncio.ensure_future(asking.ask(subjects.orders, wire.encode(order), patience=_LONG))
        since: int | None = None
        beat: asyncio.Future[Message] = asyncio.Future()
        try:
            while not asked.done():
                beat = asyncio.ensure_future(anext(beats))
                await asyncio.wait({asked, beat}, timeout=2 * BEAT + 1, return_when=asyncio.FIRST_COMPLETED)
                if beat.done():
                    now = wire.decode_beat(beat.result().payload).since
                    if since not in (None, now):
                        raise TransportError(_ENDED)
                    since = now
                    continue
                beat.cancel()
                await asyncio.gather(beat, return_exceptions=True)
                if not asked.done() and since is None:
                    raise TransportError(
                        f"no broker is there at {who.where} with prefix {prefix!r}; start narrowcast serve"
                    )
                if not asked.done():
                    raise TransportError(_ENDED)
            said = await asked
        finally:
            for each in (asked, beat):
                each.cancel()
            await asyncio.gather(asked, beat, return_exceptions=True)
            await asking.aclose()
    answer = wire.decode_answer(said)
    if isinstance(answer, wire.Refusal):
        raise PlanError(answer.reason)
    if not isinstance(answer, wire.RolloutDone):
        raise TransportError("the broker answers with something else; is it of another version?")
    done.append({"epoch": answer.epoch, "plan": answer.plan, "listening": answer.listening})
