"""What logs show, and how much of it: a repeated trouble is a few lines."""

import asyncio
import contextlib
import itertools
import json
import sys
from typing import Any

import pytest
import structlog

from shared.log_folding import MAX_S, NEVER, REMEMBERED, SUBJECTS, Folding
from shared.logs import RateLimiter
from tests.kit.dev_program import ROOT, ended
from tests.kit.each import each


class Log:
    """On a clock of the test's."""

    def __init__(self) -> None:
        self.now, self.lines = 0.0, list[dict[str, Any]]()
        self.folding = Folding(lambda: self.now, self)

    def info(self, event: str, **fields: Any) -> None:
        self.write("info", event, **fields)

    def write(self, level: str, event: str, **fields: Any) -> None:
        line = {"event": event, "level": level, "timestamp": f"at {self.now:.0f}"} | fields
        with contextlib.suppress(structlog.DropEvent):
            self.lines.append(dict(self.folding(None, level, line)))

    def repeat(self, times: int, every_s: float, level: str, event: str, **fields: Any) -> None:
        for number in range(times):
            self.write(level, event, **fields, error=f"it is so {number}")
            self.now += every_s

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.folding.flush()


FLOODS = [
    ("warning", "agent.down", {"agent": "north"}, 5.0),
    ("error", "sweep.failed", {"sweep": "cleaner"}, 1.0),
    ("warning", "request.refused", {"status": 507, "path": "/upload"}, 0.1),
    ("info", "webhook.postponed", {"target": "example.org:443"}, 1.0),
    ("warning", "webhook.failed", {"target": "example.org:443"}, 1.0),
    ("info", "tls.failed", {"peer": "10.0.0.9"}, 1.0),
    ("warning", "connection.refused", {"peer": "10.0.0.9"}, 1.0),
    ("warning", "payload.not_fetched", {"agent": "north", "key": "1.1"}, 0.5),
    ("warning", "payload.not_started", {"payload_id": 7}, 1.0),
    ("error", "some.defect", {"job_id": 7, "exc_info": True}, 1.0),
]


@each("level, event, fields, every_s", FLOODS)
def test_a_thousand_repetitions_are_a_few_lines_with_their_number(level, event, fields, every_s):
    log = Log()
    log.repeat(1_000, every_s, level, event, **fields)
    log.pass_time(3 * every_s + 61)
    assert 3 <= len(log.lines) <= 12
    first, *again, over = log.lines
    assert "repeated" not in first
    assert all(one["since"] == "at 0" for one in again)
    shown = 1 + sum(one["repeated"] for one in again) + over["not_shown"]
    assert (shown, over["times"]) == (1_000, 1_000)
    assert (over["event"], over["trouble"], over["since"]) == ("trouble.over", event, "at 0")
    assert len(log.folding) == 0


def test_the_first_line_comes_at_once_and_the_next_ones_more_and_more_seldom() -> None:
    log = Log()
    for _ in range(86_400):
        log.write("error", "sweep.failed", sweep="cleaner")
        log.now += 1
    at = [float(one["timestamp"].removeprefix("at ")) for one in log.lines]
    assert at[:5] == [0, 30, 90, 210, 450]
    gaps = [after - before for before, after in itertools.pairwise(at)]
    assert max(gaps) == MAX_S
    assert len(at) < 40  # of a day


def test_what_succeeds_again_is_over_at_once_and_begins_anew() -> None:
    log = Log()
    log.write("error", "sweep.failed", sweep="cleaner", exc_info=True)
    log.folding.over("sweep.failed", sweep="sender")
    assert len(log.lines) == 1
    log.folding.over("sweep.failed", sweep="cleaner")
    log.folding.over("sweep.failed", sweep="cleaner")
    log.write("error", "sweep.failed", sweep="cleaner", exc_info=True)
    events = [one["event"] for one in log.lines]
    assert events == ["sweep.failed", "trouble.over", "sweep.failed"]


def test_troubles_of_different_subjects_and_outcomes_are_each_logged() -> None:
    log = Log()
    for name in ("north", "south"):
        log.write("warning", "agent.down", agent=name, error="refused")
    for number in range(3):
        log.write("warning", "payload.lost", payload_id=number, key=f"{number}.1")
    assert len(log.lines) == 5
    for _ in range(50):
        log.write("info", "job.ended", job_id=1)
        log.write("warning", "request.denied", peer="10.0.0.9")
        log.write("warning", "settings.not_reloaded", why="a key is unknown")
    assert len(log.lines) == 5 + 150


@each("event", ["payload.dropped", "payload.former", "payload.unknown"])
def test_an_agent_that_lists_keys_without_end_does_not_fill_the_log(event: str) -> None:
    log, agents = Log(), ("north", "south")
    for number in range(4_000):
        for agent in agents:
            log.write("warning", event, agent=agent, key=f"{number}.1", status="Running", why="")
        log.now += 0.01
    log.pass_time(61)
    shown = [(one["event"], one["agent"], one.get("times")) for one in log.lines]
    assert [one[:2] for one in shown[:4]] == [(event, agent) for agent in agents * 2]
    assert shown[4:] == [("trouble.over", agent, 4_000) for agent in agents]


