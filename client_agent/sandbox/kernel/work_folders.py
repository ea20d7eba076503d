"""The folders of attempts on the host. Each attempt has ``HOME/work/NAME``.

It contains ``init``, the record of the sandbox's init, and ``job``, the job's directory, if there
are no disk images.

Only the agent may enter ``work``, because a job can make programs with the set-uid bit in its
directory, and sockets through which another user of the host could pass descriptors to it. But
bwrap opens the job's directory by its path, as the job's uid. If the jobs have uids of their own
(a root agent), that path is therefore a bind mount below ``/run``, in a mount namespace that only
the agent is in.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Collection
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from client_agent.sandbox.base import SandboxBroken
from client_agent.sandbox.kernel import mounts, pidfd
from client_agent.storage.remove_tree import remove_tree
from shared.files.opened import closing_fd

MOUNT_ROOT: Final = Path("/run/ferryman")
_INIT_RECORD: Final = "init"


class WorkFolders:
    """The folders of one agent.

    Args:
        home: the agent's directory. No other agent uses it.
        separate_uids: the jobs run as other uids than the agent.

    Attributes:
        name: of what the agent makes outside its home. It is the same after a restart.
    """

    def __init__(self, home: Path, *, separate_uids: bool) -> None:
        home = home.resolve()
        self.work, self.images = home / "work", home / "images"
        self._quarantine, self._groups = home / "quarantine", home / "cgroups"
        self._roots = home / "roots"
        self._separate_uids = separate_uids
        self.name = f"ferryman-{hashlib.sha256(os.fsencode(home)).hexdigest()[:12]}"
        self._base: Path | None = None

    @property
    def base(self) -> Path:
        """Folder of the jobs' directories, under a path that the jobs' uids can open: for a root
        agent a folder of bind mounts, otherwise ``work`` itself. Raises SandboxBroken."""
        if self._base is None:
            self.work.mkdir(parents=True, exist_ok=True)
            self.work.chmod(0o700)
            self._base = self._make_mount_folder() if self._separate_uids else self.work
        return self._base

    def _make_mount_folder(self) -> Path:
        mount_folder = MOUNT_ROOT / self.name
        try:
            mounts.enter_private_namespace(MOUNT_ROOT)
            mount_folder.mkdir(mode=0o711)
        except OSError as problem:
            closed = [p for p in self.work.parents if not p.stat().st_mode & 0o001]
            if not closed:  # without a mount, other users of the host can open them, too
                self.work.chmod(0o711)
                return self.work
            raise SandboxBroken(
                f"the jobs' own users cannot reach {self.work}, because {closed[0]} is closed to "
                f"them, and it cannot be mounted on {mount_folder} ({problem.strerror}): choose a "
                f"data folder that others may enter (chmod o+x {closed[0]})"
            ) from problem
        return mount_folder

    @property
    def has_mounts(self) -> bool:
        """Whether :attr:`base` is a folder of mounts. Raises SandboxBroken."""
        return self.base != self.work

    def make_root_folder(self, name: str) -> Path:
        """Make an empty folder that the jobs' uids can open, for what all jobs see."""
        parent = self.base if self.has_mounts else self._roots
        if parent is self._roots:
            parent.mkdir(exist_ok=True)
            parent.chmod(0o711 if self._separate_uids else 0o700)
        folder = parent / name
        folder.mkdir()
        folder.chmod(0o755)
        return folder

    def clear(self, alive: Collection[Path] = ()) -> None:
        """Remove what an earlier run left, except the folders of processes that are still alive.
        The mounts ended with that run. Blocking."""
        for folder in self.leftovers():
            if folder not in alive:
                remove_tree(folder)
        remove_tree(self._roots)
        if self.images.is_dir():
            for file in self.images.iterdir():
                file.unlink()

    def close(self) -> None:
        """Unmount the bind mounts; the files stay. Blocking."""
        with suppress(OSError):  # its trees are removed before
            self._roots.rmdir()
        mount_folder, self._base = self._base, None
        if mount_folder is not None and mount_folder != self.work:
            for bind_mount in list(
                mount_folder.iterdir()
            ):  # of attempts whose processes did not die
                _remove_bind_mount(bind_mount)
            mount_folder.rmdir()

    def check_free(self, floor: int) -> None:
        """Raises OSError (ENOSPC) if fewer than ``floor`` bytes are free on the disk."""
        free = self.free()
        if free < floor:
            raise OSError(
                errno.ENOSPC, f"only {free} bytes are free, {floor} must stay free", str(self.work)
            )

    def free(self) -> int:
        """Bytes that are free on the agent's disk."""
        try:
            disk = os.statvfs(self.work)
        except FileNotFoundError:
            self.work.mkdir(parents=True, exist_ok=True)
            disk = os.statvfs(self.work)
        return disk.f_bavail * disk.f_frsize

    def make(self, name: str) -> Path:
        """Make the folder of one attempt. Raises FileExistsError if the name is in use, or
        another OSError."""
        _ = self.base
        folder = self.work / name
        folder.mkdir()
        folder.chmod(0o711)  # the job's uid may pass through it, not list or change it
        return folder

    def make_job_folder(self, folder: Path, uid: int | None) -> Path:
        """Make an empty directory for the job in the attempt's folder. It belongs to ``uid``.
        Returns the path under which that uid can open it."""
        job = folder / "job"
        job.mkdir(mode=0o700)
        if uid is not None:
            os.chown(job, uid, uid)
        if self.base == self.work:
            return job
        bind_mount = self.base / folder.name
        bind_mount.mkdir()
        mounts.mount(str(job), bind_mount, flags=mounts.BIND)
        return bind_mount

    def record_init(self, folder: Path, init: int) -> None:
        """Record the sandbox's init, so that the next run of the agent can kill it, and no other
        process that has its pid.

        It is written before the gate can open. It is not fsynced: after a power failure nothing
        runs.
        """
        fields = pidfd.stat_fields(init)
        started = "0" if fields is None else fields[19]
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with closing_fd(os.open(f"{folder}/{_INIT_RECORD}", flags, 0o600)) as fd:
            os.write(fd, f"{_boot_id()} {init} {started}\n".encode())

    def record_groups(self, folders: Collection[Path]) -> None:
        """Record the parents of the jobs' cgroups. If the agent is started in another cgroup next
        time, it could not find them otherwise."""
        if folders:
            self._groups.parent.mkdir(parents=True, exist_ok=True)
            self._groups.write_text("".join(f"{folder}\n" for folder in folders))
        else:
            self._groups.unlink(missing_ok=True)

    def recorded_groups(self) -> list[Path]:
        """The groups that an earlier run recorded; they may be gone."""
        try:
            lines = self._groups.read_text().splitlines()
        except FileNotFoundError:
            return []
        return [Path(line) for line in lines if Path(line).name == self.name]

    def leftovers(self) -> list[Path]:
        """Folders of attempts, with the quarantined ones."""
        return [
            entry
            for top in (self.work, self._quarantine)
            if top.is_dir()
            for entry in sorted(top.iterdir())
        ]

    def open_recorded_init(self, folder: Path) -> int | None:
        """A pidfd of the init recorded in ``folder``, if it is still that process."""
        try:
            boot_id, pid, started = (folder / _INIT_RECORD).read_text(encoding="ascii").split()
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        return pidfd.open_if_started_at(int(pid), started) if boot_id == _boot_id() else None

    def quarantine(self, folder: Path) -> Path:
        """Move a folder whose processes did not die; the next start tries again to remove it."""
        if folder.parent == self._quarantine:
            return folder
        self._quarantine.mkdir(mode=0o700, exist_ok=True)
        target = self._quarantine / folder.name
        serial = 0
        while target.exists():
            serial += 1
            target = self._quarantine / f"{folder.name}.{serial}"
        (self.work / folder.name).rename(target)
        return target

    def remove(self, folder: Path) -> None:
        """Delete the folder of an attempt. Blocking."""
        if self.base != self.work:
            name, _, _ = folder.name.partition(".")  # a quarantined folder may have a number
            _remove_bind_mount(self.base / name)
        remove_tree(folder)


def _remove_bind_mount(bind_mount: Path) -> None:
    """Remove a bind mount, if it exists. Processes that still use it keep it."""
    with suppress(OSError):
        mounts.unmount(bind_mount, detach=True)
    with suppress(FileNotFoundError):
        bind_mount.rmdir()


@cache
def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
