"""Carries bundles of files to compute hosts and brings the results back: the client.

Example::

    from ferryman import SyncClient

    with SyncClient("http://127.0.0.1:5000", user="ada") as client:
        job = client.submit("my-bundle/", service="example")
        if client.wait(job.id).status == "Completed":
            client.download(job.id, "result.zip")
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from ferryman.answers import Accepted, Health
from ferryman.bundle import Files
from ferryman.client import Client
from ferryman.download import Downloaded
from ferryman.errors import (
    AlreadyEnded,
    BadArgument,
    BadBundle,
    BadDownload,
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
from ferryman.sync import SyncClient
from shared.wire import EventDoc, JobDoc, JobState, Reason, Usage

try:
    __version__ = version("ferryman")
except PackageNotFoundError:  # run from a source tree that was not installed
    __version__ = "0+unknown"

__all__ = [
    "Accepted",
    "AlreadyEnded",
    "BadArgument",
    "BadBundle",
    "BadDownload",
    "Client",
    "Downloaded",
    "EventDoc",
    "FerrymanError",
    "FileChanged",
    "Files",
    "Health",
    "JobDoc",
    "JobState",
    "NoResult",
    "NotAllowed",
    "NotFound",
    "NotReady",
    "NotUnderstood",
    "Reason",
    "Refused",
    "SyncClient",
    "TryLater",
    "Unreachable",
    "Usage",
    "WaitedTooLong",
    "__version__",
]
