"""The text fields of an upload: what each may be, and what a form asks for by them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from server.domain.access import check_may_read, check_upload
from server.domain.errors import BadField, Conflict, invalid
from server.domain.field_values import FIELDS, MAX_TAGS, Later, unknown_field
from server.domain.jobs import BatchRequest, Job, Wanted
from server.domain.retry import RetryPolicy, left_out
from server.domain.service import Service
from shared.principals import Principal, Role
from shared.settings.limits import FIELDS as LIMITS
from shared.settings.limits import SIZES
from shared.units.durations import say_duration
from shared.units.sizes import say_size
from shared.wire import Limits

USER_ID: Final = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")
NEEDED: Final = ("user_id", "service")
OPTIONAL: Final = tuple(FIELDS)
_MAY_BE_EMPTY: Final = (*OPTIONAL, "file", "bundle")
"""Swagger's page sends the fields of files as empty text while no file is chosen in them."""
HEADER: Final = "idempotency_key"
"""Comes as the header ``Idempotency-Key``."""
POLICY: Final = {
    name: one.asks.removeprefix("retry.")
    for name, one in FIELDS.items()
    if one.asks.startswith("retry.")
}
"""Field of an upload, and key of a service's settings -> of the policy."""
_TIMES: Final = ("timeout", "queue_timeout", "heartbeat_timeout", "expires_after")


@dataclass(frozen=True, slots=True)
class UploadRequest(Wanted):
    """What an upload asks for, checked."""

    user_id: str
    service: Service
    timeout_s: float
    limits: Limits
    not_before: Later | None = None
    idempotency_key: str | None = None
    batch: BatchRequest | None = None
    """Without ranges where a file of the bundle says how many, or run.sh does."""


def given(fields: Mapping[str, str]) -> dict[str, str]:
    """Without optional fields that were left empty, as browsers send them."""
    return {name: value for name, value in fields.items() if value or name not in _MAY_BE_EMPTY}


def check_field(
    name: str, value: str, services: Mapping[str, Service], principal: Principal
) -> Any:
    """Refuse a field as soon as it is known to be wrong, or not the principal's to give. Raises
    BadField, NotAllowed.

    Returns:
        What an optional field means; None for other ones, and for what was left empty.
    """
    if name in _MAY_BE_EMPTY and not value:
        return None
    match name:
        case "user_id" if not USER_ID.fullmatch(value):
            raise BadField(
                name,
                "invalid_user_id",
                "Invalid user_id, should be 1 to 64 characters of A-Z a-z 0-9 . _ @ -"
                if value
                else "Missing user_id field",
            )
        case "user_id":
            check_upload(principal, value)
        case "service" if value not in services or services[value].retired:
            names = (one.name for one in services.values() if not one.retired)
            offered = ", ".join(sorted(names)) or "none"
            raise BadField(
                name,
                "unknown_service",
                f"Invalid service {value[:64]!r}; this server has: {offered}"
                if value
                else "Missing service field",
            )
        case "inputs_from" if principal.role is not Role.TICKET:
            check_may_read(principal, name)  # its script can print what it gets
            return _value(name, value)
        case _ if name in OPTIONAL:
            return _value(name, value)
        case "idempotency_key" if not _KEY.fullmatch(value):
            raise BadField(
                name,
                "invalid_idempotency_key",
                "Invalid Idempotency-Key, should be 1 to 255 visible ASCII characters",
            )
        case _ if name not in (*NEEDED, HEADER):
            raise unknown_field(name, (*NEEDED, *OPTIONAL))
    return None


def _value(name: str, text: str) -> Any:
    try:
        return FIELDS[name].read(text)
    except ValueError as problem:
        raise invalid(name, str(problem)) from None


