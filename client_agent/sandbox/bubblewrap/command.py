"""The command lines of a start. This module only makes text, so every rule can be tested easily.

The chain is: ``sh JOIN → [unshare] → bwrap --args FD → bash``, whose gate is closed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Final

from client_agent.sandbox.base import SandboxBroken
from client_agent.sandbox.bubblewrap.root_tree import (
    COPIED,
    JOB,
    LINKS,
    MERGED_USR,
    UID,
    USR,
    RootTree,
)
from client_agent.sandbox.process.chain import JOIN, PATH, TEMPORARY

SHM: Final = "/dev/shm"  # noqa: S108  # inside the sandbox
INIT_PROC: Final = "/proc/1"
HIDDEN_PROC_FILES: Final = ("keys", "cmdline", "diskstats", "locks", "partitions")
"""Files of ``/proc`` that are empty inside. They show keyrings of the agent's user, the boot
parameters, and what the host's disks and other jobs do."""
PROC_FS: Final = "/proc/fs"
"""Shows the free space of each mounted ext4, also of the disks of other jobs."""
VISIBLE_HOST_PATHS: Final = (USR, *MERGED_USR, *COPIED)
"""Paths of the host that every job sees. No file of the agent may be below them."""
RESERVED: Final = (JOB, "/proc", "/dev", "/sys", *TEMPORARY, "/etc/passwd", "/etc/group")


@dataclass(frozen=True, slots=True)
class Descriptors:
    """Descriptors that bwrap inherits. They have the same numbers before and after the exec."""

    args: int
    job: int
    status: int
    seccomp: int | None

    def passed(self) -> tuple[int, ...]:
        fds = (self.args, self.job, self.status)
        return fds if self.seccomp is None else (*fds, self.seccomp)


@dataclass(frozen=True, slots=True)
class Tools:
    """Absolute paths of the programs of the chain."""

    sh: str
    bwrap: str
    unshare: str
    """Of util-linux: it changes uid and gid, and leaves all groups. It makes no namespace here. It
    takes 0.6 ms of CPU less than setpriv, which reads the capabilities first."""


def chain(
    tools: Tools, args_fd: int, inside: Sequence[str], *, uid: int | None, join: Iterable[str] = ()
) -> list[str]:
    """The command that the agent executes.

    Args:
        inside: the command inside: bash, or a driver.
        uid: change to this uid and gid of the host; None: do not change. Never 0: also with
            ``--uid 1000``, a job of root could write the host's ``core_pattern``.
        join: write 0 to these files, see
            :attr:`client_agent.sandbox.kernel.cgroups.Cgroup.join_files`.
    """
    if uid == 0:
        raise ValueError("bwrap must never run as the host's root")
    command = [tools.sh, "-c", JOIN, "join", *join, "--"]
    if uid is not None:
        command += [tools.unshare, f"--setuid={uid}", f"--setgid={uid}", "--"]
    return [*command, tools.bwrap, "--args", str(args_fd), "--", *inside]


