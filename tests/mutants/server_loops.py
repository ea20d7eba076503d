"""The supervisor of the loops."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_SUPERVISION: Final = "tests/unit/server/test_supervision.py::test_"
_MANAGER: Final = "tests/unit/shared/test_service_manager.py::test_"
_SUPERVISOR: Final = "server/loops/runner.py"


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
    Mutant(
        "loops",
        "the watchdog is not fed while a loop is stuck",
        "server/lifecycle.py",
        "        stuck = self._supervisor.stuck()\n",
        "        stuck: list[str] = []\n",
        (f"{_SUPERVISION}a_loop_whose_sweep_does_not_end_is_for_the_watchdog",),
    ),
    Mutant(
        "loops",
        "the watchdog is fed while sweeps fail",
        "server/loops/runner.py",
        "self._clock.monotonic() - self._round_at >",
        "self.last_ok_s >",
        (f"{_SUPERVISION}a_loop_whose_sweeps_fail_is_alive",),
    ),
    Mutant(
        "loops",
        "the watchdog is fed only while the program is alive",
        "shared/service_manager.py",
        "if await alive():",
        "if True:",
        (f"{_MANAGER}the_watchdog_is_fed_twice_in_its_time_while_all_is_alive[file]",),
    ),
    Mutant(
        "loops",
        "no child gets the service manager's socket",
        "shared/service_manager.py",
        'environ.pop("NOTIFY_SOCKET", "")',
        'environ.get("NOTIFY_SOCKET", "")',
        (f"{_MANAGER}the_variables_are_for_this_process_and_no_child[file]",),
    ),
    of(
        "loops that hang are named",
        _SUPERVISOR,
        "stuck=not loop.healthy",
        "stuck=False",
        "a_loop_that_is_stuck_is_named",
    ),
)
