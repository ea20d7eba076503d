"""Settings ``[agent.sandboxing]`` and ``[agent.sandboxing.services.NAME]``: what jobs are given."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import Field, field_validator

from client_agent.sandbox.base import Grant, Grants, SandboxBroken, SandboxSettings
from client_agent.sandbox.bubblewrap.command import checked_mount_target
from client_agent.sandbox.bubblewrap.seccomp import RELAXATIONS
from shared.settings.base import Section, StringList
from shared.units.sizes import Size
from shared.variables import check_variable

_DEFAULT: Final = SandboxSettings()


class GrantSettings(Section):
    """What the jobs of a service get of the host; None: the same as every service."""

    read_only: StringList = None
    """``/path``, or ``/path:/path/inside``."""
    env: dict[str, str] | None = None
    network: bool | None = None
    allow: StringList = None
    scratch: Size | None = Field(None, gt=0)

    @field_validator("read_only")
    @classmethod
    def _check_mounts(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        try:
            binds = [bind(text) for text in value or ()]
        except SandboxBroken as problem:
            raise ValueError(str(problem)) from None
        places = [place for _, place in binds]
        repeated = next((place for place in places if places.count(place) > 1), None)
        if repeated is not None:
            raise ValueError(f"{repeated} is mounted on twice")
        return value

    @field_validator("env")
    @classmethod
    def _check_variables(cls, value: dict[str, str] | None) -> dict[str, str] | None:
        for name, text in (value or {}).items():
            check_variable(name, text)
        return value

    @field_validator("allow")
    @classmethod
    def _check_relaxations(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        unknown = sorted(set(value or ()) - RELAXATIONS)
        if unknown:
            known = ", ".join(sorted(RELAXATIONS))
            raise ValueError(f"there is no {', '.join(unknown)}; there are {known}")
        return value


class SandboxingSection(GrantSettings):
    """``[agent.sandboxing]``: see :class:`client_agent.sandbox.base.SandboxSettings`."""

    uid_base: int = Field(_DEFAULT.uid_base, ge=1)
    uid_count: int = Field(28_000, ge=1)
    """Uids from ``uid_base`` on that the agents of this host may use for their jobs."""
    require_hard_limits: bool = _DEFAULT.require_hard_limits
    disk_images: bool = _DEFAULT.disk_images
    nofile: int = Field(_DEFAULT.nofile, ge=16)
    services: dict[str, GrantSettings] = Field(default_factory=dict)

    def settings(self, free_floor: int, uid_base: int | None = None) -> SandboxSettings:
        """For the sandbox.

        Args:
            uid_base: the lowest of the uids that this agent reserved; None: as in the file.
        """
        return SandboxSettings(
            uid_base=self.uid_base if uid_base is None else uid_base,
            scratch=_DEFAULT.scratch if self.scratch is None else self.scratch,
            require_hard_limits=self.require_hard_limits,
            disk_images=self.disk_images,
            free_floor=free_floor,
            nofile=self.nofile,
        )

    def grants(self) -> Grants:
        """What each service gets. Its own keys replace those of all services; variables add up."""
        return Grants(
            self._grant(GrantSettings()),
            {name: self._grant(own) for name, own in self.services.items()},
        )

    def _grant(self, own: GrantSettings) -> Grant:
        read_only = self.read_only if own.read_only is None else own.read_only
        network = self.network if own.network is None else own.network
        return Grant(
            # parents first: mounted later, they would hide their children
            read_only=tuple(sorted(map(bind, read_only or ()), key=lambda one: one[1])),
            env={**(self.env or {}), **(own.env or {})},
            network=bool(network),
            allow=frozenset((self.allow if own.allow is None else own.allow) or ()),
            scratch=own.scratch,
        )

    def binds(self) -> list[tuple[Path, str]]:
        """(host path, path inside) of everything that some service's jobs can read."""
        every = (self, *self.services.values())
        return [bind(text) for grant in every for text in grant.read_only or ()]


def bind(text: str) -> tuple[Path, str]:
    """(host path, path inside) of ``/path`` or ``/path:/path/inside``. Raises SandboxBroken if one
    of them is impossible."""
    source, _, place = text.partition(":")
    path = Path(source)
    if not path.is_absolute() or ".." in path.parts or path == Path("/"):
        raise SandboxBroken(f"read_only: {source!r} is not an absolute path below /")
    return path, checked_mount_target(place or source)
