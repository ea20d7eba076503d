"""The documents about the server, agents, services, users and tokens, as they are on the wire."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import Any, Literal, TypeAlias

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from ferryman.models.jobs import Limits, RetryDoc, Wire
from ferryman.states import JobState


class AgentState(StrEnum):
    """What an operator wants of an agent, and what became of it."""

    ACTIVE = "active"
    DRAINING = "draining"
    """It gets no new jobs; those that it has are followed to their end."""
    LOST = "lost"
    """Given up: its attempts were ended. It is active again once it is reached."""
    RETIRED = "retired"
    """Not used any more: it gets no jobs and is not contacted."""


AgentAction: TypeAlias = Literal["drain", "resume", "retire", "lost"]


class AgentDoc(Wire):
    """An agent, as an operator sees it."""

    name: str
    id: str
    """Its own, which it keeps under another name or address."""
    state: AgentState
    message: str = ""
    """Why it is in this state."""
    up: bool
    """Whether it may get new jobs."""
    reachable: bool
    trouble: str = ""
    """Why it gets no new jobs, or that it is silent, in a sentence; empty: all is well."""
    warnings: list[str] = Field(default_factory=list)
    """What is wrong with it although it may get jobs: its clock, its version, its sandbox."""
    clock_ahead_s: float | None = None
    """How far its clock is ahead of the server's, as far as an HTTP date says; None: not known."""
    kind: str
    """"ferryman" or "job-orchestrator"; empty: not known any more."""
    address: str
    in_settings: bool
    jobs: int
    """Jobs of this server that it has."""
    running: int | None = None
    """Those of them that run now; None: it cannot be reached, or has been silent for 2 s."""
    slots: int | None = None
    max_runs: dict[str, int] = Field(default_factory=dict)
    """service -> most jobs of it that it may have at once; missing: any number."""
    load: float | None = None
    """CPU use of its host, in percent; None: not known now."""
    version: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    resources: dict[str, Any] = Field(default_factory=dict)
    health: dict[str, Any] | None = None
    """What it said of itself last; ``running`` and ``load`` as above."""
    created_at: AwareDatetime
    last_heard_at: AwareDatetime | None = None
    unreachable_s: float | None = None
    """Seconds since it could be reached, as far as a server was running; None: it can be."""


class AgentPage(Wire):
    """``GET /api/v1/agents``."""

    items: list[AgentDoc]


class ServiceDoc(Wire):
    """A service: what it allows, and how busy it is. Durations in seconds, None: no limit."""

    name: str
    source: Literal["file", "api", "none"]
    """Where its settings come from: the server's settings file, which wins, or an operator; none:
    they were taken out, and jobs of it are left."""
    paused: bool = False
    """Its queued jobs wait until it is resumed; those that were sent go on."""
    paused_message: str = ""
    retired: bool = False
    """It takes no new jobs; those that it has go on to their end."""
    offered: bool
    """Whether an agent of the server offers it, though perhaps not now."""
    trouble: str = ""
    """Why no agent takes its jobs now, in a sentence; empty: one does, or is only full."""
    in_work: int
    """Slots that jobs hold which the caller may see; there are ``max_runs``."""
    counts: dict[JobState, int]
    """Those of its jobs that the caller may see, by state; ``counts_up_to`` stands for that many or
    more."""
    counts_up_to: int
    oldest_queued_at: AwareDatetime | None = None
    """When the job was queued that has waited longest."""
    runs_per_user: int
    max_runs: int
    queued_per_user: int
    timeout_s: float | None = None
    queue_timeout_s: float | None = None
    heartbeat_timeout_s: float | None = None
    expires_after_s: float | None = None
    forget_after_s: float | None = None
    retry: RetryDoc
    max_retries: int
    infra_retries: int
    retry_later_delay_s: float
    retry_later_limit: int
    on_shutdown: str
    dead_letter: bool
    dead_letter_expires_after_s: float | None = None
    max_children: int
    pack: int = 0
    limits: Limits
    given: list[str] | None = None
    """Keys of the settings that were given, such as ``limits.memory``; the others have their
    defaults. For operators."""
    settings: dict[str, Any] | None = None
    """As the operator gave them who made it; None: they are in the file."""
    env: list[str] | None = None
    """Names of the variables that its jobs get; for operators. Values are never shown."""
    changed_at: AwareDatetime | None = None
    """When an operator changed, paused or resumed it last."""


