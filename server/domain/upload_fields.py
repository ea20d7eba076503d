"""The text fields of an upload: what each may be, and what a form asks for by them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from server.domain.access import check_may_read, check_upload
from server.domain.errors import BadField, FerrymanError
from server.domain.field_values import MAX_TAGS, VALUES, Later, check_length, hint
from server.domain.jobs import BatchRequest, Job, Wanted
from server.domain.retry import RetryPolicy, left_out
from server.domain.service import Service
from shared.principals import Principal, Role
from shared.settings.limits import FIELDS, SIZES, lowered, parse_limit
from shared.units.durations import say_duration
from shared.units.sizes import say_size
from shared.wire import Limits

USER_ID: Final = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")
NEEDED: Final = ("user_id", "service")
OPTIONAL: Final = (*VALUES, *FIELDS)
_MAY_BE_EMPTY: Final = (*OPTIONAL, "file", "bundle")
"""Swagger's page sends the fields of files as empty text while no file is chosen in them."""
HEADER: Final = "idempotency_key"
"""Comes as the header ``Idempotency-Key``."""
_POLICY: Final = {
    "retries": "retries",
    "retry_delays": "delays_s",
    "backoff": "backoff",
    "retry_delay": "delay_s",
    "max_retry_delay": "max_delay_s",
    "retry_on": "retry_on",
    "no_retry_on": "no_retry_on",
}
"""Field of an upload -> of the policy."""
_SAME: Final = (
    *("name", "tags", "not_before", "priority", "meta", "after", "inputs_from", "callback_url"),
    *("outputs", "result_files"),
)
_WANTED: Final = {name: name for name in _SAME} | {
    "queue_timeout": "queue_timeout_s",
    "heartbeat_timeout": "heartbeat_timeout_s",
    "expires_after": "expires_after_s",
}
"""Field of an upload -> of what it asks for."""


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
    """Refuse a field as soon as it is known to be wrong, or not the principal's to give.

    Returns:
        What an optional field means; None for other ones, and for what was left empty.

    Raises:
        BadField, NotAllowed
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
            known = (*NEEDED, *OPTIONAL)
            message = f"Unknown field {name[:64]!r}; {hint(name, known)}"
            raise BadField(name[:64], "unknown_field", message)
    return None


def _value(name: str, text: str) -> Any:
    try:
        check_length(name, text)
        return parse_limit(name, text) if name in FIELDS else VALUES[name](text)
    except ValueError as problem:
        raise BadField(name, f"invalid_{name}", f"Invalid {name}: {problem}") from None


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
    values = {name: read[name] for name in VALUES if name in fields}
    service = services[fields["service"]]
    # Lowered, never raised: the service's own limits are the operator's word.
    warnings: list[str] = []
    for name, most in (
        ("timeout", service.timeout_s),
        ("queue_timeout", service.queue_timeout_s),
        ("heartbeat_timeout", service.heartbeat_timeout_s),
        ("expires_after", service.expires_after_s),
        ("retries", service.max_retries),
    ):
        no_limit = name != "retries" and not most
        if name in values and not no_limit and (values[name] > most or _is_unlimited(name, values)):
            shown = f"{most}" if name == "retries" else say_duration(most)
            warnings.append(_cut(name, fields, shown, service))
            values[name] = most
    limits = lowered(service.limits, fields)
    for name in FIELDS:
        if name in fields and (most := getattr(limits, name)) < parse_limit(name, fields[name]):
            shown = say_size(most) if name in SIZES else f"{most:g}"
            warnings.append(_cut(name, fields, shown, service))
    retry = _policy(values, service)
    if retry is not None and retry.retries and "retry_on" in values:
        without = left_out(service.retry.retry_on, retry.retry_on)
        if without:
            warnings.append(
                f"retry_on: {', '.join(sorted(retry.retry_on)) or 'an empty list'} leaves out "
                f"{', '.join(without)}, which service {service.name} tries again"
            )
    return UploadRequest(
        fields["user_id"],
        service,
        values.get("timeout", service.timeout_s),
        limits,
        idempotency_key=fields.get(HEADER),
        upload_warnings=tuple(warnings),
        retry=retry,
        batch=_batch(values, service),
        **{name: values[field] for field, name in _WANTED.items() if field in values},
    )


def _is_unlimited(name: str, values: Mapping[str, Any]) -> bool:
    """0 means "no limit" there."""
    return name != "retries" and not values[name]


def _policy(values: Mapping[str, Any], service: Service) -> RetryPolicy | None:
    """The service's with what the upload says in its place; None: it says nothing."""
    asked = {field: values[name] for name, field in _POLICY.items() if name in values}
    if not asked:
        return None
    both = [name for name in ("retry_delays", "backoff") if name in values]
    if len(both) > 1:
        message = "Invalid backoff: give retry_delays or backoff, not both"
        raise BadField("backoff", "invalid_backoff", message)
    rules = service.retry
    for name in ("retry_delay", "max_retry_delay"):
        if name in values and (
            "retry_delays" in values or not values.get("backoff", rules.backoff)
        ):
            message = (
                f"Invalid {name}: it belongs to a backoff, and this job has none; "
                "give backoff, too, such as exponential"
            )
            raise BadField(name, f"invalid_{name}", message)
    start = {name: getattr(rules, name) for name in _POLICY.values()}
    if "retry_delays" in values:
        start["backoff"] = None
    return RetryPolicy(**start | asked)


def _batch(values: Mapping[str, Any], service: Service) -> BatchRequest | None:
    # Without an array, the rest is for the children that run.sh may leave.
    if not {"array", "array_file", "max_parallel", "batch_policy"} & set(values):
        return None
    if "array" in values and "array_file" in values:
        message = "Invalid array_file: give array or array_file, not both"
        raise BadField("array_file", "invalid_array_file", message)
    batch = BatchRequest(
        values.get("array", ()),
        values.get("array_file"),
        values.get("max_parallel", 0),
        values.get("batch_policy") == "fail_fast",
    )
    check_children("array", batch.total, service)
    return batch


def check_children(field: str, count: int, service: Service) -> None:
    """Refuse more children than the service allows one batch. Raises BadField."""
    if count > service.max_children:
        raise BadField(
            field,
            f"invalid_{field}",
            f"Invalid {field}: {count} tasks, service {service.name} allows {service.max_children}",
        )


def _cut(name: str, fields: Mapping[str, str], most: str, service: Service) -> str:
    return f"{name}: {fields[name]} was asked for, service {service.name} allows {most}"


class TooManyTags(FerrymanError):
    code = "too_many_tags"

    def __init__(self, job_id: int, count: int) -> None:
        super().__init__(f"job {job_id} would have {count} tags, it may have {MAX_TAGS}")


def with_tags(
    job: Job, add: Collection[str], remove: Collection[str]
) -> tuple[str, ...] | TooManyTags:
    """The job's tags after a change: those that it keeps, in their order, then new ones."""
    kept = dict.fromkeys(tag for tag in job.tags if tag not in remove)
    tags = (*kept, *(tag for tag in dict.fromkeys(add) if tag not in kept))
    return tags if len(tags) <= MAX_TAGS else TooManyTags(job.id, len(tags))
