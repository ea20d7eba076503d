"""Carries bundles of files to compute hosts and brings the results back: the client.

Example::

    from ferryman import SyncClient

    with SyncClient("http://127.0.0.1:5000", user="ada") as client:
        job = client.submit("my-bundle/", service="example")
        result = client.wait(job.id)
        if result.status == "Completed":
            result.save("out/")

What is here is imported when it is first used: the server takes a few models from this package,
and the command line prints its help, without loading an HTTP client.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from ferryman.defaults import DEFAULT_URL as DEFAULT_URL

if TYPE_CHECKING:
    from ferryman.agent_models import AgentDoc, AgentState
    from ferryman.answers import Accepted, Health, Trouble
    from ferryman.browser_models import LinkDoc, LoginLinkDoc, TicketDoc
    from ferryman.bulk_models import BulkItem
    from ferryman.bundle import Content, Files
    from ferryman.client import Client
    from ferryman.client_options import ClientOptions
    from ferryman.download import Downloaded
    from ferryman.errors import (
        AlreadyEnded,
        BadArgument,
        BadBundle,
        BadDownload,
        BadWebhook,
        Conflict,
        FerrymanError,
        FileChanged,
        NoResult,
        NotAllowed,
        NotFound,
        NotReady,
        NotUnderstood,
        Refused,
        TryLater,
        Unreachable,
        WaitedTooLong,
    )
    from ferryman.event_models import EventDoc
    from ferryman.fields import JobFilter, JobOptions
    from ferryman.file_models import FileDoc
    from ferryman.forgotten_models import ForgottenDoc
    from ferryman.form import ProgressCallback
    from ferryman.models import AttemptDoc, JobDoc, ScheduleDoc, Usage
    from ferryman.result import Result, SyncResult
    from ferryman.service_models import ServiceDoc
    from ferryman.settings_models import Reloaded, SettingChange
    from ferryman.states import JobState, Reason, WaitReason
    from ferryman.sync import SyncClient
    from ferryman.token_models import AuditDoc, NewTokenDoc, TokenDoc, WhoAmI
    from ferryman.usage_models import UsageDoc
    from ferryman.webhook_models import DeliveryDoc, WebhookBody, WebhookSecret
    from ferryman.webhooks import verify_webhook

    __version__: str

__all__ = [
    "Accepted",
    "AgentDoc",
    "AgentState",
    "AlreadyEnded",
    "AttemptDoc",
    "AuditDoc",
    "BadArgument",
    "BadBundle",
    "BadDownload",
    "BadWebhook",
    "BulkItem",
    "Client",
    "ClientOptions",
    "Conflict",
    "Content",
    "DeliveryDoc",
    "Downloaded",
    "EventDoc",
    "FerrymanError",
    "FileChanged",
    "FileDoc",
    "Files",
    "ForgottenDoc",
    "Health",
    "JobDoc",
    "JobFilter",
    "JobOptions",
    "JobState",
    "LinkDoc",
    "LoginLinkDoc",
    "NewTokenDoc",
    "NoResult",
    "NotAllowed",
    "NotFound",
    "NotReady",
    "NotUnderstood",
    "ProgressCallback",
    "Reason",
    "Refused",
    "Reloaded",
    "Result",
    "ScheduleDoc",
    "ServiceDoc",
    "SettingChange",
    "SyncClient",
    "SyncResult",
    "TicketDoc",
    "TokenDoc",
    "Trouble",
    "TryLater",
    "Unreachable",
    "Usage",
    "UsageDoc",
    "WaitReason",
    "WaitedTooLong",
    "WebhookBody",
    "WebhookSecret",
    "WhoAmI",
    "__version__",
    "verify_webhook",
]

_ELSEWHERE: Final = {
    "Accepted": "answers",
    "AgentDoc": "agent_models",
    "AgentState": "agent_models",
    "AttemptDoc": "models",
    "AuditDoc": "token_models",
    "BulkItem": "bulk_models",
    "Client": "client",
    "ClientOptions": "client_options",
    "Content": "bundle",
    "DeliveryDoc": "webhook_models",
    "Downloaded": "download",
    "EventDoc": "event_models",
    "FileDoc": "file_models",
    "Files": "bundle",
    "Health": "answers",
    "JobDoc": "models",
    "JobFilter": "fields",
    "JobOptions": "fields",
    "JobState": "states",
    "LinkDoc": "browser_models",
    "LoginLinkDoc": "browser_models",
    "NewTokenDoc": "token_models",
    "ProgressCallback": "form",
    "Reason": "states",
    "Reloaded": "settings_models",
    "Result": "result",
    "ScheduleDoc": "models",
    "ServiceDoc": "service_models",
    "SettingChange": "settings_models",
    "ForgottenDoc": "forgotten_models",
    "SyncClient": "sync",
    "SyncResult": "result",
    "TicketDoc": "browser_models",
    "TokenDoc": "token_models",
    "Trouble": "answers",
    "Usage": "models",
    "UsageDoc": "usage_models",
    "WaitReason": "states",
    "WebhookBody": "webhook_models",
    "WebhookSecret": "webhook_models",
    "WhoAmI": "token_models",
    "verify_webhook": "webhooks",
}
"""Name -> its module; the others of ``__all__`` are errors."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = _version()
    elif name in __all__:
        module = importlib.import_module(f"ferryman.{_ELSEWHERE.get(name, 'errors')}")
        value = getattr(module, name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value  # found once
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("ferryman")
    except metadata.PackageNotFoundError:  # run from a source tree that was not installed
        return "0+unknown"