class ServicePage(Wire):
    """``GET /api/v1/services``."""

    items: list[ServiceDoc]


class SettingChange(Wire):
    """One setting that was changed, made or removed."""

    key: str
    """As in ``services.haddock.timeout``."""
    old: str | None
    """As it is shown, secrets as (secret); "taken out" of a table, such as a service or an agent;
    None: it was not there.
    """
    new: str | None
    """The same, a new table as "added"; None: it is not there any more."""


class JobsLeft(Wire):
    """Jobs of a service that is in no settings any more."""

    service: str
    queued: int
    """Those that wait."""
    in_work: int
    """Slots that others hold."""

    def __str__(self) -> str:
        return say_gone(self.service, self.queued, self.in_work)


def say_gone(service: str, queued: int, in_work: int) -> str:
    """As a sentence for people."""
    waits = "job waits" if queued == 1 else "jobs wait"
    return f"service {service} is in no settings any more: {queued} {waits}, {in_work} in work"


class Reloaded(Wire):
    """``POST /api/v1/settings/reload``."""

    changed: list[SettingChange]
    """What holds from now on."""
    waiting: list[SettingChange]
    """What needs a restart."""
    left: list[JobsLeft] = Field(default_factory=list)
    """Of services that were taken out or renamed."""


class Quota(Wire):
    """How much of something is used, and how much is left."""

    used: int
    limit: int | None = None
    """None: any number."""
    left: int | None = None
    """Of ``limit``; None: any number."""


class DayQuota(Quota):
    """A quota that is renewed each day."""

    renewed_at: AwareDatetime


class ServiceUsage(Wire):
    """What a user has of a service."""

    service: str
    under_way: Quota
    """Jobs that are sent or running."""
    waiting: Quota
    """Queued jobs."""


class DayUsage(Wire):
    """What was over on a day of what a user has of a service."""

    day: date
    """UTC, of the end."""
    service: str
    completed: int
    """Jobs, each of an array's for itself; so are the next two."""
    failed: int
    cancelled: int
    waited_s: float
    """All attempts together, until they started; a job may have several."""
    ran_s: float
    """Until they ended."""
    cpu_s: float
    """0 where the host cannot tell."""
    bundle_bytes: int
    """That were uploaded for these jobs."""
    result_bytes: int
    """Of all attempts."""


class UsageDoc(Wire):
    """``GET /api/v1/usage``: what a user has used, and what is left."""

    user_id: str
    stored: Quota
    """Bytes that bundles and results take."""
    uploaded_today: DayQuota | None = None
    """Bytes of bundles that were uploaded since midnight, UTC; None: any number, not counted."""
    uploads: Quota
    """That are under way at this server."""
    rate_limit: str | None = None
    """Requests, as in ``50/s``; None: any number."""
    services: list[ServiceUsage]
    days: list[DayUsage] = Field(default_factory=list)
    """What was over in the latest 31 days, the latest first."""
    group: str | None = None
    """The table of users in the settings that it is a member of; for operators."""


RoleName: TypeAlias = Literal["user", "portal", "operator", "agent"]
"""What a principal is for."""
ScopeName: TypeAlias = Literal["read", "submit", "manage", "operate", "admin"]
"""What a token may be used for."""


class TokenDoc(Wire):
    """A token, without its secret."""

    id: str
    """It is in the token's text, and no secret."""
    name: str
    """Of the principal whose it is; several tokens may have the same."""
    role: RoleName
    user_id: str | None = None
    """Of a ``user``: whose jobs these are."""
    users: list[str] = Field(default_factory=list)
    """Of a ``portal``: patterns of the users for whom it may act; empty: any."""
    scopes: list[ScopeName]
    state: Literal["live", "expired", "revoked"]
    created_at: AwareDatetime
    created_by: str
    expires_at: AwareDatetime | None = None
    """None: it does not expire."""
    last_used_at: AwareDatetime | None = None
    last_used_from: str | None = None
    """Address of the latest request with it."""
    revoked_at: AwareDatetime | None = None
    former_until: AwareDatetime | None = None
    """Until when the secret from before its latest rotation is good, too."""


