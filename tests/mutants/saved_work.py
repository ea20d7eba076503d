"""What saves work: without it all goes on, with more requests, starts or looks."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_STREAM: Final = (
    "tests/contract/test_results_on_stream.py::"
    "test_a_small_result_comes_on_the_stream_and_is_not_asked_for",
)
_LOOPS: Final = (
    "tests/unit/server/test_loops.py::"
    "test_a_sweep_that_knows_when_it_has_something_to_do_comes_then",
)


def _of(protection: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant("saved work", protection, file, old, new, tests)


MUTANTS: Final = (
    _of(
        "tasks of an array are sent as a pack's",
        "server/agents/orders.py",
        "pack=_pack_of(job, service),",
        "pack=None,",
        "tests/unit/server/agents/test_orders.py::test_only_tasks_of_an_array_are_packed",
    ),
    _of(
        "and nothing else is",
        "server/agents/orders.py",
        " or job.array_index is None:",
        ":",
        "tests/unit/server/agents/test_orders.py::test_only_tasks_of_an_array_are_packed",
    ),
    _of(
        "small results are asked for with the events",
        "server/agents/ferryman_agent.py",
        '            "results": str(MAX_RESULT),\n',
        "",
        *_STREAM,
    ),
    _of(
        "what ends soon is to be reported once",
        "server/agents/ferryman_agent.py",
        '            "quick_ms": str(QUICK_MS),\n',
        "",
        *_STREAM,
    ),
    _of(
        "a result that came with its event is not fetched",
        "server/agents/follower.py",
        "event.payload, heard.result, heard.size)",
        "event.payload, None, heard.size)",
        *_STREAM,
    ),
    _of(
        "the sender comes when a job is due",
        "server/loops/runner.py",
        'getattr(sweep, "until_next_s", lambda: math.inf)',
        "lambda: math.inf",
        *_LOOPS,
    ),
    _of(
        "a disk waits for each slot",
        "client_agent/app.py",
        "max(_MIN_SPARE_IMAGES, settings.slots)",
        "_MIN_SPARE_IMAGES",
        "tests/unit/client_agent/settings/test_agent.py::test_a_disk_is_ready_for_each_slot",
    ),
)
