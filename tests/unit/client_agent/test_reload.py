"""Settings of an agent that are read again while it runs."""

from __future__ import annotations

from typing import Any, Final

import pytest
import structlog
from pydantic import SecretStr

from client_agent.reload import RESTART, Reload
from client_agent.run.slots import SlotQueue
from client_agent.settings.agent import AgentSection
from shared.live import Live
from shared.settings.base import SettingsError

TOKEN, OTHER = (SecretStr("a-long-random-text"),), (SecretStr("another-random-text"),)

LIVE: Final = frozenset(
    {
        "tokens",
        "tokens_file",
        "metrics_tokens_file",
        "allowed_hosts",
        "allowed_origins",
        "trusted_proxies",
        "max_connections",
        "connections_per_peer",
        "head_timeout",
        "keepalive_timeout",
        "send_timeout",
        "slots",
        "labels",
        "services",
        "default_timeout",
        "default_limits",
        "retention",
        "min_free",
        "max_upload",
        "log_format",
        "log_level",
    }
)


def test_every_key_has_decided() -> None:
    assert RESTART.keys() | LIVE == set(AgentSection.model_fields)
    assert not RESTART.keys() & LIVE


async def reloaded(live: Live[AgentSection], **new: Any) -> tuple[bool, list[Any]]:
    with structlog.testing.capture_logs() as lines:
        done = await Reload(live, lambda: AgentSection(**new)).run_once()
    return done, [(one["event"], one.get("key")) for one in lines]


async def test_what_can_be_applied_is_and_the_rest_is_said() -> None:
    live = Live(AgentSection(slots=4, tokens=TOKEN))
    done, lines = await reloaded(live, slots=2, tokens=OTHER, name="other", labels={"a": "b"})
    assert done
    assert lines == [
        ("setting.changed", "agent.tokens"),
        ("setting.not_applied", "agent.name"),
        ("setting.changed", "agent.slots"),
        ("setting.changed", "agent.labels.a"),
        ("settings.reloaded", None),
    ]
    assert (live.current.slots, live.current.all_tokens()) == (2, ["another-random-text"])
    assert live.current.name != "other"


async def test_more_slots_than_at_the_start_wait_for_a_restart() -> None:
    live = Live(AgentSection(slots=4))
    _, lines = await reloaded(live, slots=5)
    assert lines[0] == ("setting.not_applied", "agent.slots")
    assert live.current.slots == 4


@pytest.mark.parametrize("new", [{"slots": 2}, {"host": "0.0.0.0", "tokens": None}])
async def test_the_last_token_is_not_taken_out(new: dict[str, Any]) -> None:
    live = Live(AgentSection(slots=4, tokens=TOKEN))
    before = live.current
    done, lines = await reloaded(live, **new)
    assert (done, lines) == (False, [("settings.not_reloaded", None)])
    assert live.current is before


async def test_wrong_settings_change_nothing() -> None:
    def read() -> AgentSection:
        raise SettingsError("agent.slots: no")

    live = Live(AgentSection(slots=4))
    before = live.current
    assert await Reload(live, read).run_once() is False
    assert live.current is before


async def test_slots_that_were_taken_away_are_not_given_again() -> None:
    queue = SlotQueue(2)
    assert await queue.acquire(1)
    assert await queue.acquire(2)
    queue.resize(1)
    assert queue.in_use == 2
    queue.release()
    assert queue._free == 0
    queue.resize(2)
    assert await queue.acquire(3)
    queue.release()
    queue.release()
    assert queue.in_use == 0
