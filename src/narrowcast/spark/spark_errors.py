"""Translation of Spark's errors into one-line errors of Narrowcast."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from narrowcast import errors
from narrowcast.errors import JobError, NarrowcastError
from narrowcast.files import first_line

if TYPE_CHECKING:
    from collections.abc import Iterator

#: An error of Narrowcast at the end of a worker's traceback.
_OURS = re.compile(r"^narrowcast\.errors\.(\w+): (.*)$", re.MULTILINE)
#: The first line of each error in a Java chain of causes.
_CAUSE = re.compile(r"^(?:Caused by: |: )?(?:[a-z]\w*\.)+([A-Z]\w*(?:Exception|Error)): ?(.*)$", re.MULTILINE)
#: Wrapper exceptions, which do not describe the cause.
_WRAPPERS = {"SparkException", "RuntimeException", "ExecutionException", "SparkRuntimeException"}
#: Patterns of known causes, and how to fix each.
_FIXES = (
    (r"No space left on device", "free some space, or put spark.local.dir and the output on a larger disk"),
    (r"File too large|Disk quota exceeded", "the quota of this disk is reached; write to another disk"),
    (r"Permission denied|Access ?Denied|AccessControlException", "get access, or use another path"),
    (r"OutOfMemoryError|Java heap space|GC overhead", "give Spark more memory: spark.driver.memory=8g"),
    (
        r"is not a Parquet file|expected magic number|Could not read footer",
        "the file is damaged; write it again",
    ),
    (
        r"Python worker exited unexpectedly",
        "a Python worker was killed, possibly because it ran out of memory; lower the parameter memory",
    ),
    (
        r"FILE_NOT_EXIST|FileNotFoundException",
        "the file was removed while it was read; keep the files in place, and try again",
    ),
    (r"FAILED_READ_FILE", "the file is damaged; write it again"),
)

#: Patterns of errors that Spark reports over several lines, and a one-line message for each.
_LONG = (
    (
        r"CSV header does not conform.*?Header: ([^\n]*)\n.*?Schema: ([^\n]*)\n.*?CSV file: ([^\n]*)",
        "the header of {2} is {0}, expected {1}; give all files the same columns in the same order",
    ),
    (
        r"in CSV header is not.*?length: (\d+), schema size: (\d+).*?CSV file: ([^\n]*)",
        "the header of {2} has {0} columns, expected {1}; give all files the same columns",
    ),
    (
        r"reading (?:the )?file (\S+?)\.? .*?Parquet column \[?`?([^\]`]*).*?type (\S+?), .*?type (\w+)",
        "column {1} of {0} has type {3}, expected {2}; write the file with that type, or remove it",
    ),
    (
        r"CONFLICTING_PARTITION_COLUMN_NAMES.*?list #0: ([^\n]*)\n.*?list #1: ([^\n]*)",
        "files have different partition columns, {0} and {1}; use the same folder structure for all files",
    ),
)


@contextmanager
def plainly(doing: str) -> Iterator[None]:
    """Translate errors that Spark raises within a block into one line: what failed, why, and the fix.

    Parameters
    ----------
    doing
        What the block does, as a verb phrase: the message begins with "cannot" and this phrase.

    Raises
    ------
    JobError
        In place of an error of Spark's; other errors pass unchanged.
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
    """Return the error of Narrowcast for an error of Spark; one raised in a worker keeps its class."""
    text = str(error)
    if found := list(_OURS.finditer(text)):
        name, message = found[-1].groups()
        return getattr(errors, name, JobError)(message)
    for pattern, message in _LONG:
        if match := re.search(pattern, text, re.DOTALL):
            return JobError(f"cannot {doing}: {message.format(*map(str.strip, match.groups()))}")
    reason = _worker_error(text) or _cause(text) or first_line(error)
    fix = next((fix for pattern, fix in _FIXES if re.search(pattern, text)), None)
    return JobError(f"cannot {doing}: {reason}" + (f"; {fix}" if fix else ""))


def _worker_error(text: str) -> str:
    """Return the error of a Python worker: the last line of its traceback, empty without a traceback."""
    _, found, after = text.partition("Traceback (most recent call last):\n")
    lines = [line for line in after.splitlines() if line and not line[0].isspace()]
    return lines[0][:400] if found and lines else ""


def _cause(text: str) -> str:
    """Return class and message of the innermost Java error with a message, wrappers excepted."""
    found = [(name, message.strip()) for name, message in _CAUSE.findall(text) if message.strip()]
    specific = [pair for pair in found if pair[0] not in _WRAPPERS] or found
    if not specific:
        return ""
    name, message = specific[-1]
    return f"{name}: {message}"[:400]


def is_sparks(error: BaseException) -> bool:
    """Return whether an error was raised by pyspark, or by py4j, its bridge to Java."""
    return any(kind.__module__.split(".")[0] in ("pyspark", "py4j") for kind in type(error).__mro__)
