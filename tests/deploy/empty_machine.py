"""A Debian in a folder, with nothing but what a package needs, in namespaces of its own."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

# pivot_root, not chroot: in a chroot the kernel gives nobody a user namespace.
_INSIDE = """
mount --make-rprivate / && mount --bind "$0" "$0" && cd "$0" && mkdir -p proc dev sys
mount -t proc proc proc && mount --rbind /dev dev && mount --rbind /sys sys
pivot_root . . && umount -l . && cd /
exec /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 "$@"
"""
_PATIENCE_S = 200


def suite() -> str:
    """This machine's own, so that a package that was built here fits."""
    lines = Path("/etc/os-release").read_text().splitlines()
    table = dict(line.split("=", 1) for line in lines if "=" in line)
    return table["VERSION_CODENAME"].strip('"')


class EmptyMachine:
    def __init__(self, mmdebstrap: str, folder: Path, packages: Sequence[str]) -> None:
        self.folder = folder
        words = ("--quiet", "--variant=minbase", f"--include={','.join(packages)}")
        subprocess.run([mmdebstrap, *words, suite(), str(folder)], check=True)

    def run(self, script: str) -> str:
        """What it printed; it must end well."""
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", _INSIDE]
        done = subprocess.run(
            [*command, str(self.folder), "bash", "-euo", "pipefail", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def remove(self) -> None:
        shutil.rmtree(self.folder)
