"""Every value of the settings in use, with where it comes from, as TOML that can be read again."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from shared.settings.base import PREFIX, Section
from shared.settings.secrets import FileSecret
from shared.settings.shown import STARS, has_secret, say_number, say_text
from shared.units.durations import parse_duration
from shared.units.sizes import parse_size

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
    return json.dumps(say_text(value, info))


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
