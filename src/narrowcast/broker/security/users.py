"""Users of a broker, with roles and tokens, in a file."""

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

#: Roles of users: subscribe under its name, publish under its name, operate the broker, be a node of it.
ROLES = ("subscriber", "publisher", "operator", "node")
#: Reserved names, of the users that a broker creates on its own server.
OWN = ("$node", "$system", "$anybody")  # words: allow
#: Bytes of the longest name, characters of the shortest and longest token, and random bytes of a new token.
_MAX_NAME, _MIN_TOKEN, _MAX_TOKEN, _TOKEN_BYTES = 256, 16, 512, 32
#: Prefix of a password that a NATS server takes for a bcrypt hash.
_HASHED = "$2"


class User(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A user of the broker.

    Parameters
    ----------
    name
        Name of the user, which is also the name of its subscriber or publisher; 1 to 256 bytes.
    roles
        One or more of subscriber, publisher, operator and node.
    token
        Secret of 16 to 512 printable ASCII characters: the password for NATS, the bearer token for HTTP.
    """

    name: str
    roles: tuple[str, ...]
    token: str

    def check(self) -> None:
        """Check the name, roles and token.

        Raises
        ------
        ParameterError
            When one of them is invalid; the message never contains the token.
        """
        who = repr(self.name)
        try:
            size = len(self.name.encode())
        except UnicodeEncodeError:
            raise ParameterError(
                f"user {who}: the name must be valid Unicode", parameter="name", value=self.name
            ) from None
        if not 0 < size <= _MAX_NAME or "\0" in self.name:
            raise ParameterError(
                f"user {who:.80}: the name has {size:,} bytes; must be 1 to {_MAX_NAME} without null bytes",
                parameter="name",
                value=self.name,
                limit=f"1 to {_MAX_NAME} bytes without null bytes",
            )
        if self.name in OWN:
            raise ParameterError(
                f"user {who}: the name is reserved; choose another name", parameter="name", value=self.name
            )
        if unknown := [role for role in self.roles if role not in ROLES] or not self.roles:
            problem = "no role" if unknown is True else f"role {unknown[0]!r} is unknown"
            raise ParameterError(
                f"user {who}: {problem}; must be one or more of {', '.join(ROLES)}",
                parameter="roles",
                value=self.roles,
                limit=f"one or more of {', '.join(ROLES)}",
            )
        if not _MIN_TOKEN <= len(self.token) <= _MAX_TOKEN or not (
            self.token.isascii() and self.token.isprintable()
        ):
            raise ParameterError(
                f"user {who}: the token has {len(self.token):,} characters; must be {_MIN_TOKEN} to "
                f"{_MAX_TOKEN} printable ASCII characters, such as narrowcast users add creates",
                parameter="token",
                limit=f"{_MIN_TOKEN} to {_MAX_TOKEN} printable ASCII characters",
            )
        if " " in self.token or self.token.startswith(_HASHED):
            raise ParameterError(
                f"user {who}: the token contains a space, or begins with {_HASHED!r} like a hash; let "
                "narrowcast users add create one",
                parameter="token",
                limit=f"without spaces, and not begin with {_HASHED!r}",
            )

    def may(self, *roles: str) -> bool:
        """Return whether the user has any of these roles."""
        return any(role in self.roles for role in roles)


class _UsersDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of a file of users."""

    format: int
    users: list[User]


@dataclass(frozen=True)
class Users:
    """The users of a broker, with unique names and tokens.

    Examples
    --------
    >>> users = Users.of([User("ann", ("subscriber",), "secret-of-ann-0123")])
    >>> users.find("secret-of-ann-0123").name, users.find("another"), "bob" in users
    ('ann', None, False)
    """

    by_name: dict[str, User]

    @classmethod
    def of(cls, users: Iterable[User]) -> Users:
        """Check users, and return them as a collection.

        Raises
        ------
        ParameterError
            When a user is invalid, or two have the same name or the same token.
        """
        found: dict[str, User] = {}
        tokens: dict[str, str] = {}
        for user in users:
            user.check()
            if user.name in found:
                raise ParameterError(
                    f"user {user.name!r}: given twice; remove one of them", parameter="name", value=user.name
                )
            if (other := tokens.setdefault(user.token, user.name)) != user.name:
                raise ParameterError(
                    f"users {other!r} and {user.name!r}: same token; create a new token for one of them",
                    parameter="token",
                )
            found[user.name] = user
        return cls(found)

    @classmethod
    def read(cls, path: str | Path) -> Users:
        """Read a file of users; log a warning if users of the machine other than its owner can read it.

        Raises
        ------
        InputError
            When the file does not exist, cannot be read, or is invalid.
        """
        path = Path(path)
        try:
            with path.open("rb") as file:
                mode, text = os.fstat(file.fileno()).st_mode & 0o777, file.read()
        except OSError as error:
            raise InputError(
                f"{path}: users cannot be read: {error.strerror}; create the file with narrowcast users add",
                parameter="users",
                value=str(path),
            ) from error
        if mode & 0o077:
            log.warning("%s: other users can read the file (mode %04o); run: chmod 600 %s", path, mode, path)
        try:
            document = msgspec.json.decode(text, type=_UsersDocument)
            if document.format != 1:
                raise ParameterError(parameter="format", value=document.format, limit="1 for this version")
            return cls.of(document.users)
        except (msgspec.MsgspecError, UnicodeError, ParameterError) as error:
            raise InputError(
                f"{path}: invalid users: {first_line(error)}", parameter="users", value=str(path)
            ) from error

    def write(self, path: str | Path) -> None:
        """Write the file in one step, readable only by its owner; after an error it is unchanged."""
        path = Path(path)
        text = msgspec.json.format(msgspec.json.encode(_UsersDocument(1, list(self))), indent=2) + b"\n"
        temporary = path.with_name(f".{path.name}-{os.getpid()}")
        try:
            with (
                writing(path),
                os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as to,
            ):
                to.write(text)
                to.flush()
                os.fsync(to.fileno())
            with writing(path):
                temporary.rename(path)
        finally:
            temporary.unlink(missing_ok=True)

    def add(self, name: str, roles: Iterable[str]) -> tuple[Users, User]:
        """Create a user with a random token.

        Returns
        -------
        users
            The users with the new one.
        user
            The new user.

        Raises
        ------
        ParameterError
            When the name exists, or the name or a role is invalid.
        """
        if name in self.by_name:
            raise ParameterError(
                f"user {name!r}: exists; remove it first, or choose another name",
                parameter="name",
                value=name,
            )
        made = User(name, tuple(dict.fromkeys(roles)), secrets.token_urlsafe(_TOKEN_BYTES))
        return Users.of([*self, made]), made

    def remove(self, name: str) -> Users:
        """Return the users without one of them.

        Raises
        ------
        ParameterError
            When there is no user of this name.
        """
        if name not in self.by_name:
            raise ParameterError(
                f"user {name!r}: does not exist; see narrowcast users list", parameter="name", value=name
            )
        return Users.of(user for user in self if user.name != name)

    def find(self, token: str) -> User | None:
        """Return the user with this token, in constant time; None if there is none."""
        found = self._hashes.get(_hash(token))
        return found if found is not None and hmac.compare_digest(_hash(found.token), _hash(token)) else None

    @cached_property
    def _hashes(self) -> dict[bytes, User]:
        """Users by the hash of their token, so that the time of a lookup does not reveal tokens."""
        return {_hash(user.token): user for user in self}

    def __iter__(self) -> Iterator[User]:
        return iter(self.by_name.values())

    def __len__(self) -> int:
        return len(self.by_name)

    def __contains__(self, name: object) -> bool:
        return name in self.by_name


def _hash(token: str) -> bytes:
    """Return the hash of a token."""
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()


@contextmanager
def locked(path: str | Path) -> Iterator[None]:
    """Lock a file for the length of a block against other callers of this function, through its folder."""
    folder = Path(path).absolute().parent
    with writing(path):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class UsersFile:
    """A file of users that may change while a broker runs.

    Parameters
    ----------
    path
        Path of the file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._version = self._file_version()
        #: The users of the last valid version of the file.
        self.users = Users.read(self.path)

    def _file_version(self) -> tuple[int, int, int] | None:
        """Return inode, modification time and size, which change with the file; None if there is no file."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def refresh(self) -> bool:
        """Read the file again if it has changed; an invalid file is logged and ignored.

        Returns
        -------
        bool
            Whether the users have changed.
        """
        version = self._file_version()
        if version == self._version:
            return False
        self._version = version
        try:
            users = Users.read(self.path)
        except InputError as error:
            log.error("keeping the earlier users: %s", error)
            return False
        if users.by_name == self.users.by_name:
            return False
        self.users = users
        return True
