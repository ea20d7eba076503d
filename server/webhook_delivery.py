"""Puts together what delivers webhooks."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack

from server.domain.service import Service
from server.domain.webhook_targets import AllowedTargets
from server.domain.webhooks import WebhookSecrets, secret_bytes, secret_text
from server.ports import Measures
from server.settings.tables import ServerTable
from server.stages.webhooks import Webhooks
from server.store.identity import is_rehearsal, webhook_secret
from server.store.webhooks import SqlDeliveries
from server.webhooks.client import HttpWebhookClient
from shared.clock import Clock
from shared.sql import Database


async def webhooks_of(
    table: ServerTable,
    database: Database,
    identity: str,
    services: Mapping[str, Service],
    clock: Clock,
    machine: Clock,
    on_change: Callable[[], None],
    measures: Measures,
    stack: AsyncExitStack,
) -> Webhooks:
    """The stage that delivers webhooks; the stack closes its client.

    Args:
        identity: of the database.
        on_change: called when there may be something to do.
    """
    made = secret_bytes(await webhook_secret(database, secret_text(secrets.token_bytes(32))))
    client = HttpWebhookClient(AllowedTargets(table.webhook_allow or ()), clock)
    stack.push_async_callback(client.close)
    return Webhooks(
        SqlDeliveries(database),
        client,
        services,
        WebhookSecrets(table.webhook_keys() or [made]),
        clock,
        machine,
        server=identity,
        expires_after_s=table.webhooks_expire_after,
        on_change=on_change,
        measures=measures,
        rehearsal=await is_rehearsal(database),
    )
