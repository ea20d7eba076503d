"""What every chain has, with bubblewrap or without: ``sh JOIN`` before it and ``sh GATE`` in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

PATH: Final = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
TEMPORARY: Final = ("/tmp", "/var/tmp")  # noqa: S108  # inside, each sandbox has its own

JOIN: Final = (
    'read -r score </proc/self/oom_score_adj; [ "$score" -lt 500 ] && score=500 || score=1000; '
    'echo "$score" >/proc/self/oom_score_adj || exit 126; '
    'while [ "$1" != -- ]; do echo 0 >"$1" || exit 126; shift; done; shift; exec "$@"'
)
"""Has the kernel take the job before the agent where memory runs out (with CAP_SYS_RESOURCE a job
cannot lower that again; an agent that has more already, as in Kubernetes, could not lower it
either), then enters each cgroup or gives up: a job never runs outside its
limits."""

GATE: Final = (
    'while [ "$1" != -- ]; do { case $1 in '
    '-u) ulimit -u "$2" 2>/dev/null || ulimit -p "$2";; '  # bash, other shells
    '*) ulimit "$1" "$2";; '
    'esac; } || { echo "ulimit $1 $2 cannot be set: see the hard limits of the agent" >&2; '
    "exit 124; }; shift 2; done; shift; "
    'echo; read -r word && [ "$word" = go ] || exit 125; exec "$@" </dev/null'
)
"""Sets the limits of each process, says with one line that the sandbox is up, then waits for
``go``. If the agent dies first, its end of stdin closes and nothing of the user's ever runs
(``--block-fd`` fails open: 30 of 30). Limits come before that line: where one cannot be set, the
sandbox did not come up, and the bundle is not to blame."""

_ULIMITS: Final = {
    "nproc": ("-u", 1),
    "nofile": ("-n", 1),
    "core": ("-c", 512),
    "as": ("-v", 1024),
    "fsize": ("-f", 512),
    "cpu": ("-t", 1),
}
"""RLIMIT -> option of ``ulimit`` in a POSIX shell, and its unit."""


def gated(argv: Sequence[str], rlimits: Mapping[str, int]) -> list[str]:
    """The command inside: limits, gate, program.

    The limits are set inside, where ``nproc`` counts this sandbox only; outside it would count
    everything of the uid.

    Args:
        rlimits: of each process, "nproc", "nofile", "core", "as", "fsize" in bytes or "cpu" in s.
    """
    limits: list[str] = []
    for name, value in rlimits.items():
        option, unit = _ULIMITS[name]
        limits += [option, str(value // unit)]
    return ["/bin/sh", "-c", GATE, "gate", *limits, "--", *argv]
