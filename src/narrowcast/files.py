"""Files of small tables: reading of Parquet, CSV and JSON lines, and atomic writing.

Tables read here must fit in memory; `narrowcast.spark` reads large ones.
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

#: Format of a file by its ending.
FORMATS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}


def read_table(path: str | Path, columns: tuple[str, ...] = (), *, limit: int | None = None) -> pa.Table:
    """Read a Parquet, CSV or JSON-lines file, or a folder of them, as an Arrow table.

    Parameters
    ----------
    path
        A file, or a folder whose files have the same format.
    columns
        Required columns; a missing one is a `TableError` that lists the existing ones.
    limit
        Maximum number of rows to read; None means all.
    """
    import pyarrow.csv as pc
    import pyarrow.dataset as ds  # imported here because it imports pandas
    import pyarrow.json as pj

    # An empty CSV field is null for every type, and NaN is a number.
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
            if left is not None:  # at 0, later files are still read for their columns
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
    """Return the format of a file, or of the files in a folder, and the files.

    Hidden files (`.name`, `_name`) and files with other endings are ignored.
    """
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
        raise TableError(f"{path} contains no file that ends in {', '.join(FORMATS)}")
    if len(kinds) > 1:
        raise TableError(f"{path} mixes {' and '.join(sorted(kinds))}; keep one format in a folder")
    return kinds.pop(), files


def rows_in(path: str | Path) -> int | None:
    """Return the number of rows in the metadata of Parquet files; None for other formats or errors."""
    import pyarrow.parquet as pq

    try:
        kind, files = files_of(Path(path))
        return sum(pq.read_metadata(file).num_rows for file in files) if kind == "parquet" else None
    except (TableError, OSError, pa.ArrowException):
        return None  # reading the table reports the error


def _hidden(file: Path, folder: Path) -> bool:
    """Return whether the name of a file, or of a folder above it, marks it as hidden, such as `_SUCCESS`."""
    return any(part.startswith((".", "_")) for part in file.relative_to(folder).parts)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its class name if the message is empty."""
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Convert errors of writing a file in a block to a `TableError` that names the file."""
    try:
        yield
    except OSError as error:
        cause = error.strerror or first_line(error)
        raise TableError(f"cannot write {path}: {cause}; free some space, or use another path") from error


def _ending(path: Path) -> str:
    """Describe the ending of a file name, for messages."""
    return f"ends in {path.suffix!r}" if path.suffix else "has no ending that names a format"


def check_new_table(path: Path) -> None:
    """Refuse to write a table to an existing path, or in an unknown format."""
    _refuse_existing(path, replace=False)
    if path.suffix.lower() not in FORMATS:
        raise TableError(f"{path} {_ending(path)}; use one of {', '.join(FORMATS)}")


def write_new_table(table: pa.Table, path: Path) -> None:
    """Write a small table in the format of the path's ending; the file appears complete or not at all."""
    import pyarrow.csv as pc
    import pyarrow.parquet as pq

    check_new_table(path)
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            match FORMATS[path.suffix.lower()]:
                case "parquet":
                    pq.write_table(table, temporary)
                case "csv":
                    pc.write_csv(table, temporary)
                case _:
                    rows = (json.dumps(row, ensure_ascii=False) + "\n" for row in table.to_pylist())
                    temporary.write_text("".join(rows), "utf-8")
            temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def new_folder(
    path: str | Path, *, replace: bool = False, put: Callable[[Path, Path], None] | None = None
) -> Iterator[Path]:
    """Write a folder atomically: yield a temporary folder and move it to `path` if the block succeeds.

    Parameters
    ----------
    path
        The folder to write.
    replace
        Whether an existing file or folder is replaced (default: no).
    put
        Moves the temporary folder to the path (default: `swap`).

    Raises
    ------
    TableError
        If `path` exists and `replace` is false; checked before anything is written.
    """
    path = Path(path)
    _refuse_existing(path, replace)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    except OSError as error:
        raise TableError(f"cannot write {path}: {error.strerror}") from error
    try:
        yield temporary
        _refuse_existing(path, replace)  # another process may have written it in the meantime
        temporary.chmod(0o755)
        (put or swap)(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def swap(new: Path, path: Path) -> None:
    """Move a new folder to a path, replacing an existing folder.

    If the move fails, the existing folder is restored.
    """
    if not path.exists():
        new.rename(path)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{path.name}-old-", dir=path.parent))
    try:
        path.rename(old / path.name)
    except OSError as error:  # a mount point cannot be moved
        old.rmdir()
        raise TableError(f"cannot replace {path}: {error.strerror}; name another folder") from error
    try:
        new.rename(path)
    except BaseException:
        (old / path.name).rename(path)
        old.rmdir()
        raise
    shutil.rmtree(old, ignore_errors=True)


def _refuse_existing(path: Path, replace: bool) -> None:
    if (path.exists() or path.is_symlink()) and not replace:
        what = "file" if path.is_file() else "folder"
        raise TableError(f"{path} exists already; name another {what} or remove it")
