"""State that a broker stores in its folder between runs: its plan and its delivery guarantee."""

from __future__ import annotations

import logging
import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from narrowcast.errors import InputError, NarrowcastError
from narrowcast.files import first_line
from narrowcast.model.plan_store import PlanStore

if TYPE_CHECKING:
    from narrowcast.broker.data.routing_state import PlanEpoch

log = logging.getLogger(__name__)

#: The names of the file and of the plan in the folder.
FILE, PLAN = "broker.json", "plan"


class DeliveryGuarantee(StrEnum):
    """Guarantee of delivery when a process or a connection fails."""

    AT_MOST_ONCE = "at-most-once"
    AT_LEAST_ONCE = "at-least-once"


class BrokerFacts(msgspec.Struct, frozen=True):
    """Content of the state file.

    Parameters
    ----------
    format
        Version of the file format.
    delivery
        Delivery guarantee.
    prefix
        Prefix of the broker's subjects.
    plan
        Name of the plan that was in use last.
    flow
        The attribute that names the topic of an event, if the plan is for topics.
    given
        Name of the plan that the broker was started with: a broker that is started with another plan uses
        that instead of `plan`.
    """

    format: int = 1
    delivery: DeliveryGuarantee = DeliveryGuarantee.AT_MOST_ONCE
    prefix: str = "nc"
    plan: str | None = None
    flow: str | None = None
    given: str | None = None


class BrokerState:
    """The state file and the plan in use, in the folder of a broker.

    Parameters
    ----------
    folder
        Folder of the broker.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     state = BrokerState(folder)
    ...     state.write(delivery=DeliveryGuarantee.AT_LEAST_ONCE)
    ...     str(BrokerState(folder).facts.delivery)
    'at-least-once'
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._file, self.plan = self._folder / FILE, self._folder / PLAN
        try:
            self.facts = msgspec.json.decode(self._file.read_bytes(), type=BrokerFacts)
        except FileNotFoundError:
            self.facts = BrokerFacts()
        except (OSError, msgspec.MsgspecError) as error:
            raise InputError(
                f"{self._file}: invalid state file: {first_line(error)}; repair or remove it"
            ) from error

    def delivery(self, requested: DeliveryGuarantee | None) -> DeliveryGuarantee:
        """Return the delivery guarantee to use: the requested one or, without a request, the stored one.

        Raises
        ------
        InputError
            When a broker that stores events is to use `AT_MOST_ONCE`, which would leave its stored events
            undelivered.
        """
        before = self.facts.delivery
        if requested is DeliveryGuarantee.AT_MOST_ONCE and before is DeliveryGuarantee.AT_LEAST_ONCE:
            raise InputError(
                f"delivery={requested}: {self._folder} may contain undelivered events; use {before}, or "
                "another folder",
                parameter="delivery",
                value=str(requested),
                limit=str(before),
            )
        return before if requested is None else requested

    def write(self, **changes: object) -> None:
        """Change facts, and write the file."""
        self.facts = msgspec.structs.replace(self.facts, **changes)
        self._folder.mkdir(parents=True, exist_ok=True)
        temporary = self._file.with_name(f".{FILE}-{os.getpid()}")
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(self.facts)) + b"\n")
        temporary.replace(self._file)

    def use(self, epoch: PlanEpoch, given: str | None) -> None:
        """Store the plan in use, with the name of the plan that the broker was started with.

        An error, such as a full disk, is logged and does not stop the plan; the broker then uses the earlier
        plan after a restart.
        """
        try:
            if epoch.folder and epoch.routes.name != self.facts.plan and Path(epoch.folder) != self.plan:
                with PlanStore(self.plan).write(replace=True) as temporary:
                    for name, content in PlanStore(epoch.folder).files(epoch.routes.name).items():
                        (temporary / name).write_bytes(content)
            used = epoch.routes.name if epoch.folder else None
            self.write(plan=used, flow=epoch.flow, given=given)
        except (OSError, NarrowcastError) as error:
            log.error("cannot store the plan in use for the next start: %s", first_line(error))
