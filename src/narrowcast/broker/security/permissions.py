"""What each user of a broker may do at its NATS servers, and what sees to it that this holds."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from narrowcast.broker.server.server_config import listed, quoted
from narrowcast.errors import TransportError
from narrowcast.model.subjects import subject_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from narrowcast.broker.security.users import User, Users, UsersFile
    from narrowcast.broker.server.nats_server import NatsServer
    from narrowcast.broker.wire import Subjects

log = logging.getLogger(__name__)

#: The subjects of the channels that somebody may listen to.
Channels: TypeAlias = "Callable[[str], Iterable[str]]"
#: Seconds from one reload of the server to the next, at least: what changes in between goes in one.
PAUSE = 0.05
#: Seconds from one look at the users to the next.
_LOOK = 1.0
#: How many users are remembered as they are written down, and how what is written of a subscriber ends.
_KNOWN, _END = 1 << 17, "] } } }"


def no_channels(_: str) -> list[str]:
    """Return that somebody may listen to no channel."""
    return []


@dataclass(frozen=True, slots=True)
class Permission:
    """The subjects that a user may publish to, and those that it may listen to; None for all."""

    publish: list[str] | None
    subscribe: list[str] | None

    @classmethod
    def of(
        cls, user: User, subjects: Subjects, channels: Channels = no_channels, *, partitions: int = 16
    ) -> Permission:
        """Return what a user may do.

        Parameters
        ----------
        user
            Who.
        subjects
            Of the broker.
        channels
            The subjects of the channels that a subscriber may listen to.
        partitions
            Into how many parts publishers are divided.

        Examples
        --------
        >>> from narrowcast.broker.security.users import User
        >>> from narrowcast.broker.wire import Subjects
        >>> ann = User("ann", ("publisher",), "secret-of-ann-0123")
        >>> Permission.of(ann, Subjects("nc"))
        Permission(publish=['nc.in.3.ann'], subscribe=['nc.answer.ann.>'])
        """
        if user.may("node"):
            return cls(None, None)
        name, publish = user.name, []
        subscribe = [f"{subjects.inbox(name)}.>"]
        if user.may("subscriber"):
            stream = f"{subjects.prefix.replace('.', '_')}_out"
            publish += [subjects.ask(name), subjects.position(name)]
            publish.append(f"{subject_of(f'$JS.ACK.{stream}', name)}.>")  # of what is replayed to it
            subscribe += [subjects.to(name), subjects.everybody, subjects.control(name), subjects.beats]
            subscribe += [f"{subjects.replay(name)}.>", *channels(name)]
        if user.may("publisher"):
            publish.append(subjects.ingress(name, partitions))
        if user.may("operator"):
            publish.append(subjects.orders)
            subscribe.append(subjects.beats)
        return cls(publish, list(dict.fromkeys(subscribe)))

    def text(self) -> str:
        """Return it as a server's configuration has it, behind a comma; nothing where all is permitted."""
        if self.publish is None or self.subscribe is None:
            return ""
        return (
            f", permissions: {{ publish: {{ allow: {listed(self.publish)} }}, "
            f"subscribe: {{ allow: {listed(self.subscribe)} }} }}"
        )


def lines(users: Users, subjects: Subjects, channels: Channels = no_channels) -> list[str]:
    """Return all users as a server's configuration has them, a line each, by name.

    Examples
    --------
    >>> from narrowcast.broker.security.users import User, Users
    >>> from narrowcast.broker.wire import Subjects
    >>> lines(Users.of([User("a b", ("node",), "secret-of-ann-0123")]), Subjects("nc"))
    ['{ user: "a b", password: "secret-of-ann-0123" }']
    """
    return [_line(user, subjects, channels) for user in sorted(users, key=lambda each: each.name)]


def line_of(user: User, subjects: Subjects, channels: Channels = no_channels) -> str:
    """Return a user as a server's configuration has it."""
    permission = Permission.of(user, subjects, channels)
    return f"{{ user: {quoted(user.name)}, password: {quoted(user.token)}{permission.text()} }}"


def _line(user: User, subjects: Subjects, channels: Channels) -> str:
    """Return the same as `line_of`; plans change more often than users, so all but the channels is kept."""
    line = _without_channels(user, subjects)
    if user.may("node") or not user.may("subscriber"):
        return line
    more = "".join(f", {quoted(channel)}" for channel in dict.fromkeys(channels(user.name)))
    return f"{line.removesuffix(_END)}{more}{_END}"


@lru_cache(_KNOWN)
def _without_channels(user: User, subjects: Subjects) -> str:
    """Return a user as a server's configuration has it before there is a plan."""
    return line_of(user, subjects)


def fragment(users: Users, subjects: Subjects, channels: Channels = no_channels) -> str:
    """Return the users as a part of a cluster's own configuration: what stands in its account.

    Examples
    --------
    >>> from narrowcast.broker.security.users import User, Users
    >>> from narrowcast.broker.wire import Subjects
    >>> print(fragment(Users.of([User("n", ("node",), "secret-of-ann-0123")]), Subjects("nc")))
    users: [
      { user: "n", password: "secret-of-ann-0123" }
    ]
    """
    return "\n".join(["users: [", *(f"  {line}" for line in lines(users, subjects, channels)), "]"])


class PermissionGuard:
    """Sees to it that the server of a broker permits what users and plan say, and nothing else.

    Parameters
    ----------
    users
        Where users are written down.
    subjects
        Of the broker.
    """

    def __init__(self, users: UsersFile, subjects: Subjects) -> None:
        self._file, self._subjects = users, subjects
        self._server: NatsServer | None = None
        #: The plan and number of each channel that somebody may listen to: the first node says.
        self.channels: Callable[[str], Iterable[tuple[int, int]]] = no_pairs
        self._next: asyncio.Task[None] | None = None
        self._running = asyncio.Lock()
        self._ended = -PAUSE
        self._owed = False
        #: How often the server was told.
        self.reloads = 0

    @property
    def users(self) -> Users:
        """All users, as the file has them."""
        return self._file.users

    def lines(self) -> list[str]:
        """Return what the server has to permit now."""
        return lines(self.users, self._subjects, self._channels_of)

    def _channels_of(self, name: str) -> Iterator[str]:
        """Yield the subjects of somebody's channels."""
        return (self._subjects.channel(*pair) for pair in self.channels(name))

    def at(self, server: NatsServer) -> None:
        """Watch over a server."""
        self._server = server

    async def permit(self) -> None:
        """Let the server permit what holds now, and return when it does.

        Whoever asks while it is being told, or just was, shares the next time. A server that does not answer
        is told again and again: until it knows better it permits what it did.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._permit())
        await asyncio.shield(self._next)

    async def _permit(self) -> None:
        """Tell the server, once it was not told for a moment."""
        async with self._running:
            await asyncio.sleep(max(0.0, self._ended + PAUSE - time.monotonic()))
            self._next = None  # who asks from here on asks for more than this
            if self._server is None:
                return
            try:
                now = self.lines()
                await asyncio.to_thread(self._server.reload, now)
                self._owed = False
                self.reloads += 1
            except TransportError as error:
                self._owed = True
                log.error("permissions are not what they should be yet: %s", error)
            finally:
                self._ended = time.monotonic()

    async def watch(self) -> None:
        """Take up users who come, go and change in the file, for as long as the broker runs."""
        while True:
            await asyncio.sleep(_LOOK)
            if self._file.changed():
                log.info("users are others now: %d", len(self.users))
                await self.permit()
            elif self._owed:
                await self.permit()


def no_pairs(_: str) -> list[tuple[int, int]]:
    """Return that somebody may listen to no channel."""
    return []
