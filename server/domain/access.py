"""Who may do what: all the rules.

A ``user`` sees, makes and changes the jobs of its own ``user_id``. A ``portal`` makes jobs for its
users, and sees and changes those that it submitted; a request in which it acts as one of them, only
that user's. An ``operator`` does everything. An ``agent`` has nothing to do with jobs. Who has a
token for ``metrics`` reads those, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final, Protocol

from server.domain.errors import BadField, NotAllowed
from server.domain.jobs import Job
from shared.principals import TOKEN_ROLES, Principal, Role, Scope


class Area(Enum):
    """What a route is about."""

    OPEN = auto()
    """Whether all is well, and what can be called: for everybody, authenticated or not."""
    CALLER = auto()
    """About whoever makes the request."""
    STATUS = auto()
    """What the server offers."""
    JOBS = auto()
    METRICS = auto()
    AGENTS = auto()
    SERVICES = auto()
    """Changing what the server offers."""
    TICKETS = auto()
    """Permissions that a portal hands to a browser."""
    ADMIN = auto()
    """Who has access, and who did what."""


_ROLES: Final[Mapping[Area, frozenset[Role | None]]] = {
    Area.OPEN: frozenset({None, Role.METRICS, *TOKEN_ROLES}),
    Area.CALLER: frozenset(TOKEN_ROLES),
    Area.STATUS: frozenset(TOKEN_ROLES),
    Area.JOBS: frozenset({Role.USER, Role.PORTAL, Role.OPERATOR}),
    Area.METRICS: frozenset({Role.OPERATOR, Role.METRICS}),
    Area.AGENTS: frozenset({Role.OPERATOR}),
    Area.SERVICES: frozenset({Role.OPERATOR}),
    Area.TICKETS: frozenset({Role.PORTAL, Role.OPERATOR}),
    Area.ADMIN: frozenset({Role.OPERATOR}),
}


def roles_of(area: Area) -> list[str]:
    """The roles that may use its routes."""
    return sorted(role or "anybody" for role in _ROLES[area])


def scope_of(area: Area, method: str) -> Scope | None:
    """What a token needs, unless a route says otherwise; None: nothing."""
    if area in (Area.OPEN, Area.CALLER):
        return None
    if area is Area.ADMIN:
        return Scope.ADMIN
    if method == "GET":
        return Scope.OPERATE if area is Area.AGENTS else Scope.READ
    return {Area.JOBS: Scope.MANAGE, Area.TICKETS: Scope.SUBMIT}.get(area, Scope.OPERATE)


def may_use(principal: Principal, area: Area, method: str = "GET") -> bool:
    """Whether :func:`check_area` lets the principal pass."""
    scope = scope_of(area, method)
    return principal.role in _ROLES[area] and (scope is None or principal.may(scope))


def check_area(principal: Principal, area: Area, scope: Scope | None) -> None:
    """Refuse a role that has nothing to do with the routes of an area, and a token without the
    scope that the route asks for. Raises NotAllowed.
    """
    if principal.role not in _ROLES[area]:
        roles = ", ".join(roles_of(area))
        raise NotAllowed(f"{principal.name} may not do this: it is for the roles {roles}")
    if scope is not None and not principal.may(scope):
        raise NotAllowed(f"{principal.name} may not do this: its token lacks the scope {scope}")


class Owned(Protocol):
    """A job or a schedule."""

    @property
    def user_id(self) -> str: ...

    @property
    def submitted_by(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Visible:
    """The jobs and schedules that a principal may see and change; None: any."""

    user_id: str | None = None
    submitted_by: str | None = None
    job_id: int | None = None
    """It sees this one job, and no schedule."""

    def has(self, record: Owned) -> bool:
        if self.job_id is not None:
            return isinstance(record, Job) and record.id == self.job_id
        return self.user_id in (None, record.user_id) and self.submitted_by in (
            None,
            record.submitted_by,
        )


def visible(principal: Principal) -> Visible:
    """The jobs that the principal may see and change. Raises NotAllowed: its role has none."""
    match principal.role:
        case Role.USER:
            return Visible(user_id=principal.user_id)
        case Role.PORTAL | Role.TICKET:
            return Visible(user_id=principal.acts_as, submitted_by=principal.name)
        case Role.LINK if principal.job_id is not None:
            return Visible(job_id=principal.job_id)
        case Role.OPERATOR:
            return Visible()
        case _:
            raise NotAllowed(f"{principal.name} has no jobs")


def check_upload(principal: Principal, user_id: str) -> None:
    """Refuse an upload for a user for whom the principal may make no jobs. Raises NotAllowed."""
    own = visible(principal).user_id
    if own not in (None, user_id):
        raise NotAllowed(f"{principal.name} may upload for user {own} only, not for {user_id}")
    _check_portal(principal, user_id, f"upload for user {user_id}")


def check_may_read(principal: Principal, field: str) -> None:
    """Refuse a field that shows something of other jobs to a token that may not see them. Raises
    NotAllowed.
    """
    if not principal.may(Scope.READ):
        raise NotAllowed(f"{principal.name} may not use {field}: its token lacks the scope read")


def user_asked_for(principal: Principal, user_id: str | None) -> str:
    """The user about whom the principal asks: itself, or one for whom it may upload.

    Raises:
        NotAllowed
        BadField: it does not say whom it means.
    """
    own = visible(principal).user_id
    if user_id is None and own is None:
        raise BadField("user", "missing_user", "whose usage is not said: add ?user=NAME")
    if own not in (None, user_id or own):
        raise NotAllowed(f"{principal.name} may see what user {own} uses only, not {user_id}")
    user = user_id or own or ""
    _check_portal(principal, user, f"see what {user} uses")
    return user


def _check_portal(principal: Principal, user_id: str, do: str) -> None:
    """Refuse a portal something for a user whom its token does not name."""
    if principal.role is Role.PORTAL and not principal.may_act_for(user_id):
        patterns = ", ".join(principal.users)
        raise NotAllowed(f"{principal.name} may not {do}: its token is for {patterns}")


def acting_as(principal: Principal, user_id: str) -> Principal:
    """The principal for a request that a portal makes for one of its users. Raises NotAllowed: it
    is no portal, or not of this user.
    """
    if principal.role is not Role.PORTAL:
        raise NotAllowed(f"{principal.name} is no portal, so it acts for nobody else")
    _check_portal(principal, user_id, f"act as {user_id}")
    return replace(principal, acts_as=user_id)
