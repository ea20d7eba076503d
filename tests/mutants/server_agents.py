"""The records of the agents: who is who, who gets jobs, what is given up and when."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_HTTP: Final = "tests/contract/test_agents_http.py::test_"
_STORE: Final = "tests/contract/store/test_agents.py::test_"
_STAGE: Final = "tests/unit/server/stages/test_agents.py::test_"


def _of(protection: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant("agents", protection, f"server/{file}", old, new, tests)


MUTANTS: Final = (
    _of(
        "an agent that is in use again does not say that it is retired",
        "agents/follower.py",
        "client.not_reached_yet)",
        "client.excluded)",
        f"{_HTTP}an_agent_is_retired_once_it_has_no_jobs_and_is_then_left_alone",
    ),
    _of(
        "a claim gives no jobs to an agent that was drained meanwhile",
        "store/claims.py",
        "if one.name not in retired]",
        "]",
        f"{_STORE}an_agent_that_is_not_active_any_more_gets_no_jobs_however_the_claim_came_about",
    ),
    _of(
        "an agent with another name takes its jobs along",
        "store/agents.py",
        "await _rename_in_jobs(tx, known.name, contact.name)",
        "pass",
        f"{_STORE}a_known_id_under_a_new_name_is_a_rename_with_all_its_jobs",
    ),
    _of(
        "agents that exchange their names keep their jobs apart",
        "store/agents.py",
        "            await _rename_by_address(tx, agents)\n",
        "",
        f"{_STORE}names_that_change_places_in_the_settings_keep_jobs_apart",
    ),
    _of(
        "no agent is given a name that another one has",
        "store/agents.py",
        "if name in stay]:",
        "if False]:",
        f"{_STORE}a_name_that_is_in_use_is_not_given_by_address",
    ),
    _of(
        "an agent that is known by its name only is not renamed",
        "store/agents.py",
        "        and one.id != id_by_name(one.name)\n",
        "",
        f"{_STORE}a_name_that_is_in_use_is_not_given_by_address",
    ),
    _of(
        "of two agents with one id neither takes the other's jobs",
        "store/agents.py",
        "own_id = None  # a copy",
        "pass  # a copy",
        f"{_STORE}two_names_with_one_id_are_two_agents",
    ),
    _of(
        "an agent whose address was edited loses no jobs to one that says its id",
        "store/agents.py",
        "known.name in settings:",
        "known.address == settings.get(known.name):",
        f"{_STORE}an_id_whose_name_is_in_the_settings_is_given_to_no_other_name",
        "tests/contract/test_hostile_agents.py::test_an_agent_that_says_the_id_of_another_gets_no_jobs_of_it",
    ),
    _of(
        "who replaces a drained agent gets no jobs",
        "store/agents.py",
        "if there.state is AgentState.DRAINING or there.state is AgentState.RETIRED:",
        "if False:",
        f"{_STORE}who_replaces_an_agent_that_is_drained_is_drained",
    ),
    _of(
        "an agent that has jobs is not retired",
        "store/agents.py",
        '_IDLE if idle else "1 = 1"',
        '"1 = 1"',
        f"{_STORE}an_agent_that_has_jobs_is_not_retired",
        f"{_HTTP}an_agent_is_retired_once_it_has_no_jobs_and_is_then_left_alone",
    ),
    _of(
        "a retired agent is left alone",
        "agents/follower.py",
        "            if client.excluded:\n",
        "            if False:\n",
        f"{_HTTP}an_agent_is_retired_once_it_has_no_jobs_and_is_then_left_alone",
    ),
    _of(
        "an agent that can be reached is not declared lost",
        "stages/agents.py",
        "if self._is_reached(record):",
        "if False:",
        f"{_HTTP}what_a_lost_agent_has_is_tried_again_at_once_or_cancelled",
    ),
    _of(
        "nor one that another server uses",
        "stages/agents.py",
        "return recent and not record.unreachable_s",
        "return False",
        f"{_STAGE}an_agent_to_which_another_server_talks_is_not_declared_lost",
    ),
    _of(
        "what a crash left of a lost agent is ended",
        "stages/agents.py",
        "            if record.state is AgentState.LOST:\n",
        "            if False:\n",
        f"{_STAGE}what_a_crash_left_of_a_lost_agent_is_ended_by_the_next_sweep",
    ),
    _of(
        "for how long an agent was unreachable outlives a restart",
        "agents/registry.py",
        "self._clock.monotonic() - unreachable_s",
        "self._clock.monotonic()",
        f"{_STAGE}unreachable_time_goes_on_over_restarts_without_the_time_in_which_no_server_ran",
    ),
    _of(
        "a delivery to an agent that has another name is not given up",
        "stages/deliver.py",
        "            if agent is None:\n                if (current",
        "            if agent is None:\n                break\n                if (current",
        f"{_HTTP}a_delivery_to_an_agent_with_a_new_name_is_found_out_there",
    ),
    _of(
        "a password in an address is not shown",
        "fleet.py",
        'parts.netloc.rpartition("@")[2]',
        "parts.netloc",
        f"{_HTTP}a_password_in_an_address_is_not_shown",
    ),
)
