"""The bundles of the load: a ``run.sh`` that sleeps and writes, and files of random bytes."""

from __future__ import annotations

import io
from typing import BinaryIO, Final, cast

from ferryman.bench.plan import Order
from ferryman.bundle import ENTRY, Content
from ferryman.clock import seeded

_POOL: Final = 1 << 20
"""Bytes of random data that all files are made of."""
_SMALL: Final = 1 << 16
"""Bytes up to which a file is made in memory."""


class Noise(io.RawIOBase):
    """A file of any size that takes no memory: random bytes, repeated.

    Args:
        pool: the bytes.
        offset: where in them it begins.
    """

    def __init__(self, pool: bytes, size: int, offset: int) -> None:
        super().__init__()
        self._pool, self._size, self._offset = pool, size, offset
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        begin = (self._offset + self._at) % len(self._pool)
        count = max(0, min(len(buffer), self._size - self._at, len(self._pool) - begin))
        buffer[:count] = self._pool[begin : begin + count]
        self._at += count
        return count


class Bundles:
    """Makes them; two runs with the same seed make the same."""

    def __init__(self, seed: int) -> None:
        self._pool = seeded(f"{seed}:bytes").randbytes(_POOL)
        self._seed = seed

    def files(self, order: Order, run: str) -> dict[str, Content]:
        """Names with their content. ``run`` makes the bundle differ from those of other runs, so
        that the server has to store it.
        """
        found: dict[str, Content] = {ENTRY: script(order, run)}
        rng = seeded(f"{self._seed}:{order.number}:bytes")
        each, more = divmod(order.size, order.files)
        for number in range(order.files):
            size, offset = each + (number < more), rng.randrange(_POOL)
            noise = Noise(self._pool, size, offset)
            name = f"data/{number:05}.bin"
            found[name] = noise.readall() if size <= _SMALL else cast(BinaryIO, noise)
        return found


def script(order: Order, run: str) -> bytes:
    lines = [f"# load of ferryman bench, run {run}, job {order.number}"]
    if order.run_time_s:
        lines.append(f"sleep {order.run_time_s:.3f}")
    if order.output_size:
        lines.append(f"head -c {order.output_size} /dev/urandom > output.bin")
    return "".join(f"{line}\n" for line in [*lines, "exit 0"]).encode()
