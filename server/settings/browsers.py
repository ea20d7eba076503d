"""Settings for browsers: where they are sent, and by which address they know the server."""

from __future__ import annotations

from pydantic import Field, field_validator

from shared.http.origins import normal_origin
from shared.http.settings import HttpSection, check_origins
from shared.settings.base import StringList
from shared.units.durations import Duration


class BrowserSection(HttpSection):
    """A part of ``[server]``."""

    public_url: str | None = None
    """Scheme and host that browsers know it by: links and tickets begin so. None: those of the
    request that asks for them."""
    return_to: StringList = None
    """Origins to which the form of an upload ticket may be sent on; None: ``allowed_origins``."""
    session_expires_after: Duration = Field(604_800.0, gt=0)
    """How long a browser stays logged in."""

    @field_validator("public_url")
    @classmethod
    def _public(cls, value: str | None) -> str | None:
        origin = None if value is None else normal_origin(value)
        if value is not None and origin is None:
            raise ValueError(
                f"{value!r} is not a scheme and a host, such as https://jobs.example.org; "
                "a path goes into url_prefix"
            )
        return origin

    @field_validator("return_to")
    @classmethod
    def _returns(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return check_origins(value)

    def return_origins(self) -> frozenset[str]:
        """Where a form may be sent on to."""
        allowed = self.allowed_origins if self.return_to is None else self.return_to
        return frozenset(filter(None, map(normal_origin, allowed or ())))
