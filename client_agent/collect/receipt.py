"""``ferryman.json``, the receipt in every result: what ran, where, how it ended."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from shared.wire import Limits, Reason, Usage


class Part(BaseModel):
    """Base of the receipt's objects."""

    model_config = ConfigDict(frozen=True)


class Skipped(Part):
    """Something the attempt left that is not in the ZIP."""

    path: str
    """As it was named, odd characters escaped."""
    why: str


class Logs(Part):
    """Names of the logs in the ZIP; others than usual where the job made files of those names."""

    stdout: str
    stderr: str


class BundleInfo(Part):
    digest: str
    """SHA-256 of the content, hex; the same on the server."""
    size: int
    """Bytes of the sealed ZIP."""


class SandboxInfo(Part):
    backend: str
    """"bubblewrap", or "none": the bundle ran with the agent's own rights."""
    version: str
    read_only: list[str] = Field(default_factory=list)
    """Places inside where the operator mounted something of the host."""
    allow: list[str] = Field(default_factory=list)
    """Groups of system calls that the operator allowed the service."""


class Receipt(Part):
    """The whole file. Times are ISO 8601 in UTC, sizes bytes, durations seconds."""

    format: int = 1
    job: int
    """The server's number of the job; the agent's own where the server has no keys."""
    attempt: int
    service: str
    agent: str
    """Name of the agent."""
    version: str
    """Of Ferryman on the agent."""
    bundle: BundleInfo
    sandbox: SandboxInfo
    limits: Limits
    timeout_s: float
    enforcement: dict[str, str]
    """limit -> "hard", "soft" or "none", as enforced for this attempt."""
    status: str
    """As ended, in the server's words: "Cancelled" where the agent's is "Killed"; "Running" in a
    snapshot of an attempt that had not ended."""
    reason: Reason | None
    message: str
    exit_code: int | None
    interrupted: bool
    """It ended through no fault of the bundle."""
    usage: Usage | None
    received_at: str
    started_at: str | None
    ended_at: str | None
    files: int
    """Files of the job in this ZIP."""
    bytes: int
    """Their size before compression."""
    logs: Logs | None
    """None: nothing has run."""
    skipped: list[Skipped] = Field(default_factory=list)
    skipped_more: int = 0
    """Skipped, but not listed: the list is bounded."""
    warnings: list[str] = Field(default_factory=list)
