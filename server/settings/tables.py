"""The tables of the server's TOML file."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from server.domain.retry import RETRIED, BackoffKind, RetryPolicy, check_retry_reasons
from server.domain.service import SERVICE_NAME, Service
from server.domain.upload_fields import POLICY
from server.domain.webhooks import AllowedTargets
from server.settings.agents import AgentTable, check_addresses
from server.settings.users import UserTable, check_users
from shared.files.bundles.reader import MAX_FILES
from shared.http.origins import is_loopback, normal_origin
from shared.http.proxies import check_networks
from shared.http.settings import HttpSection
from shared.multipart.parser import FormLimits
from shared.settings.base import Section, Settings, StringList
from shared.settings.limits import LimitsTable
from shared.settings.secrets import Secret
from shared.units.durations import Duration
from shared.units.rates import UNLIMITED, RateLimit
from shared.units.sizes import Size
from shared.variables import check_variable
from shared.wire import OnShutdown

MAX_VARIABLES: Final = 128
"""In one table; an agent takes two such tables."""
MAX_BYTES: Final = 16 << 10
"""Of a table of variables as JSON; two of them fit into the order that an agent gets."""
_RESERVED: Final = frozenset({"HOME", "LANG", "PATH", "PWD", "TMPDIR"})


def check_variables(variables: Mapping[str, str]) -> None:
    """Refuse names that are reserved or none, and values that no process can have. Raises
    ValueError: it names the variable, never its value.
    """
    if len(variables) > MAX_VARIABLES:
        raise ValueError(f"{len(variables)} variables, at most {MAX_VARIABLES} are taken")
    for name, value in variables.items():
        check_variable(name, value, _RESERVED)
    if len(json.dumps(dict(variables))) > MAX_BYTES:
        raise ValueError(f"its variables take more than {MAX_BYTES >> 10} KiB")


LOCAL_AGENT: Final = "http://127.0.0.1:9000"
_PATH: Final = re.compile(r"(/[A-Za-z0-9._~-]+)*")


def _public(value: str | None) -> str | None:
    origin, path = _split(value or "/")
    if (origin and normal_origin(origin) is None) or not _PATH.fullmatch(path):
        raise ValueError(
            f"{value!r} is not an address such as https://jobs.example.org or "
            "https://example.org/jobs"
        )
    return value


def _origins(value: tuple[str, ...] | None) -> tuple[str, ...] | None:
    for origin in value or ():
        if normal_origin(origin) is None:
            raise ValueError(f"{origin!r} is not an origin, such as https://portal.example.org")
    return value


def _targets(value: tuple[str, ...] | None) -> tuple[str, ...] | None:
    AllowedTargets(value or ())
    return value


class ServerTable(HttpSection):
    """Table ``[server]``."""

    port: int = Field(5000, ge=0, le=65_535)
    auth: Literal["none", "token"] | None = None
    """Whether requests need a token; "none" on loopback only. None: "token" if any is set here, or
    if ``host`` is not loopback."""
    data_dir: Path = Path("data")
    db_path: Path | None = None
    """None: ``ferryman.sqlite`` in ``data_dir``."""
    public_url: Annotated[str | None, AfterValidator(_public)] = None
    """Scheme and host that browsers know it by, and the path below which a proxy shows it. None, or
    a path alone: the host is that of each request."""
    allowed_origins: Annotated[StringList, AfterValidator(_origins)] = None
    """Web pages that may call it from a browser, and to which the form of an upload ticket may be
    sent on: ``https://portal.example.org``."""
    trusted_proxies: Annotated[StringList, AfterValidator(check_networks)] = None
    """Addresses and networks of reverse proxies whose ``X-Forwarded-For`` is believed."""
    session_expires_after: Duration = Field(604_800.0, gt=0)
    """How long a browser stays logged in."""
    max_upload: Size = Field(20 << 30, gt=0)
    max_files: int = Field(10_000, gt=0, le=MAX_FILES)
    names: Literal["linux", "portable"] = "linux"
    """What a bundle's files may be called; "linux": with a warning where others cannot store it."""
    audit_expires_after: Duration = Field(34_560_000.0, ge=0)
    """0: never."""
    min_free: Annotated[Size, Field(ge=0)] | None = None
    """Uploads, results and snapshots always leave this much of the disk; 507 otherwise. None: 2 %
    of it, and 64 MiB at least."""
    stored_per_user: Size = Field(0, ge=0)
    """Bytes that bundles and results of one user may take; 0: any number."""
    upload_per_user_per_day: Size = Field(0, ge=0)
    """Bytes of bundles that may be uploaded for one user on a day, UTC; 0: any number."""
    rate_limit: RateLimit = UNLIMITED
    """Requests of one user or portal."""
    uploads_per_user: int = Field(64, ge=1)
    sender_interval: Duration = Field(0.5, gt=0)
    getter_interval: Duration = Field(0.5, gt=0)
    cleaner_interval: Duration = Field(60.0, gt=0)
    agent_timeout: Duration = Field(60.0, gt=0)
    agent_lost_after: Duration = Field(86_400.0, gt=0)
    shutdown_grace: Duration = Field(30.0, ge=0)
    webhook_allow: Annotated[StringList, AfterValidator(_targets)] = None
    """Networks and hosts that webhooks may be sent to although they are not on the Internet."""
    log_format: Literal["auto", "text", "json"] = "auto"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @model_validator(mode="after")
    def _secrets_are_good(self) -> ServerTable:
        if self.all_tokens() and self.auth == "none":
            raise ValueError('auth = "none", yet tokens are set: remove one of them')
        return self

    def least_free(self, disk_bytes: int) -> int:
        """``min_free`` on a disk of that size."""
        return max(64 << 20, disk_bytes // 50) if self.min_free is None else self.min_free

    @property
    def form_limits(self) -> FormLimits:
        """Of the form of an upload."""
        return FormLimits(self.max_upload, self.max_files, portable=self.names == "portable")

    @property
    def origins(self) -> frozenset[str]:
        """``allowed_origins``, each written as browsers do."""
        return frozenset(filter(None, map(normal_origin, self.allowed_origins or ())))

    @property
    def database(self) -> Path:
        """Where it is."""
        return self.db_path or self.data_dir / "ferryman.sqlite"

    def in_use(self) -> dict[str, Any]:
        return {"auth": "token" if self.needs_token else "none"}

    @property
    def needs_token(self) -> bool:
        """Whether a request without a token is refused."""
        if self.auth is None:
            return bool(self.all_tokens()) or not is_loopback(self.host)
        return self.auth == "token"

    @property
    def origin(self) -> str | None:
        """Scheme and host of ``public_url``."""
        return None if self.public_url is None else normal_origin(_split(self.public_url)[0])

    @property
    def url_prefix(self) -> str:
        """Path of ``public_url``."""
        return _split(self.public_url or "")[1]


def _split(address: str) -> tuple[str, str]:
    """Origin and path; the one or the other may be empty."""
    scheme, slashes, rest = address.strip().rpartition("://")
    host, slash, path = rest.partition("/")
    return scheme + slashes + host, (slash + path).rstrip("/")


class ServiceTable(Section):
    """Table ``[services.NAME]``."""

    runs_per_user: int = Field(5, ge=1)
    max_runs: int = Field(10, ge=1)
    queued_per_user: int = Field(0, ge=0)
    timeout: Duration = Field(3_600.0, ge=0)
    """Wall time of an attempt; 0: no limit."""
    queue_timeout: Duration = Field(0.0, ge=0)
    expires_after: Duration = Field(172_800.0, ge=0)
    forget_after: Duration = Field(7_776_000.0, ge=0)
    heartbeat_timeout: Duration = Field(0.0, ge=0)
    """Longest time without output, progress or heartbeat; 0: off."""
    retries: int = Field(0, ge=0)
    max_retries: int = Field(10, ge=0)
    """Most that an upload may ask for."""
    retry_delays: tuple[Duration, ...] = (10.0, 60.0, 300.0)
    backoff: BackoffKind | None = None
    """In place of ``retry_delays``."""
    retry_delay: Duration = Field(30.0, ge=0)
    max_retry_delay: Duration = Field(3_600.0, ge=0)
    retry_on: tuple[str, ...] = RETRIED
    no_retry_on: tuple[str, ...] = ()
    infra_retries: int = Field(5, ge=0)
    retry_later_delay: Duration = Field(60.0, ge=0)
    """Where a bundle that asks to be tried later does not say when."""
    retry_later_limit: int = Field(100, ge=0)
    on_shutdown: OnShutdown = "resubmit"
    """Of a bundle that is never to be started twice (``infra_retries``), "stop"."""
    dead_letter: bool = False
    dead_letter_expires_after: Duration = Field(0.0, ge=0)
    max_children: int = Field(10_000, ge=1, le=100_000)
    """Of one batch."""
    pack: int = Field(0, ge=0, le=1000)
    """Most children of an array that share one sandbox start; 0 and 1: none do."""
    limits: LimitsTable = LimitsTable()
    env: dict[str, Secret] = Field(default_factory=dict)
    """Variables that its jobs get. No value is shown anywhere."""

    @field_validator("env")
    @classmethod
    def _variables(cls, value: dict[str, SecretStr]) -> dict[str, SecretStr]:
        check_variables(_shown(value))
        return value

    @field_validator("retry_on", "no_retry_on")
    @classmethod
    def _reasons_exist(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        check_retry_reasons(value, retried=info.field_name == "retry_on")
        return value

    def service(self, name: str) -> Service:
        """What it has under the names of its keys, durations with ``_s`` behind them, and more."""
        keys = {one.name: one.name.removesuffix("_s") for one in dataclasses.fields(Service)}
        fields = {one: getattr(self, key) for one, key in keys.items() if hasattr(self, key)}
        policy = {one: getattr(self, key) for key, one in POLICY.items()}
        policy |= {one: frozenset(policy[one]) for one in ("retry_on", "no_retry_on")}
        fields |= {
            "name": name,
            "retry": RetryPolicy(**policy),
            "max_retries": max(self.max_retries, self.retries),
            "env": _shown(self.env),
            "given": self._given(),
            "limits": self.limits.limits(),
        }
        if not self.infra_retries and "on_shutdown" not in self.model_fields_set:
            fields["on_shutdown"] = "stop"
        return Service(**fields)

    def _given(self) -> frozenset[str]:
        """The keys that were set, those of ``limits`` as in ``limits.memory``."""
        limits = {f"limits.{name}" for name in self.limits.model_fields_set}
        return frozenset(self.model_fields_set - {"limits"} | limits)


def _shown(variables: dict[str, SecretStr]) -> dict[str, str]:
    return {name: value.get_secret_value() for name, value in variables.items()}


class ServerSettings(Settings):
    """All tables."""

    server: ServerTable = ServerTable()
    services: dict[str, ServiceTable] = Field(default={"example": ServiceTable()}, min_length=1)
    agents: dict[str, AgentTable] = Field(default={"local": AgentTable(url=LOCAL_AGENT)})
    users: dict[str, UserTable] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _names(self) -> ServerSettings:
        for name in self.services:
            if not re.fullmatch(SERVICE_NAME, name):
                raise ValueError(f"services.{name}: a name is up to 64 of A-Z a-z 0-9 _ -")
        check_users(self.users)
        check_addresses(self.agents)
        for name, agent in self.agents.items():
            for key, named in (("services", agent.services), ("max_runs", agent.max_runs)):
                for service in named:
                    if service not in self.services:
                        raise ValueError(f"agents.{name}.{key}: there is no service {service!r}")
        return self
