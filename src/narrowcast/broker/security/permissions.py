"""Permissions of users on NATS servers, and their enforcement while a broker runs."""

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

#: Function that returns the subjects of the channels that a subscriber may receive, by its name.
Channels: TypeAlias = "Callable[[str], Iterable[str]]"
#: Seconds between two reloads of the server, at least: changes within it are applied together.
PAUSE = 0.05
#: Seconds between two checks of the file of users.
_INTERVAL = 1.0
#: Users whose line of the configuration is cached, and how the line of a subscriber ends.
_CACHED, _END = 1 << 17, "] } } }"


def no_channels(_: str) -> list[str]:
    """Return no subjects: the subscriber may receive no channel."""
    return []


@dataclass(frozen=True, slots=True)
class Permission:
    """The subjects to which a user may publish and subscribe.

    Parameters
    ----------
    publish, subscribe
        Allowed subjects; None for all.
    """

    publish: list[str] | None
    subscribe: list[str] | None

    @classmethod
    def of(
        cls, user: User, subjects: Subjects, channels: Channels = no_channels, *, partitions: int = 16
    ) -> Permission:
        """Return the permission of a user, by its roles.

        Parameters
        ----------
        user
            The user.
        subjects
            Subjects of the broker.
        channels
            Returns the subjects of the channels that a subscriber may receive (default: none).
        partitions
            Number of ingress partitions (default: 16).

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
            publish.append(f"{subject_of(f'$JS.ACK.{stream}', name)}.>")  # acknowledgements of replays
            subscribe += [subjects.to(name), subjects.broadcast, subjects.control(name), subjects.beats]
            subscribe += [f"{subjects.replay(name)}.>", *channels(name)]
        if user.may("publisher"):
            publish.append(subjects.ingress(name, partitions))
        if user.may("operator"):
            publish.append(subjects.orders)
            subscribe.append(subjects.beats)
        return cls(publish, list(dict.fromkeys(subscribe)))

    def text(self) -> str:
        """Return the permission for the configuration, after a comma; empty if everything is allowed."""
        if self.publish is None or self.subscribe is None:
            return ""
        return (
            f", permissions: {{ publish: {{ allow: {listed(self.publish)} }}, "
            f"subscribe: {{ allow: {listed(self.subscribe)} }} }}"
        )


def lines(users: Users, subjects: Subjects, channels: Channels = no_channels) -> list[str]:
    """Return all users as lines of a server's configuration, sorted by name.

    Examples
    --------
    >>> from narrowcast.broker.security.users import User, Users
    >>> from narrowcast.broker.wire import Subjects
    >>> lines(Users.of([User("a b", ("node",), "secret-of-ann-0123")]), Subjects("nc"))
    ['{ user: "a b", password: "secret-of-ann-0123" }']
    """
    return [_line(user, subjects, channels) for user in sorted(users, key=lambda each: each.name)]


def line_of(user: User, subjects: Subjects, channels: Channels = no_channels) -> str:
    """Return a user as a line of a server's configuration."""
    permission = Permission.of(user, subjects, channels)
    return f"{{ user: {quoted(user.name)}, password: {quoted(user.token)}{permission.text()} }}"


def _line(user: User, subjects: Subjects, channels: Channels) -> str:
    """Return the same as `line_of`, with all but the channels cached: plans change more often than users."""
    line = _without_channels(user, subjects)
    if user.may("node") or not user.may("subscriber"):
        return line
    more = "".join(f", {quoted(channel)}" for channel in dict.fromkeys(channels(user.name)))
    return f"{line.removesuffix(_END)}{more}{_END}"


@lru_cache(_CACHED)
def _without_channels(user: User, subjects: Subjects) -> str:
    return line_of(user, subjects)


def fragment(users: Users, subjects: Subjects, channels: Channels = no_channels) -> str:
    """Return the users as a block for the configuration of an existing cluster, to be put in its account.

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
    """Keeps the permissions on a broker's server equal to those that its users and plan require.

    Parameters
    ----------
    users
        File of users.
    subjects
        Subjects of the broker.
    """

    def __init__(self, users: UsersFile, subjects: Subjects) -> None:
        self._file, self._subjects = users, subjects
        self._server: NatsServer | None = None
        #: Function that returns epoch and number of each channel that a subscriber may receive, by its name;
        #: set by the control plane.
        self.channels: Callable[[str], Iterable[tuple[int, int]]] = _no_channel_numbers
        self._task: asyncio.Task[None] | None = None
        self._running = asyncio.Lock()
        self._ended = -PAUSE
        self._pending = False
        #: Number of reloads of the server.
        self.reloads = 0

    @property
    def users(self) -> Users:
        """The users of the file."""
        return self._file.users

    def lines(self) -> list[str]:
        """Return the required users and permissions as lines of the configuration."""
        return lines(self.users, self._subjects, self._channels_of)

    def _channels_of(self, name: str) -> Iterator[str]:
        return (self._subjects.channel(*pair) for pair in self.channels(name))

    def attach(self, server: NatsServer) -> None:
        """Set the server whose permissions are to be enforced."""
        self._server = server

    async def permit(self) -> None:
        """Apply the current permissions to the server, and wait until they are in effect.

        Calls during a reload, or shortly after one, share the next reload. When the server does not answer,
        the earlier permissions remain in effect, and `watch` tries again.
        """
        if self._task is None:
            self._task = asyncio.create_task(self._permit())
        await asyncio.shield(self._task)

    async def _permit(self) -> None:
        """Reload the server, after a pause since the last reload."""
        async with self._running:
            await asyncio.sleep(max(0.0, self._ended + PAUSE - time.monotonic()))
            self._task = None  # later changes are not in this reload
            if self._server is None:
                return
            try:
                now = self.lines()
                await asyncio.to_thread(self._server.reload, now)
                self._pending = False
                self.reloads += 1
            except TransportError as error:
                self._pending = True
                log.error("cannot apply the current permissions, retrying: %s", error)
            finally:
                self._ended = time.monotonic()

    async def watch(self) -> None:
        """Apply changes of the file of users, until cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL)
            if self._file.refresh():
                log.info("users have changed: now %d", len(self.users))
                await self.permit()
            elif self._pending:
                await self.permit()


def _no_channel_numbers(_: str) -> list[tuple[int, int]]:
    """Return no channels: no subscriber may receive any."""
    return []
