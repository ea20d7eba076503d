"""Ends an attempt that gives no sign of life for too long."""

from __future__ import annotations

import asyncio
from typing import Final

from client_agent.output.live import LiveOutput
from client_agent.sandbox.base import Ended, Process
from shared.clock import Clock, yield_to_loop
from shared.units.durations import say_duration
from shared.wire import Reason

_LEAST_S: Final = 0.01


async def run_watched(
    process: Process, output: LiveOutput, timeout_s: float, clock: Clock
) -> Ended:
    """Open its gate, and return how it ended.

    Args:
        timeout_s: longest silence; 0: any.
    """
    output.start()
    process.go()
    if not timeout_s:
        return await process.wait()
    watch = asyncio.create_task(end_if_silent(process, output, timeout_s, clock))
    try:
        return await process.wait()
    finally:
        watch.cancel()


async def end_if_silent(
    process: Process, output: LiveOutput, timeout_s: float, clock: Clock
) -> None:
    """Wait until nothing was read of it for so long, then stop it, as at a timeout. Time in which
    the agent did not read its output does not count."""
    while True:
        left = output.last_sign + timeout_s - clock.monotonic()
        if left > 0:
            await clock.sleep(max(left, _LEAST_S))
            continue
        await yield_to_loop()  # if the agent itself stood still, it reads first what has come
        if process.output_paused:
            output.last_sign = clock.monotonic()
        elif clock.monotonic() - output.last_sign >= timeout_s:
            silent = say_duration(clock.monotonic() - output.last_sign)
            process.stop(
                Reason.HEARTBEAT_TIMEOUT,
                f"stopped because it wrote nothing to stdout or stderr for {silent}; "
                f"its heartbeat timeout is {say_duration(timeout_s)}",
            )
            return
