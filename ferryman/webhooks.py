"""For receivers of webhooks: whether one is genuine, as Standard Webhooks says."""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Mapping
from typing import Final

from pydantic import ValidationError

from ferryman.clock import wall_clock
from ferryman.errors import BadArgument, BadWebhook
from ferryman.models.events import WebhookBody

_PREFIX: Final = "whsec_"


def verify_webhook(
    body: bytes,
    headers: Mapping[str, str],
    secret: str,
    *,
    tolerance: float = 300.0,
    now: float | None = None,
) -> WebhookBody:
    """The webhook that a request brought, if the server has sent it.

    A server repeats a webhook whose answer it did not get: keep the header ``webhook-id``, which
    is the same then, and do once what is to be done.

    Args:
        body: of the request, byte for byte as it came.
        headers: of the request; their names in any case.
        secret: ``whsec_…``, see :meth:`ferryman.Client.webhook_secret`.
        tolerance: most seconds between the server's clock and this one.
        now: seconds since 1970; None: what the clock says.

    Raises:
        BadWebhook: it is not from the server, was altered, or is too old.
        BadArgument: the secret is none.
    """
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not key or not secret.startswith(_PREFIX):
        raise BadArgument("a webhook secret begins with whsec_, and base64 follows")
    given = {name.lower(): value for name, value in headers.items()}
    try:
        webhook_id = given["webhook-id"]
        sent_at, signatures = given["webhook-timestamp"], given["webhook-signature"]
    except KeyError as missing:
        raise BadWebhook(f"the request has no header {missing.args[0]}") from None
    text = f"{webhook_id}.{sent_at}.".encode("utf-8", "surrogateescape") + body
    digest = base64.b64encode(hmac.digest(key, text, "sha256"))
    signed = [one.partition(",") for one in signatures.split()]
    good = [
        hmac.compare_digest(digest, one.encode("utf-8", "surrogateescape"))
        for version, _, one in signed
        if version == "v1"
    ]
    if not any(good):
        why = "the secret is another one, or the request was altered"
        raise BadWebhook(f"its signature is not the server's: {why}")
    at = wall_clock().timestamp() if now is None else now
    if not sent_at.isdecimal() or abs(at - int(sent_at)) > tolerance:
        raise BadWebhook(f"by this machine's clock it was not sent within {tolerance:g} s of now")
    try:
        return WebhookBody.model_validate_json(body)
    except ValidationError as problem:
        first = problem.errors(include_url=False)[0]
        raise BadWebhook(f"its body is none that is known: {first['msg']}") from None
