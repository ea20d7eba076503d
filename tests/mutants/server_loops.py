"""Loops and their supervisor."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_RUNNER: Final = "server/loops/runner.py"
_SUPERVISOR: Final = "server/loops/supervisor.py"


def of(protection: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    names = tuple(f"tests/unit/server/test_loops.py::test_{test}" for test in tests)
    return Mutant("loops", protection, file, old, new, names)


MUTANTS: Final = (
    of(
        "a loop survives a sweep that fails",
        _RUNNER,
        'log.exception("sweep.failed", sweep=self.name)',
        "raise",
        "a_sweep_that_fails_is_followed_by_the_next",
    ),
    of(
        "a failed sweep is no sign of health",
        _RUNNER,
        "            else:\n                self.last_ok",
        "            finally:\n                touched = 0\n                self.last_ok",
        "a_sweep_that_fails_is_followed_by_the_next",
    ),
    of(
        "what wakes a loop while it sweeps is not lost",
        _RUNNER,
        "            await wait_for(self._bell",
        "            self._bell.clear()\n            await wait_for(self._bell",
        "a_wake_up_during_a_sweep_is_not_lost",
    ),
    of(
        "loops are woken to stop",
        _SUPERVISOR,
        "            loop.wake()\n",
        "            pass\n",
        "stopping_lets_sweeps_end_breaks_off_followers_and_stops_the_stages_last",
    ),
    of(
        "stages are stopped when the loops have ended",
        _SUPERVISOR,
        "        ended = await asyncio.gather(",
        "        for stop in self._stages:\n            await stop()\n        ended = await asyncio.gather(",
        "stopping_lets_sweeps_end_breaks_off_followers_and_stops_the_stages_last",
    ),
    of(
        "conversations are broken off",
        _SUPERVISOR,
        "            task.cancel()\n",
        "            pass\n",
        "stopping_lets_sweeps_end_breaks_off_followers_and_stops_the_stages_last",
    ),
    of(
        "loops that hang are named",
        _SUPERVISOR,
        "if not loop.healthy]",
        "if False]",
        "a_loop_that_is_stuck_is_named",
    ),
)
