"""The refusal of a request before a handler sees it, in both programs."""

from __future__ import annotations

from collections.abc import Mapping


class Denied(Exception):
    """A request is refused; each program gives the answer its own shape.

    Attributes:
        code: for programs; ``message`` is for people.
        headers: go with the answer.
    """

    def __init__(
        self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.headers = dict(headers or {})
