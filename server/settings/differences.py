"""What is different between two readings of the settings, in words that show no secret."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, get_args

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from server.settings.tables import ServerSettings
from shared.units.durations import Duration, say_duration
from shared.units.sizes import Size, say_size

_HIDDEN: Final = "(secret)"
_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class Difference:
    """One setting that was changed, made or removed.

    Attributes:
        key: as in ``services.haddock.timeout``.
        old, new: as they are shown; None: it is not there.
    """

    key: str
    old: str | None
    new: str | None


def differences(old: ServerSettings, new: ServerSettings) -> list[Difference]:
    """All settings that differ. A table that is new or gone is one difference."""
    return list(_between("", old, new))


def _between(key: str, old: Any, new: Any, info: FieldInfo | None = None) -> Iterator[Difference]:
    if old == new:
        return
    if isinstance(old, BaseModel) and isinstance(new, BaseModel):
        for name, field in type(old).model_fields.items():
            yield from _between(_below(key, name), getattr(old, name), getattr(new, name), field)
    elif isinstance(old, dict) and isinstance(new, dict):
        for name in [*old, *(name for name in new if name not in old)]:
            values = old.get(name, _MISSING), new.get(name, _MISSING)
            yield from _between(_below(key, name), *values)
    else:
        yield Difference(key, _shown(old, info), _shown(new, info))


def _below(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def _shown(value: Any, info: FieldInfo | None) -> str | None:
    if value is _MISSING:
        return None
    if isinstance(value, BaseModel):
        return "(a table)"
    if _has_secret(value):
        return _HIDDEN
    if info is not None and isinstance(value, int | float):
        if get_args(Duration)[1] in info.metadata:
            return say_duration(value)
        if get_args(Size)[1] in info.metadata:
            return say_size(int(value))
    return str(value)


def _has_secret(value: Any) -> bool:
    return isinstance(value, SecretStr) or (
        isinstance(value, tuple | list) and any(map(_has_secret, value))
    )
