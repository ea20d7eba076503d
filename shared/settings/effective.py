"""Every value of the settings in use, with where it comes from, as TOML that can be read again."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from shared.settings.base import PREFIX, Section
from shared.settings.secrets import FileSecret
from shared.units.durations import Duration, parse_duration, say_duration
from shared.units.sizes import Size, parse_size, say_size
from shared.wire import SettingChange

HIDDEN: Final = "(secret)"
STARS: Final = "***"
"""In place of a secret, in what can be read again."""
_PASSWORD: Final = re.compile(r"//\S+@")


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
    return say_number(value, info) or say_text(value)


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


def say_text(value: Any) -> str:
    """As it is, but for what may be a secret in an address."""
    return without_password(str(value))


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


_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Effective:
    """One value.

    Attributes:
        key: table and name.
        value: in TOML; None: it is not set.
        source: "default", a file, a variable or a flag.
    """

    key: tuple[str, ...]
    value: str | None
    source: str


@dataclass(frozen=True, slots=True)
class Sources:
    """What the settings were read from, the strongest first: flags, variables, the file."""

    flags: Mapping[str, Any]
    file: Path | None
    extra: Mapping[str, Any]
    """Of the variables of job-orchestrator."""

    def of(self, key: tuple[str, ...], content: Mapping[str, Any]) -> str:
        """Args:
        content: of the file.
        """
        if _has(self.flags, key):
            return f"flag --{key[-1].replace('_', '-')}"
        variables = {name.upper(): name for name in os.environ}  # any case is read
        for length in range(len(key), 0, -1):
            name = PREFIX + "__".join(key[:length]).upper()
            variable = variables.get(name) or variables.get(f"{name}__FILE")
            if variable is not None:
                return f"variable {variable}"
        if _has(self.extra, key):
            return "a variable of job-orchestrator"
        return f"{self.file}" if _has(content, key) else "default"


def effective(settings: BaseModel, sources: Sources) -> list[Effective]:
    """All values, those that nobody has set included."""
    content = {} if sources.file is None else tomllib.loads(sources.file.read_text())
    return [Effective(key, value, sources.of(key, content)) for key, value in _values((), settings)]


def as_toml(values: list[Effective]) -> str:
    """With the source of each as a comment."""
    lines: list[str] = []
    table: tuple[str, ...] | None = None
    for one in values:
        if one.key[:-1] != table:
            table = one.key[:-1]
            lines += [*([""] if lines else []), f"[{'.'.join(map(_name, table))}]"]
        name = _name(one.key[-1])
        shown = f"# {name} is not set" if one.value is None else f"{name} = {one.value}"
        lines.append(f"{shown}  # {one.source}".replace("\x7f", ""))
    return "\n".join(lines) + "\n"


def as_documents(values: list[Effective]) -> list[dict[str, Any]]:
    """For programs."""
    return [{"key": ".".join(one.key), "value": one.value, "source": one.source} for one in values]


def _values(key: tuple[str, ...], model: BaseModel) -> Iterator[tuple[tuple[str, ...], str | None]]:
    tables: list[tuple[tuple[str, ...], BaseModel]] = []
    for name, info in type(model).model_fields.items():
        value = getattr(model, name)
        if value is None and isinstance(model, Section):
            value = model.in_use().get(name)
        if isinstance(value, BaseModel):
            tables.append(((*key, name), value))
        elif isinstance(value, dict) and any(isinstance(one, BaseModel) for one in value.values()):
            tables += [((*key, name, each), one) for each, one in value.items()]
        elif key or value:  # an empty dict of tables has no line
            yield (*key, name), _toml(value, info)
    for below, table in tables:  # last, as TOML has it
        yield from _values(below, table)


def _toml(value: Any, info: FieldInfo | None) -> str | None:
    if value is None:
        return None
    if isinstance(value, dict):
        inner = (f"{_name(str(name))} = {_toml(one, None)}" for name, one in value.items())
        return f"{{ {', '.join(inner)} }}" if value else "{}"
    if isinstance(value, FileSecret):
        return f"{{ file = {json.dumps(str(value.file))} }}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(dict.fromkeys(str(_toml(one, info)) for one in value))}]"
    if has_secret(value):
        return json.dumps(STARS)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return _number(value, info)
    return json.dumps(say_text(value))


def _number(value: float, info: FieldInfo | None) -> str:
    """A duration or size in words, if that says exactly the same."""
    said = say_number(value, info)
    for read in (parse_duration, parse_size):
        try:
            if said is not None and read(said) == value:
                return json.dumps(said)
        except ValueError:
            continue
    return repr(value)


def _name(text: str) -> str:
    return text if _BARE.fullmatch(text) else json.dumps(text)


def _has(table: Any, key: tuple[str, ...]) -> bool:
    for part in key:
        if not isinstance(table, Mapping) or part not in table:
            return False
        table = table[part]
    return table is not None


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
