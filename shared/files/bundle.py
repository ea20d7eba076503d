"""A sealed bundle: one ZIP with stored entries, written once, read often, never changed.

Written as the files stream in, so that the server needs no second copy and never unpacks anything;
checked and unpacked by the agent. What it is in detail, its root rule, digest and modes:
:mod:`shared.files.sealed`.
"""

from __future__ import annotations

from shared.files.errors import BundleError
from shared.files.reader import MAX_FILES, BundledFile, BundleEntry, BundleReader
from shared.files.sealed import ENTRY, FileDigest, Sealed, digest_of
from shared.files.writer import BundleWriter

__all__ = [
    "ENTRY",
    "MAX_FILES",
    "BundleEntry",
    "BundleError",
    "BundleReader",
    "BundleWriter",
    "BundledFile",
    "FileDigest",
    "Sealed",
    "digest_of",
]
