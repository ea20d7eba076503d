"""What the log says at start of a sandbox that holds less than it could."""

from __future__ import annotations

import structlog

from client_agent.sandbox.base import SOFT, SelfTestReport
from client_agent.sandbox.grants import Grants

log: structlog.stdlib.BoundLogger = structlog.get_logger()


def warn(backend: str, report: SelfTestReport, grants: Grants) -> None:
    """Log what jobs can do that an operator should know about."""
    if backend == "none":
        log.warning("sandbox.none", advice="bundles run with all rights of this user")
    soft = [name for name, how in report.enforcement.items() if how == SOFT]
    if soft:
        log.warning("sandbox.soft_limits", limits=soft, advice=list(report.advice))
    if grants.networked:
        advice = "jobs reach what this host reaches, this agent's own port included"
        log.warning("sandbox.network", services=grants.networked, advice=advice)
