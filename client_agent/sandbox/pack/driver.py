"""The driver: a shell script that is the init of a sandbox, and starts attempts one by one in it.

It is process 1 of the sandbox's pid namespace. So no job can kill or stop it: the kernel drops the
signals that processes of the namespace send to their init, unless it has a handler. Its folder of
``/proc`` is hidden, and tracing is refused. Its standard input is a socket, by which it gets its
commands and answers them. No job inherits that.

A command is two lines: ``run JOB ATTEMPT INDEX HAS-LINE``, and the line of the array's file. Its
answer, when run.sh has ended: ``JOB ATTEMPT STATUS STATE``. Before it answers, it kills whatever
run.sh left, and empties the file systems in memory. STATE is ``clean`` if that went well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from client_agent.sandbox.process.chain import TEMPORARY, set_limits

SHM: Final = "/dev/shm"  # noqa: S108  # inside the sandbox
CLEAN: Final = "clean"
OWN_VARIABLES: Final = (
    "FERRYMAN_JOB_ID",
    "FERRYMAN_ATTEMPT",
    "FERRYMAN_ARRAY_INDEX",
    "FERRYMAN_ARRAY_LINE",
)
"""Those that are not the same for all attempts of a pack."""
_KILL_TRIES: Final = 50

# Names of variables begin with FERRYMAN_, because operators may declare all others.
_LEFT: Final = (
    'FERRYMAN_left() { for FERRYMAN_f in "$1"/* "$1"/.[!.]* "$1"/..?*; do '
    'if [ -e "$FERRYMAN_f" ] || [ -L "$FERRYMAN_f" ]; then return 0; fi; done; return 1; }; '
)
_KILL: Final = (
    "FERRYMAN_kill() { FERRYMAN_n=0; kill -9 -1; set -- /proc/[0-9]*; "
    f'while [ "$#" -gt 1 ]; do [ "$FERRYMAN_n" -lt {_KILL_TRIES} ] || return 1; '
    "FERRYMAN_n=$((FERRYMAN_n + 1)); (:); kill -9 -1; set -- /proc/[0-9]*; done; }; "
)
_EMPTY: Final = (
    "FERRYMAN_empty() { "
    'if [ ! -r "$1" ] || [ ! -w "$1" ] || [ ! -x "$1" ]; then return 1; fi; '
    'if FERRYMAN_left "$1"; then /bin/rm -rf -- "$1"/* "$1"/.[!.]* "$1"/..?* </dev/null; '
    'if FERRYMAN_left "$1"; then return 1; fi; fi; }; '
)
_NO_IPC: Final = (
    "FERRYMAN_ipc() { for FERRYMAN_f in shm msg sem; do "
    'if [ -r "/proc/sysvipc/$FERRYMAN_f" ]; then { read -r FERRYMAN_l; '
    'if read -r FERRYMAN_l; then return 1; fi; } <"/proc/sysvipc/$FERRYMAN_f"; fi; done; }; '
)
_RUN: Final = (
    "( trap - INT; exec 2>&3 3>&-; "
    'export FERRYMAN_JOB_ID="$FERRYMAN_j" FERRYMAN_ATTEMPT="$FERRYMAN_a" '
    'FERRYMAN_ARRAY_INDEX="$FERRYMAN_i"; if [ "$FERRYMAN_h" = 1 ]; '
    'then export FERRYMAN_ARRAY_LINE="$FERRYMAN_l"; else unset FERRYMAN_ARRAY_LINE; fi; '
    'exec "$@" ) </dev/null; '
)
DRIVER: Final = (
    f"trap '' INT; echo; exec 3>&2 2>/dev/null; {_LEFT}{_KILL}{_EMPTY}{_NO_IPC}"
    "while read -r FERRYMAN_w FERRYMAN_j FERRYMAN_a FERRYMAN_i FERRYMAN_h && "
    '[ "$FERRYMAN_w" = run ] && IFS= read -r FERRYMAN_l; do '
    f"{_RUN}FERRYMAN_s=$?; FERRYMAN_c={CLEAN}; FERRYMAN_kill || FERRYMAN_c=processes; "
    f"FERRYMAN_empty {TEMPORARY[0]} || FERRYMAN_c=files; "
    f"FERRYMAN_empty {SHM} || FERRYMAN_c=files; FERRYMAN_ipc || FERRYMAN_c=ipc; "
    'echo "$FERRYMAN_j $FERRYMAN_a $FERRYMAN_s $FERRYMAN_c" >&0; done'
)
"""Writes one line, as the gate does. A shell that is interrupted has a
handler, so INT is ignored; run.sh gets it back. What the shell itself says, for example of a
program that crashed, is not the job's output."""
_ANSWER: Final = re.compile(rb"([0-9]+) ([0-9]+) ([0-9]{1,3}) ([a-z]+)")


def driven(argv: Sequence[str], rlimits: Mapping[str, int]) -> list[str]:
    """The command inside; see :func:`client_agent.sandbox.process.chain.set_limits`."""
    return ["/bin/sh", "-c", set_limits(rlimits, 512) + DRIVER, "driver", *argv]


def common(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that all attempts of a pack have."""
    return {name: value for name, value in variables.items() if name not in OWN_VARIABLES}


def command(variables: Mapping[str, str]) -> bytes:
    """What makes the driver start the attempt with these variables. Raises ValueError if they
    do not fit a command."""
    job, attempt, index, line = (variables.get(name, "") for name in OWN_VARIABLES)
    if not (job.isdecimal() and attempt.isdecimal() and index.isdecimal()):
        raise ValueError("only tasks of an array can be packed")
    if "\n" in line or "\0" in line:
        raise ValueError("the line of the array's file is not one line")
    has_line = int(OWN_VARIABLES[3] in variables)
    return f"run {job} {attempt} {index} {has_line}\n{line}\n".encode()


@dataclass(frozen=True, slots=True)
class Answer:
    """How an attempt ended, as its driver says."""

    job: str
    attempt: str
    status: int
    clean: bool
    """Nothing of it is left in the sandbox, as far as the driver sees."""

    def is_of(self, variables: Mapping[str, str]) -> bool:
        """Whether it is about the attempt with these variables."""
        return (self.job, self.attempt) == tuple(variables.get(n, "") for n in OWN_VARIABLES[:2])


def parse(line: bytes) -> Answer | None:
    """None: the driver does not write this."""
    found = _ANSWER.fullmatch(line)
    if found is None:
        return None
    job, attempt, status, state = (part.decode() for part in found.groups())
    return Answer(job, attempt, int(status), state == CLEAN)
