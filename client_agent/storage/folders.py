"""The agent's files: bundles that wait, logs being written, results that are kept.

Bytes are written before their row, and the row is deleted before them. So a crash can leave a file
without a row, which :meth:`Folders.remove_orphans` removes at the next start, but never a payload
without its files. Methods that are not ``async`` block.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from shared.files import durable

_SMALL: Final = 1 << 20
"""Bytes."""
STREAMS: Final = ("stdout", "stderr")


class Folders:
    """Folders below the agent's data folder, made if missing.

    Args:
        token: makes a new file name, of letters and digits.

    Raises:
        OSError: the data folder cannot be written.
    """

    def __init__(self, home: Path, token: Callable[[], str]) -> None:
        self.home, self._token = home, token
        self._bundles, self._results = home / "bundles", home / "results"
        self._staging, self._logs = home / "staging", home / "logs"
        for folder in (self._bundles, self._results, self._staging, self._logs):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def staging(self) -> Path:
        """Where a new file is written until it is sealed."""
        return self._staging / self._token()

    def bundle(self, name: str) -> Path:
        return self._bundles / name

    def result(self, payload_id: int) -> Path:
        return self._results / f"{payload_id}.zip"

    def log(self, payload_id: int, stream: str) -> Path:
        return self._logs / f"{payload_id}.{stream}"

    def seal_bundle(self, staged: Path) -> str:
        """Keep a bundle that was fsynced at ``staged``; its name from now on."""
        name = self._token()
        durable.replace(staged, self.bundle(name), synced=True)
        return name

    def seal_result(self, staged: Path, payload_id: int) -> None:
        """Keep a result that was fsynced at ``staged``."""
        durable.replace(staged, self.result(payload_id), synced=True)

    async def remove_run_files(self, payload_id: int, bundle: str) -> None:
        """It has ended: nobody needs its bundle or its logs any more."""
        await self._forget(self.bundle(bundle), *self._logs_of(payload_id))

    async def remove_logs(self, payload_id: int) -> None:
        """Of a start that came to nothing."""
        await self._forget(*self._logs_of(payload_id))

    async def remove_result(self, payload_id: int) -> None:
        """Its server has it, or nobody came for it."""
        await self._forget(self.result(payload_id))

    def _logs_of(self, payload_id: int) -> list[Path]:
        return [self.log(payload_id, stream) for stream in STREAMS]

    async def _forget(self, *paths: Path) -> None:
        """Unlinking a small file takes less than a visit to a thread; a large one takes long."""
        large = [path for path in paths if _size(path) > _SMALL]
        for path in set(paths) - set(large):
            self.remove_file(path)
        for path in large:
            await asyncio.to_thread(self.remove_file, path)

    def remove_file(self, path: Path) -> None:
        """Remove one file; one that is not there is fine."""
        durable.remove_quietly(path)

    def free_bytes(self) -> int:
        """Space that is left for us."""
        found = os.statvfs(self.home)
        return found.f_bavail * found.f_frsize

    def check_writable(self) -> None:
        """Raises OSError when a file cannot be made and written."""
        path = self.staging()
        try:
            path.write_bytes(b"ferryman")
        finally:
            self.remove_file(path)

    def remove_orphans(self, bundles: Collection[str], results: Collection[int]) -> int:
        """At start: remove every file that no row refers to; how many.

        Args:
            bundles: names that are still needed.
            results: ids of payloads whose results are kept.
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
