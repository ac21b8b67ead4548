"""Every error that Narrowcast raises on purpose.

::

    NarrowcastError
    ├── InputError            what the user gave cannot be used
    │   ├── SchemaError       attributes that collide, are unknown or of an unusable type
    │   ├── FilterError       a filter that does not parse, bind or fit the limits
    │   ├── TableError        a table that is missing, unreadable or lacks a column
    │   ├── IndexFileError    a file that is no index, is damaged, or of another version
    │   └── ParameterError    a parameter outside its range
    ├── PlanError             a plan that breaks its invariant, or an artefact that cannot be read
    ├── JobError              a Spark job that could not be done, with the cause
    ├── TransportError        a transport that can no longer do what was asked of it
    │   └── PaceError         events that came faster than their publisher may send
    └── MissingError          something is not installed; the message holds the line that installs it

An error says what is wrong, with the offending value, the limit it broke and the fix. What a program may want
to know is in fields: `parameter`, `value` and `limit`. A message names a parameter as Python knows it; the
command line translates the name into its option, prints one line and exits with 2.
"""

from __future__ import annotations

from typing import Any, Final

#: Characters of a value that a message shows.
SHOWN: Final = 80

#: The value of an error that concerns no value; None is a value like any other.
UNSET: Final = object()


class NarrowcastError(Exception):
    """The root of all errors raised on purpose.

    Parameters
    ----------
    message
        What is wrong and how to fix it. Left out, it is made of the fields:
        ``channels=0: must be at least 1; fix``.
    parameter
        The parameter, column, attribute or setting at fault, by its name in Python.
    value
        The offending value.
    limit
        What the value must be, as a phrase that follows "must be".
    fix
        How to mend it, where the limit does not say so.

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
    """Return a message in the order parameter, value, limit, fix."""
    shown = "" if value is UNSET else repr(value)
    if len(shown) > SHOWN:
        shown = f"{shown[:SHOWN]}..."
    subject = "=".join(part for part in (parameter, shown) if part)
    wanted = f": must be {limit}" if limit else ""
    return f"{subject}{wanted}" + (f"; {fix}" if fix else "")


class InputError(NarrowcastError):
    """What the user gave cannot be used."""


class SchemaError(InputError):
    """Attributes that collide, are unknown or of an unusable type."""


class FilterError(InputError):
    """A filter that does not parse, bind or fit the limits."""


class TableError(InputError):
    """A table that is missing, unreadable or lacks a column."""


class IndexFileError(InputError):
    """A file that is no index, is damaged, or of another version."""


class ParameterError(InputError):
    """A parameter outside its range."""


class PlanError(NarrowcastError):
    """A plan that breaks its invariant, or an artefact that cannot be read."""


class JobError(NarrowcastError):
    """A Spark job that could not be done, with the cause."""


class TransportError(NarrowcastError):
    """A transport that can no longer do what was asked of it."""


class PaceError(TransportError):
    """Events that came faster than their publisher may send."""


class MissingError(NarrowcastError):
    """Something is not installed; the message holds the line that installs it."""
