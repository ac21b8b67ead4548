"""Tasks that go on for ever, until they are ended."""

from __future__ import annotations

import asyncio
from typing import Any

#: Seconds after which a task that was told to end, and has not, is told again.
_AGAIN = 0.5


async def ended(*tasks: asyncio.Task[Any] | None) -> None:
    """End tasks, and wait until they have; None is none.

    A task may miss that it should end: until Python 3.12 `asyncio.wait_for`, which libraries use, forgets it
    where what it waits for comes at the same moment.
    """
    there = [task for task in tasks if task is not None]
    left = {task for task in there if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_AGAIN)
    await asyncio.gather(*there, return_exceptions=True)  # so that nobody is told of what they ended with
