"""Plan artefact: the folder of Parquet tables and `plan.json` that Spark jobs and the broker share."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from narrowcast.deprecation import renamed_parameters
from narrowcast.errors import ParameterError, PlanError, TableError
from narrowcast.files import first_line, read_table
from narrowcast.model.labels import column_of
from narrowcast.model.plan import ChannelPlan
from narrowcast.model.plan_store import INFO, PlanStore, name_of
from narrowcast.validation import check_choice

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from narrowcast.model.interest import Interest
    from narrowcast.model.relation import Positions

#: Version of the format that is written and read.
FORMAT = 1
#: What the flows of a plan are.
FlowSpace = Literal["topics", "cells", "events", "ranges"]

TABLES = {
    "carries": ("flow", "channel"),
    "listens": ("subscriber", "channel"),
    "unicast": ("subscriber", "flow"),
    "channels": ("channel", "parent", "rate", "members"),
    "subscriptions": ("subscription_id", "channel"),
}


class PlanInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of `plan.json`: how a plan was made, from which inputs, and its costs.

    `channels` counts groups (channels without a parent). `inputs` has a fingerprint per input; `created` is
    in UTC.
    """

    format: int
    method: str
    params: dict[str, Any]
    seed: int
    channels: Annotated[int, msgspec.Meta(ge=0)]
    flow_space: FlowSpace
    costs: dict[str, float]
    inputs: dict[str, str]
    created: Annotated[datetime, msgspec.Meta(tz=True)]


class _Format(msgspec.Struct):
    """The format number alone: it is read first, since the other fields depend on it."""

    format: int


@renamed_parameters(beside="extra_files")
def write_plan(
    plan: ChannelPlan,
    folder: str | Path,
    *,
    method: str,
    params: Mapping[str, Any] | None = None,
    seed: int = 0,
    flow_space: FlowSpace = "topics",
    costs: Mapping[str, float] | None = None,
    inputs: Mapping[str, str] | None = None,
    interest: Interest | None = None,
    cells: pa.Table | None = None,
    extra_files: Mapping[str, pa.Table | bytes] | None = None,
    replace: bool = False,
) -> PlanInfo:
    """Write a plan artefact in one step: readers see the complete plan or none.

    Labels keep their type. A subscriber or flow without any row is not written: the plan treats it like an
    unknown label, so every check and cost stays the same.

    Parameters
    ----------
    plan, folder
        The plan, and the folder to write it to.
    method, params, seed, flow_space, costs, inputs
        How the plan was made, for `plan.json`; see `PlanInfo`. Costs must be finite.
    interest
        Source of the rate of each channel (messages per second); without it the column `rate` is null.
    cells
        The grid when flows are cells: a table of `flow`, `lo` and `hi` (lower and upper ends).
    extra_files
        Additional files by name, a table for Parquet or bytes; `read_plan` ignores them.
    replace
        Whether an existing folder is replaced (default: refuse); see `PlanStore`.
    """
    if flow_space not in get_args(FlowSpace):
        check_choice("flow_space", flow_space, get_args(FlowSpace))
    for name, value in (costs or {}).items():
        if not np.isfinite(value):
            raise ParameterError(f"cost {name!r}={value}: must be finite", parameter="costs", value=value)
    info = PlanInfo(
        format=FORMAT,
        method=method,
        params=dict(params or {}),
        seed=int(seed),
        channels=plan.n_groups,
        flow_space=flow_space,
        costs={name: float(value) for name, value in (costs or {}).items()},
        inputs=dict(inputs or {}),
        created=datetime.now(UTC),
    )
    text = info_text(info)
    tables = plan.to_tables()
    rate = pa.nulls(plan.n_channels, pa.float64()) if interest is None else pa.array(plan.rates(interest))
    tables["channels"] = (
        tables["channels"].append_column("rate", rate).append_column("members", pa.array(plan.members()))
    )
    with PlanStore(folder).write(replace=replace) as aside:
        for name, table in tables.items():
            if name != "unicast" or table.num_rows:
                pq.write_table(table, aside / f"{name}.parquet")
        if cells is not None:
            pq.write_table(cells, aside / "cells.parquet")
        for name, content in (extra_files or {}).items():
            if isinstance(content, bytes):
                (aside / name).write_bytes(content)
            else:
                pq.write_table(content, aside / name)
        (aside / INFO).write_bytes(text)
    return info


def info_text(info: PlanInfo) -> bytes:
    """Return the text of `plan.json`."""
    try:
        return msgspec.json.format(msgspec.json.encode(info, enc_hook=_plain), indent=2) + b"\n"
    except TypeError as error:
        raise ParameterError(
            f"params: cannot be written as JSON: {first_line(error)}", parameter="params"
        ) from error


