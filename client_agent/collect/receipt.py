"""``ferryman.json``, the receipt in every result: what ran, where, and how it ended."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from shared.wire import Limits, Reason, ResultFiles, Usage


class ReceiptModel(BaseModel):
    """Base class of the receipt's objects."""

    model_config = ConfigDict(frozen=True)


class SkippedFile(ReceiptModel):
    """A file or folder of the attempt that is not in the ZIP, or not completely."""

    path: str
    """Its path, with unusual characters escaped."""
    why: str


class Logs(ReceiptModel):
    """Names of the logs in the ZIP. They are different if the job made files of these names."""

    stdout: str
    stderr: str


class BundleInfo(ReceiptModel):
    digest: str
    """SHA-256 of the content, hex; the same on the server."""
    size: int
    """Bytes of the sealed ZIP."""


class SandboxInfo(ReceiptModel):
    backend: str
    """"bubblewrap", or "none": the bundle ran with the agent's own rights."""
    version: str
    read_only: list[str] = Field(default_factory=list)
    """Paths inside where the operator mounted folders of the host."""
    allow: list[str] = Field(default_factory=list)
    """Groups of system calls that the operator allowed for the service."""


class Receipt(ReceiptModel):
    """The whole file. Times are ISO 8601 in UTC, sizes bytes, durations seconds."""

    format: int = 1
    job: int
    """The server's number of the job; the agent's own number if the server sends no keys."""
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
    """The state in the server's terms: "Cancelled" if the agent's state is "Killed"; "Running" in a
    snapshot of an attempt that has not ended."""
    reason: Reason | None
    message: str
    exit_code: int | None
    interrupted: bool
    """It ended for a reason that the bundle did not cause."""
    usage: Usage | None
    received_at: str
    started_at: str | None
    ended_at: str | None
    outputs: list[str] = Field(default_factory=list)
    """Patterns that chose what is in this ZIP; none: everything."""
    result_files: ResultFiles = "all"
    files: int
    """Files of the job in this ZIP."""
    bytes: int
    """Their size before compression."""
    logs: Logs | None
    """None: nothing has run yet."""
    skipped: list[SkippedFile] = Field(default_factory=list)
    skipped_more: int = 0
    """Number of skipped files that are not in the list, because its length is limited."""
    warnings: list[str] = Field(default_factory=list)
