"""``ferryman completion``: what bash, zsh and fish do when the tab key is pressed.

The scripts ask ``ferryman __complete SHELL WORD…`` for the words that fit.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from ferryman.cli import show
from ferryman.cli.app import COMMANDS, COMMON
from ferryman.errors import BadArgument

_KINDS: Final = {
    "--batch-policy": ("wait_all", "fail_fast"),
    "--backoff": ("constant", "linear", "exponential", "exponential_jitter"),
}
"""Option -> its values."""
SCRIPTS: Final = {
    "bash": """\
# Completion of ferryman in bash.
_ferryman() {
    local IFS=$'\\n'
    COMPREPLY=($(ferryman __complete bash "${COMP_WORDS[@]:1:COMP_CWORD}" 2> /dev/null))
}
complete -o bashdefault -o default -F _ferryman ferryman
""",
    "zsh": """\
#compdef ferryman
# Completion of ferryman in zsh.
_ferryman() {
    local -a found
    found=("${(@f)$(ferryman __complete zsh "${(@)words[2,CURRENT]}" 2> /dev/null)}")
    if [[ -n "$found" ]]; then
        _describe ferryman found
    else
        _files
    fi
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _ferryman ferryman
""",
    "fish": """\
# Completion of ferryman in fish.
function __ferryman_complete
    set -l words (commandline -opc)
    ferryman __complete fish $words[2..] (commandline -ct) 2> /dev/null
end
complete --command ferryman --no-files --condition 'string length -q -- (__ferryman_complete)' \\
    --arguments '(__ferryman_complete)'
""",
}


def complete(words: Sequence[str], root: Any) -> str:
    """The answer to a script: a word a line.

    Args:
        words: the shell, and the words behind the program's name up to the cursor.
    """
    shell, *rest = words or [""]
    return "".join(f"{_line(shell, *one)}\n" for one in candidates(rest, root))


def _line(shell: str, word: str, about: str) -> str:
    about = " ".join(about.split())
    if shell == "bash" or not about:
        return word
    if shell == "zsh":
        escaped = word.replace(":", "\\:")
        return f"{escaped}:{about}"
    return f"{word}\t{about}"


def candidates(words: Sequence[str], root: Any) -> list[tuple[str, str]]:
    """The words that fit, and what they mean; none: the shell offers files.

    Args:
        words: those behind the program's name, up to the cursor; the last one is begun, or empty.
        root: the command of all commands, as of ``typer.main.get_command``.
    """
    *before, begun = words or [""]
    command, arguments, option = root, 0, ""
    for word in before:
        if option:  # it is its value
            option = ""
        elif word.startswith("-"):
            option = word if _has_value(command, word) else ""
        elif word in getattr(command, "commands", {}):
            command = command.commands[word]
        else:
            arguments += 1
    found: Iterator[tuple[str, str]]
    if option:
        found = ((value, "") for value in _values(option))
    elif begun.startswith("-") and "--" not in before:
        found = _options(command)
    elif hasattr(command, "commands"):
        found = _commands(command) if not arguments else iter(())
    else:
        found = _arguments(command, arguments)
    return [one for one in found if one[0].startswith(begun)]


def _has_value(command: Any, word: str) -> bool:
    """Whether it is an option, and its value is the next word."""
    if word in COMMON:
        return COMMON[word]
    options = [one for one in command.params if word in one.opts]
    return bool(options) and not (options[0].is_flag or options[0].count)


def _options(command: Any) -> Iterator[tuple[str, str]]:
    for parameter in command.params:
        if parameter.param_type_name == "option" and not parameter.hidden:
            yield max(parameter.opts, key=len), parameter.help or ""
    yield "--help", "Show this message and exit."


def _commands(group: Any) -> Iterator[tuple[str, str]]:
    for name in group.commands:
        if isinstance(group.commands, dict):
            yield name, group.commands[name].get_short_help_str(60)
        else:  # without importing it
            yield name, COMMANDS[name][1]


def _arguments(command: Any, given: int) -> Iterator[tuple[str, str]]:
    """``last`` where a job is meant; all else is a file's name, or known to the server only."""
    names = {parameter.name for parameter in command.params}
    if "job_ids" in names or ("job_id" in names and not given):
        yield "last", "The newest job."


def _values(option: str) -> Sequence[str]:
    if option == "--state":
        from ferryman.states import JobState

        return list(JobState)
    return _KINDS.get(option, ())


def completion(
    shell: Annotated[
        str | None, typer.Argument(metavar="SHELL", hidden=True, show_default=False)
    ] = None,
    install: Annotated[
        bool, typer.Option("--install", help="Set it up for your next shells.")
    ] = False,
) -> None:
    """Complete commands and options in bash, zsh and fish.

    `ferryman completion --install` sets it up for the shell that you use; without --install the
    script is printed. SHELL is bash, zsh or fish; default: that of the variable SHELL.
    """
    name = shell or Path(os.environ.get("SHELL", "")).name
    if name not in SCRIPTS:
        which = f"{name!r} is not known" if name else "it is not known which shell you use"
        problem = BadArgument(f"{which}; there are {', '.join(SCRIPTS)}")
        problem.add_note("for bash: ferryman completion bash --install")
        raise problem
    if not install:
        typer.echo(SCRIPTS[name], nl=False)
        return
    for line in _install(name):
        show.print_message(line)


def _install(shell: str) -> list[str]:
    """Put the script where the shell finds it; returns what was done."""
    if shell == "fish":
        target = _folder("XDG_CONFIG_HOME", ".config") / "fish" / "completions" / "ferryman.fish"
    else:
        target = _folder("XDG_DATA_HOME", ".local/share") / "ferryman" / f"completion.{shell}"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(SCRIPTS[shell])
    done = [f"wrote {target}"]
    if shell != "fish":
        dots = os.environ.get("ZDOTDIR") if shell == "zsh" else None
        start = Path(dots or Path.home()) / f".{shell}rc"
        line = f"source {shlex.quote(str(target))}"
        before = start.read_text() if start.exists() else ""
        if line not in before:
            with start.open("a") as file:
                file.write("" if before.endswith("\n") or not before else "\n")
                file.write(f"{line}  # completion of ferryman\n")
            done.append(f"added to {start}: {line}")
    return [*done, "it works in your next shell"]


def _folder(variable: str, below_home: str) -> Path:
    named = Path(os.environ.get(variable, ""))
    return named if named.is_absolute() else Path.home() / below_home
