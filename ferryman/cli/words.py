"""The order of the words of a command line: options may stand before the command, too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

_ROOTS_OWN: Final = frozenset({"-h", "--help", "--version"})
DEFAULT: Final = "list"
"""What a group of commands does where none of them is named."""


def command_first(words: Sequence[str], root: Any) -> list[str]:
    """The same command line with every option behind its command.

    Args:
        words: without the program's name.
        root: the command of all commands, as of ``typer.main.get_command``.
    """
    takes_value = dict(options_of(root))
    leading, rest = split(words, takes_value)
    if not _ROOTS_OWN.isdisjoint(leading):
        return list(words)
    if not rest:  # which command is missing, whatever its options are
        return [word for word in leading if word not in takes_value and word.startswith("-")]
    name, *rest = rest
    commands = getattr(root.commands.get(name), "commands", {})
    if not commands:
        return [name, *leading, *rest]
    inner, rest = split(rest, takes_value)
    if not _ROOTS_OWN.isdisjoint(inner):
        return [name, "--help"]
    if not rest and DEFAULT in commands:
        return [name, DEFAULT, *leading, *inner]
    return [name, *rest[:1], *leading, *inner, *rest[1:]]


def split(words: Sequence[str], takes_value: dict[str, bool]) -> tuple[list[str], list[str]]:
    """The options at the beginning, with their values; and the rest."""
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] not in {"-", "--"}:
        at += 2 if takes_value.get(words[at], False) else 1
    return list(words[:at]), list(words[at:])


def options_of(command: Any) -> Iterator[tuple[str, bool]]:
    """Every option of a command and of those below it, and whether a value follows it."""
    for parameter in command.params:
        if parameter.param_type_name == "option":
            for name in (*parameter.opts, *parameter.secondary_opts):
                yield name, not (parameter.is_flag or parameter.count)
    for inner in getattr(command, "commands", {}).values():
        yield from options_of(inner)
