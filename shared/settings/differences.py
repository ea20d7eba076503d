"""What is different between two readings of the settings, in words that show no secret."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from shared.settings.base import Section
from shared.settings.shown import say_value, without_password
from shared.wire import SettingChange

ADDED: Final = "added"
TAKEN_OUT: Final = "taken out"
_OTHER_CONTENT: Final = "its content has changed"


def differences(old: BaseModel, new: BaseModel) -> list[SettingChange]:
    """All settings that differ. A table that is new or gone is one difference, in words:
    ``added``, ``taken out``.
    """
    return list(_between("", old, new))


def _between(
    key: str, old: Any, new: Any, info: FieldInfo | None = None
) -> Iterator[SettingChange]:
    if old == new:
        return
    if isinstance(old, BaseModel) and isinstance(new, BaseModel):
        for name, field in type(old).model_fields.items():
            yield from _between(_below(key, name), getattr(old, name), getattr(new, name), field)
        yield from _in_files(key, old, new)
    elif isinstance(old, dict) and isinstance(new, dict):
        for name in [*old, *(name for name in new if name not in old)]:
            yield from _between(_below(key, name), old.get(name), new.get(name))
    elif isinstance(old or new, BaseModel):  # a table is new, or gone
        yield SettingChange(
            key=key,
            old=None if old is None else _table(old, TAKEN_OUT),
            new=None if new is None else _table(new, ADDED),
        )
    else:
        yield SettingChange(key=key, old=say_value(old, info), new=say_value(new, info))


def _in_files(key: str, old: BaseModel, new: BaseModel) -> Iterator[SettingChange]:
    """Files that have the same name, and another content."""
    if isinstance(old, Section) and isinstance(new, Section):
        for name, content in old.contents().items():
            file = getattr(old, name)
            if file == getattr(new, name) and content != new.contents().get(name):
                yield SettingChange(
                    key=_below(key, name), old=str(file), new=f"{file} ({_OTHER_CONTENT})"
                )


def _table(table: BaseModel, what: str) -> str:
    """What became of it; of an agent with its address."""
    address = getattr(table, "url", None) or getattr(table, "upload_url", None)
    return f"{what} ({without_password(address)})" if address else what


def _below(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name
