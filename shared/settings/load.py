"""Loads settings: one TOML file, overridden by ``FERRYMAN_…`` variables, overridden by flags.

Unknown keys are errors.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    TomlConfigSettingsSource,
)

from ferryman.defaults import VARIABLES
from shared.settings.base import PREFIX, Section, Settings, SettingsError

INSTALLED: Final = Path("/etc/ferryman")
"""Where a package, or who follows docs/install.md, has the settings of each program."""
_FOLDERS: Final = frozenset({"DATA_PATH", "DB_PATH"})
"""Variables of job-orchestrator that say where the data is."""

SettingsT = TypeVar("SettingsT", bound=Settings)
TableT = TypeVar("TableT", bound=Section)


def load(
    kind: type[SettingsT],
    *,
    file: Path | None,
    flags: Mapping[str, Any],
    environ: Mapping[str, str] = os.environ,
    ignore: Iterable[str] = (),
    extra: Mapping[str, Any] | None = None,
) -> SettingsT:
    """Read and check the settings of one process.

    Args:
        file: TOML; None: defaults only.
        flags: nested like the file; None values mean "not given".
        environ: for the check of unknown variables; the values are read from ``os.environ``.
        ignore: top-level tables that belong to other processes.
        extra: weaker than the variables with our prefix, stronger than the file
            (job-orchestrator's variables).

    Raises:
        SettingsError
    """
    ignored = frozenset(ignore)
    known = {name for name in environ if name.startswith(PREFIX)}
    for name in sorted(known):
        head = name.removeprefix(PREFIX).split("__")[0].lower()
        if head in ignored or name in VARIABLES:
            continue
        if head not in kind.model_fields:
            keys = [*kind.model_fields, *ignored]
            hint = _did_you_mean(head, keys, lambda key: PREFIX + key.upper())
            raise SettingsError(f"{name}: no such setting{hint}")
    table = _without_none(flags)

    class Loaded(kind):  # type: ignore[valid-type,misc]  # the file's path is known only here
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            given = InitSettingsSource(settings_cls, dict(extra or {}))
            sources = [init_settings, env_settings, given]
            if file is not None:
                sources.append(_FileSource(settings_cls, file, ignored))
            return tuple(sources)

    try:
        return Loaded(**table)
    except ValidationError as problem:
        raise SettingsError(_explain(problem, kind, file, environ)) from problem
    except (ValueError, RecursionError) as problem:  # a number too long, or no text at all
        raise SettingsError(f"{file}: not valid TOML: {problem}") from problem
    except OSError as problem:
        who = ": read it as root, or as the program's user"
        denied = who if isinstance(problem, PermissionError) else ""
        raise SettingsError(f"{file}: {problem.strerror}{denied}") from problem


def file_of_host(
    kind: type[Settings],
    name: str,
    file: Path | None,
    data_dir: Path | None,
    environ: Mapping[str, str] = os.environ,
) -> Path | None:
    """The settings file for a command that looks at the program on its host; None: there is none.

    It is that of INSTALLED, where neither a file nor a folder is given and no variable is one of
    the settings: another folder with the rest of that file could be the wrong database.

    Args:
        name: of the file in INSTALLED.
    """
    if file is not None or data_dir is not None or _FOLDERS & environ.keys():
        return file
    known = (one.removeprefix(PREFIX) for one in environ if one.startswith(PREFIX))
    if {one.split("__")[0].lower() for one in known} & kind.model_fields.keys():
        return None
    installed = INSTALLED / name
    return installed if os.path.isfile(installed) else None  # noqa: PTH113 - closed folder: False


def read_table(kind: type[TableT], table: Mapping[str, Any]) -> TableT:
    """Check one table that stands in no file.

    Raises:
        SettingsError: each line begins with the key.
    """
    try:
        return kind.model_validate(table)
    except ValidationError as problem:
        raise SettingsError(_explain(problem, kind, None, {})) from None


class _FileSource(TomlConfigSettingsSource):
    """The TOML file without the tables of other processes."""

    def __init__(self, settings: type[BaseSettings], file: Path, ignored: frozenset[str]) -> None:
        if not file.is_file():
            raise SettingsError(f"{file}: no such file")
        self._ignored = ignored
        super().__init__(settings, file)

    def __call__(self) -> dict[str, Any]:
        return {key: value for key, value in super().__call__().items() if key not in self._ignored}


def _without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, Mapping) else value
        for key, value in table.items()
        if value is not None
    }


_MOST_EXPLAINED: Final = 50
_LONGEST_KEY: Final = 64
"""Of a key that others are compared with: the time grows with its length."""
_EXPECTED: Final = {
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "float_parsing": "a number",
    "bool_parsing": "true or false",
}
"""Type of pydantic's error -> what was expected, where pydantic's own words do not help users."""


def _explain(
    problem: ValidationError, kind: type[BaseModel], file: Path | None, environ: Mapping[str, str]
) -> str:
    lines = []
    errors = problem.errors()
    for error in errors[:_MOST_EXPLAINED]:
        where = _source(error["loc"], file, environ) + ".".join(map(str, error["loc"]))
        where = where.removesuffix(": ")  # it is about no single key
        if error["type"] == "extra_forbidden":
            keys = _keys_beside(kind, error["loc"])
            lines.append(f"{where}: no such setting" + _did_you_mean(str(error["loc"][-1]), keys))
        elif error["type"] in _EXPECTED:
            lines.append(f"{where}: {error['input']!r} is not {_EXPECTED[error['type']]}")
        else:
            message = error["msg"].removeprefix("Value error, ")
            lines.append(f"{where}: {message}" if where else message)
    if len(errors) > _MOST_EXPLAINED:
        lines.append(f"and {len(errors) - _MOST_EXPLAINED} more")
    return "\n".join(lines)


def _source(key: tuple[int | str, ...], file: Path | None, environ: Mapping[str, str]) -> str:
    """The variable or file that has the key, for the beginning of a message."""
    variable = PREFIX + "__".join(map(str, key)).upper()
    if variable in environ:
        return f"{variable}: "
    if file is None:
        return ""
    table: Any = tomllib.loads(file.read_text())
    for part in key:
        try:
            table = table[part]
        except (LookupError, TypeError):
            return ""
    return f"{file}: "


def _keys_beside(kind: type[BaseModel], where: tuple[int | str, ...]) -> list[str]:
    """The keys that exist in the table of an unknown key."""
    current: Any = kind
    for part in where[:-1]:
        fields = getattr(current, "model_fields", None)
        if fields is None or part not in fields:
            continue  # a name inside a dict of tables
        current = fields[part].annotation
        current = next(
            (
                inner
                for inner in (current, *getattr(current, "__args__", ()))
                if hasattr(inner, "model_fields")
            ),
            current,
        )
    return list(getattr(current, "model_fields", {}))


def _did_you_mean(key: str, keys: Iterable[str], spell: Callable[[str], str] = str) -> str:
    nearest = difflib.get_close_matches(key[:_LONGEST_KEY], list(keys), n=1, cutoff=0.5)
    return f"; did you mean {spell(nearest[0])}?" if nearest else ""
