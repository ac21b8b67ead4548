"""`narrowcast rollout`: switch a live broker to another plan."""

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

#: Seconds that a rollout may take at most, as joining channels may be slow.
_PATIENCE = 86_400.0
_ENDED = "the broker ended during the rollout; check which plan it uses, and roll this one out again"


def rollout(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="Folder of the plan, as the broker sees it.")],
    flow: Annotated[
        str | None,
        typer.Option(
            "--flow",
            metavar="A",
            help="Attribute that holds the topic of an event; required for a plan of topics.",
        ),
    ] = None,
    overlap: Annotated[
        float,
        typer.Option(
            "--overlap", metavar="SECONDS", help="Time for subscribers to join the new channels, 0 to 600."
        ),
    ] = 5.0,
    least: Annotated[
        float,
        typer.Option(
            "--least",
            metavar="P",
            help="Share of these subscribers that must have joined in time, 0 to 1; otherwise the old "
            "plan stays.",
        ),
    ] = 0.0,
    joins: Annotated[
        float | None,
        typer.Option(
            "--joins",
            metavar="N",
            help="Maximum number of channel joins per second, of all subscribers (default: no limit).",
        ),
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
    """Switch a live broker to another plan while events flow.

    Subscribers join the channels of the new plan while the old one is in use; then events are sent by the new
    plan, and the old channels are left. No subscriber misses an event or receives one twice: one that has not
    joined in time is sent to directly. A plan that cannot be used is refused, and the old one stays.

    Examples:

        narrowcast rollout plan

        narrowcast rollout plan --nats nats://broker:4222 --overlap 30

        narrowcast rollout plan --joins 500 --least 0.9

        NARROWCAST_TOKEN=... narrowcast rollout plan --user boss
    """
    if not 0 <= overlap <= 600:
        raise ParameterError(parameter="overlap", value=overlap, limit="seconds from 0 to 600")
    if not 0 <= least <= 1:
        raise ParameterError(parameter="least", value=least, limit="a share from 0 to 1")
    if joins is not None and not joins > 0:
        raise ParameterError(parameter="joins", value=joins, limit="above 0")
    done: list[dict[str, Any]] = []
    from narrowcast.broker.wire import RolloutRequest

    request = RolloutRequest(str(plan.absolute()), flow, overlap, least, joins)
    access = broker_options.login(nats, user, token, tls_ca, tls_cert, tls_key)
    broker_options.until_interrupted(_rollout(access, request, prefix, done))
    for facts in done:
        rows = [("", "number"), ("subscribers on its channels", f"{facts['listening']:,}")]
        options.show(
            {"command": "rollout", **facts}, {f"Plan {facts['plan']} is in use": rows}, as_json=as_json
        )


async def _rollout(access: Login, request: RolloutRequest, prefix: str, done: list[dict[str, Any]]) -> None:
    """Request the rollout of a plan, and append the broker's answer to `done`."""
    from narrowcast.broker import wire
    from narrowcast.broker.clients.request_client import RequestClient
    from narrowcast.broker.control.control_plane import BEAT

    async with broker_options.connected(access, "narrowcast rollout", prefix) as transport:
        subjects = wire.Subjects(prefix)
        beats = await transport.subscribe(subjects.beats)
        asking = RequestClient(transport, subjects.inbox(access.user or "rollout"))
        await asking.start()
        # Only the broker knows how long joining takes; its beats show that it is still running.
        asked = asyncio.ensure_future(asking.ask(subjects.orders, wire.encode(request), patience=_PATIENCE))
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
                        f"no broker at {access.where} with prefix {prefix!r}; start narrowcast serve"
                    )
                if not asked.done():
                    raise TransportError(_ENDED)
            reply = await asked
        finally:
            for each in (asked, beat):
                each.cancel()
            await asyncio.gather(asked, beat, return_exceptions=True)
            await asking.aclose()
    answer = wire.decode_answer(reply)
    if isinstance(answer, wire.Refusal):
        raise PlanError(answer.reason)
    if not isinstance(answer, wire.RolloutDone):
        raise TransportError("unexpected answer of the broker, which may be of another version")
    done.append({"epoch": answer.epoch, "plan": answer.plan, "listening": answer.listening})
