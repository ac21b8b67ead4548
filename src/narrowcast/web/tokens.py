"""Who may do what over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from narrowcast.errors import MissingError

try:
    from fastapi import Depends, HTTPException, Request
    from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
except ImportError as error:
    raise MissingError("fastapi is not installed; run: pip install 'narrowcast[broker]'") from error

if TYPE_CHECKING:
    from collections.abc import Callable

    from narrowcast.broker.security.users import User, Users

#: How the description of the API has it.
_SCHEME = HTTPBearer(
    scheme_name="token", auto_error=False, description="The token that `narrowcast users add` has printed."
)


class TokenAccess:
    """Lets those use an API who have the token of a user, each for what it may do.

    Parameters
    ----------
    users
        Gives all users as they are now.
    """

    def __init__(self, users: Callable[[], Users]) -> None:
        self._users = users

    def needs(self, *roles: str) -> list[Any]:
        """Return what a route depends on that is for some roles, and for operators always."""

        async def check(
            request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Depends(_SCHEME)]
        ) -> None:
            user = None if given is None else self._users().find(given.credentials)
            if user is None:
                why = "there is no token" if given is None else "the token is nobody's"
                raise HTTPException(
                    401, f"{why}; send Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"}
                )
            if not user.may("operator", *roles):
                allowed = " or ".join((*roles, "operator"))
                raise HTTPException(403, f"user {user.name!r} may not do this; it is for the role {allowed}")
            request.state.user = user

        return [Depends(check)]

    def own(self, request: Request, subscriber: str) -> None:
        """Refuse what is about somebody else than who asks, unless an operator asks."""
        user: User = request.state.user
        if not user.may("operator") and user.name != subscriber:
            raise HTTPException(403, f"user {user.name!r} may not do this for {subscriber!r}")

    def name(self, request: Request) -> str | None:
        """Return who asks."""
        user: User = request.state.user
        return user.name

    def still(self, request: Request) -> bool:
        """Return whether who asked is still a user as it was then."""
        user: User = request.state.user
        return self._users().by_name.get(user.name) == user


class OpenAccess:
    """Lets everybody use an API for everything."""

    def needs(self, *_roles: str) -> list[Any]:
        """Return that a route depends on nothing."""
        return []

    def own(self, _request: Request, _subscriber: str) -> None:
        """Refuse nothing."""

    def name(self, _request: Request) -> str | None:
        """Return that nobody knows who asks."""
        return None

    def still(self, _request: Request) -> bool:
        """Return that nothing has changed."""
        return True
