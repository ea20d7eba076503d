"""What a shell may put in place of the word at the cursor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ferryman.cli.words import options_of, split

_HELP: Final = "--help"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A word, and what it means; empty: not known."""

    word: str
    about: str = ""


def candidates(words: Sequence[str], root: Any) -> list[Candidate]:
    """The words that fit; none: the shell offers files.

    Args:
        words: those behind the program's name, up to the cursor; the last one is begun, or empty.
        root: the command of all commands, as of ``typer.main.get_command``.
    """
    *before, begun = words or [""]
    takes_value = dict(options_of(root))
    if before and takes_value.get(before[-1], False):
        found = _values(before[-1])
    else:
        command, arguments = _command(before, root, takes_value)
        inner = getattr(command, "commands", {})
        if begun.startswith("-") and "--" not in before:
            found = _options(command)
        elif inner:
            found = _commands(inner)
        else:
            found = _arguments(command, arguments)
    return [one for one in found if one.word.startswith(begun)]


def _command(
    words: Sequence[str], root: Any, takes_value: dict[str, bool]
) -> tuple[Any, Sequence[str]]:
    """The command that the words lead to, and those behind it."""
    command = root
    _, rest = split(words, takes_value)
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest[0]]
        _, rest = split(rest[1:], takes_value)
    return command, rest


def _options(command: Any) -> Iterator[Candidate]:
    for parameter in command.params:
        if parameter.param_type_name == "option" and not parameter.hidden:
            yield Candidate(max(parameter.opts, key=len), parameter.help or "")
    yield Candidate(_HELP, "Show this message and exit.")


def _commands(commands: dict[str, Any]) -> Iterator[Candidate]:
    for name, command in commands.items():
        if not command.hidden:
            yield Candidate(name, command.get_short_help_str(60))


def _arguments(command: Any, given: Sequence[str]) -> Iterator[Candidate]:
    """``last`` where a job is meant; all else is a file's name, or known to the server only."""
    names = {parameter.name for parameter in command.params}
    if "job_ids" in names or ("job_id" in names and not given):
        yield Candidate("last", "The newest job.")


def _values(option: str) -> Iterator[Candidate]:
    if option == "--state":
        from ferryman.states import JobState

        yield from (Candidate(state) for state in JobState)
    elif option == "--batch-policy":
        yield from (Candidate("wait_all"), Candidate("fail_fast"))
    elif option == "--backoff":
        kinds = ("constant", "linear", "exponential", "exponential_jitter")
        yield from map(Candidate, kinds)