def bwrap_options(
    fds: Descriptors,
    env: Mapping[str, str],
    *,
    root: RootTree,
    scratch: int,
    read_only: Sequence[tuple[Path, str]] = (),
    network: bool = False,
    as_init: bool = False,
    devices: Path | None = None,
) -> list[str]:
    """Options of bwrap, in the order in which it applies them. Raises SandboxBroken if the target
    of an operator's mount is not allowed.

    Args:
        devices: see :mod:`client_agent.sandbox.kernel.devices`; None: bwrap makes its own.
    """
    options = ["--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts"]
    if not network:
        options.append("--unshare-net")
    if as_init:
        options.append("--as-pid-1")
    options += ["--unshare-cgroup-try", "--disable-userns", "--uid", str(UID), "--gid", str(UID)]
    options += ["--hostname", "sandbox", "--cap-drop", "ALL", "--new-session", "--die-with-parent"]
    # --clearenv alone is not enough: the agent also starts the chain with an empty environment
    options.append("--clearenv")
    for name, value in {
        "PATH": PATH,
        "HOME": JOB,
        "LANG": "C.UTF-8",
        "TMPDIR": TEMPORARY[0],
        **env,
    }.items():
        if not name or "=" in name or "\0" in name + value:
            raise ValueError(f"not a variable: {name!r}")
        options += ["--setenv", name, value]

    # for operators' mounts, bwrap must make mount points
    options += _parts_of(root) if read_only else ["--ro-bind", str(root.path), "/"]
    if read_only or not root.mounted:
        for folder in root.folders:
            options += ["--ro-bind", folder, folder]

    options += ["--proc", "/proc"]
    options += ["--dev", "/dev"] if devices is None else ["--dev-bind", str(devices), "/dev"]
    # By writing to the memory of its init, a job could control it, although ptrace is refused. Then
    # the job could outlive the agent, or forge exit codes. Other files of the init show internals.
    options += ["--perms", "0555", "--size", "4096", "--tmpfs", INIT_PROC]
    options += ["--perms", "0555", "--size", "4096", "--tmpfs", PROC_FS]
    options += _hide_proc_files()
    options += ["--perms", "1777", "--size", str(scratch), "--tmpfs", TEMPORARY[0]]
    options += ["--perms", "1777", "--size", str(scratch), "--tmpfs", SHM]
    for source, target in read_only:
        options += ["--ro-bind", str(source), checked_mount_target(target)]

    # This is the last mount, and nothing is mounted below it: if the job can write the directory of
    # a mount point, bwrap would follow the job's symlinks to the host (CVE-2026-87766). What bwrap
    # made of /dev and / is a tmpfs without a size limit, so it is made read-only.
    options += ["--bind-fd", str(fds.job), JOB]
    options += ["--remount-ro", PROC_FS]
    options += ["--remount-ro", INIT_PROC]
    if devices is None:  # else it is read-only, and this would also take its nodes away
        options += ["--remount-ro", "/dev"]
    if read_only:
        options += ["--remount-ro", "/"]
    options += ["--chdir", JOB]
    if fds.seccomp is not None:
        options += ["--seccomp", str(fds.seccomp)]
    return [*options, "--json-status-fd", str(fds.status)]


@cache
def _hide_proc_files() -> list[str]:
    """Options that make files of ``/proc`` empty inside."""
    there = [path for name in HIDDEN_PROC_FILES if (path := Path("/proc", name)).exists()]
    return [word for path in there for word in ("--dev-bind", os.devnull, str(path))]


def _parts_of(root: RootTree) -> list[str]:
    """Options that make the same as mounting the tree, in a tmpfs of bwrap's own."""
    options: list[str] = []
    for name in MERGED_USR:
        link = root.path / name[1:]
        if link.is_symlink():
            options += ["--symlink", str(link.readlink()), name]
    for name in root.files:
        options += ["--ro-bind", f"{root.path}{name}", name]
    for name, target in LINKS.items():
        options += ["--dir", str(PurePosixPath("/", name).parent), "--symlink", target, f"/{name}"]
    return options


def checked_mount_target(target: str) -> str:
    """The target of an operator's mount, normalised. Raises SandboxBroken if it is relative, or the
    job or the sandbox uses that path."""
    path = PurePosixPath(os.path.normpath(target))
    prefixes = {str(path), *map(str, path.parents)}
    inside = next((reserved for reserved in RESERVED if reserved in prefixes), None)
    if not path.is_absolute() or str(path) in ("/", "//") or ".." in path.parts or inside:
        raise SandboxBroken(
            f"read_only: cannot mount on {target!r} in the sandbox"
            + (f": {inside} is the sandbox's own" if inside else ": give an absolute path below /")
        )
    return str(path)


def encode_args(options: Sequence[str]) -> bytes:
    """The input for ``--args FD``. On the command line, host paths would be visible in
    ``/proc/1/cmdline``."""
    return b"".join(os.fsencode(option) + b"\0" for option in options)
