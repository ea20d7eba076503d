"""The table of an agent in the server's TOML file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from posixpath import normpath
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from shared.http.tls import TlsFiles
from shared.settings.base import File, Section
from shared.settings.effective import without_password
from shared.settings.secrets import FileSecret, Secret, identity_of

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
        """The token to show."""
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
