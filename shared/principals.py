"""Who makes a request, and in which role."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final


class Role(StrEnum):
    """What a principal is for."""

    USER = "user"
    """A person, with jobs of their own."""
    PORTAL = "portal"
    """A program that submits jobs for its users."""
    OPERATOR = "operator"
    """Whoever runs the service."""
    AGENT = "agent"
    """A compute host."""
    TICKET = "ticket"
    """Whoever has an upload ticket: makes one job, and nothing else."""
    LINK = "link"
    """Whoever has a signed link: reads one job, or a part of it."""
    METRICS = "metrics"
    """What watches a program, such as Prometheus: reads ``/metrics``, and what is open to all."""


class Scope(StrEnum):
    """What a token may be used for. A role has some of them, a token all or fewer of its role's."""

    READ = "read"
    """See jobs and what they left; services."""
    SUBMIT = "submit"
    """Upload; make schedules and upload tickets."""
    MANAGE = "manage"
    """Cancel, retry, delete and tag jobs; change schedules."""
    OPERATE = "operate"
    """See and change agents, change services."""
    ADMIN = "admin"
    """Tokens and the audit trail."""


SCOPES: Final[Mapping[Role, frozenset[Scope]]] = {
    Role.USER: frozenset({Scope.READ, Scope.SUBMIT, Scope.MANAGE}),
    Role.PORTAL: frozenset({Scope.READ, Scope.SUBMIT, Scope.MANAGE}),
    Role.OPERATOR: frozenset(Scope),
    Role.AGENT: frozenset({Scope.READ}),
    Role.TICKET: frozenset({Scope.SUBMIT}),
    Role.LINK: frozenset({Scope.READ}),
    Role.METRICS: frozenset({Scope.READ}),
}


TOKEN_ROLES: Final = (Role.USER, Role.PORTAL, Role.OPERATOR, Role.AGENT)
"""Those of whoever has a token."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who makes a request.

    Attributes:
        name: one principal's only; for logs, and kept with the jobs that it submits.
        role: None: not authenticated.
        user_id: whose jobs a ``user`` has; no other role has one.
        scopes: what it may do; None: all that its role may.
        users: patterns as of ``fnmatch``: the users for whom a ``portal`` may act; empty: any.
        acts_as: the user for whom a portal makes this request; None: for all of its users. Of a
            ``ticket``: whose job is made.
        token_id: of the token that was sent; None: it has no id.
        why: not authenticated: why, for the answer.
        code: of that answer, where it is not a token that is missing or wrong.
        job_id: the one that a ``link`` shows.
        issuer: the :attr:`caller` who issued a ticket or link.
    """

    name: str
    role: Role | None
    user_id: str | None = None
    scopes: frozenset[Scope] | None = None
    users: tuple[str, ...] = ()
    acts_as: str | None = None
    token_id: str | None = None
    why: str = ""
    code: str = ""
    job_id: int | None = None
    issuer: str = ""

    def __post_init__(self) -> None:
        if (self.role is Role.USER) != bool(self.user_id):
            raise ValueError(f"principal {self.name}: a user has a user_id, nobody else has one")

    def may(self, scope: Scope) -> bool:
        """Whether its token is good for this."""
        if self.role is None:
            return False
        allowed = SCOPES[self.role]
        return scope in (allowed if self.scopes is None else self.scopes & allowed)

    def may_act_for(self, user_id: str) -> bool:
        """Whether it is a portal of this user's."""
        if self.role is not Role.PORTAL:
            return False
        return not self.users or any(fnmatchcase(user_id, one) for one in self.users)

    @property
    def caller(self) -> str:
        """Whose share of what all callers use its requests take: all tokens and sessions of a user
        are one caller, and so are the links that it issued.
        """
        return self.issuer or f"{self.role} {self.user_id or self.name}"

    @property
    def authenticated(self) -> bool:
        return self.role is not None


ANONYMOUS: Final = Principal("anonymous", None)
LOCAL: Final = Principal("local", Role.OPERATOR)
"""Whoever calls a program without tokens, which listens on loopback only."""
