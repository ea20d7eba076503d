"""The errors of the SDK. Each carries its data; its text can be shown to people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from ferryman.models.jobs import JobDoc


R = TypeVar("R", bound="Refused")


class FerrymanError(Exception):
    """Base of everything that the SDK raises on purpose. All can be pickled.

    Attributes:
        code: for programs: the server's, such as ``unknown_service``, or the SDK's own.
        request_id: to find the request in the server's log, where a server answered.
    """

    code: str = "error"
    request_id: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception's own calls the class with the text alone.
        return _unpickled, (type(self), self.args, self.__dict__)


class BadArgument(FerrymanError, ValueError):
    """The caller asked for something that cannot be right. There is no job."""

    code = "bad_argument"


class BadBundle(FerrymanError):
    """What was to be sent cannot be a bundle. Nothing has been sent.

    Attributes:
        path: the file or name at fault; None where it is the bundle as a whole.
    """

    code = "bad_bundle"

    def __init__(self, message: str, path: str | Path | None = None) -> None:
        super().__init__(message)
        self.path = path


class FileChanged(BadBundle):
    """A file changed while it was being sent; the server has thrown the upload away."""

    code = "file_changed"

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} changed while it was being sent: send it again once it is complete", path
        )


class Unreachable(FerrymanError):
    """The server cannot be reached, or the connection broke and did not come back.

    Attributes:
        url: of the server.
        why: what the network reported.
    """

    code = "unreachable"

    def __init__(self, url: str, why: str) -> None:
        super().__init__(f"cannot reach {url}: {why}")
        self.url, self.why = url, why


class NotUnderstood(FerrymanError):
    """The answer is not one that a Ferryman server gives: a proxy's page, or an unknown version."""

    code = "not_understood"

    def __init__(self, url: str, why: str) -> None:
        super().__init__(f"{url} does not answer like a Ferryman server: {why}")
        self.url, self.why = url, why


class Refused(FerrymanError):
    """The server understood and said no.

    Attributes:
        status: HTTP status.
        code: empty where the answer has none, as that of a proxy.
        message: for people.
        part: the field or file of an upload that is wrong, where the server names one.
        retry_after: seconds after which it may be tried again, where the server says so.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        part: str | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.part = status, code, message, part
        self.request_id, self.retry_after = request_id, retry_after

    def as_kind(self, kind: type[R]) -> R:
        """The same refusal as one of another class."""
        return kind(
            self.status,
            self.code,
            self.message,
            part=self.part,
            request_id=self.request_id,
            retry_after=self.retry_after,
        )


class NotFound(Refused):
    """404: there is no such job, or no such attempt."""


class NotAllowed(Refused):
    """401 or 403: the token is missing, wrong, or not good for this."""


class TryLater(Refused):
    """429, 502, 503, 504 or 507: busy, stopping, or full; the same request may work later."""


class AlreadyEnded(Refused):
    """409: the job ended before it could be cancelled."""


class Conflict(Refused):
    """409: the state of the job, agent or schedule does not allow it, or a name is taken. The text
    says why."""


class NotReady(Refused):
    """202 or 409: the job, or the attempt, has not ended, so there is no result yet."""


class NoResult(Refused):
    """409 or 410: there is no result and there will be none. What a failed job left can still be
    had with ``download(…, partial=True)``, until it is cleaned."""


class BadDownload(FerrymanError):
    """What arrived is not what the server says it sent. Nothing was left behind.

    Attributes:
        expected: SHA-256 from the server, hex; None: it said none, and the ZIP is damaged.
        got: SHA-256 of what arrived, hex.
    """

    code = "bad_download"

    def __init__(self, what: str, expected: str | None, got: str, why: str = "") -> None:
        why = why or f"its SHA-256 is {got}, the server says {expected}"
        super().__init__(f"{what} arrived damaged: {why}")
        self.expected, self.got = expected, got


class BadWebhook(FerrymanError):
    """A request that is no webhook of the server."""

    code = "bad_webhook"


class WaitedTooLong(FerrymanError):
    """The job has not ended in the time given; it goes on.

    Attributes:
        job: as it was last seen.
    """

    code = "waited_too_long"

    def __init__(self, job: JobDoc, seconds: float) -> None:
        super().__init__(f"job {job.id} is still {job.status} after {seconds:g}s; it goes on")
        self.job = job


def _unpickled(
    kind: type[FerrymanError], args: tuple[Any, ...], attributes: dict[str, Any]
) -> FerrymanError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(attributes)
    return error


KINDS: Final = {
    401: NotAllowed,
    403: NotAllowed,
    404: NotFound,
    409: Conflict,
    429: TryLater,
    502: TryLater,
    503: TryLater,
    504: TryLater,
    507: TryLater,
}
"""HTTP status -> what is raised; any other of 400 and above: :class:`Refused`."""
