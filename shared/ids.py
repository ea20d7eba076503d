"""The key of an attempt, by which server and agent know it."""

from __future__ import annotations

import re
from typing import NamedTuple

_KEY = re.compile(r"([1-9][0-9]{0,18})\.([1-9][0-9]{0,8})")


class AttemptKey(NamedTuple):
    """One attempt at one job; written ``17.2``. Unique within one server's database."""

    job_id: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.job_id}.{self.attempt}"

    @classmethod
    def parse(cls, text: str) -> AttemptKey:
        """Read ``17.2``.

        Raises:
            ValueError: not of that form.
        """
        match = _KEY.fullmatch(text)
        if match is None or int(match[1]) >= 2**63:  # no database holds it
            raise ValueError(f"{text!r} is not an attempt key such as 17.2")
        return cls(int(match[1]), int(match[2]))
