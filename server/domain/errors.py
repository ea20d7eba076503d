"""What can be wrong with a request; ``api/problems.py`` turns each into an answer once."""

from __future__ import annotations

from collections.abc import Sequence

from shared.units.sizes import say_size
from shared.wire import JobState


class FerrymanError(Exception):
    """Base of the errors that are answered to a caller: a code for programs, a text for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class NotFound(FerrymanError):
    """What is named is not there."""


class Conflict(FerrymanError):
    """What was asked for cannot be done with things as they are."""


class IllegalTransition(FerrymanError):
    """The table has no such move: a defect of the server, never a user's."""

    def __init__(self, job_id: int, current: JobState, wanted: JobState) -> None:
        super().__init__(
            "illegal_transition", f"job {job_id} is {current}, so it cannot become {wanted}"
        )


class NoSuchJob(NotFound):
    def __init__(self, job_id: int) -> None:
        super().__init__("job_not_found", f"Job {job_id} not found in the database")


class NoSuchAttempt(NotFound):
    def __init__(self, job_id: int, number: int) -> None:
        super().__init__(
            "attempt_not_found", f"job {job_id} has no attempt {number} that an agent took"
        )


class NotAllowed(FerrymanError):
    """The principal's role does not allow it."""

    def __init__(self, message: str) -> None:
        super().__init__("not_allowed", message)


class NoSuchService(NotFound):
    def __init__(self, name: str) -> None:
        super().__init__("service_not_found", f"this server has no service {name[:64]!r}")


class AlreadyEnded(FerrymanError):
    """The job ended before it could be cancelled."""

    def __init__(self, job_id: int, current: JobState) -> None:
        super().__init__(
            "already_ended",
            f"job {job_id} has already ended as {current}, there is nothing to cancel",
        )
        self.job_id, self.current = job_id, current


class ChildOfBatch(Conflict):
    """It is done to the whole batch only."""

    def __init__(self, job_id: int, parent_id: int) -> None:
        super().__init__(
            "child_of_batch",
            f"job {job_id} is a child of job {parent_id}: delete job {parent_id}, "
            "and its children with it",
        )


class StillNeeded(Conflict):
    """Jobs that have not ended depend on it, so it can be neither deleted nor cleaned."""

    def __init__(self, job_id: int, waiting: Sequence[int]) -> None:
        who = ", ".join(map(str, waiting[:10])) + (" and others" if len(waiting) > 10 else "")
        jobs, wait = ("job", "waits") if len(waiting) == 1 else ("jobs", "wait")
        super().__init__(
            "still_needed", f"job {job_id} is still needed: {jobs} {who} {wait} for it"
        )


class RetryRefused(Conflict):
    """A job cannot be retried by hand."""

    def __init__(self, job_id: int, code: str, why: str) -> None:
        super().__init__(code, f"job {job_id} cannot be retried: {why}")


class BadField(FerrymanError):
    """A field of a form or query is missing or wrong."""

    def __init__(self, field: str, code: str, message: str) -> None:
        super().__init__(code, message)
        self.field = field


def invalid(field: str, why: str) -> BadField:
    """A field has a value that it cannot have."""
    return BadField(field, f"invalid_{field}", f"Invalid {field}: {why}")


class BundleTooLarge(FerrymanError):
    """The files of a bundle alone are more than a job may have on the disk."""

    def __init__(self, service: str, allowed: int, most: int, size: int | None = None) -> None:
        """``allowed`` by the service, ``most`` of this job, which may be less."""
        self.most = most
        has = f"more than {say_size(most)}" if size is None else say_size(size)
        who = f"the upload's disk; service {service} allows {say_size(allowed)}"
        if most == allowed:
            who = f"limits.disk of service {service}"
        super().__init__(
            "bundle_over_disk_limit",
            f"the bundle's files take {has}, the job may use {say_size(most)} of disk ({who})",
        )


class BundleGone(FerrymanError):
    """The stored bundle that a job was to share was removed meanwhile. No caller gets it."""

    def __init__(self) -> None:
        super().__init__("bundle_gone", "the stored bundle is gone")


class KeyReused(FerrymanError):
    """The same Idempotency-Key came with another upload."""

    def __init__(self, job_id: int | None) -> None:
        """None: a job that the caller may not see."""
        job = "another job of this user" if job_id is None else f"job {job_id}"
        super().__init__(
            "idempotency_key_reused",
            f"this Idempotency-Key was used for {job}, whose upload was a different one",
        )
