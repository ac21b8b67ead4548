"""What every form of export starts from, and a plan's own tables as CSV."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from narrowcast.errors import PlanError, TableError
from narrowcast.files import new_folder, read_table, writing
from narrowcast.model.artefact import plan_in
from narrowcast.model.labels import labels_in, positions
from narrowcast.model.plan_store import PlanStore
from narrowcast.model.relation import rows_of

if TYPE_CHECKING:
    from narrowcast.model.artefact import PlanInfo
    from narrowcast.model.plan import ChannelPlan
    from narrowcast.model.relation import Positions

#: The files of an export by name: a table, which is written as CSV, or a text. The main one is the first.
Files: TypeAlias = "dict[str, pa.Table | str]"
_CELLS = "cells.parquet"


@dataclass(frozen=True)
class PlanFolder:
    """A plan on disk, with what its folder says beyond it.

    Parameters
    ----------
    folder
        The plan.

    Raises
    ------
    PlanError
        When the folder holds no plan, or one of ranges, or one of cells without their bounds.
    """

    folder: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder))
        if self.info.flow_space == "ranges":
            raise PlanError(f"{self.folder} is of ranges; export one of topics, cells or events")
        if self.info.flow_space == "cells" and self._read[3] is None:
            raise PlanError(
                f"{self._cells_path} is missing, so nothing says what the cells are; write the plan again"
            )

    @cached_property
    def _read(self) -> tuple[ChannelPlan, PlanInfo, pa.Table, pa.Table | None]:
        return PlanStore(self.folder).load(_tables_in)

    @property
    def plan(self) -> ChannelPlan:
        """The plan itself."""
        return self._read[0]

    @property
    def info(self) -> PlanInfo:
        """What `plan.json` says."""
        return self._read[1]

    @property
    def _cells_path(self) -> Path:
        return self.folder / _CELLS

    @cached_property
    def channels(self) -> pa.Table:
        """The plan's `channels` (channel, parent, rate, members), in the order of channels."""
        return self._read[2].sort_by("channel").select(["channel", "parent", "rate", "members"])

    @cached_property
    def sessions(self) -> Positions:
        """The channels that flows are sent in: all that are in use and nobody's parent."""
        found: Positions = np.setdiff1d(np.flatnonzero(self.plan.used()), self.plan.parent)
        return found

    @cached_property
    def groups(self) -> Positions:
        """The channels that are joined: all that are in use and have no parent."""
        found: Positions = np.flatnonzero(self.plan.used() & (self.plan.parent < 0))
        return found

    @cached_property
    def places(self) -> Positions:
        """The channels that have a place among sessions: these, and those that are free."""
        if not (self.plan.parent >= 0).any():
            return np.arange(self.plan.n_channels)
        found: Positions = np.union1d(self.sessions, np.flatnonzero(self.plan.parent >= 0))
        return found

    @cached_property
    def cells(self) -> pa.Table | None:
        """The plan's cells: `flow`, and for each attribute its ends as `<name>_lo` and `<name>_hi`."""
        table = self._read[3]
        if table is None:
            return None
        columns = {"flow": labels_in(table, "flow", str(self._cells_path))}
        ends = [table[side].combine_chunks() for side in ("lo", "hi")]
        if not all(pa.types.is_list(end.type) or pa.types.is_large_list(end.type) for end in ends):
            raise PlanError(f"{self._cells_path}: 'lo' and 'hi' are no lists; write the plan again")
        wide = int(pc.list_value_length(ends[0])[0].as_py()) if table.num_rows else 0
        grid = self.info.params.get("grid")
        named = list(grid) if isinstance(grid, dict) and len(grid) == wide else list(map(str, range(wide)))
        try:
            for i, name in enumerate(named):
                columns |= {
                    f"{name}_{side}": pc.list_element(end, i)
                    for side, end in zip(("lo", "hi"), ends, strict=True)
                }
        except pa.ArrowInvalid as error:
            raise PlanError(
                f"{self._cells_path}: cells of unlike dimensions; write the plan again"
            ) from error
        return pa.table(columns)

    @cached_property
    def _place_of_cells(self) -> pa.Array:
        """Where each of the plan's flows stands among the cells, null where it does not."""
        assert self.cells is not None
        place = positions("flow", self.plan.flows, labels_in(self.cells, "flow", "cells"))
        return pa.array(place, mask=place < 0)

    def flow_columns(self, flow: Positions) -> dict[str, pa.Array]:
        """Return what tells flows given by position: their labels, and for cells their ends too."""
        columns = {"flow": self.plan.flows.take(flow)}
        if self.cells is not None:
            found = self.cells.drop_columns("flow").take(self._place_of_cells.take(flow))
            columns |= {name: found[name] for name in found.column_names}
        return columns

    def carried(self) -> tuple[Positions, Positions]:
        """Return the pairs of flow and session, as positions."""
        return rows_of(self.plan.carries), self.plan.carries.indices.astype(np.int64)

    def listened(self) -> tuple[Positions, Positions]:
        """Return the pairs of subscriber and session, as positions."""
        return rows_of(self.plan.listens), self.plan.listens.indices.astype(np.int64)

    def direct(self) -> tuple[Positions, Positions]:
        """Return the pairs of subscriber and flow that are served directly, as positions."""
        return rows_of(self.plan.unicast), self.plan.unicast.indices.astype(np.int64)


