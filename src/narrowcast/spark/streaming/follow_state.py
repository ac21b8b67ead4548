"""The stored state of online planning after a micro-batch: the plan and the interest that it serves."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec
import pyarrow as pa

from narrowcast.errors import NarrowcastError, ParameterError, TableError
from narrowcast.files import first_line, new_folder, read_table
from narrowcast.model.artefact import plan_in, read_plan, write_plan
from narrowcast.model.interest import Interest
from narrowcast.model.plan_store import PlanStore
from narrowcast.spark.streaming.sinks import folder_of
from narrowcast.spark.streaming.tally import Span

if TYPE_CHECKING:
    from collections.abc import Mapping

    from narrowcast.model.artefact import PlanInfo
    from narrowcast.model.diff import PlanDelta
    from narrowcast.model.labels import Labels
    from narrowcast.model.plan import ChannelPlan

#: Files of the interest in the folder of a plan.
INTERESTS, RATES = "interests.parquet", "rates.parquet"
#: Files that belong to a micro-batch and are not published with the plan.
_DELTA, _REJECTED, _SPAN = "delta.parquet", "rejected.parquet", "events.json"
_FOLDER = re.compile(r"batch=(-?\d+)")


@dataclass(frozen=True, slots=True)
class FollowState:
    """A plan, the interest that it serves with current rates, and the last micro-batch included in both.

    It is stored as one folder, written atomically: the plan artefact with `interests.parquet`,
    `rates.parquet` and the changes of the micro-batch. Published files are copies of this folder, so that an
    interrupted copy can be repeated.

    Parameters
    ----------
    batch
        Number of the micro-batch; -1 before the first.
    plan, interest
        The plan and the interest after the micro-batch.
    span
        The period in which events have been counted; None before the first event.
    """

    batch: int
    plan: ChannelPlan
    interest: Interest
    span: Span | None = None

    @classmethod
    def newest(cls, folder: Path) -> Self | None:
        """Read the newest state in a folder; None if there is none.

        Raises
        ------
        TableError
            When the newest state cannot be read.
        """
        numbers = _numbers(folder)
        if not numbers:
            return None
        newest = Path(folder_of(str(folder), numbers[-1]))
        file = newest / _SPAN
        try:
            span = msgspec.json.decode(file.read_bytes(), type=Span) if file.exists() else None
            return cls(numbers[-1], read_plan(newest)[0], read_interest(newest), span)
        except (NarrowcastError, OSError, pa.ArrowException, msgspec.MsgspecError) as error:
            raise TableError(
                f"{newest}: the newest state cannot be read ({first_line(error)}); restore it from a backup, "
                "or remove the checkpoint to start again from the plan",
                parameter="checkpoint",
                value=str(newest),
            ) from error

    def write(
        self,
        folder: Path,
        delta: PlanDelta,
        rejected: pa.Table,
        *,
        method: str,
        params: Mapping[str, Any],
        seed: int,
        cost: float,
    ) -> None:
        """Write the state into a new subfolder, with the changes that led to it; keep only the previous one.

        Parameters
        ----------
        folder
            Folder of all states.
        delta, rejected
            The changes of the plan by the micro-batch, and its rejected rows.
        method, params, seed, cost
            Name, parameters and seed of the planner and cost of the plan, for `plan.json`.
        """
        interests, rates = self.interest.to_tables()
        beside: dict[str, pa.Table | bytes] = {INTERESTS: interests, RATES: rates}
        if self.batch >= 0 or delta.n_changes:  # an empty first plan does not know the types of its labels
            beside[_DELTA] = table_of(delta)
        if rejected.num_rows:
            beside[_REJECTED] = rejected
        if self.span is not None:
            beside[_SPAN] = msgspec.json.encode(self.span)
        write_plan(
            self.plan,
            folder_of(str(folder), self.batch),
            method=method,
            params={**params, "batch": self.batch},
            seed=seed,
            costs={"overall": cost},
            interest=self.interest,
            extra_files=beside,
        )
        for number in _numbers(folder)[:-2]:
            shutil.rmtree(folder_of(str(folder), number), ignore_errors=True)

    def publish(self, folder: Path, deltas: Path, rejected: Path, plan: Path | None) -> None:
        """Copy the state to the folders that other processes read; files that exist are not copied again.

        Parameters
        ----------
        folder
            Folder of all states.
        deltas, rejected
            Target folders of the changes of the plan and of rejected rows.
        plan
            Folder of the plan, which is replaced; None to leave it unchanged.
        """
        source = Path(folder_of(str(folder), self.batch))
        for name, place in ((_DELTA, deltas), (_REJECTED, rejected)):
            target = Path(folder_of(str(place), self.batch))
            if (source / name).exists() and not target.exists():
                with new_folder(target) as aside:
                    shutil.copyfile(source / name, aside / name)
        if plan is None or PlanStore(plan).name == PlanStore(source).name:
            return
        with PlanStore(plan).write(replace=True) as aside:
            for file in source.iterdir():
                if file.name not in (_DELTA, _REJECTED, _SPAN):
                    shutil.copyfile(file, aside / file.name)

    def publish_rates(self, folder: Path, plan: Path) -> None:
        """Replace only the rates in the folder of an unchanged plan, so that its readers need not reload it.

        Parameters
        ----------
        folder
            Folder of all states.
        plan
            Folder of the plan.
        """
        rates = Path(folder_of(str(folder), self.batch), RATES).read_bytes()
        PlanStore(plan).replace_file(RATES, rates)


def read_interest(folder: Path) -> Interest:
    """Read the interest stored in the folder of a plan."""
    interests = read_table(folder / INTERESTS, ("subscriber", "flow"))
    return with_wide_labels(Interest.from_tables(interests, read_table(folder / RATES, ("flow", "rate"))))


def read_start(folder: Path) -> tuple[ChannelPlan, Interest | None]:
    """Read an initial plan and the interest stored with it, if any.

    Raises
    ------
    ParameterError
        When the flows of the plan are not topics.
    """
    plan, info, interest = PlanStore(folder).load(_start_in)
    if info.flow_space != "topics":
        raise ParameterError(
            f"plan={str(folder)!r}: must be a plan of topics, which changes refer to, not of "
            f"{info.flow_space}; or give a folder that does not exist",
            parameter="plan",
            value=str(folder),
            limit="a plan of topics, or a folder that does not exist",
        )
    return plan, interest


def _start_in(folder: Path) -> tuple[ChannelPlan, PlanInfo, Interest | None]:
    """Read a plan and the interest stored with it from the folder of one version."""
    return *plan_in(folder), read_interest(folder) if (folder / INTERESTS).exists() else None


def with_wide_labels(interest: Interest) -> Interest:
    """Return an interest whose labels are of type int64 or string, so that any later label fits."""
    return Interest(interest.wants, interest.rate, _widest(interest.subscribers), _widest(interest.flows))


def _widest(labels: Labels) -> Labels:
    return labels.cast(pa.int64() if pa.types.is_integer(labels.type) else pa.string())


def table_of(delta: PlanDelta) -> pa.Table:
    """Return the changes of a plan as one table.

    Its columns are `table`, `action` and those of all tables of a plan, null where a table lacks them.

    Examples
    --------
    >>> from narrowcast.model.diff import delta_between
    >>> from narrowcast.model.plan import ChannelPlan
    >>> delta = delta_between(ChannelPlan([[1]], [[1]]), ChannelPlan([[1]], [[0]]))
    >>> table_of(delta).select(["table", "action", "subscriber", "channel"]).to_pylist()
    [{'table': 'listens', 'action': 'remove', 'subscriber': 0, 'channel': 0}]
    """
    parts = []
    for action, tables in (("remove", delta.removed), ("add", delta.added)):
        for name, rows in tables.items():
            keys = {"table": [name] * rows.num_rows, "action": [action] * rows.num_rows}
            columns = {each: rows[each] for each in rows.column_names}
            parts.append(
                pa.table({each: pa.array(text, pa.string()) for each, text in keys.items()} | columns)
            )
    table = pa.concat_tables(parts, promote_options="permissive").combine_chunks()
    return table.select(["table", "action", "subscriber", "flow", "channel", "parent"])


def _numbers(folder: Path) -> list[int]:
    """Return the numbers of the micro-batches whose states are in a folder, ascending."""
    names = (_FOLDER.fullmatch(path.name) for path in folder.iterdir()) if folder.is_dir() else ()
    return sorted(int(found[1]) for found in names if found)
