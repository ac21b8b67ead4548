"""A live broker that plans again from what it has seen."""

from __future__ import annotations

import asyncio
import logging
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from narrowcast.cli.log_output import facts
from narrowcast.errors import NarrowcastError, ParameterError
from narrowcast.planning.base import PLANNERS, planners

if TYPE_CHECKING:
    from narrowcast.broker import ActivityLog, ControlPlane, Node

log = logging.getLogger(__name__)

#: The command, for a process of its own: planning brings Spark along, which a broker does not.
_COMMAND = "from narrowcast.cli.main import main; main()"


@dataclass
class ReplanLoop:
    """Plans every so many seconds from what was recorded, and lets the plan be used.

    Parameters
    ----------
    every
        Seconds from one plan to the next.
    method, channels
        Of the plan.
    record
        What has been written down.
    recent
        How many of the last events plans are made from.
    """

    every: float
    method: str
    channels: int
    record: ActivityLog
    recent: int = 5000
    _before: tuple[int, int, int] = field(default=(0, 0, 0), init=False)

    def __post_init__(self) -> None:
        if not self.every > 0:
            raise ParameterError(f"--replan is {self.every}; give seconds above 0")
        if self.method not in PLANNERS:
            raise ParameterError(
                f"--method is {self.method!r}; use one of {', '.join(planners(boxes=False))}"
            )
        if self.channels < 1:
            raise ParameterError(f"--channels is {self.channels}; give at least 1")

    async def run(self, node: Node, desk: ControlPlane) -> None:
        """Plan again and again, and say what comes of it."""
        while True:
            await asyncio.sleep(self.every)
            self._tell_spent(node)
            self.record.write(desk.interests)
            try:
                folder = await self._plan()
                done = await desk.rollout_from(str(folder))
                log.info(
                    "plan %s by %s is in use, %d listen to its channels",
                    *(done.plan, self.method, done.listening),
                    extra=facts(
                        plan=done.plan, method=self.method, epoch=done.epoch, listening=done.listening
                    ),
                )
            except NarrowcastError as error:
                log.warning("the plan stays as it was: %s", error)

    def _tell_spent(self, node: Node) -> None:
        """Say what events have cost since the last plan."""
        counts = node.counts
        now = (counts.events, counts.direct + counts.shared, counts.wasted)
        events, reached, wasted = (b - a for a, b in zip(self._before, now, strict=True))
        self._before = now
        if events:
            log.info(
                "since the last plan %d events, %.2f deliveries each, %.2f of them wasted",
                *(events, reached / events, wasted / events),
                extra=facts(events=events, deliveries=reached, wasted=wasted),
            )

    async def _plan(self) -> Path:
        """Make a plan from what was recorded, and return its folder."""
        folder = self.record.folder / "plans" / f"{time.time_ns():020d}"
        words = ["plan", "--subscriptions", self.record.folder / "subscriptions.parquet"]
        words += ["--events", self.record.folder / "events", "--recent", self.recent, "--method", self.method]
        words += ["--channels", self.channels, "--out", folder, "--json"]
        if not (self.record.folder / "events").exists():
            raise ParameterError("there are no events yet to plan from")
        process = await asyncio.create_subprocess_exec(
            *[sys.executable, "-c", _COMMAND, *map(str, words)],
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            _, said = await process.communicate()
        except asyncio.CancelledError:
            process.terminate()
            await process.wait()
            raise
        if process.returncode:
            lines = said.decode(errors="replace").strip().splitlines()
            raise NarrowcastError(f"planning failed: {lines[-1] if lines else process.returncode}")
        self._keep_few()
        return folder

    def _keep_few(self, most: int = 5) -> None:
        """Remove plans of long ago."""
        for old in sorted((self.record.folder / "plans").iterdir())[:-most]:
            shutil.rmtree(old, ignore_errors=True)
