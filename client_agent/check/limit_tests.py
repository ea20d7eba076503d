"""Tests each limit with a small job that tries to exceed it.

Each job is harmless if the limit does not work: it uses a few MB and ends within seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from client_agent.check.table import Row, Table
from client_agent.collect.contents import ResultsLimitExceeded
from client_agent.collect.pack import collect
from client_agent.sandbox.base import (
    HARD,
    NONE,
    Ended,
    Grant,
    Launch,
    Sandbox,
    SandboxBroken,
    SelfTestReport,
)
from shared.wire import Limits, Reason

MIB: Final = 1 << 20
_LIMITS: Final = Limits(
    cpus=1.0, memory=64 * MIB, pids=32, disk=16 * MIB, log=1 << 16, results=16 * MIB
)
_NO_GRANT: Final = Grant()


@dataclass(frozen=True, slots=True)
class _TestRun:
    ended: Ended
    stdout: str
    stderr: str
    stored: int
    """Bytes of stdout that were stored."""
    results: ResultsLimitExceeded | None


@dataclass(frozen=True, slots=True)
class _LimitTest:
    limit: str
    script: str
    passes: Callable[[_TestRun, bool], bool]
    """Called with the run, and whether the limit is hard."""
    limits: Limits = field(default=_LIMITS)
    timeout_s: float = 5.0


def _ended_by(reason: Reason) -> Callable[[_TestRun, bool], bool]:
    return lambda seen, hard: seen.ended.reason is reason


_LIMIT_TESTS: Final = (
    _LimitTest(
        "memory",
        "head -c 160M /dev/zero | tail -c 150M >/dev/null; exit ${PIPESTATUS[1]}",
        lambda seen, hard: (
            seen.ended.reason is Reason.MEMORY_LIMIT
            or (not hard and seen.ended.exit_code not in (0, None))
        ),
    ),
    _LimitTest(
        "pids",
        "for i in {1..60}; do sleep 4 & done 2>&1; wait",
        lambda seen, hard: (
            any(w.startswith("pids_limit") for w in seen.ended.warnings)
            or (not hard and "fork" in seen.stdout + seen.stderr)
        ),
        timeout_s=1.0,
    ),
    _LimitTest(
        "cpu",
        "while :; do :; done & while :; do :; done",
        lambda seen, hard: (
            seen.ended.usage.cpu_s is not None
            and (not hard or seen.ended.usage.cpu_s < 0.7)
            and seen.ended.reason in (Reason.TIMEOUT, Reason.CPU_LIMIT)
        ),
        _LIMITS.model_copy(update={"cpus": 0.2}),
        timeout_s=1.5,
    ),
    _LimitTest("wall", "sleep 20", _ended_by(Reason.TIMEOUT), timeout_s=0.2),
    _LimitTest(
        "disk",
        "for i in {1..12}; do head -c 2M /dev/zero >$i || break; done",
        _ended_by(Reason.DISK_LIMIT),
    ),
    _LimitTest(
        "log",
        "head -c 1M /dev/zero",
        lambda seen, hard: (
            seen.stored <= _LIMITS.log + 100
            and any(w.startswith("log_truncated") for w in seen.ended.warnings)
        ),
    ),
    _LimitTest(
        "results",
        "head -c 2M /dev/zero >big",
        lambda seen, hard: seen.results is not None and seen.results.what == "bytes",
        _LIMITS.model_copy(update={"results": MIB}),
    ),
    _LimitTest(
        "files",
        "n=0; while [ $n -lt 5000 ] && exec {fd}</dev/null; do n=$((n+1)); done 2>/dev/null; "
        'echo "opened $n"; ulimit -c',
        lambda seen, hard: (
            0 < int((seen.stdout.split() or ["", "0"])[1]) < 5000 and seen.stdout.endswith("\n0\n")
        ),
    ),
)


async def check(sandbox: Sandbox, folder: Path, grants: Mapping[str, Grant]) -> Table:
    """Run the self-test, and test every limit.

    Args:
        sandbox: nothing else may run in it.
        folder: for logs; it exists and is empty.
        grants: service -> its grant.
    """
    try:
        report = await sandbox.self_test()
    except SandboxBroken as problem:
        return Table(None, advice=(str(problem),))
    rows = [_isolation(report)]
    for test in _LIMIT_TESTS:
        enforcement = report.enforcement.get(test.limit, NONE)
        test_run = _limit(sandbox, folder, test, enforcement)
        rows.append(await _row(test.limit, enforcement, test_run))
    enforcement = report.enforcement.get("network", NONE)
    rows.append(await _row("network", enforcement, _network(sandbox, folder, enforcement)))
    for service, grant in grants.items():
        rows.append(await _row(f"service {service}", "opened", _service(sandbox, folder, grant)))
    return Table(report, tuple(rows), tuple(report.advice))


def _isolation(report: SelfTestReport) -> Row:
    """The row of the self-test, which has passed: otherwise there is no table."""
    enforcement = report.enforcement.get("isolation", NONE)
    if enforcement == NONE:
        seen = "no sandbox: bundles can do whatever the user that they run as can do"
    else:
        seen = ", ".join(check.replace("_", " ") for check in report.checks)
    return Row("isolation", enforcement, passed=True, seen=seen)


async def _row(limit: str, enforcement: str, test_run: Awaitable[tuple[bool, str]]) -> Row:
    """The row of a test: whether it passed, and what happened. If it cannot be run, it failed."""
    try:
        passed, seen = await test_run
    except (SandboxBroken, OSError) as problem:
        passed, seen = False, str(problem)
    return Row(limit, enforcement, passed, seen)


async def _limit(
    sandbox: Sandbox, folder: Path, test: _LimitTest, enforcement: str
) -> tuple[bool, str]:
    """Whether a limit works as reported."""
    seen = await _run(sandbox, test, folder)
    passed = enforcement == NONE or test.passes(seen, enforcement == HARD)
    return passed, _summary(test, seen)


async def _service(sandbox: Sandbox, folder: Path, grant: Grant) -> tuple[bool, str]:
    """Whether a job starts with the grant of its service, and can use it."""
    targets = [target for _, target in grant.read_only]
    what = [*targets, *sorted(grant.allow), *(["the host's network"] if grant.network else [])]
    test = _LimitTest(
        "service",
        'for place; do [ -e "$place" ] && [ ! -w "$place" ] || { echo "$place"; exit 1; }; done',
        lambda seen, hard: seen.ended.exit_code == 0,
        _LIMITS.model_copy(update={"network": grant.network}),
    )
    seen = await _run(sandbox, test, folder, grant)
    if not test.passes(seen, True):
        return False, f"cannot be used: {seen.stdout.strip() or seen.ended.message}"
    return True, f"has {', '.join(what) or 'variables'}"


async def _network(sandbox: Sandbox, folder: Path, enforcement: str) -> tuple[bool, str]:
    """Whether a job reaches a port of this host's loopback."""
    reached = asyncio.Event()

    async def on_connect(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.set()
        writer.close()

    server = await asyncio.start_server(on_connect, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        test = _LimitTest("network", f"exec 3<>/dev/tcp/127.0.0.1/{port}", lambda s, h: True)
        await _run(sandbox, test, folder)
    seen = "reached a port of this host" if reached.is_set() else "reached nothing of this host"
    return reached.is_set() == (enforcement == NONE), seen


async def _run(
    sandbox: Sandbox, test: _LimitTest, folder: Path, grant: Grant = _NO_GRANT
) -> _TestRun:
    launch = Launch(
        ["bash", "-c", test.script, "check", *(target for _, target in grant.read_only)],
        {},
        timeout_s=test.timeout_s,
        grace_s=0.2,
        stdout=folder / f"{test.limit}.out",
        stderr=folder / f"{test.limit}.err",
        grant=grant,
    )
    workspace = await sandbox.prepare(f"check-{test.limit}", 0, test.limits)
    try:
        process = await workspace.start(launch)
        process.go()
        ended = await process.wait()
        results: ResultsLimitExceeded | None = None
        packed = folder / f"{test.limit}.zip"
        if ended.certain:
            try:
                await asyncio.to_thread(
                    collect, workspace.fd, packed, test.limits, {}, lambda _: b"{}\n"
                )
            except ResultsLimitExceeded as problem:
                results = problem
        stored = launch.stdout.stat().st_size
        with launch.stdout.open("rb") as file:
            stdout = file.read(4096).decode(errors="replace")
        with launch.stderr.open("rb") as file:
            stderr = file.read(4096).decode(errors="replace")
    finally:
        await workspace.destroy()
        for path in (launch.stdout, launch.stderr, folder / f"{test.limit}.zip"):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
    return _TestRun(ended, stdout, stderr, stored, results)


def _summary(test: _LimitTest, seen: _TestRun) -> str:
    ended = seen.ended
    of_limit = [w for w in ended.warnings if w.startswith((f"{test.limit}_limit", "log_trunc"))]
    if of_limit:
        return of_limit[0]
    if test.limit == "results" and seen.results is not None:
        return f"{Reason.RESULTS_LIMIT}: {seen.results}"
    if test.limit == "pids" and "fork" in seen.stdout:
        return "new processes were refused"
    if ended.reason not in (None, Reason.EXIT_CODE):
        return f"{ended.reason}: {ended.message}"
    output = (seen.stdout + seen.stderr).strip().splitlines()
    return f"exit code {ended.exit_code}" + (f": {output[0]}" if output else "")
