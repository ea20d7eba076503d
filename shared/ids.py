"""The key of an attempt, by which server and agent know it; the start of a server."""

from __future__ import annotations

import re
from typing import NamedTuple

_KEY = re.compile(r"([1-9][0-9]{0,18})\.([1-9][0-9]{0,8})")
_START = re.compile(r"([1-9][0-9]{0,17})-([0-9a-f]{1,32})")


class AttemptKey(NamedTuple):
    """One attempt at one job; written ``17.2``. Unique within one server's database."""

    job_id: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.job_id}.{self.attempt}"

    @classmethod
    def read(cls, text: str | None) -> AttemptKey | None:
        """Read ``17.2``; None: it is not of that form, or there is none."""
        match = _KEY.fullmatch(text or "")
        if match is None or int(match[1]) >= 2**63:  # no database holds it
            return None
        return cls(int(match[1]), int(match[2]))

    @classmethod
    def parse(cls, text: str) -> AttemptKey:
        """The same. Raises ValueError: not of that form."""
        key = cls.read(text)
        if key is None:
            raise ValueError(f"{text!r} is not an attempt key such as 17.2")
        return key


class Start(NamedTuple):
    """One start of a server, which its requests to agents name; written ``1764003600-4f1a9c0d``.

    An agent refuses a lower number than it has seen of the same server, and an equal one with
    another id. So a copied data folder cannot drive the same agents.
    """

    number: int
    """Higher at each start of the same server."""
    id: str
    """Random: two copies of a data folder may have the same number."""

    def __str__(self) -> str:
        return f"{self.number}-{self.id}"

    @classmethod
    def parse(cls, text: str) -> Start:
        """Read ``1764003600-4f1a9c0d``.

        Raises:
            ValueError: not of that form.
        """
        match = _START.fullmatch(text)
        if match is None:
            raise ValueError(f"{text[:40]!r} is not the start of a server, as 1764003600-4f1a9c0d")
        return cls(int(match[1]), match[2])


NO_START = Start(0, "")
"""Of whoever names none, as job-orchestrator servers."""