def test_what_comes_once_is_forgotten_what_comes_seldom_is_folded_and_so_many_are_known() -> None:
    log = Log()
    log.write("warning", "payload.lost", payload_id=1)
    log.pass_time(MAX_S + 1)
    assert (len(log.lines), len(log.folding)) == (1, 0)
    log.repeat(100, 300, "warning", "agent.down", agent="north")
    log.pass_time(1_000)
    assert (len(log.lines) < 20, log.lines[-1]["times"]) == (True, 100)
    log = Log()
    log.repeat(2, 1, "warning", "agent.down", agent="first")
    for number in range(10 * REMEMBERED):
        log.write("warning", "payload.lost", payload_id=number)
    assert len(log.folding) == REMEMBERED
    over = [one for one in log.lines if one["event"] == "trouble.over"]
    assert [(one["agent"], one["not_shown"]) for one in over] == [("first", 1)]


def test_each_event_that_is_named_here_is_logged_somewhere() -> None:
    product = "".join(
        path.read_text()
        for package in ("server", "client_agent", "shared")
        for path in (ROOT / package).rglob("*.py")
    )
    assert [event for event in {*SUBJECTS, *NEVER} if product.count(f'"{event}"') < 2] == []


def ran(program: str, *words: str) -> tuple[str, str]:
    """What a program writes: (output, errors)."""
    done = ended(sys.executable, *words, "-c", program)
    return done.stdout, done.stderr


STRANGE = """
import structlog
from shared import logs
logs.configure(FORM)
log = structlog.get_logger()
strange = "/x\\x1b[2J\\x9b1A\\u202e\\n\\r2026 forged\\udcff"
log.warning("request.done", path=strange)
log.warning("request.done", path=strange.replace(" ", "_"))
log.warning("request.done", path="/x\\x1b[2J")
def fail():
    token = "-".join(["a", "secret"])
    raise ValueError(strange)
try:
    fail()
except ValueError:
    log.exception("request.failed")
"""


@pytest.mark.parametrize("form", ["text", "json"])
def test_what_callers_send_forges_no_line_and_a_traceback_shows_no_values(form):
    _, text = ran(STRANGE.replace("FORM", repr(form)))
    assert all(line.isprintable() for line in text.split("\n"))
    assert not any(line.lstrip().startswith("2026 forged") for line in text.split("\n"))
    assert text.count("forged") >= 3
    assert "Traceback" in text
    assert "a-secret" not in text


FULL = """
import os, sys, structlog
from shared import logs
print(logs.shown("debug"))
logs.configure("json", "info")
print(*map(logs.shown, ("debug", "info", "warning")))
sys.stderr.flush()
os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
for number in range(10_000):
    structlog.get_logger().warning("request.done", number=number)
print("it went on", flush=True)
os._exit(0)
"""


def test_a_program_knows_which_lines_it_writes_and_goes_on_though_the_disk_of_the_log_is_full():
    assert ran(FULL)[0].split() == ["True", "False", "True", "True", "it", "went", "on"]


LIBRARY = """
import logging, warnings, structlog
from shared import logs
logs.configure("json", "info", "server")
try:
    raise RuntimeError('a "quoted"\\nfailure')
except RuntimeError:
    logging.getLogger("asyncio").exception('Task "x" failed\\nwith lines')
warnings.warn("old", DeprecationWarning)
logs.configure("json", "warning")
for number in range(1000):
    structlog.get_logger().warning("agent.down", agent="north", error=str(number))
"""


def test_what_libraries_log_is_json_too_with_the_traceback_in_one_field() -> None:
    _, text = ran(LIBRARY, "-W", "always")
    lines = [json.loads(line) for line in text.splitlines()]
    assert {line["program"] for line in lines} == {"server"}
    said, warned, down = lines
    assert (said["event"], said["logger"], said["level"]) == ("library.said", "asyncio", "error")
    assert said["message"] == 'Task "x" failed\nwith lines'
    assert "RuntimeError" in said["exception"]
    assert "DeprecationWarning: old" in warned["message"]
    assert (down["event"], down["error"]) == ("agent.down", "0")  # the 999 others are folded
    assert all(line["timestamp"].endswith("Z") for line in lines)


async def test_what_is_too_much_is_counted(monkeypatch):
    at = [100.0]
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: at[0])
    limiter = RateLimiter(2.0)
    assert [limiter.due() for _ in range(5)] == [0, 0, None, None, None]
    at[0] += 0.5
    assert [limiter.due() for _ in range(2)] == [3, None]
    at[0] += 3_600
    assert [limiter.due() for _ in range(3)] == [1, 0, None]