def upload_request(
    fields: Mapping[str, str], services: Mapping[str, Service], principal: Principal
) -> UploadRequest:
    """What a complete form asks for.

    Raises:
        BadField: the first field that is missing or wrong.
        NotAllowed
    """
    for needed in NEEDED:
        if not fields.get(needed):
            raise BadField(needed, f"missing_{needed}", f"Missing {needed} field")
    read = {name: check_field(name, value, services, principal) for name, value in fields.items()}
    fields = given(fields)
    values = {name: read[name] for name in FIELDS if name in fields}
    service = services[fields["service"]]
    # Lowered, never raised: the service's own limits are the operator's word.
    warnings: list[str] = []
    for name, most in _most(service).items():
        is_time = name in _TIMES  # of which 0 is no limit
        if name not in values or (is_time and not most):
            continue
        if values[name] > most or (is_time and not values[name]):
            shown = f"{most:g}" if isinstance(most, float) else f"{most}"
            shown = say_duration(most) if is_time else say_size(most) if name in SIZES else shown
            asked = f"{fields[name]} was asked for"
            warnings.append(f"{name}: {asked}, service {service.name} allows {shown}")
            values[name] = most
    retry = _policy(values, service)
    if retry is not None and retry.retries and "retry_on" in values:
        without = left_out(service.retry.retry_on, retry.retry_on)
        if without:
            warnings.append(
                f"retry_on: {', '.join(sorted(retry.retry_on)) or 'an empty list'} leaves out "
                f"{', '.join(without)}, which service {service.name} tries again"
            )
    asked_for = {one.asks: values[name] for name, one in FIELDS.items() if name in values}
    wanted = {name: value for name, value in asked_for.items() if name and "." not in name}
    return UploadRequest(
        fields["user_id"],
        service,
        wanted.pop("timeout_s", service.timeout_s),
        service.limits.model_copy(update={name: values[name] for name in LIMITS if name in values}),
        idempotency_key=fields.get(HEADER),
        upload_warnings=tuple(warnings),
        retry=retry,
        batch=_batch(values, service),
        **wanted,
    )


def _most(service: Service) -> dict[str, float]:
    """Field -> the most that an upload may ask for."""
    of_times = {name: getattr(service, f"{name}_s") for name in _TIMES}
    of_limits = {name: getattr(service.limits, name) for name in LIMITS}
    return of_times | {"retries": service.max_retries} | of_limits


def _policy(values: Mapping[str, Any], service: Service) -> RetryPolicy | None:
    """The service's with what the upload says in its place; None: it says nothing."""
    asked = {field: values[name] for name, field in POLICY.items() if name in values}
    if not asked:
        return None
    both = [name for name in ("retry_delays", "backoff") if name in values]
    if len(both) > 1:
        raise invalid("backoff", "give retry_delays or backoff, not both")
    rules = service.retry
    for name in ("retry_delay", "max_retry_delay"):
        if name in values and (
            "retry_delays" in values or not values.get("backoff", rules.backoff)
        ):
            why = "it belongs to a backoff, and this job has none; give backoff, too, such as "
            raise invalid(name, f"{why}exponential")
    if "retry_delays" in values:
        asked["backoff"] = None
    return replace(rules, **asked)


def _batch(values: Mapping[str, Any], service: Service) -> BatchRequest | None:
    # Without an array, the rest is for the children that run.sh may leave.
    if not {"array", "array_file", "max_parallel", "batch_policy"} & set(values):
        return None
    if "array" in values and "array_file" in values:
        raise invalid("array_file", "give array or array_file, not both")
    batch = BatchRequest(
        values.get("array", ()),
        values.get("array_file"),
        values.get("max_parallel", 0),
        values.get("batch_policy") == "fail_fast",
    )
    check_children("array", batch.tasks, service)
    return batch


def check_children(field: str, count: int, service: Service) -> None:
    """Refuse more children than the service allows one batch. Raises BadField."""
    if count > service.max_children:
        why = f"{count} tasks, service {service.name} allows {service.max_children}"
        raise invalid(field, why)


def with_tags(job: Job, add: Collection[str], remove: Collection[str]) -> tuple[str, ...]:
    """The job's tags after a change: those that it keeps, in their order, then new ones. Raises
    Conflict.
    """
    kept = dict.fromkeys(tag for tag in job.tags if tag not in remove)
    tags = (*kept, *(tag for tag in dict.fromkeys(add) if tag not in kept))
    if len(tags) > MAX_TAGS:
        message = f"job {job.id} would have {len(tags)} tags, it may have {MAX_TAGS}"
        raise Conflict("too_many_tags", message)
    return tags
