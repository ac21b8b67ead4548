"""Tasks that go on for ever, until they are ended."""

from __future__ import annotations

import asyncio


async def ended(*tasks: asyncio.Task[None] | None) -> None:
    """End tasks, and wait until they have; None is none."""
    there = [task for task in tasks if task is not None]
    for task in there:
        task.cancel()
    await asyncio.gather(*there, return_exceptions=True)
