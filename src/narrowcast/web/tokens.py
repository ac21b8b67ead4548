"""Access control of the HTTP API by users and tokens."""

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

#: The security scheme in the OpenAPI description.
_SCHEME = HTTPBearer(
    scheme_name="token", auto_error=False, description="The token that `narrowcast users add` has printed."
)


class TokenAccess:
    """Allows a request by the role of the user whose bearer token it carries.

    Parameters
    ----------
    users
        Returns the current users.
    """

    def __init__(self, users: Callable[[], Users]) -> None:
        self._users = users

    def requires(self, *roles: str) -> list[Any]:
        """Return the dependencies of a route that users with one of these roles, and operators, may call."""

        async def check(
            request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Depends(_SCHEME)]
        ) -> None:
            user = None if given is None else self._users().find(given.credentials)
            if user is None:
                why = "token is missing" if given is None else "token belongs to no user"
                raise HTTPException(
                    401, f"{why}; send Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"}
                )
            if not user.may("operator", *roles):
                allowed = " or ".join((*roles, "operator"))
                raise HTTPException(
                    403, f"user {user.name!r} may not do this; it requires the role {allowed}"
                )
            request.state.user = user

        return [Depends(check)]

    def check_owner(self, request: Request, subscriber: str) -> None:
        """Refuse a request about another subscriber than the user itself, unless the user is an operator."""
        user: User = request.state.user
        if not user.may("operator") and user.name != subscriber:
            raise HTTPException(403, f"user {user.name!r} may not do this for {subscriber!r}")

    def user_name(self, request: Request) -> str | None:
        """Return the name of the request's user."""
        user: User = request.state.user
        return user.name

    def is_current(self, request: Request) -> bool:
        """Return whether the request's user still exists with the same roles and token."""
        user: User = request.state.user
        return self._users().by_name.get(user.name) == user


class OpenAccess:
    """Allows every request, without users."""

    def requires(self, *_roles: str) -> list[Any]:
        """Return no dependencies."""
        return []

    def check_owner(self, _request: Request, _subscriber: str) -> None:
        """Accept every request."""

    def user_name(self, _request: Request) -> str | None:
        """Return None: the user is unknown."""
        return None

    def is_current(self, _request: Request) -> bool:
        """Return True: there is no user that could change."""
        return True
