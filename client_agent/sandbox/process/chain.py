"""The shell scripts of a chain of programs besides the gate: JOIN runs before the sandbox."""

from __future__ import annotations

from collections.abc import Mapping
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

_ULIMITS: Final = {"nproc": "u", "nofile": "n", "core": "c", "as": "v", "fsize": "f", "cpu": "t"}
"""RLIMIT -> option of ``ulimit``."""


def set_limits(rlimits: Mapping[str, int], block: int) -> str:
    """Lines of a shell that set the limits of each process, or end it: then the start fails, and
    not the bundle.

    The limits are set inside, where ``nproc`` counts the processes of this sandbox only. Outside,
    it would count all processes of the uid.

    Args:
        rlimits: "nproc", "nofile", "core", "as", "fsize" in bytes or "cpu" in seconds.
        block: bytes of the shell's unit for files: 1024 in bash, 512 in a POSIX shell.
    """
    units = {"core": block, "fsize": block, "as": 1024}
    lines = []
    for name, value in rlimits.items():
        amount = value // units.get(name, 1)
        ulimit = f"ulimit -{_ULIMITS[name]} {amount}"
        tries = f"{ulimit} 2>/dev/null"
        if name == "nproc":
            tries += f" || ulimit -p {amount} 2>/dev/null"  # dash
        why = f"{ulimit} cannot be set: see the hard limits of the agent"
        lines.append(f'{tries} || {{ echo "{why}" >&2; exit 124; }}\n')
    return "".join(lines)
