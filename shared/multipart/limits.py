"""Limits of a form, and the error for a form that is refused."""

from __future__ import annotations

from dataclasses import dataclass

from shared.files.errors import BundleError, cut


@dataclass(frozen=True)
class FormLimits:
    """Bounds of one form; sizes in bytes."""

    max_bytes: int
    """Of all files together: as sent, and again when an archive is expanded."""
    max_files: int = 10_000
    max_fields: int = 64
    """Text fields."""
    max_field_bytes: int = 65_536
    max_header_bytes: int = 16_384
    """Of one part's headers; of what may stand before the first part and behind the last."""
    portable: bool = False
    """Refuse names that Linux can store and other systems cannot; False: only warn."""

    @property
    def max_overhead(self) -> int:
        """What may come beside the files' content: 2 KiB for each part, and the fields."""
        parts = self.max_files + self.max_fields
        return parts * 2048 + self.max_fields * self.max_field_bytes + 4 * self.max_header_bytes


class FormRefused(Exception):
    """A form that is not taken; nothing of it is left on the disk.

    Attributes:
        status: of the HTTP answer: 400, 413 or 415.
        code: short, snake_case, stable.
        part: the field, file or archive entry at fault as its sender named it, cut where it is
            long, or None.
        message: a sentence for people; it names the part.
    """

    def __init__(self, status: int, code: str, message: str, part: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.part, self.message = status, code, cut(part), message

    @classmethod
    def of_bundle(cls, problem: BundleError) -> FormRefused:
        """The same refusal, with the status that goes with it."""
        status = 413 if problem.code in {"too_large", "too_many_files"} else 400
        return cls(status, problem.code, problem.message, problem.part)
