"""Cancellation of asyncio tasks that run until they are stopped."""

from __future__ import annotations

import asyncio
from typing import Any

#: Seconds after which a task that is still running is cancelled again.
_CANCEL_INTERVAL = 0.5


async def cancel_tasks(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks and wait until each of them has cancel_tasks; None is skipped.

    A task can lose a cancellation: until Python 3.12 `asyncio.wait_for`, which libraries use, swallows it
    when the awaited result arrives at the same moment. So a task that is still running is cancelled again.
    """
    given = [task for task in tasks if task is not None]
    running = {task for task in given if not task.done()}
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=_CANCEL_INTERVAL)
    await asyncio.gather(*given, return_exceptions=True)  # else asyncio logs exceptions as never retrieved
