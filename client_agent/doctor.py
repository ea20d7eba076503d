"""``ferryman agent doctor``: looks at the host of an agent."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from client_agent import app as agent
from client_agent.settings.agent import AgentSection
from shared import findings
from shared.clock import Clock
from shared.findings import DAMAGED, UNAVAILABLE, Finding
from shared.sqlite.copies import check_structure
from shared.units.sizes import say_size


def examine(settings: AgentSection, file: Path | None, clock: Clock) -> Iterator[Finding]:
    """All findings; nothing is changed. The sandbox is tested as by ``ferryman agent check``.

    Args:
        file: of the settings, to name it.
    """
    yield findings.of_settings(file, f"agent {settings.name}, version {agent.version()}")
    yield from findings.of_folder(settings.data_dir, settings.min_free)
    pid = findings.holder(settings.data_dir)
    running = f"process {pid} works with it" if pid else "nobody works with it now"
    yield Finding("lock", "ok", running)
    yield _database(settings)
    yield findings.of_port(settings.host, settings.port, pid)
    yield findings.of_open_files()
    yield from findings.of_secrets(
        [settings.tokens_file, settings.metrics_tokens_file, settings.tls_key], settings.data_dir
    )
    yield from findings.of_certificate(settings.tls_cert, clock)
    yield from _sandbox(settings, clock)


def _database(settings: AgentSection) -> Finding:
    path = settings.database or settings.data_dir / "agent.sqlite"
    if not path.exists():
        return Finding("database", "ok", f"{path} will be made at the first start")
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5)
        try:
            check_structure(connection)
        finally:
            connection.close()
    except (sqlite3.Error, OSError) as problem:
        hint = "stop the agent and move the file away: its jobs are tried again elsewhere"
        return Finding("database", "problem", f"{path}: {problem}", hint, DAMAGED)
    return Finding("database", "ok", f"{say_size(path.stat().st_size)}, whole")


def _sandbox(settings: AgentSection, clock: Clock) -> Iterator[Finding]:
    try:
        table = asyncio.run(agent.check(settings, clock, keep=False))
    except OSError as problem:
        yield Finding("sandbox", "problem", str(problem), "ferryman agent check", UNAVAILABLE)
        return
    advice = "; ".join(table.advice) or "ferryman agent check"
    if table.report is None:
        yield Finding("sandbox", "problem", "it cannot be used", advice, UNAVAILABLE)
        return
    yield Finding("sandbox", "ok", f"{table.report.backend} {table.report.version}".strip())
    for row in table.rows:
        if not row.passed:
            yield Finding(f"limit {row.limit}", "problem", f"it does not hold: {row.seen}", advice)
    weak = [row.limit for row in table.rows if row.passed and row.enforcement in ("soft", "none")]
    if weak:
        text = f"a job can get around these: {', '.join(weak)}"
        yield Finding("limits", "warning", text, advice)
    elif table.passed:
        yield Finding("limits", "ok", "each one holds")
