"""The error for a bundle that is refused."""

from __future__ import annotations

from typing import Final

from shared.files.names import UnsafeName, shown

_MAX_PART: Final = 2048


class BundleError(Exception):
    """A bundle, or an archive that was to become one, is refused.

    Attributes:
        code: short, snake_case, stable.
        part: the file or entry at fault as its sender named it, cut where it is long, or None.
        message: a sentence for people; it names the part.
    """

    def __init__(self, code: str, message: str, part: str | None = None) -> None:
        self.code, self.part = code, cut(part)
        self.message = message if part is None else f"{shown(part)}: {message}"
        super().__init__(self.message)

    @classmethod
    def of_name(cls, problem: UnsafeName, sent: str | None = None) -> BundleError:
        """The refusal of a name; ``sent``: the name before it was normalised."""
        return cls(problem.code, problem.why, problem.name if sent is None else sent)


def cut(part: str | None) -> str | None:
    """The name, cut for an answer: a refused name may be a megabyte long."""
    return part if part is None or len(part) <= _MAX_PART else f"{part[:_MAX_PART]}…"
