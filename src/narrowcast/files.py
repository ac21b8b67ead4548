"""Small tables on disk: reading any of the three formats, and writing so that no half is ever seen.

Large tables belong to the pipeline; what is read here must fit in memory.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from narrowcast.errors import TableError

if TYPE_CHECKING:
    from collections.abc import Iterator

#: How a file's ending names its format.
FORMATS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}


def read_table(path: str | Path, columns: tuple[str, ...] = (), *, limit: int | None = None) -> pa.Table:
    """Read a Parquet, CSV or JSON-lines file, or a folder of them, as an Arrow table.

    Parameters
    ----------
    path
        A file, or a folder whose files share one format.
    columns
        Columns that must be there; a missing one is an error that lists those found.
    limit
        Read at most this many rows.
    """
    import pyarrow.dataset as ds  # on use: it brings pandas along
    import pyarrow.json as pj

    path = Path(path)
    kind = _format_of(path)
    try:
        if kind == "json" and path.is_file():
            table = pj.read_json(path) if path.stat().st_size else pa.table({})
            table = table if limit is None else table.slice(0, limit)
        else:
            data = ds.dataset(path, format=kind)
            table = data.to_table() if limit is None else data.head(limit)
    except (pa.ArrowException, OSError) as error:
        raise TableError(f"cannot read {path} as {kind}: {first_line(error)}") from error
    missing = [name for name in columns if name not in table.column_names]
    if missing:
        raise TableError(
            f"{path} has no column {', '.join(map(repr, missing))}; "
            f"it has {', '.join(map(repr, table.column_names)) or 'no columns'}"
        )
    return table


def _format_of(path: Path) -> str:
    """Return the format that a path's ending, or that of the first file in it, names."""
    if not path.exists():
        raise TableError(f"{path} does not exist; give a Parquet, CSV or JSON-lines file or folder")
    found = FORMATS.get(path.suffix.lower())
    if path.is_file():
        if found is None:
            raise TableError(f"{path} ends in {path.suffix or 'nothing'!r}; use one of {', '.join(FORMATS)}")
        return found
    kinds = {FORMATS[f.suffix.lower()] for f in path.rglob("*") if f.suffix.lower() in FORMATS}
    if not kinds:
        raise TableError(f"{path} holds no file that ends in {', '.join(FORMATS)}")
    if len(kinds) > 1:
        raise TableError(f"{path} mixes {' and '.join(sorted(kinds))}; keep one format in a folder")
    return kinds.pop()


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message: what fits in a one-line report."""
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


@contextmanager
def new_folder(path: str | Path, *, replace: bool = False) -> Iterator[Path]:
    """Write a folder aside and put it in place only when the block ends well.

    Raises
    ------
    TableError
        When `path` exists and `replace` is not set, before anything is written.
    """
    path = Path(path)
    if path.exists() and not replace:
        raise TableError(f"{path} exists already; name another folder or remove it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    except OSError as error:
        raise TableError(f"cannot write {path}: {error.strerror}") from error
    try:
        yield aside
        aside.chmod(0o755)
        if path.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}-old-", dir=path.parent))
            path.rename(old / path.name)
            aside.rename(path)
            shutil.rmtree(old)
        else:
            aside.rename(path)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
