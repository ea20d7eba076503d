"""What is noted of each upload and job while the load runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from ferryman import errors
from ferryman.bench.plan import Order
from ferryman.models import JobDoc


@dataclass(slots=True)
class Record:
    """One upload, and its job. Times in seconds from the start of the run, by the clock here; those
    that begin with ``server_`` are seconds since 1970 by the server's.
    """

    order: Order
    intended_s: float
    """When it was due: latencies count from here, so that a server that stalls does not hide the
    time for which the next uploads had to wait."""
    begun_s: float
    answered_s: float | None = None
    refused: str = ""
    """Code of the server's "later" (429, 503, 507)."""
    error: str = ""
    """What else went wrong."""
    job_id: int | None = None
    server_created: float | None = None
    server_submitted: float | None = None
    server_started: float | None = None
    server_ended: float | None = None
    status: str = ""
    reason: str = ""
    attempt: int = 0

    def fail(self, problem: errors.FerrymanError) -> None:
        code = problem.code
        if isinstance(problem, errors.Refused):
            code = code or f"http_{problem.status}"
        if isinstance(problem, errors.TryLater):
            self.refused = code
        else:
            self.error = code

    def learn(self, job: JobDoc) -> None:
        """What the server says of its job."""
        self.status, self.reason = str(job.status), str(job.reason or "")
        self.attempt = job.attempt
        self.server_created = job.created_at.timestamp()
        self.server_submitted = _seconds(job.submitted_at)
        self.server_started = _seconds(job.started_at)
        self.server_ended = _seconds(job.ended_at) if job.ended else None


def _seconds(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()


def offset_s(records: Iterable[Record]) -> float:
    """What turns a time of the server's clock into seconds of the run.

    No job was made after its upload was answered: the upload with the least time in between bounds
    the difference of the clocks best. The error is at most that time.
    """
    return min(
        (
            one.answered_s - one.server_created
            for one in records
            if one.answered_s is not None and one.server_created is not None
        ),
        default=0.0,
    )
