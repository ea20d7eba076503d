"""The documents about webhooks; ``shared.wire`` has the others."""

from __future__ import annotations

from ferryman.models.events import DeliveryDoc as DeliveryDoc
from ferryman.models.events import DeliveryPage as DeliveryPage
from ferryman.models.events import DeliveryState as DeliveryState
from ferryman.models.events import DeliveryTry as DeliveryTry
from ferryman.models.events import WebhookBody as WebhookBody
from ferryman.models.events import WebhookEvent as WebhookEvent
from ferryman.models.events import WebhookJob as WebhookJob
from ferryman.models.events import WebhookSecret as WebhookSecret
