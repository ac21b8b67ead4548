"""The log of a long-running command: lines of text, or of JSON."""

from __future__ import annotations

import json
import logging
import sys
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from narrowcast.errors import NarrowcastError

if TYPE_CHECKING:
    from collections.abc import Iterator


class LogStyle(StrEnum):
    """Styles of log lines."""

    TEXT = "text"
    JSON = "json"


class TextLog(logging.Formatter):
    """Log lines of text; warnings and errors begin with their level."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a line, with the traceback of an error."""
        text = super().format(record)
        return text if record.levelno < logging.WARNING else f"{record.levelname.lower()}: {text}"


class JsonLog(logging.Formatter):
    """Log lines of JSON: time, level, logger, message, and the record's facts.

    Examples
    --------
    >>> record = logging.LogRecord("narrowcast", logging.INFO, "", 0, "%d events", (3,), None)
    >>> record.facts = {"events": 3}
    >>> found = json.loads(JsonLog().format(record))
    >>> found["level"], found["message"], found["events"]
    ('info', '3 events', 3)
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return a line of JSON."""
        row: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            row["exception"] = self.formatException(record.exc_info)
        return json.dumps(row, default=str)


@contextmanager
def logged(style: LogStyle) -> Iterator[None]:
    """Log to standard error for the block: all lines of this package, and warnings of other packages."""
    logger, root = logging.getLogger("narrowcast"), logging.getLogger()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLog() if style is LogStyle.JSON else TextLog())
    level = logger.level
    root.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    except NarrowcastError as error:
        if style is not LogStyle.JSON:
            raise
        logger.error("%s", error)
        raise SystemExit(2) from error
    finally:
        root.removeHandler(handler)
        logger.setLevel(level)


def facts(**found: object) -> dict[str, dict[str, object]]:
    """Return the facts of a log line, for the argument `extra` of a logger."""
    return {"facts": found}
