"""The result of a run, as ``--json`` prints it and ``--compare`` reads it."""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime, Field

from ferryman.models import Wire


class Times(Wire):
    """How long something took, in seconds; None: it never happened."""

    count: int
    mean_s: float | None = None
    p50_s: float | None = None
    p90_s: float | None = None
    p99_s: float | None = None
    max_s: float | None = None


class Latencies(Wire):
    """Where the time went."""

    late: Times
    """From when an upload was due until it began: the load generator's own delay."""
    upload: Times
    """From when it was due until the server had accepted it."""
    queued: Times
    """From then until an agent had the job."""
    to_start: Times
    """From accepted until ``run.sh`` ran."""
    overhead: Times
    """From its start until the server had the result, without the time that it was to run."""
    end_to_end: Times
    """From when the upload was due until the server had the result."""


class Counts(Wire):
    """What became of the uploads and their jobs."""

    uploads: int
    """That were due."""
    accepted: int
    refused: dict[str, int] = Field(default_factory=dict)
    """Code -> uploads that were to come later (429, 503, 507)."""
    errors: dict[str, int] = Field(default_factory=dict)
    """Code -> uploads that went wrong in another way."""
    completed: int
    failed: dict[str, int] = Field(default_factory=dict)
    """Reason -> jobs."""
    cancelled: int = 0
    unended: int = 0
    """Jobs that had not ended when the run did."""
    retried: int = 0
    """Jobs that took more than one attempt."""
    uploaded_bytes: int


class Rates(Wire):
    """Per second."""

    offered: float
    accepted: float
    completed: float
    """From the first upload to the last end."""
    uploaded_bytes: float


class Sample(Wire):
    """How the server was at a moment; None: it does not say, or not to this caller."""

    at_s: float
    queued: int | None = None
    in_work: int | None = None
    """Jobs that hold a slot of their service's quotas."""
    max_runs: int | None = None
    running: int | None = None
    """Of all agents."""
    slots: int | None = None
    agents_up: int | None = None
    uploading: int = 0
    """Uploads under way here."""
    waits_for: str | None = None
    """Code of why a job waits that has waited long."""
    cpu: float | None = None
    """Cores that the server's process used since the sample before."""
    memory_bytes: int | None = None
    lag_s: float | None = None
    """Of the server's event loop."""
    answer_s: float | None = None
    """How long the server took to say so."""


class JobRow(Wire):
    """One upload. Seconds from the start of the run."""

    number: int
    intended_s: float
    answered_s: float | None = None
    accepted_s: float | None = None
    submitted_s: float | None = None
    started_s: float | None = None
    ended_s: float | None = None
    run_time_s: float
    size: int
    job_id: int | None = None
    status: str = ""
    """State of the job; empty: there is none."""
    why: str = ""
    """Code of the refusal or error, or reason of the failure."""


class Verdict(Wire):
    """Something that was at its limit."""

    code: str
    at_s: float
    """When it was first seen."""
    text: str
    advice: str


class BenchDoc(Wire):
    """A run."""

    format: Literal[1] = 1
    version: str
    """Of this client."""
    server_version: str | None = None
    url: str
    begun_at: AwareDatetime
    tag: str
    plan: str
    kinds: list[str]
    end: Literal["complete", "interrupted", "server_away", "patience"]
    """``patience``: jobs were left when the time to wait for them was over."""
    took_s: float
    counts: Counts
    rates: Rates
    latencies: Latencies
    verdicts: list[Verdict]
    samples: list[Sample]
    uploads: list[JobRow]
