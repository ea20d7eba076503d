"""Where attempts live on the host: a folder ``HOME/work/NAME`` each.

In it: ``init``, the record of the sandbox's init; and ``job``, where there are no disk images.

An unprivileged bwrap opens the job's directory by its path, so every folder above it must let the
job's uid through. A root agent's home is often closed (``/root``, ``mktemp -d``); ``work`` is
therefore bound once to an open folder below ``/run``, in a mount namespace of the agent's own.
"""

from __future__ import annotations

import errno
import hashlib
import os
from functools import cache
from pathlib import Path
from typing import Final

from client_agent.remove import remove_tree
from client_agent.sandbox import mounts, pidfd
from client_agent.sandbox.base import SandboxBroken

WINDOWS: Final = Path("/run/ferryman")
_RECORD: Final = "init"


class Places:
    """The folders of one agent.

    Args:
        home: the agent's directory, for this agent alone.
        drop: the jobs run as other uids than the agent.

    Attributes:
        name: of whatever the agent makes outside its home; the same in its next life.
    """

    def __init__(self, home: Path, *, drop: bool) -> None:
        home = home.resolve()
        self.work, self.images = home / "work", home / "images"
        self._quarantine = home / "quarantine"
        self._drop = drop
        self.name = f"ferryman-{hashlib.sha256(os.fsencode(home)).hexdigest()[:12]}"
        self._base: Path | None = None

    @property
    def base(self) -> Path:
        """``work`` under a path that the jobs' uids can follow.

        Raises:
            SandboxBroken
        """
        if self._base is None:
            self.work.mkdir(parents=True, exist_ok=True)
            self.work.chmod(0o711)
            self._base = self._open_window() if self._drop else self.work
        return self._base

    def _open_window(self) -> Path:
        window = WINDOWS / self.name
        try:
            mounts.privatize(WINDOWS)
            window.mkdir(mode=0o711)
            mounts.mount(str(self.work), window, flags=mounts.BIND)
        except OSError as problem:
            closed = [p for p in (self.work, *self.work.parents) if not p.stat().st_mode & 0o001]
            if not closed:
                return self.work
            raise SandboxBroken(
                f"the jobs' own users cannot reach {self.work}, because {closed[0]} is closed to "
                f"them, and it cannot be mounted on {window} ({problem.strerror}): choose a "
                f"data folder that others may enter (chmod o+x {closed[0]})"
            ) from problem
        return window

    def clear(self) -> None:
        """Remove what a former life left; it must be dead. Its mounts died with it. Blocking."""
        for folder in self.left_over():
            remove_tree(folder)
        if self.images.is_dir():
            for file in self.images.iterdir():
                file.unlink()

    def close(self) -> None:
        """Take the mount away; the files stay. Blocking."""
        window, self._base = self._base, None
        if window is not None and window != self.work:
            mounts.unmount(window, detach=True)
            window.rmdir()

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
        folder = self.base / name
        folder.mkdir()
        folder.chmod(0o711)  # the job's uid passes through, and cannot list, add or move
        return folder

    def make_job(self, folder: Path, uid: int | None) -> Path:
        """An empty directory for the job in the attempt's folder, which belongs to ``uid``."""
        job = folder / "job"
        job.mkdir(mode=0o700)
        if uid is not None:
            os.chown(job, uid, uid)
        return job

    def record(self, folder: Path, init: int) -> None:
        """Note the sandbox's init, so that a later life of the agent can kill it and nothing
        else.

        Written before the gate can open. It need not survive a power cut: nothing runs after one.
        """
        fields = pidfd.stat_fields(init)
        started = "0" if fields is None else fields[19]
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        fd = os.open(f"{folder}/{_RECORD}", flags, 0o600)
        try:
            os.write(fd, f"{_boot_id()} {init} {started}\n".encode())
        finally:
            os.close(fd)

    def left_over(self) -> list[Path]:
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
            boot_id, pid, started = (folder / _RECORD).read_text(encoding="ascii").split()
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        return pidfd.open_started(int(pid), started) if boot_id == _boot_id() else None

    def quarantine(self, folder: Path) -> Path:
        """Keep a folder apart whose processes would not die; the next start tries again."""
        self._quarantine.mkdir(mode=0o700, exist_ok=True)
        place = self._quarantine / folder.name
        serial = 0
        while place.exists():
            serial += 1
            place = self._quarantine / f"{folder.name}.{serial}"
        (self.work / folder.name).rename(place)
        return place

    @staticmethod
    def remove(folder: Path) -> None:
        """Delete the folder of an attempt. Blocking: a tree can be large."""
        remove_tree(folder)


@cache
def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
