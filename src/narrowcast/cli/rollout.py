"""`narrowcast rollout`: another plan for a live broker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from narrowcast.cli import live, options
from narrowcast.errors import ParameterError, PlanError, TransportError


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
    nats: live.Nats = live.HERE,
    prefix: live.Prefix = "nc",
    as_json: options.Json = False,
) -> None:
    """Let a live broker take up a plan while events flow.

    Subscribers join the channels of the new plan while the old one is in use; then events go by the new one,
    and the old channels are given up. Nobody misses an event or gets one twice: who has not joined in time is
    sent to directly. A plan that cannot be used is refused, and the old one stays.

    Examples:

        narrowcast rollout plan

        narrowcast rollout plan --nats nats://broker:4222 --overlap 30
    """
    if not 0 <= overlap <= 600:
        raise ParameterError(f"--overlap is {overlap}; give seconds from 0 to 600")
    done: list[dict[str, Any]] = []
    live.until_interrupted(_rollout(nats, plan.absolute(), flow, overlap, prefix, done))
    for facts in done:
        rows = [("", ""), ("plans so far", str(facts["epoch"])), ("listening", f"{facts['listening']:,}")]
        options.show(
            {"command": "rollout", **facts}, {f"Plan {facts['plan']} is in use": rows}, as_json=as_json
        )


async def _rollout(
    url: str, plan: Path, flow: str | None, overlap: float, prefix: str, done: list[dict[str, Any]]
) -> None:
    """Order a node to take up a plan, and note what it says."""
    from narrowcast.broker import wire
    from narrowcast.broker.asking import PATIENCE, Asking

    async with live.connected(url, "narrowcast rollout") as transport:
        subjects = wire.Subjects(prefix)
        asking = Asking(transport, subjects.inbox("rollout"))
        await asking.start()
        try:
            order = wire.encode(wire.Rollout(str(plan), flow, overlap))
            said = await asking.ask(subjects.orders, order, patience=overlap + PATIENCE)
        finally:
            await asking.aclose()
    answer = wire.decode_answer(said)
    if isinstance(answer, wire.Refused):
        raise PlanError(answer.reason)
    if not isinstance(answer, wire.RolledOut):
        raise TransportError("the broker answers with something else; is it of another version?")
    done.append({"epoch": answer.epoch, "plan": answer.plan, "listening": answer.listening})
