"""Values of settings as they are shown: no secret, and units as people write them."""

from __future__ import annotations

import re
from typing import Any, Final, get_args

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from shared.units.durations import Duration, say_duration
from shared.units.sizes import Size, say_size

HIDDEN: Final = "(secret)"
STARS: Final = "***"
"""In place of a secret, in what can be read again."""
_PASSWORD: Final = re.compile(r"//\S+@")
HOST_ONLY: Final = "what follows the host may be a secret"
"""Marks the field of an address."""
_AFTER_HOST: Final = re.compile(r"(//[^/?#\s]+)[/?#].+")


def say_value(value: Any, info: FieldInfo | None) -> str | None:
    """The value of a key; None: it is not set.

    Args:
        info: of its field; None: it stands in a table of any keys.
    """
    if value is None:
        return None
    if isinstance(value, BaseModel):
        return "(a table)"
    if has_secret(value):
        return HIDDEN
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list | frozenset):
        return ", ".join(str(say_value(one, info)) for one in value) or "none"
    return say_number(value, info) or say_text(value, info)


def say_number(value: Any, info: FieldInfo | None) -> str | None:
    """A duration or a size as in ``1h30m`` and ``2 GiB``; None: it is neither."""
    if info is None or isinstance(value, bool) or not isinstance(value, int | float):
        return None
    marks = [*info.metadata, *_inner_marks(info.annotation)]
    if get_args(Duration)[1] in marks:
        return say_duration(value)
    if get_args(Size)[1] in marks:
        return say_size(int(value))
    return None


def say_text(value: Any, info: FieldInfo | None) -> str:
    """As it is, but for what may be a secret in an address."""
    text = str(value)
    if info is not None and HOST_ONLY in info.metadata:  # first, as a path may have an "@"
        text = _AFTER_HOST.sub(rf"\1/{STARS}", text)
    return without_password(text)


def has_secret(value: Any) -> bool:
    """Whether it is one, or holds one."""
    if isinstance(value, dict):
        return any(map(has_secret, value.values()))
    return isinstance(value, SecretStr) or (
        isinstance(value, tuple | list) and any(map(has_secret, value))
    )


def _inner_marks(annotation: Any) -> list[Any]:
    """Those of the parts of a union or a tuple, as in ``Size | None``."""
    found = list(getattr(annotation, "__metadata__", ()))
    for part in get_args(annotation):
        found += _inner_marks(part)
    return found


def without_password(text: str) -> str:
    """An address without what stands before its host."""
    return _PASSWORD.sub(f"//{STARS}@", text)
