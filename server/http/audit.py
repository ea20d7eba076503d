"""The audit trail as it is asked for and shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from server.domain.errors import BadField
from server.domain.field_values import moment
from server.http.context import Context
from server.store.audit import AuditEntry, AuditFilter
from shared.clock import utc
from shared.wire import AuditDoc, AuditPage

TEXTS: Final = {
    "principal": ("principal", 64),
    "user": ("acts_as", 64),
    "token": ("token_id", 64),
    "action": ("action", 200),
    "target": ("target", 200),
}
"""Parameter -> field of the filter, and the most characters."""


async def audit_page(
    context: Context, chosen: Mapping[str, str], limit: int, before: int
) -> AuditPage:
    """Entries with a lower number than ``before``, the newest first.

    Args:
        chosen: those of TEXTS, ``since`` and ``until``, as far as they are given.

    Raises:
        BadField
    """
    which: dict[str, Any] = {}
    for name, (field, _) in TEXTS.items():
        if name in chosen:
            which[field] = chosen[name]
    for name in ("since", "until"):
        if name in chosen:
            try:
                which[name] = moment(chosen[name], context.clock.now())
            except ValueError as problem:
                code = f"invalid_{name}"
                raise BadField(name, code, f"Invalid {name}: {problem}") from None
    found = await context.audit.page(AuditFilter(**which), limit + 1, before)
    shown = found[:limit]
    following = str(shown[-1].seq) if len(found) > limit else None
    return AuditPage(items=[_document(one) for one in shown], next=following)


def _document(entry: AuditEntry) -> AuditDoc:
    return AuditDoc(
        seq=entry.seq,
        at=utc(entry.at),
        principal=entry.principal,
        role=None if entry.role is None else entry.role.value,
        token_id=entry.token_id,
        acts_as=entry.acts_as,
        action=entry.action,
        target=entry.target,
        status=entry.status or None,
        code=entry.code,
        peer=entry.peer,
        request_id=entry.request_id,
        left_out=entry.left_out,
    )
