"""Who gets the next job, and why nobody does."""

from __future__ import annotations

from typing import Any, cast

import pytest

from server.agents.agent_client import Sessions
from server.agents.orchestrator_client import OrchestratorClient
from server.agents.orders import order_of
from server.agents.registry import Registry
from server.domain.choose import place
from server.domain.leases import Lease, of_agent
from server.domain.service import Service
from shared.wire import AgentHealth, AgentState, PackTask
from tests.kit.clock import SimClock
from tests.kit.jobs import job

NO_CALLS = cast(Sessions, None)


class Fleet:
    """Agents by name and slots, all of them up."""

    def __init__(self, **slots: int | None) -> None:
        self.clock = SimClock()
        self.clients = {
            name: OrchestratorClient(name, "", "", "", NO_CALLS, self.clock) for name in slots
        }
        self.registry = Registry(list(self.clients.values()), self.clock)
        for name, count in slots.items():
            self.registry.take(Lease(of_agent(name), "a", 1))
            self.up(name, slots=count)

    def up(self, name: str, **health) -> None:
        reply = AgentHealth(**{"status": "ok", "agent": name} | health)
        self.registry.mark_up(self.clients[name], reply)

    def chosen(self, service: str = "s", held: dict[str, int] | None = None) -> str | None:
        chosen = place(self.registry.candidates(service), held or {}, [1])
        return chosen[0].name if chosen else None

    def refuse(self, name: str, *, offered: bool = True, at_least_s: float = 0.0) -> float:
        why = f"{name} is busy"
        return self.registry.refused(name, "s", why, offered=offered, at_least_s=at_least_s)


def test_who_has_all_slots_taken_is_said() -> None:
    fleet = Fleet(small=1, big=8)
    assert fleet.registry.why_none("s", {"small": 1, "big": 7}) == ""
    reply = fleet.registry.why_none("s", {"small": 1, "big": 8})
    assert reply == "all 9 slots of the 2 agents that can take it are taken"


def test_an_agent_that_names_no_slots_is_not_bounded() -> None:
    assert Fleet(a=None).chosen(held={"a": 10_000}) == "a"


def test_only_services_that_operator_and_agent_name_are_given() -> None:
    fleet = Fleet(a=1, b=1)
    fleet.clients["a"].services = frozenset({"other"})
    fleet.up("b", services=["third"])
    assert fleet.chosen("s") is None
    assert (fleet.chosen("other"), fleet.chosen("third")) == ("a", "b")
    assert not fleet.registry.offered("s")
    assert fleet.registry.why_none("s", {}) == "no agent of this server offers the service s"


def test_a_refusal_rests_longer_each_time_and_at_least_as_long_as_the_agent_asks() -> None:
    fleet = Fleet(a=4)
    rests = []
    for _ in range(9):
        rests.append(fleet.refuse("a"))
        fleet.clock._move(fleet.clock.monotonic() + rests[-1])
    assert rests == [5, 10, 20, 40, 80, 160, 320, 600, 600]
    fleet.registry.accepted("a", "s")
    assert fleet.refuse("a", at_least_s=7.0) == 7.0


async def test_while_it_rests_it_gets_none_and_then_one_job_tries_it_out() -> None:
    fleet = Fleet(a=4)
    fleet.refuse("a")
    assert fleet.refuse("a") == 5.0, "another job of the same sweep does not make it longer"
    assert fleet.chosen() is None
    assert fleet.chosen("other") == "a"
    assert fleet.registry.why_none("s", {}) == "a is busy"
    await fleet.clock.advance(5.0)
    assert len(place(fleet.registry.candidates("s"), {}, [1] * 4)) == 1
    fleet.registry.claimed("a", "s")
    assert fleet.chosen() is None
    fleet.registry.accepted("a", "s")
    assert fleet.chosen() == "a"


def test_a_service_is_offered_as_long_as_one_agent_has_not_denied_it() -> None:
    fleet = Fleet(a=1, b=1)
    fleet.registry.mark_down(fleet.clients["b"], "away")
    fleet.refuse("a", offered=False)
    assert fleet.registry.offered("s")
    fleet.up("b")
    fleet.refuse("b", offered=False)
    assert not fleet.registry.offered("s")


def test_an_agent_that_is_well_and_not_ready_gets_no_work_and_can_be_talked_to() -> None:
    fleet = Fleet(a=1)
    fleet.up("a", ready=False, message="no new bundles are taken: too little space")
    assert fleet.chosen() is None
    assert fleet.clients["a"].reachable
    why = "agent a gets no new jobs: no new bundles are taken: too little space"
    assert fleet.registry.why_none("s", {}) == why
    fleet.up("a")
    assert fleet.chosen() == "a"


@pytest.mark.parametrize("why", ["drained", "unhealthy"])
def test_what_may_get_no_work_can_be_talked_to_all_the_same(why: str) -> None:
    fleet = Fleet(a=1)
    if why == "drained":
        fleet.clients["a"].operator_state = AgentState.DRAINING
    else:
        fleet.up("a", status="error", message="the sandbox broke")
    assert fleet.chosen() is None
    assert fleet.clients["a"].reachable
    assert fleet.registry.unreachable_s("a") is None
    assert ("drain" if why == "drained" else "broke") in fleet.registry.why_none("s", {})


async def test_unreachable_time_is_counted_on_the_clock_that_does_not_jump() -> None:
    fleet = Fleet(a=1)
    fleet.registry.take(Lease(of_agent("taken out"), "a", 1))
    fleet.registry.mark_down(fleet.clients["a"], "away")
    fleet.clock.jump(86_400.0 * 3)
    assert fleet.registry.unreachable_s("a") == 0.0
    await fleet.clock.advance(7.0)
    fleet.registry.mark_down(fleet.clients["a"], "still away")
    assert fleet.registry.unreachable_s("a") == 7.0
    assert fleet.registry.unreachable_s("taken out") == 7.0, "since its lease was taken"
    fleet.up("a")
    assert fleet.registry.unreachable_s("a") is None
    assert fleet.clients["a"].contacts == 2


async def test_an_agent_that_another_server_talks_to_gets_no_job_here_and_is_not_judged() -> None:
    fleet = Fleet(a=1)
    await fleet.clock.advance(5.0)
    fleet.registry.give_up("a", "another server uses agent a")
    assert fleet.registry.candidates("s") == []
    assert fleet.registry.lease("a") is None
    assert fleet.registry.why_none("s", {}) == "another server uses agent a"
    await fleet.clock.advance(90_000.0)
    assert fleet.registry.unreachable_s("a") is None
    fleet.registry.take(Lease(of_agent("a"), "b", 2))
    assert fleet.registry.unreachable_s("a") == 0.0, "it has been talked to all along"
    assert fleet.clients["a"].lease == 2


@pytest.mark.parametrize(
    ("of_job", "pack", "wanted"),
    [
        ({"parent_id": 3, "array_index": 0}, 8, PackTask(batch=3, most=8)),
        ({"parent_id": 3, "array_index": 0}, 1, None),
        ({"parent_id": 3}, 8, None),  # the gather
        ({}, 8, None),
    ],
)
def test_only_tasks_of_an_array_are_packed(
    of_job: dict[str, Any], pack: int, wanted: PackTask | None
) -> None:
    order = order_of(job(**of_job), Service("s", pack=pack), "server", 1)
    assert order.pack == wanted
