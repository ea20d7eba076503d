"""The documents of services, and what their settings mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from server.domain.access import Visible, visible
from server.domain.service import Service
from server.http.context import Context
from server.http.documents import retry_doc
from server.store import services
from shared.clock import utc
from shared.principals import Principal, Role
from shared.wire import JobState, ServiceDoc

_COUNTED: Final = 10_000
"""Jobs of one state of one service, at most."""


async def gone_documents(principal: Principal, context: Context) -> list[ServiceDoc]:
    """Services that are in no settings any more, and have jobs left that the principal may see."""
    found = [
        await service_document(
            principal, context, Service(one.service, in_file=False, retired=True)
        )
        for one in await context.stages.services.gone()
    ]
    return [one for one in found if one.in_work or one.counts[JobState.QUEUED]]


async def service_document(principal: Principal, context: Context, service: Service) -> ServiceDoc:
    """A service, and how busy it is with the jobs that the principal may see."""
    # An agent has no jobs, and sees how busy a service is as operators do.
    where = Visible() if principal.role is Role.AGENT else visible(principal)
    load = await context.core.database.read_list(services.load, service.name, _COUNTED, where)
    record = service.record
    own: dict[str, Any] = {name: getattr(service, name) or None for name in _TIMES}
    if principal.role is Role.OPERATOR:
        own["env"] = sorted(service.env)
        own["given"] = sorted(service.given)
        own["settings"] = None if service.in_file or record is None else record.settings
    return ServiceDoc(
        name=service.name,
        source="file"
        if service.in_file
        else "api"
        if service.name in context.core.services
        else "none",
        paused=service.paused,
        paused_message=service.paused_message,
        retired=service.retired,
        offered=context.core.registry.offered(service.name),
        trouble=context.core.registry.why_none(service.name, {}),
        counts_up_to=_COUNTED,
        retry=retry_doc(service.retry),
        limits=service.limits,
        changed_at=utc(record.changed_at) if record is not None and record.changed_at else None,
        **{name: getattr(service, name) for name in _SAME},
        **load,
        **own,
    )


_SAME: Final = (
    "runs_per_user",
    "max_runs",
    "queued_per_user",
    "max_retries",
    "infra_retries",
    "retry_later_delay_s",
    "retry_later_limit",
    "on_shutdown",
    "dead_letter",
    "max_children",
    "pack",
)
"""What a document shows under the names that the service has for it."""
_TIMES: Final = (
    "timeout_s",
    "queue_timeout_s",
    "heartbeat_timeout_s",
    "expires_after_s",
    "forget_after_s",
    "dead_letter_expires_after_s",
)
"""Likewise; a limit of 0 is none."""

SERVICE_FIELDS: Final[Mapping[str, tuple[str, object]]] = {
    "runs_per_user": ("jobs of one user that are sent or running at once", 5),
    "max_runs": ("the same, of all users", 10),
    "queued_per_user": ("most jobs of one user that may wait; 0: any number", 0),
    "timeout": ("wall time of an attempt; 0: no limit", "1h"),
    "queue_timeout": ("longest wait without a start; 0: for ever", "0s"),
    "expires_after": ("how long everything is kept after the end; 0: for ever", "2d"),
    "forget_after": ("from the end until a job is forgotten altogether; 0: never", "90d"),
    "heartbeat_timeout": ("longest time without output or heartbeat; 0: off", "0s"),
    "retries": ("how often a failed attempt is repeated", 0),
    "max_retries": ("the most that an upload may ask for", 10),
    "retry_delays": ("before the first, second … retry; the last one repeats", ["10s", "1m"]),
    "backoff": ("how retries are delayed, in place of retry_delays", "exponential"),
    "retry_delay": ("the base of backoff", "30s"),
    "max_retry_delay": ("the longest delay of backoff", "1h"),
    "retry_on": ("reasons and exit codes that are retried", ["timeout", "exit:3"]),
    "no_retry_on": ("those that are not, whatever retry_on says", ["exit:4"]),
    "infra_retries": ("repeats of attempts that were interrupted", 5),
    "retry_later_delay": ("where a job asks to be tried later and says no time", "60s"),
    "retry_later_limit": ("how often one run may ask for that", 100),
    "on_shutdown": ("what a stopping agent does: stop, resubmit or continue", "resubmit"),
    "dead_letter": ("whether jobs that failed for good are kept", False),
    "dead_letter_expires_after": ("or until so long after they ended; 0: for ever", "0s"),
    "max_children": ("most children of one batch", 10_000),
    "pack": ("most children of an array that share a sandbox start; 0: none do", 0),
    "limits": ("what one attempt may use", {"cpus": 1, "memory": "2GiB"}),
    "env": ("variables of its jobs; left out: as they are", {"DATA": "/data"}),
}
"""What ``[services.NAME]`` of the settings file takes, with an example of each."""
