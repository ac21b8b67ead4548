"""Regular replanning of a live broker from its recorded events."""

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
from narrowcast.planning.base import PLANNERS
from narrowcast.validation import check_channels

if TYPE_CHECKING:
    from narrowcast.broker import ActivityLog, ControlPlane, Node

log = logging.getLogger(__name__)

#: Planning runs in a process of its own, as it needs Spark, which a broker does not.
_COMMAND = "from narrowcast.cli.main import main; main()"


@dataclass
class ReplanLoop:
    """Makes a plan from recorded events at regular intervals, and rolls it out.

    Parameters
    ----------
    every
        Seconds between plans.
    method, channels
        Planning method, and maximum number of channels.
    record
        The recorded events and subscriptions.
    recent
        Number of the latest events that a plan is made from.
    """

    every: float
    method: str
    channels: int
    record: ActivityLog
    recent: int = 5000
    _counted: tuple[int, int, int] = field(default=(0, 0, 0), init=False)

    def __post_init__(self) -> None:
        if not self.every > 0:
            raise ParameterError(parameter="replan", value=self.every, limit="seconds above 0")
        PLANNERS[self.method]
        check_channels(self.channels)

    async def run(self, node: Node, control: ControlPlane) -> None:
        """Replan until cancelled, and log the results."""
        while True:
            await asyncio.sleep(self.every)
            self._log_deliveries(node)
            self.record.write(control.interests)
            try:
                folder = await self._plan()
                done = await control.rollout_from(str(folder))
                log.info(
                    "plan %s by %s is in use, with %d subscribers on its channels",
                    *(done.plan, self.method, done.listening),
                    extra=facts(
                        plan=done.plan, method=self.method, epoch=done.epoch, listening=done.listening
                    ),
                )
            except NarrowcastError as error:
                log.warning("the plan is unchanged: %s", error)

    def _log_deliveries(self, node: Node) -> None:
        """Log the deliveries per event since the last plan."""
        counts = node.counts
        now = (counts.events, counts.direct + counts.shared, counts.wasted)
        events, reached, wasted = (b - a for a, b in zip(self._counted, now, strict=True))
        self._counted = now
        if events:
            log.info(
                "since the last plan %d events, %.2f deliveries each, %.2f of them wasted",
                *(events, reached / events, wasted / events),
                extra=facts(events=events, deliveries=reached, wasted=wasted),
            )

    async def _plan(self) -> Path:
        """Make a plan from recorded events, and return its folder."""
        folder = self.record.folder / "plans" / f"{time.time_ns():020d}"
        words = ["plan", "--subscriptions", self.record.folder / "subscriptions.parquet"]
        words += ["--events", self.record.folder / "events", "--recent", self.recent, "--method", self.method]
        words += ["--channels", self.channels, "--out", folder, "--json"]
        if not (self.record.folder / "events").exists():
            raise ParameterError("no events are recorded yet to plan from")
        process = await asyncio.create_subprocess_exec(
            *[sys.executable, "-c", _COMMAND, *map(str, words)],
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            _, errors = await process.communicate()
        except asyncio.CancelledError:
            process.terminate()
            await process.wait()
            raise
        if process.returncode:
            lines = errors.decode(errors="replace").strip().splitlines()
            raise NarrowcastError(f"planning failed: {lines[-1] if lines else process.returncode}")
        self._remove_old()
        return folder

    def _remove_old(self, most: int = 5) -> None:
        """Remove all but the latest plans."""
        for old in sorted((self.record.folder / "plans").iterdir())[:-most]:
            shutil.rmtree(old, ignore_errors=True)
