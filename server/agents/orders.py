"""What an agent is asked to run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from server.domain.ending import heartbeat_timeout_s
from server.domain.jobs import Job
from server.domain.service import Service
from server.ports import Inputs
from shared.wire import ArrayTask, InputsInfo, Order, PackTask

MAX_BYTES: Final = 1_000_000
"""Of one request with several: proxies take a mebibyte, unless configured otherwise."""
_ORDER_BYTES: Final = 2_000


def size_in_request(env: Mapping[str, str], meta: str | None) -> int:
    """About as many bytes as an order with these takes in a request."""
    size = sum(6 * (len(name) + len(value)) for name, value in env.items())
    return _ORDER_BYTES + size + 4 * len(meta or "")


def order_of(
    job: Job,
    service: Service,
    server: str,
    *,
    inputs: Inputs | None = None,
    keep_bundle: bool = False,
) -> Order:
    """The order for the job's current attempt.

    Args:
        server: identity of the server's database.
        inputs: that are sent along.
        keep_bundle: more orders of its bundle may come.
    """
    assert job.bundle is not None, "only Cleaned jobs have none"
    array = None
    if job.array_index is not None:
        array = ArrayTask(index=job.array_index, file=job.array_file)
    return Order(
        server=server,
        key=str(job.key),
        service=job.service,
        user_id=job.user_id,
        timeout_s=job.timeout_s,
        limits=job.limits,
        bundle_digest=job.bundle.digest,
        bundle_size=job.bundle.size,
        heartbeat_timeout_s=heartbeat_timeout_s(job, service),
        on_shutdown=service.on_shutdown,
        env=dict(service.env),
        folder=job.bundle_folder,
        entry=job.entry,
        array=array,
        inputs=None if inputs is None else InputsInfo(size=inputs.size, sha256=inputs.sha256),
        outputs=list(job.outputs),
        result_files=job.result_files,
        pack=_pack_of(job, service),
        meta=job.meta or "",
        keep_bundle=keep_bundle,
        try_number=job.earlier_starts + 1,
    )


def _pack_of(job: Job, service: Service) -> PackTask | None:
    """Only tasks of an array are packed."""
    if service.pack <= 1 or job.parent_id is None or job.array_index is None:
        return None
    return PackTask(batch=job.parent_id, most=service.pack)
