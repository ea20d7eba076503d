"""The shell scripts of every chain of programs: JOIN runs before the sandbox, GATE inside it."""

from __future__ import annotations

import os
import re
import select
import shlex
from collections.abc import Mapping, Sequence
from typing import Final

PATH: Final = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
TEMPORARY: Final = ("/tmp", "/var/tmp")  # noqa: S108  # each sandbox has its own

JOIN: Final = (
    'read -r score </proc/self/oom_score_adj; [ "$score" -lt 500 ] && score=500 || score=1000; '
    'echo "$score" >/proc/self/oom_score_adj || exit 126; '
    'while [ "$1" != -- ]; do echo 0 >"$1" || exit 126; shift; done; shift; exec "$@"'
)
"""Raises the OOM score, so that the kernel kills the job before the agent when memory runs out. If
the agent has CAP_SYS_RESOURCE, the job cannot lower the score again. An agent that has a higher
score already, as in Kubernetes, could not lower it either. Then JOIN enters each cgroup, or ends if
it cannot, so that no job runs without its limits."""

SET_LIMITS: Final = (
    'while [ "$1" != -- ]; do { case $1 in '
    '-u) ulimit -u "$2" 2>/dev/null || ulimit -p "$2";; '  # bash, other shells
    '*) ulimit "$1" "$2";; '
    'esac; } || { echo "ulimit $1 $2 cannot be set: see the hard limits of the agent" >&2; '
    "exit 124; }; shift 2; done; shift; "
)
"""Sets the limits of each process, before the line is written that says that the sandbox is ready:
if one cannot be set, the start fails, and not the bundle."""

GATE: Final = (
    f"{SET_LIMITS}"
    'echo; read -r ferryman_word ferryman_set && [ "$ferryman_word" = go ] || exit 125; '
    'case $ferryman_set in "") ;; FERRYMAN_*) eval "export $ferryman_set" || exit 125;; '
    '*) exit 125;; esac; exec "$@" </dev/null'
)
"""Sets the limits, writes one line, which says that the sandbox is ready, and waits
for ``go``, which variables may follow: see :func:`opening`. If the agent dies before that, stdin is
at its end, and nothing of the user runs. (With bwrap's ``--block-fd`` it would run: 30 of 30
times.)"""

_ULIMITS: Final = {
    "nproc": ("-u", 1),
    "nofile": ("-n", 1),
    "core": ("-c", 512),
    "as": ("-v", 1024),
    "fsize": ("-f", 512),
    "cpu": ("-t", 1),
}
"""RLIMIT -> option of ``ulimit`` in a POSIX shell, and its unit in bytes or seconds."""

OWN: Final = "FERRYMAN_"
"""What the names of variables begin with that differ from attempt to attempt."""
_OWN_NAME: Final = re.compile(f"{OWN}[A-Z_]+")


def opening(variables: Mapping[str, str]) -> bytes | None:
    """The line that opens the gate of a prepared start, with variables that were not known when it
    was started. None: these cannot be given so.

    A shell evaluates it, so only names of the agent's own are taken. A longer line could reach the
    gate in parts.
    """
    words = ["go"]
    for name, value in variables.items():
        if not _OWN_NAME.fullmatch(name) or "\n" in value or "\0" in value:
            return None
        words.append(f"{name}={shlex.quote(value)}")
    line = os.fsencode(" ".join(words) + "\n")
    return line if len(line) <= select.PIPE_BUF else None


def gated(argv: Sequence[str], rlimits: Mapping[str, int]) -> list[str]:
    """The command inside: limits, gate, program.

    The limits are set inside, where ``nproc`` counts the processes of this sandbox only. Outside,
    it would count all processes of the uid.

    Args:
        rlimits: of each process, "nproc", "nofile", "core", "as", "fsize" in bytes or "cpu" in s.
    """
    return ["/bin/sh", "-c", GATE, "gate", *limit_options(rlimits), "--", *argv]


def limit_options(rlimits: Mapping[str, int]) -> list[str]:
    """Arguments of :data:`SET_LIMITS`."""
    limits: list[str] = []
    for name, value in rlimits.items():
        option, unit = _ULIMITS[name]
        limits += [option, str(value // unit)]
    return limits
