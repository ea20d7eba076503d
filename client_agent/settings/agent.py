"""Settings of the agent, table ``[agent]`` of the file: read once, then frozen."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, field_validator, model_validator

from client_agent.sandbox.bubblewrap.command import VISIBLE_HOST_PATHS
from client_agent.settings.grants import SandboxingSection
from shared.http.settings import HttpSection
from shared.settings import load as config
from shared.settings.base import Settings, SettingsError, StringList
from shared.settings.secrets import Secret, identity_of, secret_files
from shared.units.durations import Duration
from shared.units.sizes import Size

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SERVER_TABLES: Final = ("server", "services", "agents", "users")
"""Tables of the file that belong to the server."""


def _data_home() -> Path:
    base = os.environ.get("XDG_DATA_HOME") or Path("~/.local/share").expanduser()
    return Path(base) / "ferryman" / "agent"


def _hostname() -> str:
    name = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:64].strip(".-_")
    return name or "agent"


class AgentSection(HttpSection):
    """``[agent]``. Times in seconds, sizes in bytes."""

    port: int = Field(9000, ge=0, le=65535)
    """0: a free one."""
    name: str = Field(default_factory=_hostname)
    """As shown on jobs and in receipts."""
    data_dir: Path = Field(default_factory=_data_home)
    identity_secret: Secret | None = None
    """By which it proves to servers who it is."""
    database: Path | None = None
    """None: ``agent.sqlite`` in ``data_dir``."""
    slots: int = Field(default_factory=lambda: len(os.sched_getaffinity(0)), ge=1, le=1024)
    """Attempts that run at once."""
    labels: dict[str, str] = Field(default_factory=dict)
    """What operators want to see of it, as in ``{gpu = "a100"}``."""
    services: StringList = None
    """Services offered; None: any."""
    sandbox: Literal["bubblewrap", "none"] = "bubblewrap"
    """"none" runs bundles as this user, with all its rights: never for bundles of others."""
    sandboxing: SandboxingSection = SandboxingSection()
    grace: Duration = Field(10.0, ge=0)
    """From SIGTERM to SIGKILL for an attempt that is stopped."""
    shutdown_grace: Duration = Field(10.0, gt=0)
    """From SIGTERM to this process to its end; less than the supervisor waits before SIGKILL."""
    retention: Duration = Field(7 * 86_400.0, gt=0)
    """How long results are kept that are not acknowledged, and after that their rows."""
    min_free: Size = Field(256 << 20, ge=0)
    """Free space that new bundles and running jobs must leave."""
    log_format: Literal["auto", "text", "json"] = "auto"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("name")
    @classmethod
    def _check_name(cls, value: str) -> str:
        if _NAME.fullmatch(value) is None:
            raise ValueError("a name is 1 to 64 letters, digits, dots, underscores or dashes")
        return value

    @field_validator("data_dir", "database", "tls_cert", "tls_key", "tls_client_ca")
    @classmethod
    def _make_absolute(cls, value: Path | None) -> Path | None:
        return None if value is None else value.expanduser().absolute()

    @field_validator("services")
    @classmethod
    def _check_services(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and not value:
            raise ValueError("an empty list offers nothing; leave it out to offer any service")
        return value

    @model_validator(mode="after")
    def _check_data_hidden(self) -> AgentSection:
        self.check_hidden(
            data_dir=self.data_dir, database=self.database, tls_key=self.tls_key or self.tls_cert
        )
        for key, path in secret_files(self):
            self.check_hidden(**{key: path})
        for source, place in self.sandboxing.binds():
            if source.resolve().is_relative_to(self.data_dir.resolve()):
                raise ValueError(
                    f"sandboxing.read_only: {source} would show jobs the agent's own data"
                )
            if self.sandbox == "none" and str(source) != place:
                raise ValueError(
                    f"sandboxing.read_only: {source} cannot be at {place} without a sandbox"
                )
        return self

    @model_validator(mode="after")
    def _check_secrets(self) -> AgentSection:
        self.identity()
        return self

    def identity(self) -> str | None:
        """The secret by which it proves who it is; None: it does not. Raises ValueError."""
        return identity_of(self.identity_secret)

    @property
    def default_service(self) -> str:
        """Service of the bundles of a job-orchestrator server, which do not name one."""
        return self.services[0] if self.services and len(self.services) == 1 else "default"

    def check_hidden(self, **private: Path | None) -> None:
        """Raises ValueError if jobs would see one of these files or folders."""
        visible = {str(source): "sandboxing.read_only: " for source, _ in self.sandboxing.binds()}
        if self.sandbox != "none":
            visible |= dict.fromkeys(VISIBLE_HOST_PATHS, "every job sees the host's programs: ")
        for name, path in private.items():
            for place, why in visible.items():
                if path is not None and path.resolve().is_relative_to(Path(place).resolve()):
                    raise ValueError(
                        f"{why}{place} would show jobs the agent's own data, {name} {path}"
                    )


class AgentSettings(Settings):
    """Everything the agent reads."""

    agent: AgentSection = Field(default_factory=AgentSection)


def load(
    file: Path | None, flags: Mapping[str, Any], environ: Mapping[str, str] = os.environ
) -> AgentSection:
    """Read the file, the variables and the flags. Raises SettingsError.

    Args:
        flags: keys of ``[agent]``; a value of None is ignored.
    """
    loaded = config.load(
        AgentSettings,
        file=file,
        flags={"agent": dict(flags)},
        environ=environ,
        ignore=_SERVER_TABLES,
        extra={"agent": orchestrator(environ)},
    )
    try:
        loaded.agent.check_hidden(config=file)
    except ValueError as problem:
        raise SettingsError(str(problem)) from None
    return loaded.agent


def orchestrator(environ: Mapping[str, str]) -> dict[str, Any]:
    """The variables of job-orchestrator, so that its compose file works."""
    values: dict[str, Any] = {}
    for variable, key in (("PORT", "port"), ("MAX_AGE", "retention")):
        text = environ.get(variable, "").strip()
        if text:
            if not (text.isascii() and text.isdigit()):
                raise SettingsError(f"{variable}: {text!r} is not a whole number")
            values[key] = int(text)
    for variable, key in (("DATA_PATH", "data_dir"), ("DB_PATH", "database")):
        text = environ.get(variable, "").strip()
        if text:
            values[key] = text
    return values
