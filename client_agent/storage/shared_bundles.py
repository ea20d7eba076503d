"""Bundles that several payloads use: one file for each, kept for a while after its last use.

A server whose jobs have the same bundle sends it with the first of them, and says that more orders
may come; those name it by its digest. Which payloads use a file is known from their rows, so
nothing is written down here: after a restart the Prepared payloads say it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from client_agent.storage.folders import Folders
from shared.clock import Clock

KEEP_S: Final = 60.0
"""After its last use."""
MAX_UNUSED: Final = 32
MAX_UNUSED_BYTES: Final = 256 << 20
"""Of the unused ones together. Beyond it those that were used longest ago go first."""

Content = tuple[str, str]
"""Server and digest: what one server sent is not given to the jobs of another."""


@dataclass(slots=True)
class _Shared:
    content: Content
    size: int
    users: set[int] = field(default_factory=set)
    """Ids of payloads."""
    pins: int = 0
    """Requests that are about to use it."""
    unused_since: float = 0.0

    @property
    def in_use(self) -> bool:
        return bool(self.users or self.pins)


class SharedBundles:
    """The files, by their names in the folder of bundles."""

    def __init__(self, folders: Folders, clock: Clock) -> None:
        self._folders, self._clock = folders, clock
        self._files: dict[str, _Shared] = {}
        self._newest: dict[Content, str] = {}

    @contextmanager
    def pin(self, content: Content) -> Iterator[str | None]:
        """The file with this content, which is there at least until the context ends; None: there
        is none."""
        file = self._newest.get(content)
        if file is None:
            yield None
            return
        shared = self._files[file]
        shared.pins += 1
        try:
            yield file
        finally:
            shared.pins -= 1
            self._settle(file)

    def use(self, file: str, content: Content, size: int, payload_id: int) -> None:
        """The payload uses the file until :meth:`release`."""
        self._newest[content] = file
        self._files.setdefault(file, _Shared(content, size)).users.add(payload_id)

    def release(self, file: str, payload_id: int) -> bool:
        """The payload does not need the file any more. Repeats are harmless.

        Returns:
            Whether the file is the payload's alone, and may be removed.
        """
        if file not in self._files:
            return True
        self._files[file].users.discard(payload_id)
        self._settle(file)
        return False

    def forget(self, file: str) -> None:
        """The file is damaged, or gone: it is given to no other payload, so its server sends it
        again. Repeats are harmless."""
        shared = self._files.get(file)
        if shared is not None and self._newest.get(shared.content) == file:
            del self._newest[shared.content]

    def sweep(self) -> None:
        """Remove what was not used for long enough, and what is too much."""
        now = self._clock.monotonic()
        unused = sorted(
            ((one.unused_since, file) for file, one in self._files.items() if not one.in_use),
            reverse=True,
        )
        count = size = 0
        for since, file in unused:
            count, size = count + 1, size + self._files[file].size
            if now - since >= KEEP_S or count > MAX_UNUSED or size > MAX_UNUSED_BYTES:
                self._remove(file)

    def _settle(self, file: str) -> None:
        shared = self._files.get(file)
        if shared is None or shared.in_use:
            return
        shared.unused_since = self._clock.monotonic()
        if self._newest.get(shared.content) != file:
            self._remove(file)  # the same content came once more, and is found there
        self.sweep()

    def _remove(self, file: str) -> None:
        shared = self._files.pop(file)
        if self._newest.get(shared.content) == file:
            del self._newest[shared.content]
        self._folders.remove_later(self._folders.bundle(file))
