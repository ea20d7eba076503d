"""All commands, each imported when it is used, and the list of them in ``ferryman --help``."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_group

from ferryman.cli.commands import COMMANDS, Listed

_PASSED_ON: Final = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}


class Loaded(Mapping[str, Any]):
    """Commands by name, imported and built when they are first asked for."""

    def __init__(self, listed: Mapping[str, Listed]) -> None:
        self._listed = listed
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            self._built[name] = _build(name, self._listed[name])
        return self._built[name]

    def __contains__(self, name: object) -> bool:
        return name in self._listed

    def __iter__(self) -> Iterator[str]:
        return iter(self._listed)

    def __len__(self) -> int:
        return len(self._listed)


def _build(name: str, listed: Listed) -> Any:
    module = importlib.import_module(f"ferryman.cli.{listed.module}")
    found = getattr(module, listed.attribute)
    around = typer.Typer(add_completion=False, rich_markup_mode=None)
    if isinstance(found, typer.Typer):
        around.add_typer(found, name=name, cls=Group)
    else:
        about = None if listed.help is None else getattr(module, listed.help)
        settings = _PASSED_ON if listed.passed_on else None
        around.command(name, help=about, context_settings=settings)(found)
    return get_group(around).commands[name]


class Group(TyperGroup):
    """Commands, for whose help nothing is imported that only their options need."""

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)
        if option is not None:
            option.default = False  # the usual None is converted, by importing Pydantic
        return option


class Sections(Group):
    """All commands, under the headings of their sections."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = Loaded(COMMANDS)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = formatter.width - 6 - max(map(len, COMMANDS))
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, about in abouts(self, width):
            sections.setdefault(COMMANDS[name].section, []).append((name, about))
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)


def abouts(group: Any, width: int) -> Iterator[tuple[str, str]]:
    """Each command that is shown, and what it does in at most so many characters."""
    for name in group.commands:
        if isinstance(group, Sections):  # without importing it
            yield (
                name,
                typer.core.TyperCommand(name, help=COMMANDS[name].about).get_short_help_str(width),
            )
        elif not group.commands[name].hidden:
            yield name, group.commands[name].get_short_help_str(width)
