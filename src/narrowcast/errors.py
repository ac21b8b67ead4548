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

A message names the offending value, the limit it broke and the way to mend it. The command line prints
it as one line and exits with 2.
"""

from __future__ import annotations


class NarrowcastError(Exception):
    """The root of all errors raised on purpose."""


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