def _tables_in(folder: Path) -> tuple[ChannelPlan, PlanInfo, pa.Table, pa.Table | None]:
    """Read a plan, its channels and its cells from the folder of one version."""
    plan, info = plan_in(folder)
    cells = read_table(folder / _CELLS, ("flow", "lo", "hi")) if (folder / _CELLS).exists() else None
    return plan, info, read_table(folder / "channels.parquet"), cells


def csv_files(source: PlanFolder) -> Files:
    """Return the plan's own tables: `carries`, `listens`, `channels` and `unicast`.

    There are `subscriptions` and `cells` where the plan has them. The columns are those of the plan's folder,
    but for the ends of cells, which have a column each. Channels that nothing uses are left out.
    """
    tables = source.plan.to_tables()
    names = ("carries", "listens", "channels", "unicast")
    files: Files = {f"{name}.csv": tables[name] for name in names}
    files["channels.csv"] = source.channels.filter(pa.array(source.plan.used()))
    if "subscriptions" in tables:
        files["subscriptions.csv"] = tables["subscriptions"]
    if source.cells is not None:
        files["cells.csv"] = source.cells
    return files


def csv_text(table: pa.Table) -> bytes:
    r"""Return a table as CSV: text in quotes, numbers bare, nothing for null.

    >>> csv_text(pa.table({"flow": ["a", ""], "channel": [1, None]})).decode()
    '"flow","channel"\n"a",1\n"",\n'
    """
    to = BytesIO()
    pyarrow.csv.write_csv(table, to)
    return to.getvalue()


def write_files(files: Files, folder: str | Path) -> dict[str, int]:
    """Write the files of an export into a new folder, which appears whole or not at all.

    Returns
    -------
    dict[str, int]
        The rows of each table, and the lines of each text.
    """
    with new_folder(folder) as aside, writing(folder):
        for name, content in files.items():
            if isinstance(content, str):
                (aside / name).write_text(content, encoding="utf-8")
            else:
                pyarrow.csv.write_csv(content, aside / name)
    return sizes_of(files)


def sizes_of(files: Files) -> dict[str, int]:
    """Return the rows of each table, and the lines of each text."""
    return {
        name: content.count("\n") if isinstance(content, str) else content.num_rows
        for name, content in files.items()
    }


def named_file(files: Files, name: str) -> pa.Table | str:
    """Return the file of an export that a user names, with or without its ending."""
    found = [content for file, content in files.items() if name in (file, file.partition(".")[0])]
    if not found:
        known = ", ".join(file.partition(".")[0] for file in files)
        raise TableError(f"--table is {name!r}; this export has {known}")
    return found[0]
