"""What attempts wrote to stdout and stderr."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Final, Literal, TypeAlias, get_args

from ferryman.answer_errors import no_result
from ferryman.errors import (
    BadArgument,
    NoResult,
    NotReady,
    NotUnderstood,
    Refused,
    TryLater,
    Unreachable,
)
from ferryman.models import AttemptDoc, JobDoc
from ferryman.transport import Transport

Stream: TypeAlias = Literal["stdout", "stderr"]
_FOLLOWED_S: Final = 15.0
"""After so long without a byte the server ends an answer, and is asked again."""
_AGAIN_S: Final = 0.25


async def fetch_log(transport: Transport, job_id: int, attempt: int | None, stream: Stream) -> str:
    """The log of an attempt, or of the latest one that has logs; see :meth:`Client.log`."""
    if stream not in get_args(Stream):
        raise BadArgument(f"a log is stdout or stderr, not {stream!r}")
    if attempt is None:
        job = await transport.get(f"api/v1/jobs/{job_id}", JobDoc)
        latest = latest_with_logs(job.attempts or ())
        if latest is None:
            kind = NoResult if job.ended else NotReady
            why = f"no agent has taken job {job_id}: {job.message}"
            if job.children is not None:
                why = f"job {job_id} is the parent of a batch: its children have the logs"
            raise kind(409, "no_attempt", why)
        attempt = latest.number

    async def once() -> str:
        path, query = f"api/v1/jobs/{job_id}/logs", {"stream": stream, "attempt": str(attempt)}
        async with transport.answer("GET", path, query=query) as answer:
            if answer.content_type != "text/plain":
                raise NotUnderstood(
                    str(answer.url), f"expected plain text, got {answer.content_type}"
                )
            return await answer.text("utf-8", errors="replace")

    try:
        return await transport.retry(once)
    except Refused as problem:
        raise no_result(problem) from None


async def follow_log(
    transport: Transport, job_id: int, attempt: int | None, stream: Stream, tail: int | None
) -> AsyncGenerator[bytes, None]:
    """See :meth:`ferryman.Client.follow_log`."""
    if stream not in get_args(Stream):
        raise BadArgument(f"a log is stdout or stderr, not {stream!r}")
    path, offset = f"api/v1/jobs/{job_id}/logs", 0
    away_since: float | None = None
    while True:
        query = {"stream": stream, "follow": "1"}
        query |= {"offset": str(offset)} if tail is None else {"tail": str(tail)}
        query |= {"attempt": str(attempt)} if attempt is not None else {}
        try:
            async with transport.answer("GET", path, query=query, hold_s=_FOLLOWED_S) as answer:
                away_since = None
                offset, tail = int(answer.headers.get("Ferryman-Log-Offset", offset)), None
                if "Ferryman-Log-Attempt" in answer.headers:
                    attempt = int(answer.headers["Ferryman-Log-Attempt"])
                ended = answer.headers.get("Ferryman-Log-Ended") == "true"
                async for chunk in answer.content.iter_any():
                    offset += len(chunk)
                    yield chunk
        except (Unreachable, TryLater):
            now = transport.clock.monotonic()
            away_since = now if away_since is None else away_since
            if now - away_since >= transport.retry_for:
                raise
            ended = False
        except Refused as problem:
            if problem.code != "log_moves":  # it has ended, and its result is on the way
                raise no_result(problem) from None
            ended = False
        if ended:
            return
        await transport.clock.sleep(_AGAIN_S)


def latest_with_logs(attempts: Sequence[AttemptDoc]) -> AttemptDoc | None:
    """The latest attempt that has logs, or runs; if none has, the latest: the server says why."""
    with_logs = [
        attempt
        for attempt in attempts
        if attempt.links.stdout or (attempt.started_at and attempt.ended_at is None)
    ]
    return next(reversed(with_logs or attempts), None)
