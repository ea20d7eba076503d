"""The agent's files: bundles, logs and large results.

Bytes are written before their row, and the row is deleted before them. So a crash can leave a file
without a row, which :meth:`Folders.remove_orphans` removes at the next start, but never a payload
without its files. After a power cut a bundle may be damaged, and its server sends it once more.
Methods that are not ``async`` block.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from shared.files import durable
from shared.sqlite.files import unused_name

STREAMS: Final = ("stdout", "stderr")
ROW_BYTES: Final = 256 << 10
"""Of a result that is a row of the database; a larger one is a file."""


class Folders:
    """The folders in the agent's data folder. They are made if they are missing. Raises OSError if
    the data folder cannot be written.

    Args:
        token: makes a new file name of letters and digits.
    """

    def __init__(self, home: Path, token: Callable[[], str]) -> None:
        self.home, self._token = home, token
        self._bundles, self._results = home / "bundles", home / "results"
        self._staging, self._logs = home / "staging", home / "logs"
        self.aside = home / "unknown"
        self._unneeded: list[Path] = []
        self._removing = asyncio.Lock()
        for folder in (self._bundles, self._results, self._staging, self._logs):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def staging(self) -> Path:
        """A path for a new file, until it is complete and sealed."""
        return self._staging / self._token()

    def bundle(self, name: str) -> Path:
        return self._bundles / name

    def result(self, payload_id: int) -> Path:
        return self._results / f"{payload_id}.zip"

    def read_results(self, sizes: Mapping[int, int]) -> dict[int, bytes]:
        """Whole results, for payloads and the sizes that they have; without those that are not here
        any more."""
        found = {}
        for payload_id, size in sizes.items():
            try:
                content = self.result(payload_id).read_bytes()
            except OSError:
                continue
            if len(content) == size:
                found[payload_id] = content
        return found

    def log(self, payload_id: int, stream: str) -> Path:
        return self._logs / f"{payload_id}.{stream}"

    def log_size(self, payload_id: int, stream: str) -> int:
        """Bytes of a log; 0: it cannot be read."""
        return _size(self.log(payload_id, stream))

    def seal_bundles(self, staged: Sequence[Path], *, synced: bool = False) -> list[str]:
        """Move complete bundles to their folder, all of them, or none; their new names.

        Args:
            synced: nobody has another one: they are fsynced, and are to be there after a power cut.
        """
        final = [self.bundle(self._token()) for _ in staged]
        try:
            for path, to in zip(staged, final, strict=True):
                path.replace(to)
            if synced:
                durable.fsync_folder(self._bundles)
        except OSError:
            self._remove_all([*staged, *final])
            raise
        return [path.name for path in final]

    def seal_result(self, staged: Path, payload_id: int) -> bytes | None:
        """Take a complete result: a small one comes back, for its row; a large one moves to its
        folder, and survives a power cut."""
        if staged.stat().st_size > ROW_BYTES:
            durable.replace(staged, self.result(payload_id))
            return None
        content = staged.read_bytes()
        self.remove_file(staged)
        return content

    async def remove_run_files(self, payload_id: int, bundles: Iterable[str]) -> None:
        """After the end: remove what is not needed any more, and the logs.

        Args:
            bundles: names of its bundle and its inputs.
        """
        await self._remove(*map(self.bundle, bundles), *self._logs_of(payload_id))

    async def remove_logs(self, payload_id: int) -> None:
        """Remove the logs of an attempt that did not start."""
        await self._remove(*self._logs_of(payload_id))

    async def remove_results(self, payload_ids: Iterable[int]) -> None:
        """Remove results that their servers have, or that are too old."""
        await self._remove(*map(self.result, payload_ids))

    def remove_later(self, path: Path) -> None:
        """Remove a file together with those that are removed next: it may be a large one."""
        self._unneeded.append(path)

    async def remove_unneeded(self) -> None:
        """Remove what waits for it."""
        await self._remove()

    def _logs_of(self, payload_id: int) -> list[Path]:
        return [self.log(payload_id, stream) for stream in STREAMS]

    async def _remove(self, *paths: Path) -> None:
        """In a thread, because even a small file takes long while the disk is busy; those of
        several callers together."""
        self._unneeded += paths
        async with self._removing:
            if self._unneeded:  # else who was before has removed these, too
                paths, self._unneeded = tuple(self._unneeded), []
                await asyncio.to_thread(self._remove_all, paths)

    def _remove_all(self, paths: Iterable[Path]) -> None:
        for path in paths:
            self.remove_file(path)

    def remove_file(self, path: Path) -> None:
        """Remove a file. It is no error if it does not exist."""
        durable.remove_quietly(path)

    def free_bytes(self) -> int:
        """Bytes that are free on the disk."""
        disk = os.statvfs(self.home)
        return disk.f_bavail * disk.f_frsize

    def check_writable(self) -> None:
        """Raises OSError if a file cannot be made and written."""
        path = self.staging()
        try:
            path.write_bytes(b"ferryman")
        finally:
            self.remove_file(path)

    def move_results_aside(self, above: int) -> int:
        """At start: keep the results of payloads whose ids the database has not given yet, so it
        is new or an older copy, for whoever misses them, where no new result gets their names; how
        many they were."""
        found = self._results.glob("*.zip")
        unknown = [path for path in found if path.stem.isdigit() and int(path.stem) > above]
        for path in unknown:
            self.aside.mkdir(mode=0o700, exist_ok=True)
            path.rename(unused_name(self.aside / path.name))
        return len(unknown)

    def remove_orphans(self, bundles: Collection[str], results: Collection[int]) -> int:
        """At start: remove all files that no row refers to; how many they were.

        Args:
            bundles: names of bundles to keep.
            results: ids of payloads whose results to keep.
        """
        kept = {self._bundles: set(bundles), self._results: {f"{one}.zip" for one in results}}
        removed = 0
        for folder in (self._bundles, self._results, self._staging, self._logs):
            for path in folder.iterdir():
                if path.name not in kept.get(folder, ()):
                    self.remove_file(path)
                    removed += 1
        return removed


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
