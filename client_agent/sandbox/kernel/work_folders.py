"""Where attempts live on the host: a folder ``HOME/work/NAME`` each.

In it: ``init``, the record of the sandbox's init; and ``job``, where there are no disk images.

``work`` is closed to everybody else on the host, whatever the folders above it let through: in its
directory a job can make programs with the set-uid bit, and sockets at which somebody outside could
hand descriptors in. But bwrap opens that directory by its path, with the rights of the job's uid.
For a root agent, whose jobs have uids of their own, it is therefore bound to an open folder below
``/run``, in a mount namespace that nobody but the agent is in.
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

MOUNT_ROOT: Final = Path("/run/ferryman")
_INIT_RECORD: Final = "init"


class WorkFolders:
    """The folders of one agent.

    Args:
        home: the agent's directory, for this agent alone.
        separate_uids: the jobs run as other uids than the agent.

    Attributes:
        name: of whatever the agent makes outside its home; the same in its next life.
    """

    def __init__(self, home: Path, *, separate_uids: bool) -> None:
        home = home.resolve()
        self.work, self.images = home / "work", home / "images"
        self._quarantine, self._groups = home / "quarantine", home / "cgroups"
        self._separate_uids = separate_uids
        self.name = f"ferryman-{hashlib.sha256(os.fsencode(home)).hexdigest()[:12]}"
        self._base: Path | None = None

    @property
    def base(self) -> Path:
        """Where the jobs' directories are, under a path that the jobs' uids can follow: for a
        root agent a folder for mount points, else ``work`` itself.

        Raises:
            SandboxBroken
        """
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
            if not closed:  # without a mount, whoever is on this host can follow them, too
                self.work.chmod(0o711)
                return self.work
            raise SandboxBroken(
                f"the jobs' own users cannot reach {self.work}, because {closed[0]} is closed to "
                f"them, and it cannot be mounted on {mount_folder} ({problem.strerror}): choose a "
                f"data folder that others may enter (chmod o+x {closed[0]})"
            ) from problem
        return mount_folder

    def clear(self, alive: Collection[Path] = ()) -> None:
        """Remove what an earlier run left, but for folders of what is still alive. Its mounts died
        with it. Blocking."""
        for folder in self.leftovers():
            if folder not in alive:
                remove_tree(folder)
        if self.images.is_dir():
            for file in self.images.iterdir():
                file.unlink()

    def close(self) -> None:
        """Take the mounts away; the files stay. Blocking."""
        mount_folder, self._base = self._base, None
        if mount_folder is not None and mount_folder != self.work:
            for bind_mount in list(mount_folder.iterdir()):  # of attempts that would not die
                _remove_bind_mount(bind_mount)
            mount_folder.rmdir()

    def check_free(self, floor: int) -> None:
        """Raises OSError (ENOSPC) where the disk has less than ``floor`` bytes left."""
        free = self.free()
        if free < floor:
            raise OSError(
                errno.ENOSPC, f"only {free} bytes are free, {floor} must stay free", str(self.work)
            )

    def free(self) -> int:
        """Bytes that are free on the agent's disk."""
        self.work.mkdir(parents=True, exist_ok=True)
        found = os.statvfs(self.work)
        return found.f_bavail * found.f_frsize

    def make(self, name: str) -> Path:
        """The folder of one attempt.

        Raises:
            FileExistsError: the name is in use.
            OSError
        """
        _ = self.base
        folder = self.work / name
        folder.mkdir()
        folder.chmod(0o711)  # the job's uid passes through, and cannot list, add or move
        return folder

    def make_job(self, folder: Path, uid: int | None) -> Path:
        """An empty directory for the job in the attempt's folder, which belongs to ``uid``.

        Returns:
            The path under which that uid can open it.
        """
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
        """Note the sandbox's init, so that a later life of the agent can kill it and nothing
        else.

        Written before the gate can open. It need not survive a power cut: nothing runs after one.
        """
        fields = pidfd.stat_fields(init)
        started = "0" if fields is None else fields[19]
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        fd = os.open(f"{folder}/{_INIT_RECORD}", flags, 0o600)
        try:
            os.write(fd, f"{_boot_id()} {init} {started}\n".encode())
        finally:
            os.close(fd)

    def record_groups(self, folders: Collection[Path]) -> None:
        """Note the parents of the jobs' cgroups: an agent that is started in another cgroup would
        not find them."""
        if folders:
            self._groups.parent.mkdir(parents=True, exist_ok=True)
            self._groups.write_text("".join(f"{folder}\n" for folder in folders))
        else:
            self._groups.unlink(missing_ok=True)

    def recorded_groups(self) -> list[Path]:
        """As noted in an earlier run; they may be gone."""
        try:
            lines = self._groups.read_text().splitlines()
        except FileNotFoundError:
            return []
        return [Path(line) for line in lines if Path(line).name == self.name]

    def leftovers(self) -> list[Path]:
        """Folders of attempts, the quarantined ones included."""
        return [
            entry
            for top in (self.work, self._quarantine)
            if top.is_dir()
            for entry in sorted(top.iterdir())
        ]

    def recorded_init(self, folder: Path) -> int | None:
        """A pidfd of the init noted in ``folder``, if it is still that process."""
        try:
            boot_id, pid, started = (folder / _INIT_RECORD).read_text(encoding="ascii").split()
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        return pidfd.open_if_started_at(int(pid), started) if boot_id == _boot_id() else None

    def quarantine(self, folder: Path) -> Path:
        """Keep a folder apart whose processes would not die; the next start tries again."""
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
        """Delete the folder of an attempt. Blocking: a tree can be large."""
        if self.base != self.work:
            _remove_bind_mount(
                self.base / folder.name.partition(".")[0]
            )  # in quarantine it has a serial
        remove_tree(folder)


def _remove_bind_mount(bind_mount: Path) -> None:
    """Take a mount point away, if it is there; whoever still uses it keeps the mount."""
    with suppress(OSError):
        mounts.unmount(bind_mount, detach=True)
    with suppress(FileNotFoundError):
        bind_mount.rmdir()


@cache
def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
