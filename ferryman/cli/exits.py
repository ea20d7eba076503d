"""Exit codes: with ``--wait`` the job's own; otherwise 0, 1, 2, and those of sysexits(3)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from ferryman import errors

if TYPE_CHECKING:
    from ferryman.models import JobDoc

FAILED: Final = 1
"""The job failed and has no exit code of its own; there is no such job or agent; it
cannot be cancelled; the agent cannot be changed like that."""
USAGE: Final = 2
BAD_BUNDLE: Final = 65
"""The bundle was refused; nothing of it was kept."""
UNAVAILABLE: Final = 69
"""The server cannot be reached, or what it needs is not installed here."""
CANNOT_WRITE: Final = 73
DAMAGED: Final = 74
NOT_UNDERSTOOD: Final = 76
TRY_LATER: Final = 75
NOT_ALLOWED: Final = 77
TIMEOUT: Final = 124
INTERRUPTED: Final = 130
"""By Ctrl-C; a job that was accepted goes on."""
CANCELLED: Final = 143
"""As of a process that was sent SIGTERM."""


class Interrupted(Exception):
    """Ctrl-C, after what it means for the job was said."""


_EXIT_CODES: Final[tuple[tuple[type[Exception], int], ...]] = (  # the first class that matches
    (errors.BadArgument, USAGE),
    (errors.BadBundle, BAD_BUNDLE),
    (errors.Unreachable, UNAVAILABLE),
    (errors.NotUnderstood, NOT_UNDERSTOOD),
    (errors.NotAllowed, NOT_ALLOWED),
    (errors.TryLater, TRY_LATER),
    (errors.NotReady, TRY_LATER),
    (errors.NotFound, FAILED),
    (errors.NoResult, FAILED),
    (errors.AlreadyEnded, FAILED),
    (errors.Conflict, FAILED),
    (errors.Refused, BAD_BUNDLE),
    (errors.BadDownload, DAMAGED),
    (errors.WaitedTooLong, TIMEOUT),
    (OSError, CANNOT_WRITE),
    (Interrupted, INTERRUPTED),
)


def exit_code_for(problem: Exception) -> int:
    """The exit code for an error."""
    return next((code for kind, code in _EXIT_CODES if isinstance(problem, kind)), FAILED)


def exit_code_of_jobs(jobs: Iterable[JobDoc]) -> int:
    """That of the first job that did not complete; 0: all did."""
    return next((code for code in map(exit_code_of_job, jobs) if code), 0)


def exit_code_of_job(job: JobDoc) -> int:
    """The exit code of ``--wait`` for a job that has ended."""
    from ferryman.states import JobState, Reason

    if job.status is JobState.COMPLETED:
        return 0
    if job.status is JobState.CANCELLED:
        return CANCELLED
    if job.reason in {Reason.TIMEOUT, Reason.QUEUE_TIMEOUT, Reason.HEARTBEAT_TIMEOUT}:
        return TIMEOUT
    if job.exit_code:
        return job.exit_code & 0xFF or FAILED
    return 0 if job.status is JobState.CLEANED and job.reason is None else FAILED
