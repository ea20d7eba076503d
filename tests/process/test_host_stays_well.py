"""While bombs go off, server and agent answer, and another user's jobs are done."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.kit.hostile_bundles import EXPECT
from tests.kit.real_sandbox import MIB, SMALL, Job, Who, can
from tests.kit.whole_system import WholeSystem, sandboxing, service, submit

BOMBS = (
    *("fork-bomb", "mem-bomb", "disk-bomb", "log-flood"),
    *("thread-bomb", "tmpfs-bomb", "inode-bomb", "cpu-spin"),
)
SERVICES = service("small", SMALL, runs_per_user=2, max_runs=3)
ANSWER_S = 1.0
HELLO = Job({"run.sh": "echo hello\n"})


class Asking(threading.Thread):
    """Asks both for their health, one question after the other, until it is stopped.

    Attributes:
        answers: how many came in time.
        trouble: the first that did not, or was not 200.
    """

    def __init__(self, *urls: str) -> None:
        super().__init__(daemon=True)
        self._urls, self._stop_requested = urls, threading.Event()
        self.answers = 0
        self.trouble: str | None = None

    def run(self) -> None:
        while not self._stop_requested.is_set() and self.trouble is None:
            for url in self._urls:
                try:
                    with urlopen(f"{url}/health", timeout=ANSWER_S) as answer:
                        reply = json.load(answer)
                    assert reply["status"] == "ok", reply
                except Exception as problem:  # noqa: BLE001  # whatever it is, it is reported
                    self.trouble = f"{url}: {problem!r}"
                else:
                    self.answers += 1

    def stop(self) -> None:
        self._stop_requested.set()
        self.join()


# Unprivileged, one by one, the bombs go off in tests/sandbox/test_hostile.py.
@pytest.mark.parametrize("who", ["root", pytest.param("user", marks=pytest.mark.slow)])
def test_the_host_stays_well_while_bombs_go_off(who: Who, open_folder: Path) -> None:
    if not can(who):
        pytest.skip("not root: that a root agent's host stays well is not proved")
    with WholeSystem(open_folder, who, SERVICES, sandboxing(slots=3)).running() as system:
        before = system.agent.peak_bytes()
        asking = Asking(system.server.url, system.agent.url)
        asking.start()
        bombs = [submit(system, EXPECT[name][0], "small", user="mallory") for name in BOMBS]
        done = 0
        while any(not system.user.status(bomb).ended for bomb in bombs):
            job = system.user.wait(submit(system, HELLO, "small", user="ann"), 60)
            assert (job.status, asking.trouble) == ("Completed", None)
            done += 1
        asking.stop()
        ended = {name: system.user.wait(bomb) for name, bomb in zip(BOMBS, bombs, strict=True)}
        assert asking.trouble is None
        assert asking.answers > 20
        assert done > 2
        assert system.agent.peak_bytes() - before < 64 * MIB
    infrastructure = ("agent_error", "sandbox_error", "agent_lost")
    assert {name: job.reason for name, job in ended.items() if job.reason in infrastructure} == {}
