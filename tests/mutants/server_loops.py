"""The supervisor of the loops."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_SUPERVISOR: Final = "server/loops/supervisor.py"


def of(protection: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    names = tuple(f"tests/unit/server/test_loops.py::test_{test}" for test in tests)
    return Mutant("loops", protection, file, old, new, names)


MUTANTS: Final = (
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
        "tasks that follow agents are cancelled",
        _SUPERVISOR,
        "            task.cancel()\n",
        "            pass\n",
        "stopping_lets_sweeps_end_breaks_off_followers_and_stops_the_stages_last",
    ),
    of(
        "loops that hang are named",
        _SUPERVISOR,
        "stuck=not loop.healthy",
        "stuck=False",
        "a_loop_that_is_stuck_is_named",
    ),
)
