"""How busy the host's processors are."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_STAT: Final = Path("/proc/stat")
_IDLE: Final = slice(3, 5)  # idle, iowait
_COUNTED: Final = 8  # user includes the guest times, which follow


class CpuLoad:
    """CPU use between two calls.

    Args:
        stat: a file like ``/proc/stat``.
    """

    def __init__(self, stat: Path = _STAT) -> None:
        self._stat = stat
        self._last: tuple[int, int] | None = None

    def percent(self) -> float:
        """Of all processors since the last call, 0 to 100; 0.0 at the first call, or if unknown."""
        return self.percent_since() or 0.0

    def percent_since(self) -> float | None:
        """As :meth:`percent`; None at the first call, or if unknown."""
        try:
            words = self._stat.read_text().split("\n", 1)[0].split()[1 : 1 + _COUNTED]
            ticks = [int(word) for word in words]
        except (OSError, ValueError, IndexError):
            return None
        now = sum(ticks), sum(ticks[_IDLE])
        last, self._last = self._last, now
        if last is None or now[0] <= last[0]:
            return None
        idle = (now[1] - last[1]) / (now[0] - last[0])
        return round(100.0 * min(1.0, max(0.0, 1.0 - idle)), 2)
