"""Settings of the whole session; fixtures live beside the tests that use them."""

import asyncio
import faulthandler
import gc
import io
import os
import signal
import sys
import tempfile
from collections.abc import Generator
from typing import IO, Any

import pytest
import structlog
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import settings

# Programs that tests start find compiled code and load no certificates: a third of a second each.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ.setdefault("SSL_CERT_FILE", os.devnull)

# A shell without job control starts what runs in the background with SIGINT ignored, and programs
# that tests start would inherit that: no test could interrupt them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Commands that run in a thread here put streams of their own in the place of stdout. ``print``,
# which structlog uses if nothing else is said, holds no reference to the stream that it writes to.
structlog.configure(logger_factory=structlog.WriteLoggerFactory())

# Half of the time of importing everything would go into garbage collections that find nothing.
gc.disable()

# deadline: a busy machine is no counterexample. derandomize: `make test` runs the same examples
# each time; `make soak` tries new ones.
settings.register_profile("test", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("soak", parent=settings.get_profile("test"), derandomize=False)
settings.load_profile("soak" if "SOAK_SECONDS" in os.environ else "test")

SLOW_TIMEOUT_S = 900
TIMEOUT_AGAIN_S = 1.0
TEARDOWN_S = 30.0
KILLED_AFTER_S = 60.0
CRASHES = pytest.StashKey[IO[str]]()
MAY_SKIP_IN_CI = (
    # Machines of CI are containers that do not hold it.
    "without CAP_SYS_RESOURCE: that oom_score_adj is held is not proved",
)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Stacks of a worker that crashes go to a file, as its stderr is not in every log."""
    if hasattr(config, "workerinput"):
        stacks = os.open(os.environ["CRASHES"], os.O_WRONLY | os.O_APPEND)
        config.stash[fault_handler_stderr_fd_key] = stacks
        faulthandler.enable(stacks)
    elif config.getoption("numprocesses", None):
        config.stash[CRASHES] = crashes = tempfile.NamedTemporaryFile("r")  # noqa: SIM115 - until the end
        os.environ["CRASHES"] = crashes.name
    if seed := os.environ.get("PERTURB"):
        from tests.kit.perturbed import Perturbed

        config.pluginmanager.register(Perturbed(seed))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object | None) -> None:
    """Say how a worker of xdist ended, where all that xdist says is that it did."""
    if error:
        code = node.gateway._io.popen.wait()  # of a signal: below 0
        sys.stdout.write(f"\n{node.gateway.id} ended with {code}\n")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if (crashes := config.stash.get(CRASHES, None)) and (stacks := crashes.read()):
        terminalreporter.section("stacks of workers that crashed")
        terminalreporter.line(stacks)


def pytest_report_header() -> list[str]:
    """A line for each program that is missing."""
    from tests.kit.installed import missing

    return missing()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests get more time than `timeout` in pyproject.toml; `soak` sets its own end."""
    for item in items:
        if item.get_closest_marker("soak"):
            item.add_marker(pytest.mark.timeout(0))
        elif item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_S))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Objects that exist now are never collected, here and in processes that tests fork."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Generator[None, object, object]:
    """Make sure that a test that ran out of time ends. The exception may be raised in a task of
    asyncio and end that task only, so it is raised again and again; in the end the process exits.
    """
    done = yield
    if settings.timeout:
        signal.setitimer(signal.ITIMER_REAL, settings.timeout, TIMEOUT_AGAIN_S)
        stderr = item.config.stash[fault_handler_stderr_fd_key]
        faulthandler.dump_traceback_later(settings.timeout + KILLED_AFTER_S, exit=True, file=stderr)
    return done


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    try:
        return (yield)
    except BaseException:
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """The exception of a timeout would end the whole run if it were raised in pytest itself, which
    writes its report now. Its fixtures have the rest of KILLED_AFTER_S to clean up.
    """
    try:
        return (yield)
    finally:  # unittest keeps the exception for itself
        signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """End a fixture that hangs while it cleans up. An event loop does when the exception of a
    timeout hit it between two steps of a task: nobody wakes that task any more.
    """

    longer = 10 if item.get_closest_marker("slow") else 1  # it may remove a whole system

    def fail(_signum: int, _frame: object) -> None:
        pytest.fail(f"its fixtures did not end within {longer * TEARDOWN_S:g} s", pytrace=False)

    stderr = item.config.stash[fault_handler_stderr_fd_key]
    faulthandler.dump_traceback_later(longer * KILLED_AFTER_S, exit=True, file=stderr)
    former = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, longer * TEARDOWN_S, TIMEOUT_AGAIN_S)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """What a test that ran out of time left may keep the process from ending: a thread, say."""
    stderr = session.config.stash[fault_handler_stderr_fd_key]
    faulthandler.dump_traceback_later(KILLED_AFTER_S, exit=True, file=stderr)


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
