"""Running tests in a process that pytest has been started in, or that was forked from one.

As a program in an interpreter of its own, for what is made at the import of a module; FILE names
the tests, one a line, in their order:

    python -m tests.mutants.inside DESCRIPTOR LOG FILE
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

from tests.mutants.forks import say

TEMPORARY = "MUTANTS_TEMPORARY"
"""The variable with the folder for those of tests; its path is short, as names of sockets are."""
OPTIONS = ("-qq", "--no-header", "--no-summary", "-p", "no:cacheprovider", "-p", "no:xdist")


class Instead:
    """A plugin: the tests are collected, then this is called instead of running them."""

    def __init__(self, work: Callable[[pytest.Session], None]) -> None:
        self._work = work
        self.called = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.called = True
        self._work(session)
        return True


def collect(arguments: Sequence[str], work: Callable[[pytest.Session], None]) -> bool:
    plugin = Instead(work)
    pytest.main([*OPTIONS, *arguments], plugins=[plugin])
    return plugin.called


class _Reports:
    """A plugin: what becomes of a test, in its parts."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.outcomes: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.outcomes.append(report.outcome)
        if report.failed:
            say(self._descriptor, f"failed {report.nodeid}")


def run_tests(
    session: pytest.Session,
    items: Sequence[pytest.Item],
    descriptor: int,
    log: Path,
    begin: Callable[[pytest.Item], None] | None = None,
) -> None:
    """Run them in this order, up to the first failure, or all with ``begin``, which is called
    before each; say ``start NAME``, ``failed NAME``, ``passed NAME`` and ``took SECONDS``.

    Call it in a process of its own: what it prints goes to ``log``.
    """
    _print_to(log, session.config)
    where = os.environ.get(TEMPORARY)
    with tempfile.TemporaryDirectory(dir=where, ignore_cleanup_errors=True) as own:
        _folder(session.config, Path(own) / "t")
        reports = _Reports(descriptor)
        session.config.pluginmanager.register(reports)
        for item, following in zip(items, [*items[1:], None], strict=True):
            if begin:
                begin(item)
            reports.outcomes.clear()
            say(descriptor, f"start {item.nodeid}")
            began = time.monotonic()
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if {*reports.outcomes} == {"passed"}:
                say(descriptor, f"passed {item.nodeid}")
                say(descriptor, f"took {time.monotonic() - began}")
            elif "failed" in reports.outcomes and not begin:
                session._setupstate.teardown_exact(None)  # programs of its module end, too
                return


def _print_to(log: Path, config: pytest.Config) -> None:
    """Its own files: a process that is forked shares those of the other one, with their offsets."""
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number in (1, 2, config.stash[fault_handler_stderr_fd_key]):
        os.dup2(file, number, inheritable=number < 3)
    os.dup2(nothing, 0)
    os.close(file)
    os.close(nothing)
    capture.start_global_capturing()
    capture.suspend_global_capture(in_=True)


def _folder(config: pytest.Config, folder: Path) -> None:
    folder.parent.chmod(0o755)  # tests run programs under other uids
    folder.mkdir(mode=0o700)
    factory: Any = config._tmp_path_factory  # type: ignore[attr-defined]
    factory._basetemp = folder.resolve()


def main() -> None:
    descriptor, log, file = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    os.set_inheritable(descriptor, False)
    names = file.read_text().splitlines()

    def work(session: pytest.Session) -> None:
        found = {item.nodeid: item for item in session.items}
        say(descriptor, "collected")
        run_tests(session, [found[name] for name in names if name in found], descriptor, log)
        say(descriptor, "done")

    if not collect(["-m", "", *dict.fromkeys(name.partition("::")[0] for name in names)], work):
        say(descriptor, "failed at the import")
    os._exit(0)


if __name__ == "__main__":
    main()
