"""The documents about webhooks; ``shared.wire`` has the others."""

from __future__ import annotations

from ferryman.webhook_models import DeliveryDoc as DeliveryDoc
from ferryman.webhook_models import DeliveryPage as DeliveryPage
from ferryman.webhook_models import DeliveryState as DeliveryState
from ferryman.webhook_models import DeliveryTry as DeliveryTry
from ferryman.webhook_models import WebhookBody as WebhookBody
from ferryman.webhook_models import WebhookEvent as WebhookEvent
from ferryman.webhook_models import WebhookJob as WebhookJob
from ferryman.webhook_models import WebhookSecret as WebhookSecret
