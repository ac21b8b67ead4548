"""Subjects of the records of subscribers, which clients cannot guess."""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from narrowcast.errors import ParameterError
from narrowcast.model.subjects import LONGEST, name_of, subject_of

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Kinds of records: position written by the subscriber, position restored from a backup, joined channels.
Kind = Literal["position", "restored", "joined"]
#: Id of a store.
_STORE = re.compile(rb"[0-9a-f]{16}")
#: Bytes of a secret, and hexadecimal digits of a subscriber's key.
_SECRET, _KEY = 16, 32


@dataclass(frozen=True, slots=True)
class RecordSubjects:
    """The subjects under which one store keeps records of subscribers.

    A NATS server acknowledges a stored message at any reply subject that the client names, with permissions
    of its own, and stores that acknowledgement too if a stream covers the subject. So a client that knows a
    subject can overwrite its record. Therefore each subject contains a secret: for positions one that only
    nodes and the subscriber know, for other records one that only nodes know.

    Parameters
    ----------
    prefix
        Prefix of the broker's subjects.
    secret
        Secret that only nodes know.

    Examples
    --------
    >>> of = RecordSubjects("nc", "5ec4e7")
    >>> of.store, of.subject("joined", "a b")
    ('nc.at.store.5ec4e7', 'nc.at.joined.5ec4e7.a%20b')
    >>> of.subject("position", "ann") == f"nc.at.position.{of.key('ann')}.ann"
    True
    >>> of.name("position", of.subject("position", "ann")), of.name("position", "nc.at.position.x.ann")
    ('ann', None)
    """

    prefix: str
    secret: str

    @classmethod
    def new(cls, prefix: str) -> Self:
        """Return the subjects of a new store, with a random secret."""
        return cls(prefix, secrets.token_hex(_SECRET))

    @classmethod
    def from_rows(cls, prefix: str, rows: Iterable[tuple[str, bytes]]) -> tuple[Self, str] | None:
        """Find the subjects and the id of a store in its records; None if there is no store yet.

        Acknowledgements of the server that were stored under such a subject are ignored.

        Examples
        --------
        >>> rows = [("nc.at.store.x", b'{"stream":"nc_at"}'), ("nc.at.store.5ec4e7", b"0123456789abcdef")]
        >>> RecordSubjects.from_rows("nc", rows)
        (RecordSubjects(prefix='nc', secret='5ec4e7'), '0123456789abcdef')
        """
        below = f"{prefix}.at.store."
        for subject, payload in rows:
            if subject.startswith(below) and _STORE.fullmatch(payload):
                return cls(prefix, subject.removeprefix(below)), payload.decode()
        return None

    @property
    def store(self) -> str:
        """Subject of the record with the id of the store."""
        return f"{self.prefix}.at.store.{self.secret}"

    def key(self, subscriber: str) -> str:
        """Return the key of a subscriber, which is part of the subject of its position."""
        text = f"{self.secret} {subscriber}".encode(errors="surrogatepass")
        return hashlib.sha256(text).hexdigest()[:_KEY]

    def subject(self, kind: Kind, subscriber: str) -> str:
        """Return the subject of a subscriber's record."""
        word = self.key(subscriber) if kind == "position" else self.secret
        return subject_of(f"{self.prefix}.at.{kind}.{word}", subscriber)

    def pattern(self, kind: Kind) -> str:
        """Return a pattern that covers all subjects of a kind, and perhaps others: check with `name`."""
        return f"{self.prefix}.at.{kind}.{'*' if kind == 'position' else self.secret}.*"

    def name(self, kind: Kind, subject: str) -> str | None:
        """Return the subscriber whose record a subject is; None if the subject is not that of a record."""
        if len(subject) > LONGEST:
            return None
        try:
            found = name_of(subject.rpartition(".")[0], subject)
            return found if subject == self.subject(kind, found) else None
        except (ParameterError, UnicodeError):  # a client may write under any subject below the prefix
            return None
