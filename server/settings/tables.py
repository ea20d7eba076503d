"""The tables of the server's TOML file."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from posixpath import normpath
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from server.domain.allowances import EVERY_SERVICE, Allowance, Allowances
from server.domain.retry import RETRIED, BackoffKind, RetryPolicy, check_retry_reasons
from server.domain.service import SERVICE_NAME, Service
from server.domain.upload_fields import POLICY, USER_ID
from server.domain.webhooks import AllowedTargets
from shared.files.bundles.reader import MAX_FILES
from shared.http.origins import is_loopback, normal_origin
from shared.http.proxies import check_networks
from shared.http.settings import HttpSection
from shared.http.tls import TlsFiles
from shared.multipart.parser import FormLimits
from shared.settings.base import File, Section, Settings, StringList
from shared.settings.effective import without_password
from shared.settings.limits import LimitsTable
from shared.settings.secrets import FileSecret, Secret, identity_of
from shared.units.durations import Duration
from shared.units.rates import UNLIMITED, RateLimit
from shared.units.sizes import Size
from shared.variables import check_variable
from shared.wire import OnShutdown


class UserServiceTable(Section):
    """Table ``[users.LABEL.services.SERVICE]``: what is different for users in one service."""

    runs_per_user: int | None = Field(None, ge=1)
    queued_per_user: int | None = Field(None, ge=0)


class UserTable(UserServiceTable):
    """Table ``[users.LABEL]``: what is different for some users, or portals. What is not set is as
    for everybody; the two numbers hold in every service that has none in ``services``.
    """

    members: tuple[str, ...] = ()
    """Users, and beginnings of names as in ``lab-*``; empty: the one that the label names."""
    rate_limit: RateLimit | None = None
    upload_per_user_per_day: Size | None = Field(None, ge=0)
    stored_per_user: Size | None = Field(None, ge=0)
    uploads_per_user: int | None = Field(None, ge=1)
    services: dict[str, UserServiceTable] = Field(default_factory=dict)


def check_users(users: Mapping[str, UserTable]) -> None:
    """A user in two tables would have two numbers of each kind. Raises ValueError."""
    names = [(name, label) for label, table in users.items() for name in table.members or (label,)]
    for name, label in names:
        if not USER_ID.fullmatch(name.removesuffix("*") if users[label].members else name):
            raise ValueError(
                f"users.{label}: {name!r} is no user: a name is 1 to 64 of A-Z a-z 0-9 . _ @ -, "
                'and ["lab-*"] are members whose names begin so'
            )
    of_name: dict[str, str] = {}
    for name, label in names:
        other = of_name.setdefault(name, label)
        if other != label:
            raise ValueError(_twice(name, other, label))
    for some, label in names:
        if some.endswith("*"):
            for name, other in names:
                if other != label and name.startswith(some[:-1]):
                    raise ValueError(_twice(name, label, other))


def _twice(name: str, label: str, other: str) -> str:
    return f"{name!r} is in users.{label} and in users.{other}: a user is in one table at most"


_KEYS: Final = {
    "stored_per_user": "stored",
    "upload_per_user_per_day": "uploaded",
    "uploads_per_user": "uploads",
    "rate_limit": "rate",
}
"""Key of the settings -> of an allowance."""


def allowances(server: Section, users: Mapping[str, UserTable]) -> Allowances:
    """What each user may have. The table ``server`` says what holds for everybody."""
    usual = Allowance(**{field: getattr(server, key) for key, field in _KEYS.items()})
    exceptions: dict[str, Allowance] = {}
    for label, table in users.items():
        own = replace(_with(usual, table), group=label if table.members else "")
        exceptions |= dict.fromkeys(table.members or (label,), own)
    return Allowances(usual, exceptions)


def _with(usual: Allowance, table: UserTable) -> Allowance:
    changes: dict[str, Any] = {
        field: value for key, field in _KEYS.items() if (value := getattr(table, key)) is not None
    }
    for field, key in (("runs", "runs_per_user"), ("queued", "queued_per_user")):
        numbers = {EVERY_SERVICE: getattr(table, key)}
        numbers |= {name: getattr(one, key) for name, one in table.services.items()}
        changes[field] = {name: one for name, one in numbers.items() if one is not None}
    return replace(usual, **changes)


_IN_A_HEADER: Final = re.compile(r"[^\x00-\x1f\x7f]*")


class AgentTable(Section):
    """Table ``[agents.NAME]``: a Ferryman agent, or a job-orchestrator client."""

    url: str | None = None
    upload_url: str | None = None
    download_url: str | None = None
    terminate_url: str | None = None
    services: tuple[str, ...] = ()
    """Empty: every service that the agent itself offers."""
    prefetch: int = Field(0, ge=0, le=1000)
    """Jobs that it may get beyond its slots, which wait there for one."""
    max_runs: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    """service -> most jobs of it that the agent may have at once."""
    token: Secret | None = None
    """The token to show; of a file its first word."""
    ca_file: File = None
    """CAs that its certificate may be of, in PEM format; None: those of the system."""
    client_cert: File = None
    """Certificate that the server shows it, where it asks for one."""
    client_key: File = None
    """None: the private key is in ``client_cert``, too."""

    identity_secret: Secret | None = None
    """The secret by which it proves who it is; None: whoever answers at its address is believed."""

    def identity(self) -> str | None:
        """The secret by which it proves who it is. Raises ValueError."""
        return identity_of(self.identity_secret)

    def tls(self) -> TlsFiles | None:
        """What it is called with over https; None: as the system has it. Raises ValueError: a file
        cannot be used.
        """
        if self.client_key is not None and self.client_cert is None:
            raise ValueError("client_key is of use only with client_cert")
        if self.ca_file is None and self.client_cert is None:
            return None
        return TlsFiles(
            cert=self.client_cert,
            key=self.client_key,
            ca=self.ca_file,
            called={"cert": "client_cert", "key": "client_key", "ca": "ca_file"},
            listening=False,
        )

    def secret(self) -> str | None:
        if self.token is None:
            return None
        text = self.token.get_secret_value()
        if not isinstance(self.token, FileSecret):
            return text or None
        return text.split()[0]

    @model_validator(mode="after")
    def _makes_sense(self) -> AgentTable:
        if not _IN_A_HEADER.fullmatch(self.secret() or ""):
            raise ValueError("the token has a character that no header can have")
        separate = (self.upload_url, self.download_url, self.terminate_url)
        if self.identity() is not None and self.url is None:
            raise ValueError("identity_secret: a job-orchestrator client cannot prove who it is")
        if self.prefetch and self.url is None:
            raise ValueError("prefetch: a job-orchestrator client does not say its slots")
        if (self.url is None) == (None in separate):
            raise ValueError("give url, or else upload_url, download_url and terminate_url")
        urls = [url for url in (self.url, *separate) if url is not None]
        for url in urls:
            if not _is_address(url):
                shown = without_password(url)
                raise ValueError(f"{shown!r} is not an http:// or https:// address")
        if self.tls() and not any(urlsplit(url).scheme == "https" for url in urls):
            raise ValueError("ca_file and client_cert are of use only with an https:// address")
        return self


def check_addresses(agents: Mapping[str, AgentTable]) -> None:
    """One agent under two names would get the jobs of two. Raises ValueError."""
    names: dict[tuple[str, str | None, int | None, str], str] = {}
    for name, agent in agents.items():
        if agent.url is None:
            continue
        parts = urlsplit(agent.url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
        path = normpath(f"/{parts.path}").lstrip("/")
        other = names.setdefault((parts.scheme, parts.hostname, port, path), name)
        if other != name:
            raise ValueError(
                f"agents.{other} and agents.{name} have the same url "
                f"{without_password(agent.url)!r}: an agent needs one table"
            )


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # its port is no number, or too large
        return False


MAX_VARIABLES: Final = 128
"""In one table; an agent takes two such tables."""
MAX_BYTES: Final = 16 << 10
"""Of a table of variables as JSON; two of them fit into the order that an agent gets."""
_RESERVED: Final = frozenset({"HOME", "LANG", "PATH", "PWD", "TMPDIR"})
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
        """A message names the variable, never its value."""
        if len(value) > MAX_VARIABLES:
            raise ValueError(f"{len(value)} variables, at most {MAX_VARIABLES} are taken")
        for name, text in _shown(value).items():
            check_variable(name, text, _RESERVED)
        if len(json.dumps(_shown(value))) > MAX_BYTES:
            raise ValueError(f"its variables take more than {MAX_BYTES >> 10} KiB")
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
