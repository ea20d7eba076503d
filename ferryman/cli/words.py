"""The order of the words of a command line: options may stand before the command, too."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, Final

_ROOTS_OWN: Final = frozenset({"-h", "--help", "--version"})
COMMON: Final = {"--url": True, "--token": True, "--token-file": True, "--json": False}
"""Options of nearly all commands, known without importing these; and whether a value follows."""
DEFAULT: Final = "list"
"""What a group of commands does where none of them is named."""


def command_first(words: Sequence[str], root: Any) -> list[str]:
    """The same command line with every option behind its command.

    Args:
        words: without the program's name.
        root: the command of all commands, as of ``typer.main.get_command``.
    """
    options = Options(root)
    leading, rest = split(words, options)
    if not _ROOTS_OWN.isdisjoint(leading):
        return list(words)
    if not rest:  # which command is missing, whatever its options are
        return [word for word in leading if word.startswith("-") and not options.knows(word)]
    name, *rest = rest
    command = root.commands.get(name)
    commands = getattr(command, "commands", {})
    if not commands:
        return [name, *leading, *rest]
    inner, rest = split(rest, Options(command))
    if not _ROOTS_OWN.isdisjoint(inner):
        return [name, "--help"]
    if not rest and DEFAULT in commands:
        return [name, DEFAULT, *leading, *inner]
    return [name, *rest[:1], *leading, *inner, *rest[1:]]


class Options:
    """The options of a command and of all those below it."""

    def __init__(self, command: Any) -> None:
        self._command = command

    @functools.cached_property
    def _all(self) -> dict[str, bool]:
        return dict(options_of(self._command))  # imports every command below it

    def knows(self, word: str) -> bool:
        """Whether there is such an option."""
        return word in COMMON or word in self._all

    def has_value(self, word: str) -> bool:
        """Whether it is an option, and its value is the next word."""
        if not word.startswith("-") or word in _ROOTS_OWN:
            return False
        return COMMON[word] if word in COMMON else self._all.get(word, False)


def split(words: Sequence[str], options: Options) -> tuple[list[str], list[str]]:
    """The options at the beginning, with their values; and the rest."""
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] not in {"-", "--"}:
        at += 2 if options.has_value(words[at]) else 1
    return list(words[:at]), list(words[at:])


def options_of(command: Any) -> Iterator[tuple[str, bool]]:
    """Every option of a command and of those below it, and whether a value follows it."""
    for parameter in command.params:
        if parameter.param_type_name == "option":
            for name in (*parameter.opts, *parameter.secondary_opts):
                yield name, not (parameter.is_flag or parameter.count)
    for inner in getattr(command, "commands", {}).values():
        yield from options_of(inner)
