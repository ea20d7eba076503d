"""What a packed result contains."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from shared.files.names import NonPortableNames, fold
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
    """Patterns that chose what the result has; none: everything."""
    result_files: ResultFiles = "all"
    files: int
    """Files of the job in this ZIP."""
    bytes: int
    """Their size before compression."""
    inputs: int = 0
    """Files of the bundle that are there as they were sent: they belong to the result, too, and are
    in its list only."""
    logs: Logs | None
    """None: nothing has run yet."""
    skipped: list[SkippedFile] = Field(default_factory=list)
    skipped_more: int = 0
    """Number of skipped files that are not in the list, because its length is limited."""
    warnings: list[str] = Field(default_factory=list)


MAX_LISTED: Final = 200
"""A job can make a million unusual names, but the receipt must stay small."""


class ResultsLimitExceeded(Exception):
    """The job left more than a result may contain. None of its files was read.

    Attributes:
        what: "bytes", "entries", "depth" or "path".
        limit: the limit.
        actual: the first value above the limit.
        where: the path at which the limit was exceeded, safe to show.
    """

    def __init__(self, what: str, limit: int, actual: int, where: str) -> None:
        super().__init__(what, limit, actual, where)
        self.what, self.limit, self.actual, self.where = what, limit, actual, where

    def __str__(self) -> str:
        sentence = {
            "bytes": f"the files add up to at least {self.actual} bytes, the limit is {self.limit}",
            "entries": f"there are more than {self.limit} files and folders",
            "depth": f"folders are nested more than {self.limit} deep",
            "path": f"a path is {self.actual} bytes long, the limit is {self.limit}",
        }[self.what]
        return f"too much to collect: {sentence} (at {self.where})"


@dataclass(slots=True)
class Contents:
    """What is in a result. It is complete when the receipt is made, except for the last two."""

    names: dict[str, str]
    """Usual name of each file of the agent (``stdout.log``, ``ferryman.json``) -> its name in this
    ZIP."""
    path: Path
    """The ZIP."""
    files: int = 0
    """Files of the job."""
    bytes: int = 0
    """Their size before compression."""
    inputs: int = 0
    """Files that are as they were given, and are on its list."""
    lines: bytearray = field(default_factory=bytearray)
    """The list."""
    skipped: list[SkippedFile] = field(default_factory=list)
    skipped_more: int = 0
    """Number of skipped files that are not in the list, because its length is limited."""
    not_portable: NonPortableNames = field(default_factory=NonPortableNames)
    """Names in the ZIP that systems other than Linux cannot store."""
    children: int = 0
    """Folders ``children/NAME`` with a run.sh."""
    size: int = 0
    """Bytes of the ZIP, once it is finished."""
    sha256: str = ""
    """Of the finished ZIP, hex."""

    def skip(self, path: str, why: str) -> None:
        if len(self.skipped) < MAX_LISTED:
            self.skipped.append(SkippedFile(path=path, why=why))
        else:
            self.skipped_more += 1


def own_names(usual: Iterable[str], taken: Collection[str]) -> dict[str, str]:
    """Names for the agent's files in a result. If the job has a file of that name, another is used.

    ``stdout.log`` becomes ``stdout.ferryman.log``, then ``stdout.ferryman.2.log`` and so on.

    Args:
        taken: folded names at the top of the job's directory.
    """
    used = set(taken)
    names: dict[str, str] = {}
    for name in usual:
        stem, dot, suffix = name.rpartition(".")
        candidate, serial = name, 0
        while fold(candidate) in used:
            serial += 1
            number = "" if serial == 1 else f".{serial}"
            candidate = f"{stem}.ferryman{number}{dot}{suffix}"
        used.add(fold(candidate))
        names[name] = candidate
    return names
