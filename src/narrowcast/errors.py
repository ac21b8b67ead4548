"""Errors of Narrowcast.

::

    NarrowcastError
    ├── InputError            unusable input
    │   ├── SchemaError       attributes that collide, are unknown or have an unusable type
    │   ├── FilterError       a filter that does not parse, bind or fit the limits
    │   ├── TableError        a table that is missing, unreadable or lacks a column
    │   ├── IndexFileError    a file that is not an index, is damaged, or has another version
    │   └── ParameterError    a parameter outside its range
    ├── PlanError             a plan that breaks its invariant, or an unreadable plan artefact
    ├── JobError              a Spark job that failed, with the cause
    ├── TransportError        a transport that failed or was closed
    │   └── PaceError         events beyond the publisher's rate limit
    └── MissingError          something is not installed; the message has the command that installs it

A message gives the problem, the offending value, the limit and the fix. Programs read the fields
`parameter`, `value` and `limit`. A parameter has its Python name; the command line translates it into its
option, prints one line and exits with 2.
"""

from __future__ import annotations

from typing import Any, Final

#: Largest number of characters of a value in a message.
SHOWN: Final = 80

#: Marks an error without a value, since None may be the offending value.
UNSET: Final = object()


class NarrowcastError(Exception):
    """Base class of all errors that Narrowcast raises deliberately.

    Parameters
    ----------
    message
        The problem and its fix (default: composed from the fields,
        ``channels=0: must be at least 1; fix``).
    parameter
        Python name of the parameter, column, attribute or setting at fault.
    value
        The offending value.
    limit
        What the value must be, as a phrase that follows "must be".
    fix
        What to do, if the limit does not imply it.

    Examples
    --------
    >>> error = ParameterError(parameter="channels", value=0, limit="at least 1")
    >>> str(error), error.parameter, error.value
    ('channels=0: must be at least 1', 'channels', 0)
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        parameter: str | None = None,
        value: Any = UNSET,
        limit: str | None = None,
        fix: str | None = None,
    ) -> None:
        if message is None:
            message = _composed(parameter, value, limit, fix)
        super().__init__(message)
        self.parameter = parameter
        self.value = None if value is UNSET else value
        self.limit = limit


def _composed(parameter: str | None, value: Any, limit: str | None, fix: str | None) -> str:
    """Compose a message in the order parameter, value, limit, fix."""
    shown = "" if value is UNSET else repr(value)
    if len(shown) > SHOWN:
        shown = f"{shown[:SHOWN]}..."
    subject = "=".join(part for part in (parameter, shown) if part)
    wanted = f": must be {limit}" if limit else ""
    return f"{subject}{wanted}" + (f"; {fix}" if fix else "")


class InputError(NarrowcastError):
    """Unusable input."""


class SchemaError(InputError):
    """Attributes that collide, are unknown or have an unusable type."""


class FilterError(InputError):
    """A filter that does not parse, bind or fit the limits."""


class TableError(InputError):
    """A table that is missing, unreadable or lacks a column."""


class IndexFileError(InputError):
    """A file that is not an index, is damaged, or has another version."""


class ParameterError(InputError):
    """A parameter outside its range."""


class PlanError(NarrowcastError):
    """A plan that breaks its invariant, or an unreadable plan artefact."""


class JobError(NarrowcastError):
    """A Spark job that failed, with the cause."""


class TransportError(NarrowcastError):
    """A transport that failed or was closed."""


class PaceError(TransportError):
    """Events beyond the publisher's rate limit."""


class MissingError(NarrowcastError):
    """Something is not installed; the message has the command that installs it."""
