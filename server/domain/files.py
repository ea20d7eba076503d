"""The files that the server stores for jobs."""

from __future__ import annotations

from enum import StrEnum


class FileKind(StrEnum):
    """What a stored file is; its value is the name of the folder for files of its kind."""

    BUNDLE = "bundles"
    RESULT = "results"
