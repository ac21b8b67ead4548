"""What a command that runs for long says while it does: lines for people, or JSON for machines."""

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
    """How lines are written."""

    TEXT = "text"
    JSON = "json"


class TextLog(logging.Formatter):
    """What happened, as a sentence; what went wrong says so."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a line, and behind it where an error was."""
        said = super().format(record)
        return said if record.levelno < logging.WARNING else f"{record.levelname.lower()}: {said}"


class JsonLog(logging.Formatter):
    """What happened, as an object on a line: when, how grave, who says so, the sentence, and facts.

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
    """Write what this package logs, and warnings of others, to standard error for the length of a block."""
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
    """Return facts of a line, as `extra` of a logger takes them."""
    return {"facts": found}
