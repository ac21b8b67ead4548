"""What becomes of an order to take up a plan when the broker ends meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from narrowcast.broker import NatsServer, NatsTransport, wire
from narrowcast.broker.security.login import Login
from narrowcast.cli.rollout import _rollout
from narrowcast.errors import TransportError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
@pytest.mark.nats
def test_a_broker_that_ends_meanwhile_is_told(tmp_path: Path) -> None:
    async def run(*since: int) -> None:
        broker = await NatsTransport.connect(server.url)
        order = wire.RolloutRequest("/plan")
        asked = asyncio.create_task(_rollout(Login([server.url], "", "", None), order, "nc", []))
        for number in since:
            await asyncio.sleep(0.3)
            await broker.publish("nc.beats", wire.encode(wire.Heartbeat(number, 1)))
        try:
            await asked
        finally:
            await broker.aclose()

    with NatsServer(tmp_path) as server:
        for since, why in (
            ((), "no broker at .* 'nc'"),
            ((1, 1), "the broker ended"),  # and then is silent
            ((1, 2), "the broker ended"),
        ):
            with pytest.raises(TransportError, match=why):
                asyncio.run(run(*since))
