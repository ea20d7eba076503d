"""Makes the result of an attempt that ended, and snapshots of one that runs. Blocking."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from client_agent.collect import contents as made_of
from client_agent.collect.contents import Contents, ResultsLimitExceeded
from client_agent.collect.pack import RECEIPT, CheckSpace, collect, collect_extras
from client_agent.collect.selection import Given, Selection
from client_agent.payloads.payload import Outcome, Payload
from client_agent.sandbox.base import Grant, SelfTestReport
from client_agent.storage.folders import STREAMS, Folders
from shared.clock import iso
from shared.wire import PayloadState, Reason, ResultInfo

_TAIL_READ: Final = 1 << 13
_TAIL_BYTES: Final = 4096
_TAIL_LINES: Final = 20


def log_tail(path: Path) -> str:
    """The last lines of a log; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL_READ))
            return last_lines(file.read())
    except OSError:
        return ""


def last_lines(data: bytes) -> str:
    """The last lines, complete if possible, without characters that control a terminal.

    Args:
        data: the end of the log, as it is on disk.
    """
    cut = len(data) > _TAIL_BYTES
    text = data[-_TAIL_BYTES:].decode(errors="replace").replace("\r\n", "\n").rstrip("\n")
    lines = text.split("\n")
    if cut and len(lines) > 1:
        lines = lines[1:]  # the first one is not complete
    return "\n".join(_plain(line) for line in lines[-_TAIL_LINES:])[-_TAIL_BYTES:]


def _plain(line: str) -> str:
    return "".join(
        char
        if char.isprintable() or char == "\t"
        else char.encode("unicode_escape", "surrogatepass").decode()
        for char in line
    )


LOGS: Final = tuple(f"{stream}.log" for stream in STREAMS)


@dataclass(frozen=True, slots=True)
class ReceiptSource:
    """What a receipt is made from."""

    payload: Payload
    agent: str
    version: str
    sandbox: SelfTestReport
    grant: Grant
    given: Given = field(default_factory=Given)
    """Files that the result refers to where they are as they were."""

    def receipt(self, contents: Contents, outcome: Outcome | None, *, logs: bool) -> bytes:
        """``ferryman.json`` of a result with these contents.

        Args:
            outcome: None: it has not ended.
        """
        payload = self.payload
        outcome = outcome or Outcome(payload.state)
        ended_at = outcome.ended_at or payload.ended_at
        document = made_of.Receipt(
            job=payload.job_id,
            attempt=payload.attempt,
            service=payload.service,
            agent=self.agent,
            version=self.version,
            bundle=made_of.BundleInfo(digest=payload.bundle_digest, size=payload.bundle_size),
            sandbox=made_of.SandboxInfo(
                backend=self.sandbox.backend,
                version=self.sandbox.version,
                read_only=[target for _, target in self.grant.read_only],
                allow=sorted(self.grant.allow),
            ),
            limits=payload.limits,
            timeout_s=payload.timeout_s,
            enforcement=payload.enforcement,
            status="Cancelled" if outcome.state is PayloadState.KILLED else outcome.state,
            reason=outcome.reason,
            message=outcome.message,
            exit_code=outcome.exit_code,
            interrupted=outcome.interrupted,
            usage=outcome.usage,
            received_at=iso(payload.created_at),
            started_at=None if payload.started_at is None else iso(payload.started_at),
            ended_at=None if ended_at is None else iso(ended_at),
            outputs=list(payload.outputs),
            result_files=payload.result_files,
            files=contents.files,
            bytes=contents.bytes,
            inputs=contents.inputs,
            logs=made_of.Logs(stdout=contents.names[LOGS[0]], stderr=contents.names[LOGS[1]])
            if logs
            else None,
            skipped=contents.skipped,
            skipped_more=contents.skipped_more,
            warnings=[*outcome.warnings, *contents.not_portable.warnings()],
        )
        return document.model_dump_json(indent=2).encode() + b"\n"


