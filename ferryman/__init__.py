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
    from ferryman.bundle import Content, Files
    from ferryman.client import Client, Result
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
    from ferryman.models.events import (
        EventDoc,
        LinkDoc,
        LoginLinkDoc,
        TicketDoc,
        WebhookBody,
        WebhookSecret,
    )
    from ferryman.models.jobs import (
        AttemptDoc,
        BulkItem,
        DeliveryDoc,
        FileDoc,
        JobDoc,
        ScheduleDoc,
        Usage,
    )
    from ferryman.models.operators import (
        Accepted,
        AgentDoc,
        AgentState,
        AuditDoc,
        ForgottenDoc,
        Health,
        NewTokenDoc,
        Reloaded,
        ServiceDoc,
        SettingChange,
        TokenDoc,
        Trouble,
        UsageDoc,
        WhoAmI,
    )
    from ferryman.states import JobState, Reason, WaitReason
    from ferryman.sync import SyncClient, SyncResult
    from ferryman.transport import ClientOptions
    from ferryman.upload import JobFilter, JobOptions, ProgressCallback
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

_MODULES: Final = (
    *("errors", "states", "models.jobs", "models.events", "models.operators"),
    *("webhooks", "bundle", "transport", "upload", "download", "client", "sync"),
)
"""Where names are looked for, in this order: what is light comes first."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = _version()
    elif name in __all__:
        modules = (importlib.import_module(f"ferryman.{one}") for one in _MODULES)
        value = next(getattr(one, name) for one in modules if hasattr(one, name))
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
