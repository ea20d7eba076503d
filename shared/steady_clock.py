"""A wall clock that does not jump, for everything that has a deadline.

If somebody sets the machine's clock three days forward, fresh results must not be removed as if
they were three days old, and no waiting job or unreachable agent may be given up. So both programs
read the machine's wall clock once and then count the time that passes. A difference to the
machine's clock is corrected slowly, at 1 % of the time that passes: small corrections are followed,
and large ones do no harm.

The time is saved in the data folder, and a restart continues from there. If the machine was not
rebooted, the time in between is counted, too. After a reboot the machine's wall clock is taken
again, unless it is behind the saved time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
from pathlib import Path
from typing import Final

import structlog

from shared.clock import SECOND, Clock, Micros, wait_for

log: structlog.stdlib.BoundLogger = structlog.get_logger()

FILE: Final = "clock.json"
_RATE: Final = 0.01
_JUMP_S: Final = 60.0
"""A larger difference to the machine's clock is logged as a jump."""
_SAVE_EVERY_S: Final = 60.0
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class SteadyClock:
    """``Clock`` whose wall-clock time only grows, at the rate of real time give or take 1 %.

    Args:
        machine: where time comes from.
        start: the first value of :meth:`now`; None: the machine's wall clock.
    """

    def __init__(self, machine: Clock, start: Micros | None = None) -> None:
        self._machine = machine
        self._lock = threading.Lock()
        self._at = machine.boottime()
        self._now = float(machine.now() if start is None else start)

    def now(self) -> Micros:
        with self._lock:
            at = self._machine.boottime()
            passed = max(0.0, at - self._at) * SECOND
            behind = self._machine.now() - (self._now + passed)
            most = passed * _RATE
            self._at = at
            self._now += passed + max(-most, min(most, behind))
            return int(self._now)

    @property
    def behind_s(self) -> float:
        """How far the machine's wall clock is ahead of this one; negative: behind."""
        return (self._machine.now() - self.now()) / SECOND

    def monotonic(self) -> float:
        return self._machine.monotonic()

    def boottime(self) -> float:
        return self._machine.boottime()

    async def sleep(self, seconds: float) -> None:
        await self._machine.sleep(seconds)

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        await self._machine.wait(event, seconds)


class PersistentClock(SteadyClock):
    """A steady clock that continues where the previous process with this data folder ended.

    Args:
        folder: the data folder, locked by this process.
        boot_id: of the running kernel; None: read from the kernel.
    """

    def __init__(self, folder: Path, machine: Clock, boot_id: str | None = None) -> None:
        self._file = folder / FILE
        self._boot_id = _kernel_boot_id() if boot_id is None else boot_id
        self._jumped = False
        super().__init__(machine, self._load(machine))
        self._log_jump()

    def _load(self, machine: Clock) -> Micros | None:
        try:
            saved = json.loads(self._file.read_bytes())
            now, boottime, boot_id = int(saved["now"]), float(saved["boottime"]), saved["boot_id"]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as problem:
            log.warning("clock.unreadable", file=str(self._file), error=str(problem))
            return None
        passed = machine.boottime() - boottime
        if boot_id and boot_id == self._boot_id and passed >= 0:
            return now + round(passed * SECOND)
        return max(now, machine.now())

    def save(self) -> None:
        """Save the time to the data folder. Blocking. Raises OSError."""
        state = {"boot_id": self._boot_id, "boottime": self.boottime(), "now": self.now()}
        fresh = self._file.with_suffix(".new")
        fresh.write_text(json.dumps(state))
        fresh.replace(self._file)

    async def keep_saved(self, stop: asyncio.Event) -> None:
        """Save now, every minute, and at the end; log a jump of the machine's clock."""
        while True:
            self._log_jump()
            with contextlib.suppress(OSError):  # a full disk is reported elsewhere
                await asyncio.to_thread(self.save)
            if stop.is_set():
                return
            await wait_for(stop, _SAVE_EVERY_S, self)

    def _log_jump(self) -> None:
        behind_s = self.behind_s
        jumped = abs(behind_s) > _JUMP_S
        if jumped and not self._jumped:
            advice = (
                "deadlines and shown times go on as before and follow slowly; "
                "a start of the machine takes its clock again"
            )
            log.warning("clock.jumped", seconds=round(behind_s), advice=advice)
        self._jumped = jumped


def _kernel_boot_id() -> str:
    try:
        return os.fsdecode(_BOOT_ID.read_bytes()).strip()
    except OSError:
        return ""
