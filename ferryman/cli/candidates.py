"""What a shell may put in place of the word at the cursor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ferryman.cli.sections import abouts
from ferryman.cli.words import Options, split

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
    command, arguments = _command(before, root)
    if before and Options(command).has_value(before[-1]):
        found = _values(before[-1])
    else:
        inner = getattr(command, "commands", {})
        if begun.startswith("-") and "--" not in before:
            found = _options(command)
        elif inner:
            found = _commands(command)
        else:
            found = _arguments(command, arguments)
    return [one for one in found if one.word.startswith(begun)]


def _command(words: Sequence[str], root: Any) -> tuple[Any, Sequence[str]]:
    """The command that the words lead to, and those behind it."""
    command = root
    _, rest = split(words, Options(root))
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest[0]]
        _, rest = split(rest[1:], Options(command))
    return command, rest


def _options(command: Any) -> Iterator[Candidate]:
    for parameter in command.params:
        if parameter.param_type_name == "option" and not parameter.hidden:
            yield Candidate(max(parameter.opts, key=len), parameter.help or "")
    yield Candidate(_HELP, "Show this message and exit.")


def _commands(group: Any) -> Iterator[Candidate]:
    for name, about in abouts(group, 60):
        yield Candidate(name, about)


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
