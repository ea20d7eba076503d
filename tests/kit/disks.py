"""Small disks, and full ones."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def mounted(place: Path, *words: str) -> Iterator[None]:
    """What ``mount`` makes of the words, at ``place``; skips the test where that is not allowed."""
    place.mkdir(exist_ok=True)
    done = subprocess.run(
        ["mount", *words, str(place)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"cannot mount here: what happens on other disks is not proved: {done.stderr}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(folder: Path) -> Path:
    """Take all that is left on the disk; the file to remove to give it back."""
    filler = folder / "filler"
    for size in (1 << 16, 1):
        with suppress(OSError), filler.open("ab", buffering=0) as file:
            while file.write(bytes(size)) == size:
                pass
    return filler
