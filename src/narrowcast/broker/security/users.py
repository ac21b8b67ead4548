"""Users of a broker: who they are, what they may do, and the secret that proves it, in a file."""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import logging
import os
import secrets
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from narrowcast.errors import InputError, ParameterError
from narrowcast.files import first_line, writing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

log = logging.getLogger(__name__)

#: What a user may be: subscribe to what is its own, publish as itself, run the broker, or be a node of it.
ROLES = ("subscriber", "publisher", "operator", "node")
#: Users that a broker makes for itself at its own server: nobody else may be called so.
OWN = ("$node", "$system", "$anybody")
#: Bytes of the longest name, characters of the shortest and the longest token, and bytes of one that is made.
_NAME, _SHORT, _LONG, _MADE = 256, 16, 512, 32
#: How a hash begins that a NATS server would take a password for.
_HASHED = "$2"


class User(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Somebody who may do something.

    Parameters
    ----------
    name
        Who: a subscriber or publisher has this name.
    roles
        Some of `ROLES`.
    token
        The secret: NATS takes it as the password, the HTTP API as a bearer token.
    """

    name: str
    roles: tuple[str, ...]
    token: str

    def check(self) -> None:
        """Refuse what cannot be used.

        Raises
        ------
        ParameterError
            With what is wrong and how to mend it; the token is never named.
        """
        who = repr(self.name)
        try:
            size = len(self.name.encode())
        except UnicodeEncodeError:
            raise ParameterError(f"user {who} has a name that is no valid text; choose another") from None
        if not 0 < size <= _NAME or "\0" in self.name:
            raise ParameterError(
                f"user {who:.80} has a name of {size:,} bytes; give 1 to {_NAME}, none of them 0"
            )
        if self.name in OWN:
            raise ParameterError(f"user {who} is the broker's own; choose another name")
        if unknown := [role for role in self.roles if role not in ROLES] or not self.roles:
            had = "no role" if unknown is True else f"role {unknown[0]!r}"
            raise ParameterError(f"user {who} has {had}; use some of {', '.join(ROLES)}")
        if not _SHORT <= len(self.token) <= _LONG or not (self.token.isascii() and self.token.isprintable()):
            raise ParameterError(
                f"user {who} has a token of {len(self.token):,} characters; give {_SHORT} to {_LONG}, all of "
                "them printable ASCII, or let narrowcast users add make one"
            )
        if " " in self.token or self.token.startswith(_HASHED):
            raise ParameterError(
                f"user {who} has a token with a space, or that begins with {_HASHED!r} as hashes do; "
                "let narrowcast users add make one"
            )

    def may(self, *roles: str) -> bool:
        """Return whether it has one of some roles."""
        return any(role in self.roles for role in roles)


class _Written(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Users as they are in a file."""

    format: int
    users: list[User]


@dataclass(frozen=True)
class Users:
    """All users, by name.

    Examples
    --------
    >>> users = Users.of([User("ann", ("subscriber",), "secret-of-ann-0123")])
    >>> users.find("secret-of-ann-0123").name, users.find("another"), "bob" in users
    ('ann', None, False)
    """

    by_name: dict[str, User]

    @classmethod
    def of(cls, users: Iterable[User]) -> Users:
        """Return users that can be told apart.

        Raises
        ------
        ParameterError
            When one cannot be used, or two have the same name or the same token.
        """
        found: dict[str, User] = {}
        tokens: dict[str, str] = {}
        for user in users:
            user.check()
            if user.name in found:
                raise ParameterError(f"user {user.name!r} is there twice; leave one of them out")
            if (other := tokens.setdefault(user.token, user.name)) != user.name:
                raise ParameterError(
                    f"users {other!r} and {user.name!r} have the same token; make one of them anew"
                )
            found[user.name] = user
        return cls(found)

    @classmethod
    def read(cls, path: str | Path) -> Users:
        """Read a file of users; one that others may read is warned of.

        Raises
        ------
        InputError
            When it is not there, cannot be read, or holds something that cannot be used.
        """
        path = Path(path)
        try:
            with path.open("rb") as file:
                mode, text = os.fstat(file.fileno()).st_mode & 0o777, file.read()
        except OSError as error:
            raise InputError(
                f"users {path} cannot be read: {error.strerror}; make them with narrowcast users add"
            ) from error
        if mode & 0o077:
            log.warning("%s can be read by others (mode %04o); run: chmod 600 %s", path, mode, path)
        try:
            written = msgspec.json.decode(text, type=_Written)
            if written.format != 1:
                raise ParameterError(f"its format is {written.format}, and 1 is known here")
            return cls.of(written.users)
        except (msgspec.MsgspecError, UnicodeError, ParameterError) as error:
            raise InputError(f"users {path} cannot be used: {first_line(error)}") from error

    def write(self, path: str | Path) -> None:
        """Write a file of users that only its owner may read; it is there whole, or as it was."""
        path = Path(path)
        text = msgspec.json.format(msgspec.json.encode(_Written(1, list(self))), indent=2) + b"\n"
        aside = path.with_name(f".{path.name}-{os.getpid()}")
        try:
            with (
                writing(path),
                os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as to,
            ):
                to.write(text)
                to.flush()
                os.fsync(to.fileno())
            with writing(path):
                aside.rename(path)
        finally:
            aside.unlink(missing_ok=True)

    def add(self, name: str, roles: Iterable[str]) -> tuple[Users, User]:
        """Return users with another, whose token is made here, and that one."""
        if name in self.by_name:
            raise ParameterError(f"user {name!r} is there already; remove it first, or choose another name")
        made = User(name, tuple(dict.fromkeys(roles)), secrets.token_urlsafe(_MADE))
        return Users.of([*self, made]), made

    def remove(self, name: str) -> Users:
        """Return users without one."""
        if name not in self.by_name:
            raise ParameterError(f"there is no user {name!r}; see narrowcast users list")
        return Users.of(user for user in self if user.name != name)

    def find(self, token: str) -> User | None:
        """Return whose a token is, in a time that says nothing of other tokens."""
        found = self._hashes.get(_hash(token))
        return found if found is not None and hmac.compare_digest(_hash(found.token), _hash(token)) else None

    @cached_property
    def _hashes(self) -> dict[bytes, User]:
        """Users by the hash of their token, which cannot be approached step by step."""
        return {_hash(user.token): user for user in self}

    def __iter__(self) -> Iterator[User]:
        return iter(self.by_name.values())

    def __len__(self) -> int:
        return len(self.by_name)

    def __contains__(self, name: object) -> bool:
        return name in self.by_name


def _hash(token: str) -> bytes:
    """Return what a token is looked up by."""
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()


@contextmanager
def alone(path: str | Path) -> Iterator[None]:
    """Let nobody else who asks for it change a file for the length of a block; its folder is held."""
    folder = Path(path).absolute().parent
    with writing(path):
        folder.mkdir(parents=True, exist_ok=True)
        held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


class UsersFile:
    """A file of users that may change while a broker runs.

    Parameters
    ----------
    path
        Where it is.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._seen = self._look()
        #: Those who were in it last.
        self.users = Users.read(self.path)

    def _look(self) -> tuple[int, int, int] | None:
        """Return what tells the file from an earlier one."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def changed(self) -> bool:
        """Take up the file when it has changed, and return whether it did; a bad one is told, and left."""
        seen = self._look()
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            users = Users.read(self.path)
        except InputError as error:
            log.error("users stay as they were: %s", error)
            return False
        if users.by_name == self.users.by_name:
            return False
        self.users = users
        return True