def _plain(value: object) -> object:
    """Return a numpy number as a Python number, for the JSON encoder."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__}: must be a number, a string, a list or a dict")


def read_plan(folder: str | Path) -> tuple[ChannelPlan, PlanInfo]:
    """Read one complete version of a plan artefact, even while another is being written.

    Raises
    ------
    PlanError
        When the folder, a table or `plan.json` is missing, unreadable or inconsistent. Whether the plan
        serves an interest is not checked here: see `ChannelPlan.validate`.
    """
    return PlanStore(folder).load(plan_in)


def read_named_plan(folder: str | Path) -> tuple[str, ChannelPlan, PlanInfo]:
    """Read a plan artefact and the name (a hash) of its version; see `read_plan`."""
    plan, info, name = PlanStore(folder).load(lambda version: (*plan_in(version), name_of(version)))
    assert name is not None
    return name, plan, info


def read_info(folder: str | Path) -> PlanInfo:
    """Read the `plan.json` of a plan artefact."""
    return PlanStore(folder).load(info_in)


def plan_in(folder: Path) -> tuple[ChannelPlan, PlanInfo]:
    """Read the plan in the folder of one version."""
    info = info_in(folder)
    if (folder / "partitions.parquet").exists():
        raise PlanError(
            f"{folder}: a plan of matching partitions, which has no channels; give a plan of channels, "
            "or use this folder where a partitioner is expected"
        )
    parent = _parents(_read(folder, "channels"), folder / "channels.parquet")
    carries, listens = _read(folder, "carries"), _read(folder, "listens")
    unicast, placed = (
        _read(folder, name) if (folder / f"{name}.parquet").exists() else None
        for name in ("unicast", "subscriptions")
    )
    try:
        plan = ChannelPlan.from_tables(
            carries, listens, unicast, n_channels=len(parent), parent=parent, subscriptions=placed
        )
    except (TableError, PlanError) as error:
        raise PlanError(f"{folder}: its tables are not a valid plan: {error}") from error
    if plan.n_groups != info.channels:
        raise PlanError(
            f"{folder / INFO}: channels={info.channels}, but channels.parquet has {plan.n_groups} without a "
            "parent; the folder mixes two plans, write the plan again"
        )
    return plan, info


def info_in(folder: Path) -> PlanInfo:
    """Read `plan.json` in the folder of one version, after checking its format number."""
    if not folder.is_dir():
        raise PlanError(f"{folder}: not a folder; give the folder that a plan was written to")
    path = folder / INFO
    if not path.exists() and (folder / "plan" / INFO).exists():
        raise PlanError(f"{folder}: not a plan, but contains one; give {folder / 'plan'}")
    try:
        text = path.read_bytes()
    except OSError as error:
        raise PlanError(f"{path}: cannot be read: {error.strerror}; write the plan again") from error
    try:
        found = msgspec.json.decode(text, type=_Format).format
        if found != FORMAT:
            raise PlanError(
                f"{path}: format={found}: must be {FORMAT}; write the plan again, or use the version of "
                "narrowcast that wrote it",
                parameter="format",
                value=found,
                limit=str(FORMAT),
            )
        return msgspec.json.decode(text, type=PlanInfo)
    except msgspec.DecodeError as error:
        raise PlanError(f"{path}: not valid: {first_line(error)}; write the plan again") from error


def _read(folder: Path, name: str) -> pa.Table:
    path = folder / f"{name}.parquet"
    if not path.exists():
        raise PlanError(f"{path}: missing; the plan is incomplete, write it again")
    try:
        return read_table(path, TABLES[name])
    except TableError as error:
        raise PlanError(f"{error}; write the plan again") from error


def _parents(channels: pa.Table, path: Path) -> Positions:
    """Return the parent of each channel (-1: none), ordered by channel number."""
    for name in ("channel", "parent", "members"):
        kind = column_of(channels, name, str(path)).type
        if not (pa.types.is_integer(kind) or (name == "parent" and pa.types.is_null(kind))):
            raise PlanError(f"{path}: column {name!r} has type {kind}: must be integers")
    if nulls := channels.column("channel").null_count:
        raise PlanError(f"{path}: column 'channel' has {nulls} nulls; remove those rows")
    channel = channels.column("channel").to_numpy()
    order = np.argsort(channel, kind="stable")
    if not np.array_equal(channel[order], np.arange(len(channel))):
        odd = channel[order][np.flatnonzero(channel[order] != np.arange(len(channel)))[0]]
        raise PlanError(
            f"{path}: channel {odd} is misplaced or repeated; list each of 0 to {len(channel) - 1} once"
        )
    parent = channels.column("parent").cast(pa.int64())
    return np.asarray(pc.fill_null(parent, -1), np.int64)[order]
