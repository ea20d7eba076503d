"""What the server calls itself, as ``/openapi.json`` describes it."""

from __future__ import annotations

from typing import Any, Final

from server.api.openapi_schemas import REF
from server.domain.webhooks import EVENTS
from shared.wire import WebhookBody, WebhookEvent

_SUMMARIES: Final[dict[WebhookEvent, str]] = {
    "job.completed": "A job is Completed",
    "job.failed": "A job has failed, for good",
    "job.cancelled": "A job was cancelled",
}
_HEADERS: Final = {
    "webhook-id": "names it, the same at every try",
    "webhook-timestamp": "when it was sent, seconds since 1970",
    "webhook-signature": "v1 and the signature, as Standard Webhooks says; several by spaces",
}


def webhooks() -> dict[str, Any]:
    """A webhook for each event."""
    return {event: {"post": _operation(event)} for event in EVENTS}


def _operation(event: WebhookEvent) -> dict[str, Any]:
    media = {"application/json": {"schema": {"$ref": REF.format(model=WebhookBody.__name__)}}}
    return {
        "operationId": f"webhook_{event.replace('.', '_')}",
        "summary": _SUMMARIES[event],
        "description": "Posted to callback_url of the upload.",
        "parameters": [
            {
                "name": name,
                "in": "header",
                "required": True,
                "description": text,
                "schema": {"type": "string"},
            }
            for name, text in _HEADERS.items()
        ],
        "requestBody": {"required": True, "content": media},
        "responses": {
            "2XX": {"description": "It has arrived"},
            "410": {"description": "It is not tried again"},
            "default": {"description": "It is tried again, over a day"},
        },
    }
