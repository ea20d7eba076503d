"""The text fields of an upload."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypedDict

from ferryman.errors import BadArgument


class RequestedLimits(TypedDict, total=False):
    """Limits that an upload asks for; None: the service's."""

    memory: str | int | None
    disk: str | int | None
    cpus: str | float | None
    pids: str | int | None


LIMITS: Final = frozenset({"timeout", *RequestedLimits.__annotations__})


def upload_fields(
    service: str,
    user: str | None,
    name: str | None,
    tags: str | Iterable[str],
    timeout: str | float | None,
    limits: RequestedLimits,
) -> list[tuple[str, str]]:
    """The text fields of an upload. What their values may be is the server's to say.

    Raises:
        BadArgument
    """
    if not user:
        raise BadArgument("whose job is it? give user=…, here or to the client")
    fields = [("user_id", user), ("service", service)]
    if name:
        fields.append(("name", name))
    tag_list = [tags] if isinstance(tags, str) else list(tags)
    if any("," in tag for tag in tag_list):
        raise BadArgument("a tag cannot have a comma")
    if tag_list:
        fields.append(("tags", ",".join(tag_list)))
    if timeout is not None:
        fields.append(("timeout", timeout if isinstance(timeout, str) else f"{_plain(timeout)}s"))
    for limit, value in limits.items():
        if value is not None:
            assert isinstance(value, str | int | float), "as RequestedLimits says"
            fields.append((limit, value if isinstance(value, str) else _plain(value)))
    return fields


def _plain(number: float) -> str:
    """Without an exponent, which no duration or size has."""
    return str(number) if isinstance(number, int) else f"{number:f}".rstrip("0").rstrip(".")
