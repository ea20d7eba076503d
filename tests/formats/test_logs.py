"""What logs show, and how much of it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest

from shared.logs import RateLimiter
from tests.kit.dev_program import environment

_FAILS = """
import structlog
from shared import logs
logs.configure(FORM)
def fail():
    token = "-".join(["a", "secret"])
    raise ValueError("it broke")
try:
    fail()
except ValueError:
    structlog.get_logger().exception("request.failed")
"""


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_traceback_shows_no_values(form):
    done = subprocess.run(
        [sys.executable, "-c", _FAILS.replace("FORM", repr(form))],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "it broke" in done.stderr
    assert "Traceback" in done.stderr
    assert "a-secret" not in done.stderr


_FULL = """
import os, sys, structlog
from shared import logs
logs.configure("json")
sys.stderr.flush()
os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
for number in range(10_000):
    structlog.get_logger().warning("request.done", number=number)
print("it went on", flush=True)
os._exit(0)
"""


def test_what_is_logged_does_not_fail_since_the_disk_of_the_log_is_full() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FULL],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("it went on\n", 0)


_STRANGE = """
import structlog
from shared import logs
logs.configure(FORM)
log = structlog.get_logger()
strange = "/x\\x1b[2J\\x9b1A\\u202e\\n\\r2026 forged\\udcff"
log.warning("request.done", path=strange)
log.warning("request.done", path=strange.replace(" ", "_"))
log.warning("request.done", path="/x\\x1b[2J")
try:
    raise ValueError(strange)
except ValueError:
    log.exception("request.failed")
"""


@pytest.mark.parametrize("form", ["text", "json"])
def test_what_callers_send_neither_forges_lines_nor_moves_the_cursor(form):
    done = subprocess.run(
        [sys.executable, "-c", _STRANGE.replace("FORM", repr(form))],
        env=environment(),
        capture_output=True,
        timeout=60,
        check=True,
    )
    text = done.stderr.decode()
    assert all(line.isprintable() for line in text.split("\n"))
    assert not any(line.lstrip().startswith("2026 forged") for line in text.split("\n"))
    assert text.count("forged") >= 3


async def test_what_is_too_much_is_counted(monkeypatch):
    at = [100.0]
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: at[0])
    limiter = RateLimiter(2.0)
    assert [limiter.due() for _ in range(5)] == [0, 0, None, None, None]
    at[0] += 0.5
    assert [limiter.due() for _ in range(2)] == [3, None]
    at[0] += 3_600
    assert [limiter.due() for _ in range(3)] == [1, 0, None]


LIBRARY = """
import logging, warnings
from shared import logs
logs.configure("json", "info", "server")
try:
    raise RuntimeError('a "quoted"\\nfailure')
except RuntimeError:
    logging.getLogger("asyncio").exception('Task "x" failed\\nwith lines')
warnings.warn("old", DeprecationWarning)
logs.configure("json", "warning")
for number in range(1000):
    logs.log_for_tests.warning("agent.down", agent="north", error=str(number))
"""


def test_what_libraries_log_is_json_too_with_the_traceback_in_one_field() -> None:
    program = LIBRARY.replace("logs.log_for_tests", "__import__('structlog').get_logger()")
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", program], capture_output=True, text=True, check=True
    )
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert {line["program"] for line in lines} == {"server"}
    said, warned, down = lines
    assert (said["event"], said["logger"], said["level"]) == ("library.said", "asyncio", "error")
    assert said["message"] == 'Task "x" failed\nwith lines'
    assert "RuntimeError" in said["exception"]
    assert "DeprecationWarning: old" in warned["message"]
    assert (down["event"], down["error"]) == ("agent.down", "0")  # the 999 others are folded
    assert all(line["timestamp"].endswith("Z") for line in lines)


_SHOWN = """
from shared import logs
print(logs.shown("debug"))
logs.configure("json", "info")
print(*map(logs.shown, ("debug", "info", "warning")))
"""


def test_a_program_knows_which_lines_it_writes():
    done = subprocess.run(
        [sys.executable, "-c", _SHOWN],
        env=environment(),
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == [b"True", b"False", b"True", b"True"]
