"""Why a request is refused; ``api`` turns each exception into a reply."""

from __future__ import annotations

from typing import Final

from shared.ids import AttemptKey, Start

RETRY_AFTER_S: Final = 10


class Refused(Exception):
    """A request that is not carried out.

    Attributes:
        status: HTTP status.
        code: for programs.
        message: a sentence for people.
        retry_after_s: when to ask again; None: unknown.
    """

    retry_after_s: int | None = None

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        if status in (503, 507):
            self.retry_after_s = RETRY_AFTER_S


class NoSuchPayload(Exception):
    def __init__(self, payload_id: int) -> None:
        super().__init__(f"payload {payload_id} is not known here")


class StaleAttempt(Refused):
    """A later attempt of the same job is known already."""

    def __init__(self, key: AttemptKey, latest: int) -> None:
        why = f"attempt {key} is stale: attempt {latest} of the same job is known here"
        super().__init__(409, "stale_attempt", why)


class KeyRefused(Refused):
    """This key was settled as refused."""

    def __init__(self, key: AttemptKey) -> None:
        super().__init__(409, "key_refused", f"attempt {key} was settled: it will never run here")


class StaleStart(Refused):
    """A later start of the same server, or of a copy of it, has taken over."""

    def __init__(self, start: Start, seen: Start) -> None:
        what = f"start {start} of the server is stale" if start.id else "the request names no start"
        why = f"{what}: start {seen} of the server was seen here"
        super().__init__(409, "stale_start", why)


class DigestMismatch(Refused):
    """This key is known with another bundle: the server that uses it again has lost data."""

    def __init__(self, key: AttemptKey, digest: str) -> None:
        why = f"attempt {key} is known here with another bundle, of digest {digest}"
        super().__init__(409, "digest_mismatch", why)


class BundleMissing(Refused):
    """An order without its bundle, which is not here."""

    def __init__(self, digest: str) -> None:
        why = f"the bundle of digest {digest} is not here: submit it"
        super().__init__(409, "bundle_missing", why)


class SubmitInProgress(Refused):
    """Whether the submit of this key is accepted is not decided yet."""

    retry_after_s = 1

    def __init__(self, key: AttemptKey) -> None:
        why = f"the submit of attempt {key} is being received or stored: ask again"
        super().__init__(409, "submit_in_progress", why)
