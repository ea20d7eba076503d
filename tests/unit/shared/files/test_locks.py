"""One process for one folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shared.files.durable import FolderInUse, FolderLock

HOLD = (
    "import sys; from pathlib import Path; from shared.files.durable import FolderLock; "
    "lock = FolderLock(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
)


def test_a_folder_is_held_until_its_process_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-P", "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(FolderInUse, match=rf"{tmp_path} is in use .*pid {holder.pid}\)"):
            FolderLock(tmp_path)
        holder.kill()
        holder.wait()
    FolderLock(tmp_path).close()


def test_a_folder_can_be_held_again_and_names_its_new_holder(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("123456789 and a longer text than a pid\n")
    for _ in range(2):
        lock = FolderLock(tmp_path)
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
        with pytest.raises(FolderInUse, match="choose another data folder"):
            FolderLock(tmp_path)
        lock.close()


def test_a_program_that_is_started_does_not_inherit_the_lock(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        close_fds=False,
    ) as program:
        assert program.stdout is not None
        program.stdout.readline()  # the kernel closes descriptors after Popen has returned
        lock.close()
        FolderLock(tmp_path).close()
