"""The audit trail: who did what, from where, and whether it was allowed."""

from __future__ import annotations

from dataclasses import dataclass

from shared.clock import Micros
from shared.principals import Role


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A request that was to change something.

    Attributes:
        principal: the name of whoever made it.
        acts_as: the user for whom a portal made it.
        action: method and route, as in ``POST /api/v1/jobs/{id}/cancel``.
        target: what it was about, such as the number of a job; empty: nothing that has a name.
        status: of the answer; 0: the caller left before it.
        code: of a refusal.
        peer: address that it came from.
        left_out: so many refused requests before it are in no entry, because there were too many.
        seq: its number; 0: not kept yet.
    """

    at: Micros
    principal: str
    role: Role | None
    token_id: str | None
    acts_as: str | None
    action: str
    target: str
    status: int
    code: str | None
    peer: str
    request_id: str
    left_out: int = 0
    seq: int = 0


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which entries a list has; None: any.

    Attributes:
        action: some of its text, whatever the case.
        since, until: from then on, before then.
    """

    principal: str | None = None
    acts_as: str | None = None
    token_id: str | None = None
    action: str | None = None
    target: str | None = None
    since: Micros | None = None
    until: Micros | None = None
