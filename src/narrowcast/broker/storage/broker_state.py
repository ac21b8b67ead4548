"""What a broker remembers in its folder from one start to the next: its plan, and what it promises."""

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
    """What becomes of events when something fails."""

    AT_MOST_ONCE = "at-most-once"
    AT_LEAST_ONCE = "at-least-once"


class BrokerFacts(msgspec.Struct, frozen=True):
    """What is written down.

    Parameters
    ----------
    format
        Of the file.
    delivery, prefix
        What is promised, and how subjects begin.
    plan, flow
        The plan that was in use last, and the attribute that names topics, if any.
    given
        The plan that the broker was started with: when that is another, it is used.
    """

    format: int = 1
    delivery: DeliveryGuarantee = DeliveryGuarantee.AT_MOST_ONCE
    prefix: str = "nc"
    plan: str | None = None
    flow: str | None = None
    given: str | None = None


class BrokerState:
    """The facts of a broker in a folder.

    Parameters
    ----------
    folder
        Which.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     lasting = BrokerState(folder)
    ...     lasting.write(delivery=DeliveryGuarantee.AT_LEAST_ONCE)
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
                f"{self._file} cannot be read: {first_line(error)}; mend or remove it"
            ) from error

    def delivery(self, asked: DeliveryGuarantee | None) -> DeliveryGuarantee:
        """Return what to promise: what is asked for, or as before.

        Raises
        ------
        InputError
            When events may be stored here, and would be no longer.
        """
        before = self.facts.delivery
        if asked is DeliveryGuarantee.AT_MOST_ONCE and before is DeliveryGuarantee.AT_LEAST_ONCE:
            raise InputError(
                f"{self._folder} may hold events for subscribers; serve it {before}, or give another --data"
            )
        return before if asked is None else asked

    def write(self, **changes: object) -> None:
        """Write down what has changed."""
        self.facts = msgspec.structs.replace(self.facts, **changes)
        self._folder.mkdir(parents=True, exist_ok=True)
        aside = self._file.with_name(f".{FILE}-{os.getpid()}")
        aside.write_bytes(msgspec.json.format(msgspec.json.encode(self.facts)) + b"\n")
        aside.replace(self._file)

    def use(self, epoch: PlanEpoch, given: str | None) -> None:
        """Remember a plan that is in use, with the name of the one that the broker was started with.

        A disk that is full holds up no plan: then the one before is used after a restart.
        """
        try:
            if epoch.folder and epoch.routes.name != self.facts.plan and Path(epoch.folder) != self.plan:
                with PlanStore(self.plan).write(replace=True) as aside:
                    for name, content in PlanStore(epoch.folder).files(epoch.routes.name).items():
                        (aside / name).write_bytes(content)
            used = epoch.routes.name if epoch.folder else None
            self.write(plan=used, flow=epoch.flow, given=given)
        except (OSError, NarrowcastError) as error:
            log.error("the plan in use is not remembered: %s", first_line(error))