def pack(
    source: ReceiptSource, outcome: Outcome, folders: Folders, fd: int
) -> tuple[Outcome, bytes | None]:
    """Make the result of an attempt that ended, and store it under its final name if it is large.
    Raises OSError if that could not be done.

    Args:
        source: its payload is Running.
        fd: its directory; all of its processes are dead.

    Returns:
        The outcome with the result, and a small result itself. If the results limit is exceeded,
        the reason is ``results_limit``, and the result contains logs and receipt only.
    """
    payload = source.payload
    logs = _logs(folders, payload.id)
    outcome = replace(outcome, stderr_tail=log_tail(folders.log(payload.id, "stderr")))
    staged, at = folders.staging(), outcome.ended_at or payload.created_at
    selection = Selection(payload.outputs, source.given)
    try:
        try:
            made = _receipt(source, outcome)
            collected = collect(fd, staged, payload.limits, logs, made, at=at, selection=selection)
        except ResultsLimitExceeded as problem:
            outcome = _with_results_limit(outcome, problem)
            collected = collect_extras(staged, logs, _receipt(source, outcome), at)
        content = folders.seal_result(staged, payload.id)
    except BaseException:
        folders.remove_file(staged)
        raise
    result = ResultInfo(
        size=collected.size,
        sha256=collected.sha256,
        stdout_bytes=folders.log_size(payload.id, "stdout"),
        stderr_bytes=folders.log_size(payload.id, "stderr"),
        children=collected.children,
        inputs=collected.inputs,
    )
    warnings = collected.not_portable.warnings()
    if collected.skipped:
        warnings = (*warnings, _skipped_warning(collected))
    if outcome.state is PayloadState.COMPLETED:  # who failed has left less, and knows why
        warnings = (*warnings, *selection.warnings())
    return replace(outcome, result=result, warnings=(*outcome.warnings, *warnings)), content


def snapshot(
    source: ReceiptSource, folders: Folders, fd: int | None, to: Path, check_space: CheckSpace
) -> None:
    """Write a ZIP of an attempt as it is now. Raises OSError.

    Args:
        fd: the directory in which it runs; None: the snapshot contains the receipt only.
        check_space: see :func:`client_agent.collect.pack.collect`.
    """
    payload, outcome = source.payload, source.payload.outcome
    at = payload.ended_at or payload.started_at or payload.created_at
    if fd is None:
        collect_extras(to, {}, _receipt(source, outcome, logs=False), at)
        return
    logs = _logs(folders, payload.id)
    made = _receipt(source, outcome)
    try:
        selection = Selection(payload.outputs, source.given)
        collect(
            fd, to, payload.limits, logs, made, check_space=check_space, at=at, selection=selection
        )
    except (ResultsLimitExceeded, PermissionError):
        collect_extras(to, logs, made, at)


def _receipt(
    source: ReceiptSource, outcome: Outcome | None, *, logs: bool = True
) -> Callable[[Contents], bytes]:
    return lambda contents: source.receipt(contents, outcome, logs=logs)


def _logs(folders: Folders, payload_id: int) -> dict[str, Path | bytes]:
    return {
        name: folders.log(payload_id, stream) for name, stream in zip(LOGS, STREAMS, strict=True)
    }


def _with_results_limit(outcome: Outcome, problem: ResultsLimitExceeded) -> Outcome:
    if outcome.state is not PayloadState.COMPLETED:  # the first reason counts
        return replace(outcome, warnings=(*outcome.warnings, f"{Reason.RESULTS_LIMIT}: {problem}"))
    return replace(
        outcome, state=PayloadState.FAILED, reason=Reason.RESULTS_LIMIT, message=str(problem)
    )


def _skipped_warning(collected: Contents) -> str:
    count = len(collected.skipped) + collected.skipped_more
    what = "1 thing is" if count == 1 else f"{count} things are"
    return f"{what} not in the result: see skipped in {collected.names[RECEIPT]}"
