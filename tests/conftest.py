"""Settings of the whole session; fixtures live beside the tests that use them."""

from __future__ import annotations

import asyncio
import io
import os
import sys
from collections.abc import Generator

import pytest
from hypothesis import settings

# Programs that tests start find compiled code and load no certificates: a third of a second each.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ.setdefault("SSL_CERT_FILE", os.devnull)

# deadline: a busy machine is no counterexample. derandomize: `make test` says the same thing twice;
# `make soak` is where new examples are looked for.
settings.register_profile("test", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("soak", parent=settings.get_profile("test"), derandomize=False)
settings.load_profile("soak" if "SOAK_SECONDS" in os.environ else "test")

SLOW_TIMEOUT_S = 900
MAY_SKIP_IN_CI = (
    # Machines of CI are containers that do not hold it.
    "without CAP_SYS_RESOURCE: that oom_score_adj is held is not proved",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests get more time than `timeout` in pyproject.toml; `soak` sets its own end."""
    for item in items:
        if item.get_closest_marker("soak"):
            item.add_marker(pytest.mark.timeout(0))
        elif item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_S))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail what is skipped without saying what is not proved, and in CI whatever is skipped; add to
    a test that ran out of time where its tasks wait, which no traceback shows.
    """
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        allowed = not os.environ.get("CI") or reason in MAY_SKIP_IN_CI
        if "not proved" not in reason or not allowed:
            report.outcome = "failed"
            report.longrepr = f"skipped: {reason}"
    error = str(call.excinfo.value) if call.excinfo else ""
    if report.failed and "from pytest-timeout" in error:
        runner = getattr(item, "funcargs", {}).get("_function_scoped_runner")
        if isinstance(runner, asyncio.Runner):
            stacks = io.StringIO()
            for task in asyncio.all_tasks(runner.get_loop()):
                task.print_stack(file=stacks)
            report.sections.append(("tasks at the end of the time", stacks.getvalue()))
    return report
