"""How things stand after a micro-batch of changes, on disk: the plan, and whom it is for."""

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

#: What stands beside a plan: whom it is for.
INTERESTS, RATES = "interests.parquet", "rates.parquet"
#: What belongs to a micro-batch and not to the plan.
_DELTA, _REJECTED, _SPAN = "delta.parquet", "rejected.parquet", "events.json"
_FOLDER = re.compile(r"batch=(-?\d+)")


@dataclass(frozen=True, slots=True)
class FollowState:
    """A plan, the interest that it serves with rates as they are now, and the last micro-batch in both.

    On disk it is one folder, which appears whole or not at all: the plan artefact with `interests.parquet`,
    `rates.parquet` and what the micro-batch has changed. All that others read is copied from there, so that
    a copy that was cut off can be made again.

    Parameters
    ----------
    batch
        The number of the micro-batch; -1 before the first.
    plan, interest
        As they are after it.
    span
        The time in which events have been counted; None before there were any.
    """

    batch: int
    plan: ChannelPlan
    interest: Interest
    span: Span | None = None

    @classmethod
    def newest(cls, folder: Path) -> Self | None:
        """Return the last one in a folder, None where there is none."""
        numbers = _numbers(folder)
        if not numbers:
            return None
        where = Path(folder_of(str(folder), numbers[-1]))
        span = where / _SPAN
        try:
            heard = msgspec.json.decode(span.read_bytes(), type=Span) if span.exists() else None
            return cls(numbers[-1], read_plan(where)[0], read_interest(where), heard)
        except (NarrowcastError, OSError, pa.ArrowException, msgspec.MsgspecError) as error:
            raise TableError(
                f"{where}, how things stood last, cannot be read ({first_line(error)}); bring it back from a "
                "copy, or remove the checkpoint and begin anew from the plan"
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
        """Write it below a folder, with what led to it; of older ones the last is kept.

        Parameters
        ----------
        folder
            Where to.
        delta, rejected
            What the micro-batch changed, and what was set aside of it.
        method, params, seed, cost
            What `plan.json` says.
        """
        interests, rates = self.interest.to_tables()
        beside: dict[str, pa.Table | bytes] = {INTERESTS: interests, RATES: rates}
        if self.batch >= 0 or delta.n_changes:  # of nothing, not even the types of labels are known
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
            beside=beside,
        )
        for number in _numbers(folder)[:-2]:
            shutil.rmtree(folder_of(str(folder), number), ignore_errors=True)

    def publish(self, folder: Path, deltas: Path, rejected: Path, plan: Path | None) -> None:
        """Copy what is for others to its places, where it is not there yet.

        Parameters
        ----------
        folder
            Where it was written.
        deltas, rejected
            Where what changed goes, and what was set aside.
        plan
            Where the plan goes, in place of the one before; None to leave that.
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
        """Put the rates beside a plan that is the same as before: whoever follows it need not read it again.

        Parameters
        ----------
        folder
            Where they were written.
        plan
            The plan.
        """
        rates = Path(folder_of(str(folder), self.batch), RATES).read_bytes()
        PlanStore(plan).replace_file(RATES, rates)


def read_interest(folder: Path) -> Interest:
    """Read the interest beside a plan."""
    interests = read_table(folder / INTERESTS, ("subscriber", "flow"))
    return plain(Interest.from_tables(interests, read_table(folder / RATES, ("flow", "rate"))))


def read_start(folder: Path) -> tuple[ChannelPlan, Interest | None]:
    """Read a plan to begin with, and the interest beside it, None where there is none."""
    plan, info, interest = PlanStore(folder).load(_start_in)
    if info.flow_space != "topics":
        raise ParameterError(
            f"{folder} is a plan of {info.flow_space}, and changes name topics; give a plan of topics, or a "
            "folder that does not exist yet"
        )
    return plan, interest


def _start_in(folder: Path) -> tuple[ChannelPlan, PlanInfo, Interest | None]:
    """Read a plan and the interest beside it from the folder of one version."""
    return *plan_in(folder), read_interest(folder) if (folder / INTERESTS).exists() else None


def plain(interest: Interest) -> Interest:
    """Return an interest whose labels have room for any that may come."""
    return Interest(interest.wants, interest.rate, _widest(interest.subscribers), _widest(interest.flows))


def _widest(labels: Labels) -> Labels:
    return labels.cast(pa.int64() if pa.types.is_integer(labels.type) else pa.string())


def table_of(delta: PlanDelta) -> pa.Table:
    """Return a change of a plan as one table: `table`, `action`, and the columns of all, null elsewhere.

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
            said = {"table": [name] * rows.num_rows, "action": [action] * rows.num_rows}
            columns = {each: rows[each] for each in rows.column_names}
            parts.append(
                pa.table({each: pa.array(text, pa.string()) for each, text in said.items()} | columns)
            )
    table = pa.concat_tables(parts, promote_options="permissive").combine_chunks()
    return table.select(["table", "action", "subscriber", "flow", "channel", "parent"])


def _numbers(folder: Path) -> list[int]:
    """Return the micro-batches that a folder holds, in their order."""
    names = (_FOLDER.fullmatch(path.name) for path in folder.iterdir()) if folder.is_dir() else ()
    return sorted(int(found[1]) for found in names if found)
