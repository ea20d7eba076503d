"""The text fields of an upload: what each may be, and what a form asks for by them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from server.domain.access import check_upload
from server.domain.errors import BadField
from server.domain.service import Service
from shared.principals import Principal
from shared.settings.limits import FIELDS, SIZES, lowered, parse_limit
from shared.units.durations import parse_duration, say_duration
from shared.units.sizes import say_size
from shared.wire import Limits

USER_ID: Final = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_TAG: Final = re.compile(r"[^\s,\x00-\x1f\x7f]{1,64}")
_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")
NEEDED: Final = ("user_id", "service")
OPTIONAL: Final = ("name", "tags", "timeout", *FIELDS)
HEADER: Final = "idempotency_key"
"""Comes as the header ``Idempotency-Key``."""


@dataclass(frozen=True, slots=True)
class UploadRequest:
    """What an upload asks for, checked."""

    user_id: str
    service: Service
    timeout_s: float
    limits: Limits
    name: str | None
    tags: tuple[str, ...]
    idempotency_key: str | None
    warnings: tuple[str, ...] = ()
    """What it asked for and does not get."""


def given(fields: Mapping[str, str]) -> dict[str, str]:
    """Without optional fields that were left empty, as browsers send them."""
    return {name: value for name, value in fields.items() if value or name not in OPTIONAL}


def check_field(
    name: str, value: str, services: Mapping[str, Service], principal: Principal
) -> None:
    """Refuse a field as soon as it is known to be wrong, or not the principal's to give.

    Raises:
        BadField, NotAllowed
    """
    if name in OPTIONAL and not value:
        return
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
        case "service" if value not in services:
            offered = ", ".join(sorted(services)) or "none"
            raise BadField(
                name,
                "unknown_service",
                f"Invalid service {value[:64]!r}; this server has: {offered}"
                if value
                else "Missing service field",
            )
        case "timeout":
            try:
                seconds = parse_duration(value)
            except ValueError as problem:
                raise BadField(name, "invalid_timeout", f"Invalid timeout: {problem}") from None
            if not seconds:
                raise BadField(name, "invalid_timeout", "Invalid timeout: it must be above 0")
        case _ if name in FIELDS:
            try:
                parse_limit(name, value)
            except ValueError as problem:
                raise BadField(name, f"invalid_{name}", f"Invalid {name}: {problem}") from None
        case "name" if len(value) > 200 or not value.isprintable():
            raise BadField(
                name, "invalid_name", "Invalid name, should be up to 200 printable characters"
            )
        case "tags":
            tags = _tags(value)
            if len(tags) > 16 or not all(_TAG.fullmatch(tag) for tag in tags):
                raise BadField(
                    name,
                    "invalid_tags",
                    "Invalid tags, should be up to 16 words of up to 64 characters, "
                    "separated by commas",
                )
        case "idempotency_key" if not _KEY.fullmatch(value):
            raise BadField(
                name,
                "invalid_idempotency_key",
                "Invalid Idempotency-Key, should be 1 to 255 visible ASCII characters",
            )
        case _ if name not in (*NEEDED, *OPTIONAL, HEADER):
            known = (*NEEDED, *OPTIONAL)
            near = difflib.get_close_matches(name[:32], known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise BadField(name[:64], "unknown_field", f"Unknown field {name[:64]!r}; {hint}")


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
    for name, value in fields.items():
        check_field(name, value, services, principal)
    fields = given(fields)
    service = services[fields["service"]]
    # Lowered, never raised: the service's own limits are the operator's word.
    timeout_s, warnings = service.timeout_s, []
    if "timeout" in fields:
        asked = parse_duration(fields["timeout"])
        timeout_s = min(timeout_s, asked)
        if timeout_s < asked:
            warnings.append(_cut("timeout", fields, say_duration(timeout_s), service))
    limits = lowered(service.limits, fields)
    for name in FIELDS:
        if name in fields and (most := getattr(limits, name)) < parse_limit(name, fields[name]):
            shown = say_size(most) if name in SIZES else f"{most:g}"
            warnings.append(_cut(name, fields, shown, service))
    return UploadRequest(
        fields["user_id"],
        service,
        timeout_s,
        limits,
        fields.get("name") or None,
        _tags(fields.get("tags", "")),
        fields.get(HEADER),
        tuple(warnings),
    )


def _cut(name: str, fields: Mapping[str, str], most: str, service: Service) -> str:
    return f"{name}: {fields[name]} was asked for, service {service.name} allows {most}"


def _tags(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(tag for part in text.split(",") if (tag := part.strip())))
