"""The two ends of an attempt on disk: unpacking its bundle, packing what it left. Blocking."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from client_agent.collect import receipt
from client_agent.collect.contents import Collected, Contents, ResultsLimit
from client_agent.collect.pack import RECEIPT, Room, collect, collect_extras
from client_agent.payloads.payload import Outcome, Payload
from client_agent.run import outcome
from client_agent.sandbox.base import Grant, Report, Workspace
from client_agent.sandbox.host import HARD
from client_agent.storage.folders import STREAMS, Folders
from shared.clock import iso
from shared.files.bundles.reader import BundleReader
from shared.units.sizes import say_size
from shared.wire import PayloadState, Reason, ResultInfo

S = PayloadState

LOGS: Final = tuple(f"{stream}.log" for stream in STREAMS)
_TAIL_READ: Final = 1 << 13
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class DoesNotFit(Exception):
    """The bundle alone is more than what the attempt may have on its disk."""


@dataclass(frozen=True, slots=True)
class Attempted:
    """What a receipt tells."""

    payload: Payload
    outcome: Outcome | None
    """None: it has not ended."""
    agent: str
    version: str
    sandbox: Report
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


def unpack(bundle: Path, payload: Payload, workspace: Workspace) -> None:
    """Write the bundle's files into the directory of the attempt.

    Raises:
        DoesNotFit
        BundleError: the stored bundle is not what was taken.
        OSError
    """
    own_disk = workspace.enforcement.get("disk") == HARD
    with BundleReader(bundle) as reader:
        size = sum(entry.size for entry in reader.entries)
        disk = say_size(payload.limits.disk)
        if size > payload.limits.disk:
            raise DoesNotFit(f"the bundle has {say_size(size)}, the job's disk limit is {disk}")
        names = _names(entry.path for entry in reader.entries)
        most = os.fstatvfs(workspace.fd).f_favail if own_disk else names
        if names > most:
            raise DoesNotFit(
                f"the bundle has {names} files and folders, and the job's disk of {disk} "
                f"can hold {most}"
            )
        try:
            reader.unpack(
                workspace.fd, uid=workspace.uid, gid=workspace.gid, digest=payload.bundle_digest
            )
        except OSError as problem:
            if own_disk and problem.errno in _FULL:
                why = f"the bundle does not fit on the job's disk of {disk}: each file takes blocks"
                raise DoesNotFit(why) from None
            raise


def _names(paths: Iterable[str]) -> int:
    """Files, and the folders that they are in."""
    files, folders = 0, set[str]()
    for path in paths:
        files += 1
        while (path := path.rpartition("/")[0]) and path not in folders:
            folders.add(path)
    return files + len(folders)


def pack(attempted: Attempted, told: Outcome, folders: Folders, fd: int) -> Outcome:
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
    told = replace(told, stderr_tail=_tail(folders.log(payload.id, "stderr")))
    staged, at = folders.staging(), told.ended_at or payload.created_at
    try:
        try:
            collected = collect(
                fd, staged, payload.limits, logs, _receipt(attempted, told, logs=True), at=at
            )
        except ResultsLimit as problem:
            told = _too_much(told, problem)
            collected = collect_extras(staged, logs, _receipt(attempted, told, logs=True), at)
        folders.seal_result(staged, payload.id)
    except BaseException:
        folders.discard(staged)
        raise
    told = replace(told, result=ResultInfo(size=collected.size, sha256=collected.sha256))
    warnings = collected.not_portable.warnings()
    if collected.skipped:
        warnings = (*warnings, _skipped(collected))
    return replace(told, warnings=(*told.warnings, *warnings))


def snapshot(attempted: Attempted, folders: Folders, fd: int | None, to: Path, room: Room) -> None:
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
        collect(fd, to, payload.limits, logs, made, room=room, at=at)
    except (ResultsLimit, PermissionError):
        collect_extras(to, logs, made, at)


def _receipt(
    attempted: Attempted, told: Outcome | None, *, logs: bool
) -> Callable[[Contents], bytes]:
    about = replace(attempted, outcome=told)
    return lambda contents: about.receipt(contents, logs=logs)


def _logs(folders: Folders, payload_id: int) -> dict[str, Path | bytes]:
    return {
        name: folders.log(payload_id, stream) for name, stream in zip(LOGS, STREAMS, strict=True)
    }


def _too_much(told: Outcome, problem: ResultsLimit) -> Outcome:
    if told.state is not S.COMPLETED:  # the first cause stands
        return replace(told, warnings=(*told.warnings, f"{Reason.RESULTS_LIMIT}: {problem}"))
    return replace(told, state=S.FAILED, reason=Reason.RESULTS_LIMIT, message=str(problem))


def _skipped(collected: Collected) -> str:
    count = len(collected.skipped) + collected.skipped_more
    what = "1 thing is" if count == 1 else f"{count} things are"
    return f"{what} not in the result: see skipped in {collected.names[RECEIPT]}"


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL_READ))
            return outcome.last_lines(file.read())
    except OSError:
        return ""
