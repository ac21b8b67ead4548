"""Small tables on disk: reading any of the three formats, and writing so that no half is ever seen.

Large tables belong to the pipeline; what is read here must fit in memory.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from narrowcast.errors import TableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
    import pyarrow.csv as pc
    import pyarrow.dataset as ds  # on use: it brings pandas along
    import pyarrow.json as pj

    # In CSV an empty field is null whatever its type, and NaN is a number.
    empty = pc.ConvertOptions(null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False)
    csv = ds.CsvFileFormat(convert_options=empty)

    path = Path(path)
    kind, files = files_of(path)
    tables: list[pa.Table] = []
    left = limit
    try:
        for file in files:
            if kind == "json":
                found = pj.read_json(file) if file.stat().st_size else pa.table({})
                found = found if left is None else found.slice(0, left)
            else:
                data = ds.dataset(file, format=csv if kind == "csv" else kind)
                found = data.to_table() if left is None else data.head(left)
            tables.append(found)
            if left is not None:  # later files are still asked for their columns
                left -= found.num_rows
        table = pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowException, OSError) as error:
        raise TableError(f"cannot read {path} as {kind}: {first_line(error)}") from error
    missing = [name for name in columns if name not in table.column_names]
    if missing:
        raise TableError(
            f"{path} has no column {', '.join(map(repr, missing))}; "
            f"it has {', '.join(map(repr, table.column_names)) or 'no columns'}"
        )
    return table


def files_of(path: Path) -> tuple[str, list[Path]]:
    """Return the format that a path's ending, or those of the files in it, name, and the files."""
    if not path.exists():
        raise TableError(f"{path} does not exist; give a Parquet, CSV or JSON-lines file or folder")
    found = FORMATS.get(path.suffix.lower())
    if path.is_file():
        if found is None:
            raise TableError(f"{path} {_ending(path)}; use one of {', '.join(FORMATS)}")
        return found, [path]
    files = sorted(
        f for f in path.rglob("*") if f.suffix.lower() in FORMATS and f.is_file() and not _hidden(f, path)
    )
    kinds = {FORMATS[f.suffix.lower()] for f in files}
    if not kinds:
        raise TableError(f"{path} holds no file that ends in {', '.join(FORMATS)}")
    if len(kinds) > 1:
        raise TableError(f"{path} mixes {' and '.join(sorted(kinds))}; keep one format in a folder")
    return kinds.pop(), files


def rows_in(path: str | Path) -> int | None:
    """Return how many rows a Parquet file, or a folder of them, says that it has; None where none says so."""
    import pyarrow.parquet as pq

    try:
        kind, files = files_of(Path(path))
        return sum(pq.read_metadata(file).num_rows for file in files) if kind == "parquet" else None
    except (TableError, OSError, pa.ArrowException):
        return None  # whoever reads it says what is wrong


def _hidden(file: Path, folder: Path) -> bool:
    """Return whether a file is what engines leave beside their data: its name, or a folder's, says so."""
    return any(part.startswith((".", "_")) for part in file.relative_to(folder).parts)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message: what fits in a one-line report."""
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Turn what goes wrong while a file is written within a block into one line that names it."""
    try:
        yield
    except OSError as error:
        said = error.strerror or first_line(error)
        raise TableError(f"cannot write {path}: {said}; free some space, or name another place") from error


def _ending(path: Path) -> str:
    """Say how the name of a file ends."""
    return f"ends in {path.suffix!r}" if path.suffix else "has no ending that names a format"


def check_new_table(path: Path) -> None:
    """Refuse to write a table where something is, or in a format that there is not."""
    _refuse_existing(path, replace=False)
    if path.suffix.lower() not in FORMATS:
        raise TableError(f"{path} {_ending(path)}; use one of {', '.join(FORMATS)}")


def write_new_table(table: pa.Table, path: Path) -> None:
    """Write a small table as its file's ending says; the file appears whole or not at all."""
    import pyarrow.csv as pc
    import pyarrow.parquet as pq

    check_new_table(path)
    aside = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            match FORMATS[path.suffix.lower()]:
                case "parquet":
                    pq.write_table(table, aside)
                case "csv":
                    pc.write_csv(table, aside)
                case _:
                    rows = (json.dumps(row, ensure_ascii=False) + "\n" for row in table.to_pylist())
                    aside.write_text("".join(rows), "utf-8")
            aside.rename(path)
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def new_folder(
    path: str | Path, *, replace: bool = False, put: Callable[[Path, Path], None] | None = None
) -> Iterator[Path]:
    """Write a folder aside and put it in place only when the block ends well.

    Parameters
    ----------
    path
        The folder.
    replace
        Whether what exists there is replaced.
    put
        Puts the finished folder in place; by default `swap`.

    Raises
    ------
    TableError
        When `path` exists and `replace` is not set, before anything is written.
    """
    path = Path(path)
    _refuse_existing(path, replace)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    except OSError as error:
        raise TableError(f"cannot write {path}: {error.strerror}") from error
    try:
        yield aside
        _refuse_existing(path, replace)  # another may have written it in the meantime
        aside.chmod(0o755)
        (put or swap)(aside, path)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def swap(aside: Path, path: Path) -> None:
    """Put a folder in the place of another, or where there is none; one of the two is there in the end."""
    if not path.exists():
        aside.rename(path)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{path.name}-old-", dir=path.parent))
    try:
        path.rename(old / path.name)
    except OSError as error:  # one that is mounted cannot be moved
        old.rmdir()
        raise TableError(f"cannot replace {path}: {error.strerror}; name another folder") from error
    try:
        aside.rename(path)
    except BaseException:
        (old / path.name).rename(path)
        old.rmdir()
        raise
    shutil.rmtree(old, ignore_errors=True)


def _refuse_existing(path: Path, replace: bool) -> None:
    if (path.exists() or path.is_symlink()) and not replace:
        what = "file" if path.is_file() else "folder"
        raise TableError(f"{path} exists already; name another {what} or remove it")
