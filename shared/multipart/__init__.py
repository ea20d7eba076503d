"""Multipart forms, received with flat memory and refused by name."""

from __future__ import annotations

from shared.multipart.batches import Threads
from shared.multipart.limits import FormLimits, FormRefused
from shared.multipart.parser import FilePart
from shared.multipart.receive import Received, receive
from shared.multipart.sinks import BundleSink, RawSink, Sink

__all__ = [
    "BundleSink",
    "FilePart",
    "FormLimits",
    "FormRefused",
    "RawSink",
    "Received",
    "Sink",
    "Threads",
    "receive",
]
