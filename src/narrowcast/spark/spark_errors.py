"""What goes wrong inside Spark, said in one line."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from narrowcast import errors
from narrowcast.errors import JobError, NarrowcastError
from narrowcast.files import first_line

if TYPE_CHECKING:
    from collections.abc import Iterator

#: An error of ours at the end of a worker's traceback.
_OURS = re.compile(r"^narrowcast\.errors\.(\w+): (.*)$", re.MULTILINE)
#: What Java says at the beginning of each error in a chain of causes.
_CAUSE = re.compile(r"^(?:Caused by: |: )?(?:[a-z]\w*\.)+([A-Z]\w*(?:Exception|Error)): ?(.*)$", re.MULTILINE)
#: Wrappers that say nothing of the cause.
_EMPTY = {"SparkException", "RuntimeException", "ExecutionException", "SparkRuntimeException"}
#: Known causes, and what mends them.
_FIXES = (
    (r"No space left on device", "free some space, or set spark.local.dir and --out to a larger disk"),
    (r"File too large|Disk quota exceeded", "the limit on this disk is reached; write to another"),
    (r"Permission denied|Access ?Denied|AccessControlException", "ask for access, or name another place"),
    (r"OutOfMemoryError|Java heap space|GC overhead", "give Spark more: --conf spark.driver.memory=8g"),
    (r"is not a Parquet file|expected magic number|Could not read footer", "it is damaged; write it again"),
    (r"Python worker exited unexpectedly", "a worker was ended, perhaps for its memory; see --memory"),
    (
        r"FILE_NOT_EXIST|FileNotFoundException",
        "it went while it was read; see that it stays, and try again",
    ),
    (r"FAILED_READ_FILE", "it is damaged; write it again"),
)

#: What Spark says over several lines, and one line for it.
_LONG = (
    (
        r"CSV header does not conform.*?Header: ([^\n]*)\n.*?Schema: ([^\n]*)\n.*?CSV file: ([^\n]*)",
        "the header of {2} is {0}, where {1} is expected; give all files the same columns in the same order",
    ),
    (
        r"in CSV header is not.*?length: (\d+), schema size: (\d+).*?CSV file: ([^\n]*)",
        "the header of {2} has {0} columns, where {1} are expected; give all files the same columns",
    ),
    (
        r"reading (?:the )?file (\S+?)\.? .*?Parquet column \[?`?([^\]`]*).*?type (\S+?), .*?type (\w+)",
        "column {1} of {0} is {3}, where {2} is expected; write the file with that type, or take it away",
    ),
    (
        r"CONFLICTING_PARTITION_COLUMN_NAMES.*?list #0: ([^\n]*)\n.*?list #1: ([^\n]*)",
        "some files are below folders that name {0}, others below {1}; put every file below the same keys",
    ),
)


@contextmanager
def plainly(doing: str) -> Iterator[None]:
    """Turn what Spark raises within a block into one line: what failed, why, and what mends it.

    Parameters
    ----------
    doing
        What is done, to be put behind "cannot".
    """
    try:
        yield
    except NarrowcastError:
        raise
    except Exception as error:
        if not is_sparks(error):
            raise
        raise told(error, doing) from error


def told(error: BaseException, doing: str) -> NarrowcastError:
    """Return an error of Spark's as one of ours."""
    text = str(error)
    if ours := list(_OURS.finditer(text)):
        name, message = ours[-1].groups()
        return getattr(errors, name, JobError)(message)
    for pattern, message in _LONG:
        if found := re.search(pattern, text, re.DOTALL):
            return JobError(f"cannot {doing}: {message.format(*map(str.strip, found.groups()))}")
    said = _raised(text) or _cause(text) or first_line(error)
    fix = next((fix for pattern, fix in _FIXES if re.search(pattern, text)), None)
    return JobError(f"cannot {doing}: {said}" + (f"; {fix}" if fix else ""))


def _raised(text: str) -> str:
    """Return what a Python worker raised: the last line of its traceback."""
    _, found, after = text.partition("Traceback (most recent call last):\n")
    lines = [line for line in after.splitlines() if line and not line[0].isspace()]
    return lines[0][:400] if found and lines else ""


def _cause(text: str) -> str:
    """Return what the innermost error that says something says."""
    found = [(name, said.strip()) for name, said in _CAUSE.findall(text) if said.strip()]
    telling = [pair for pair in found if pair[0] not in _EMPTY] or found
    if not telling:
        return ""
    name, said = telling[-1]
    return f"{name}: {said}"[:400]


def is_sparks(error: BaseException) -> bool:
    """Return whether an error comes from Spark, or from the bridge to it."""
    return any(kind.__module__.split(".")[0] in ("pyspark", "py4j") for kind in type(error).__mro__)
