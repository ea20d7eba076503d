"""Running tests in a process that pytest has been started in, or that was forked from one.

As a program in an interpreter of its own, for what is made at the import of a module; FILE names
the tests, one a line, in their order:

    python -m tests.mutants.inside DESCRIPTOR LOG FILE
"""

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

TEMPORARY = "MUTANTS_TEMPORARY"
"""The variable with the folder for those of tests; its path is short, as names of sockets are."""
OPTIONS = ("-qq", "--no-header", "--no-summary", "-p", "no:cacheprovider", "-p", "no:xdist")
Tell = Callable[[str], None]


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


class _Outcomes:
    """A plugin: tells what becomes of each test."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self.failed = False
        self._passed = False
        self._skipped = False

    def begin(self) -> None:
        self._passed = self._skipped = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = True
            self._tell(f"failed {report.nodeid}")
        elif report.skipped:
            self._skipped = True
        elif report.when == "call":
            self._passed = True

    def passed(self) -> bool:
        return self._passed and not self._skipped


def run_tests(
    session: pytest.Session,
    items: Sequence[pytest.Item],
    tell: Tell,
    log: Path,
    *,
    to_the_end: bool = False,
    begin: Callable[[pytest.Item], None] = lambda _: None,
) -> None:
    """Run them in this order, up to the first failure; tell ``start``, ``passed``, ``failed``.

    Call it in a process of its own: what it prints goes to ``log``.
    """
    _print_to(log, session.config)
    where = os.environ.get(TEMPORARY)
    with tempfile.TemporaryDirectory(dir=where, ignore_cleanup_errors=True) as own:
        _folder(session.config, Path(own) / "t")
        outcomes = _Outcomes(tell)
        session.config.pluginmanager.register(outcomes)
        for item, following in zip(items, [*items[1:], None], strict=True):
            begin(item)
            outcomes.begin()
            outcomes.failed &= not to_the_end
            tell(f"start {item.nodeid}")
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if outcomes.failed and not to_the_end:
                session._setupstate.teardown_exact(None)  # programs of its module end, too
                return
            if outcomes.passed() and not outcomes.failed:
                tell(f"passed {item.nodeid}")


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
    descriptor, log, file = sys.argv[1:]
    names = Path(file).read_text().splitlines()

    def tell(line: str) -> None:
        os.write(int(descriptor), f"{line}\n".encode())

    def work(session: pytest.Session) -> None:
        os.set_inheritable(int(descriptor), False)
        found = {item.nodeid: item for item in session.items}
        tell("collected")
        run_tests(session, [found[name] for name in names if name in found], tell, Path(log))
        tell("done")

    paths = dict.fromkeys(name.partition("::")[0] for name in names)
    if not collect(["-m", "", *paths], work):
        tell("failed at the import")
    os._exit(0)


if __name__ == "__main__":
    main()