class NewTokenDoc(TokenDoc):
    """A token that was made or rotated just now, with its text."""

    token: str
    """To be sent as ``Authorization: Bearer …``. It is shown this once."""
    message: str = ""
    """What whoever made it should know."""


class TokenPage(Wire):
    """``GET /api/v1/tokens``."""

    items: list[TokenDoc]
    next: str | None
    """Cursor of the next page; None on the last."""


class WhoAmI(Wire):
    """Whose request it is, as the server sees it."""

    name: str
    role: RoleName
    user_id: str | None = None
    """Of a ``user``: whose jobs it sees."""
    users: list[str] = Field(default_factory=list)
    """Of a ``portal``: patterns of the users for whom it may act; empty: any."""
    acts_as: str | None = None
    """Of a ``portal``: the user for whom it made this request."""
    scopes: list[ScopeName]
    token_id: str | None = None
    """None: no API token was sent."""
    expires_at: AwareDatetime | None = None
    """Of the token."""
    token_needed: bool
    """False: the server answers requests without a token as those of an operator."""


class AuditDoc(Wire):
    """A request that changed something, or was to."""

    seq: int
    at: AwareDatetime
    principal: str
    """The name of whoever made it."""
    role: RoleName | Literal["ticket", "link", "metrics"] | None = None
    """None: without a good token."""
    token_id: str | None = None
    acts_as: str | None = None
    """The user for whom a portal made it."""
    action: str
    """Method and route, as in ``POST /api/v1/jobs/{id}/cancel``."""
    target: str = ""
    """What it was about, such as the number of a job."""
    status: int | None = None
    """Of the answer; None: the caller left before it."""
    code: str | None = None
    """Of a refusal."""
    peer: str
    """Address that it came from."""
    request_id: str
    left_out: int = 0
    """So many refused requests before it are in no entry, because there were too many."""


class AuditPage(Wire):
    """``GET /api/v1/audit``."""

    items: list[AuditDoc]
    next: str | None
    """Cursor of the next page; None on the last."""


class WaitingJob(Wire):
    """A job that is not gone yet."""

    id: int
    """Its number."""
    why: str
    """Why it is not gone."""


class ForgottenDoc(Wire):
    """``POST /api/v1/forget-user``: what was removed, and what is left."""

    found: dict[str, int] = Field(default_factory=dict)
    """With ``dry_run``: kind -> how much there is."""
    removed: dict[str, int] = Field(default_factory=dict)
    """Kind -> how much was removed. ``audit``: entries with another name now."""
    waiting: list[WaitingJob] = Field(default_factory=list)
    """Jobs that go as soon as it is known that they do not run."""
    kept: list[str] = Field(default_factory=list)
    """What stays, in sentences."""
    done: bool
    """Nothing is left; else call it again when the agents of the jobs that wait are back."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The server has the bundle, safely; the job waits its turn."""

    id: int
    status: str
    message: str
    idempotency_key: str
    """Sending the same bundle under this key again gives the same job."""
    warnings: tuple[str, ...] = ()
    """What was noticed: wishes that were cut to what the service allows, for example."""


class Trouble(BaseModel):
    """Something that is wrong with a server."""

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True)

    kind: str
    message: str
    advice: str
    is_serious: bool
    """Whether it keeps the server from taking new work."""


class Troubles(BaseModel):
    """``GET /api/v1/status``, of which this is a part."""

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True)

    troubles: list[Trouble]


class Health(BaseModel):
    """``GET /health``; further fields are kept."""

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True)

    status: str
    database: str = ""
    message: str = ""
    version: str | None = None
    """Of the server; for those whom it knows."""
    agents: dict[str, str] = Field(default_factory=dict)
    """Agent -> "up" or "down"."""
    agent: str | None = None
    date: AwareDatetime | None = None
    """The server's clock when it answered, to the second."""

    @property
    def is_agents(self) -> bool:
        """Whether an agent answered, and not a server. It says its name only to whom it knows."""
        return "agent" in self.model_fields_set
