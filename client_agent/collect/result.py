"""The two ends of an attempt on disk: unpacking its bundle, packing what it left. Blocking."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from client_agent.collect import receipt
from client_agent.collect.contents import Collected, Contents, ResultsLimitExceeded
from client_agent.collect.log_tail import log_tail
from client_agent.collect.pack import RECEIPT, CheckSpace, collect, collect_extras
from client_agent.payloads.payload import Outcome, Payload
from client_agent.sandbox.base import SelfTestReport
from client_agent.sandbox.grants import Grant
from client_agent.storage.folders import STREAMS, Folders
from shared.clock import iso
from shared.wire import PayloadState, Reason, ResultInfo

S = PayloadState

LOGS: Final = tuple(f"{stream}.log" for stream in STREAMS)


@dataclass(frozen=True, slots=True)
class ReceiptSource:
    """What a receipt tells."""

    payload: Payload
    outcome: Outcome | None
    """None: it has not ended."""
    agent: str
    version: str
    sandbox: SelfTestReport
    grant: Grant

    def receipt(self, contents: Contents, *, logs: bool) -> bytes:
        """``ferryman.json`` of a result with these contents."""
        payload, told = self.payload, self.outcome
        state = payload.state if told is None else told.state
        ended_at = payload.ended_at if told is None else told.ended_at or payload.ended_at
        made = receipt.Receipt(
            job=payload.job_id,
            attempt=payload.attempt,
            service=payload.service,
            agent=self.agent,
            version=self.version,
            bundle=receipt.BundleInfo(digest=payload.bundle_digest, size=payload.bundle_size),
            sandbox=receipt.SandboxInfo(
                backend=self.sandbox.backend,
                version=self.sandbox.version,
                read_only=[place for _, place in self.grant.read_only],
                allow=sorted(self.grant.allow),
            ),
            limits=payload.limits,
            timeout_s=payload.timeout_s,
            enforcement=payload.enforcement,
            status="Cancelled" if state is S.KILLED else state,
            reason=None if told is None else told.reason,
            message="" if told is None else told.message,
            exit_code=None if told is None else told.exit_code,
            interrupted=told is not None and told.interrupted,
            usage=None if told is None else told.usage,
            received_at=iso(payload.created_at),
            started_at=None if payload.started_at is None else iso(payload.started_at),
            ended_at=None if ended_at is None else iso(ended_at),
            files=contents.files,
            bytes=contents.bytes,
            logs=receipt.Logs(stdout=contents.names[LOGS[0]], stderr=contents.names[LOGS[1]])
            if logs
            else None,
            skipped=[receipt.Skipped(path=one.path, why=one.why) for one in contents.skipped],
            skipped_more=contents.skipped_more,
            warnings=[*(() if told is None else told.warnings), *contents.not_portable.warnings()],
        )
        return made.model_dump_json(indent=2).encode() + b"\n"


def pack(attempted: ReceiptSource, told: Outcome, folders: Folders, fd: int) -> Outcome:
    """Make the result of an attempt that ended, durable under its final name.

    Args:
        attempted: of the payload, Running.
        fd: its directory; nothing of it is alive.

    Returns:
        The outcome with its result, or ``results_limit`` with a result of logs and receipt.

    Raises:
        OSError: the result could not be stored.
    """
    payload = attempted.payload
    logs = _logs(folders, payload.id)
    told = replace(told, stderr_tail=log_tail(folders.log(payload.id, "stderr")))
    staged, at = folders.staging(), told.ended_at or payload.created_at
    try:
        try:
            collected = collect(
                fd, staged, payload.limits, logs, _receipt(attempted, told, logs=True), at=at
            )
        except ResultsLimitExceeded as problem:
            told = _too_much(told, problem)
            collected = collect_extras(staged, logs, _receipt(attempted, told, logs=True), at)
        folders.seal_result(staged, payload.id)
    except BaseException:
        folders.remove_file(staged)
        raise
    told = replace(told, result=ResultInfo(size=collected.size, sha256=collected.sha256))
    warnings = collected.not_portable.warnings()
    if collected.skipped:
        warnings = (*warnings, _skipped(collected))
    return replace(told, warnings=(*told.warnings, *warnings))


def snapshot(
    attempted: ReceiptSource, folders: Folders, fd: int | None, to: Path, room: CheckSpace
) -> None:
    """Write a ZIP of an attempt as it is now.

    Args:
        fd: the directory in which it runs; None: only the receipt can be told.
        room: see :func:`client_agent.collect.pack.collect`.

    Raises:
        OSError
    """
    payload = attempted.payload
    at = payload.ended_at or payload.started_at or payload.created_at
    if fd is None:
        collect_extras(to, {}, _receipt(attempted, attempted.outcome, logs=False), at)
        return
    logs = _logs(folders, payload.id)
    made = _receipt(attempted, attempted.outcome, logs=True)
    try:
        collect(fd, to, payload.limits, logs, made, check_space=room, at=at)
    except (ResultsLimitExceeded, PermissionError):
        collect_extras(to, logs, made, at)


def _receipt(
    attempted: ReceiptSource, told: Outcome | None, *, logs: bool
) -> Callable[[Contents], bytes]:
    about = replace(attempted, outcome=told)
    return lambda contents: about.receipt(contents, logs=logs)


def _logs(folders: Folders, payload_id: int) -> dict[str, Path | bytes]:
    return {
        name: folders.log(payload_id, stream) for name, stream in zip(LOGS, STREAMS, strict=True)
    }


def _too_much(told: Outcome, problem: ResultsLimitExceeded) -> Outcome:
    if told.state is not S.COMPLETED:  # the first cause stands
        return replace(told, warnings=(*told.warnings, f"{Reason.RESULTS_LIMIT}: {problem}"))
    return replace(told, state=S.FAILED, reason=Reason.RESULTS_LIMIT, message=str(problem))


def _skipped(collected: Collected) -> str:
    count = len(collected.skipped) + collected.skipped_more
    what = "1 thing is" if count == 1 else f"{count} things are"
    return f"{what} not in the result: see skipped in {collected.names[RECEIPT]}"
