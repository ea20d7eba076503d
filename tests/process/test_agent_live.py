"""What run.sh says, through the real agent and the real sandbox."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from typing import Any

from shared.clock import RealClock
from tests.kit.agent_process import LIMITS, PATIENCE_S, AgentProcess, agent, alive, watched
from tests.kit.programs import until


def live(running: AgentProcess, payload_id: int) -> Iterator[dict[str, Any]]:
    """The live values on the event stream."""
    url = f"http://127.0.0.1:{running.port}/events"
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as lines:
        for line in lines:
            payload = json.loads(line)["payload"]
            if payload and payload["id"] == payload_id and payload["live"]:
                yield payload


def test_values_and_logs_are_there_while_it_runs_and_values_at_its_end(tmp_path):
    script = b"""
echo "::progress value=1,total=2::half"
printf '::out'; printf 'put name=score::0.93\n'
echo begun
sleep 3
printf '::notice::last words'
"""
    with agent(tmp_path) as running:
        payload_id = running.submit("1.1", {"run.sh": script})["id"]
        payload = next(one for one in live(running, payload_id) if one["live"]["output"])
        assert payload["status"] == "Running"
        assert payload["live"]["progress"] == {"current": 1.0, "total": 2.0}
        assert payload["live"]["output"] == {"score": "0.93"}
        path = f"/payloads/{payload_id}/logs/stdout"
        written = b"::progress value=1,total=2::half\n::output name=score::0.93\nbegun\n"
        until(lambda: running.call("GET", path) == (200, written), "the log does not show it")
        followed = running.call("GET", f"{path}?follow=1&offset={len(written)}")
        assert followed == (200, b"::notice::last words")
        ended = running.ended(payload_id)
    assert ended["status"] == "Completed"
    assert ended["live"]["output"] == {"score": "0.93"}
    assert [notice["text"] for notice in ended["live"]["notices"]] == ["last words"]


def test_a_silent_job_is_stopped_with_all_of_its_processes(tmp_path):
    script = b"""
trap '' TERM
for i in 1 2 3 4 5 6; do sleep 0.2; echo ::heartbeat::; done
sleep 1000 & sleep 1000
"""
    with agent(tmp_path, FERRYMAN_AGENT__GRACE="0.2s") as running:
        payload_id = running.submit("1.1", {"run.sh": script}, heartbeat_timeout_s=0.8)["id"]
        with watched(running.until(payload_id, "Running")["pid"]) as init:
            ended = running.ended(payload_id)
            assert not alive(init)
    assert (ended["status"], ended["reason"]) == ("Failed", "heartbeat_timeout")
    silent = re.search(r"stderr for ([\d.]+)s; its heartbeat timeout is 0.8s", ended["message"])
    assert silent, ended["message"]
    assert 0.8 <= float(silent[1]) < ended["usage"]["wall_s"] - 1.1  # since the last heartbeat
    assert ended["usage"]["wall_s"] > 1.2 + 0.8


def test_a_flood_of_commands_leaves_time_for_others_and_the_last_values_are_right(tmp_path):
    script = b"yes ::progress value=1:: | head -n 50000; echo ::progress value=2::\n"
    limits = LIMITS.model_copy(update={"log": 8 << 20})
    with agent(tmp_path) as running:
        payload_id = running.submit("1.1", {"run.sh": script}, limits=limits)["id"]
        running.until(payload_id, "Running")
        clock, slowest = RealClock(), 0.0
        for _ in range(20):
            started = clock.monotonic()
            assert running.call("GET", "/health")[0] == 200
            slowest = max(slowest, clock.monotonic() - started)
        ended = running.ended(payload_id)
    assert slowest < 1.0, "requests waited behind the flood"
    assert ended["live"]["progress"]["current"] == 2
