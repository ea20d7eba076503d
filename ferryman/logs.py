"""What attempts wrote to stdout and stderr."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

from ferryman.answer_errors import no_result
from ferryman.errors import BadArgument, NoResult, NotReady, NotUnderstood, Refused
from ferryman.models import AttemptDoc, AttemptPage, JobDoc
from ferryman.transport import Transport

Stream: TypeAlias = Literal["stdout", "stderr"]


async def fetch_log(transport: Transport, job_id: int, attempt: int | None, stream: Stream) -> str:
    """The log of an attempt, or of the latest one that has logs; see :meth:`Client.log`."""
    if stream not in get_args(Stream):
        raise BadArgument(f"a log is stdout or stderr, not {stream!r}")
    jobs_attempts = f"api/v1/jobs/{job_id}/attempts"
    if attempt is None:
        latest = latest_with_logs((await transport.get(jobs_attempts, AttemptPage)).items)
        if latest is None:
            job = await transport.get(f"api/v1/jobs/{job_id}", JobDoc)
            kind = NoResult if job.ended else NotReady
            raise kind(409, "no_attempt", f"no agent has taken job {job_id}: {job.message}")
        attempt = latest.number

    async def once() -> str:
        path = f"{jobs_attempts}/{attempt}/logs/{stream}"
        async with transport.answer("GET", path) as answer:
            if answer.content_type != "text/plain":
                raise NotUnderstood(
                    str(answer.url), f"expected plain text, got {answer.content_type}"
                )
            return await answer.text("utf-8", errors="replace")

    try:
        return await transport.retry(once)
    except Refused as problem:
        raise no_result(problem) from None


def latest_with_logs(attempts: Sequence[AttemptDoc]) -> AttemptDoc | None:
    """The latest attempt that has logs; if none has, the latest: the server then says why."""
    with_logs = [attempt for attempt in attempts if attempt.links.stdout]
    return next(reversed(with_logs or attempts), None)
