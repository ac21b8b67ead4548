"""Where a broker writes down what it knows of subscribers: under subjects that nobody else can guess."""

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

#: How far somebody has read, by itself or by a backup; and which channels hold what is for it.
Kind = Literal["position", "restored", "joined"]
#: What tells a store from others.
_STORE = re.compile(rb"[0-9a-f]{16}")
#: Bytes of a secret, and digits of what is told of it.
_SECRET, _KEY = 16, 32


@dataclass(frozen=True, slots=True)
class RecordSubjects:
    """The subjects of one store.

    A server answers whoever has something stored, at any subject that they name, and stores that answer too
    where a stream takes it: with permissions of its own. So whoever knows a subject can write it over. Here
    each has a word that only nodes know, and that of a position one that only its subscriber is told.

    Parameters
    ----------
    prefix
        How subjects of the broker begin.
    secret
        What only nodes know.

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
        """Return those of a store that is made."""
        return cls(prefix, secrets.token_hex(_SECRET))

    @classmethod
    def found(cls, prefix: str, rows: Iterable[tuple[str, bytes]]) -> tuple[Self, str] | None:
        """Return those of what is stored, with what tells the store from others; None where it is new.

        What a server was made to write there is no such word.

        Examples
        --------
        >>> rows = [("nc.at.store.x", b'{"stream":"nc_at"}'), ("nc.at.store.5ec4e7", b"0123456789abcdef")]
        >>> RecordSubjects.found("nc", rows)
        (Records(prefix='nc', secret='5ec4e7'), '0123456789abcdef')
        """
        below = f"{prefix}.at.store."
        for subject, payload in rows:
            if subject.startswith(below) and _STORE.fullmatch(payload):
                return cls(prefix, subject.removeprefix(below)), payload.decode()
        return None

    @property
    def store(self) -> str:
        """Where it is written down which store this is."""
        return f"{self.prefix}.at.store.{self.secret}"

    def key(self, subscriber: str) -> str:
        """Return the word of a subscriber's position."""
        text = f"{self.secret} {subscriber}".encode(errors="surrogatepass")
        return hashlib.sha256(text).hexdigest()[:_KEY]

    def subject(self, kind: Kind, subscriber: str) -> str:
        """Return where something of a subscriber is written down."""
        word = self.key(subscriber) if kind == "position" else self.secret
        return subject_of(f"{self.prefix}.at.{kind}.{word}", subscriber)

    def pattern(self, kind: Kind) -> str:
        """Return what fits all subjects of a kind, and perhaps others."""
        return f"{self.prefix}.at.{kind}.{'*' if kind == 'position' else self.secret}.*"

    def name(self, kind: Kind, subject: str) -> str | None:
        """Return whose something is that is written down under a subject; None where it is nobody's."""
        if len(subject) > LONGEST:
            return None
        try:
            found = name_of(subject.rpartition(".")[0], subject)
            return found if subject == self.subject(kind, found) else None
        except (ParameterError, UnicodeError):  # who may write some may write any
            return None
