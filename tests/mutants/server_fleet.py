"""Agents as the server sees them: whose word counts, who gets what, what happens when one is away."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_HOSTILE: Final = "tests/contract/test_hostile_agents.py::test_"
_REFERENCE: Final = "tests/contract/test_reference_client.py::test_"
_REGISTRY: Final = "tests/unit/server/agents/test_registry.py::test_"
_ANSWERS: Final = "tests/unit/server/agents/test_answers.py::test_"
_HAND_OVER: Final = "tests/unit/server/agents/test_hand_over.py::test_"
_FOLLOW: Final = "tests/unit/server/agents/test_follow.py::test_"
_OF_JOB: Final = "tests/unit/server/domain/test_payload_of_job.py::test_"
_STAGES: Final = "tests/unit/server/stages/test_delivery.py::test_"


def _of(protection: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant("fleet", protection, f"server/{file}", old, new, tests)


MUTANTS: Final = (
    _of(
        "redirects are not followed",
        "agents/link.py",
        "allow_redirects=False",
        "allow_redirects=True",
        f"{_HOSTILE}a_stranger_gets_no_bundle_and_fails_no_job",
    ),
    _of(
        "an agent of ours names itself",
        "agents/ferryman.py",
        "if not health.agent:",
        "if False:",
        f"{_HOSTILE}a_stranger_gets_no_bundle_and_fails_no_job",
    ),
    _of(
        "an error counts only with a code",
        "agents/answers.py",
        "if not isinstance(code, str) or answer.status < HTTPStatus.BAD_REQUEST:",
        "if answer.status < HTTPStatus.BAD_REQUEST:",
        f"{_ANSWERS}an_error_without_a_code_of_ours_is_no_answer",
        f"{_HOSTILE}a_page_in_place_of_the_answer_to_a_bundle_fails_no_job",
    ),
    _of(
        "a payload is unknown only by its code",
        "agents/answers.py",
        'answer.status == HTTPStatus.NOT_FOUND and code == "payload_not_found"',
        "answer.status == HTTPStatus.NOT_FOUND",
        f"{_ANSWERS}only_its_code_says_that_a_payload_is_not_known",
    ),
    _of(
        "the answer to a submit is about that attempt",
        "agents/ferryman.py",
        "if payload.server != self._server or payload.key != str(job.key):",
        "if False:",
        f"{_HAND_OVER}an_answer_about_another_attempt_is_no_answer",
    ),
    _of(
        "payloads of other servers are left alone",
        "agents/ferryman.py",
        "ours = payload.server == self._server",
        "ours = True",
        f"{_HOSTILE}payloads_of_others_are_left_alone",
    ),
    _of(
        "a payload is of the job's own bundle",
        "domain/outcome.py",
        "return job.bundle is not None and payload.bundle_digest == job.bundle.digest",
        "return True",
        f"{_OF_JOB}a_payload_is_a_jobs_by_its_bundle_and_without_it_by_its_agent",
        f"{_HOSTILE}an_agent_cannot_end_a_job_that_another_has",
        f"{_HOSTILE}another_bundle_under_the_key_is_never_the_result",
    ),
    _of(
        "without a digest only the job's agent is believed",
        "domain/outcome.py",
        "return job.agent == agent",
        "return True",
        f"{_HOSTILE}an_agent_cannot_end_a_job_that_another_has",
    ),
    _of(
        "a partial result is asked for by the job's key",
        "agents/ferryman.py",
        "payload = await self.settle(job)  # by its key",
        "return await self.fetch(job.payload_id or 0, to)  # by its key",
        f"{_HOSTILE}a_partial_result_is_that_of_the_job_whatever_its_number_is_by_now",
    ),
    _of(
        "an unhealthy agent can be talked to",
        "agents/link.py",
        "accepted=frozenset({200, 503})",
        "accepted=frozenset({200})",
        f"{_HOSTILE}an_agent_that_may_get_no_work_hands_over_what_it_has",
    ),
    _of(
        "an unhealthy agent gets no work",
        "agents/registry.py",
        'if health.status != "ok":',
        "if False:",
        f"{_REGISTRY}what_may_get_no_work_can_be_talked_to_all_the_same",
        f"{_HOSTILE}an_agent_that_may_get_no_work_hands_over_what_it_has",
    ),
    _of(
        "a 404 alone ends nothing at a job-orchestrator client",
        "agents/orchestrator.py",
        "answer.status == HTTPStatus.NOT_FOUND and _is_empty(body)",
        "answer.status == HTTPStatus.NOT_FOUND",
        f"{_REFERENCE}a_404_alone_does_not_say_that_a_job_is_dead",
    ),
    _of(
        "a page of a client counts as silence",
        "agents/orchestrator.py",
        "if not isinstance(found, dict) or not found.keys() >= _FIELDS:",
        "if False:",
        f"{_HOSTILE}a_stranger_gets_no_bundle_and_fails_no_job",
    ),
    _of(
        "each attempt has its own time until it is given up",
        "stages/poll.py",
        "self._failing_since.setdefault(job.key, now)",
        "self._failing_since.setdefault(job.id, now)",
        f"{_REFERENCE}each_attempt_has_its_own_time_until_it_is_given_up",
    ),
    _of(
        "a wall-time kill honours retry_on",
        "stages/poll.py",
        'how = {"status": PayloadState.FAILED, "reason": Reason.TIMEOUT, "message": message}',
        'how = {"status": PayloadState.FAILED, "message": message}',
        f"{_REFERENCE}the_wall_time_there_is_retried_as_the_service_says",
    ),
    _of(
        "a trickle is not waited for",
        "agents/answers.py",
        "if self._size < _FLOOR_BYTES * (now - self._since) / _FLOOR_S:",
        "if False:",
        f"{_ANSWERS}a_body_that_trickles_is_not_waited_for",
    ),
    _of(
        "no more is taken than was announced",
        "agents/answers.py",
        "if most is not None and size > most:",
        "if False:",
        f"{_ANSWERS}no_more_is_taken_than_was_announced",
    ),
    _of(
        "documents are bounded",
        "agents/answers.py",
        "if len(body) > most:",
        "if False:",
        f"{_ANSWERS}a_document_without_end_is_not_read_to_its_end",
    ),
    _of(
        "the agent's Retry-After is kept",
        "agents/answers.py",
        "wait_s = retry_after(answer)",
        "wait_s = None",
        f"{_ANSWERS}refusals",
    ),
    _of(
        "downloads belong to an agent",
        "stages/get.py",
        "self._downloads.setdefault(agent.name,",
        'self._downloads.setdefault("",',
        f"{_HOSTILE}downloads_that_hang_hold_up_their_own_agent_only",
    ),
    _of(
        "the answer to a bundle is waited for while the agent lives",
        "agents/link.py",
        "elif form.handed_over and (not self.reachable or self.contacts != contact):",
        "elif form.handed_over and now - since > _STALLED_S:",
        f"{_HAND_OVER}an_agent_that_has_it_may_take_all_the_time_it_needs",
        f"{_HAND_OVER}an_agent_that_went_away_meanwhile_may_have_it",
    ),
    _of(
        "a stuck upload is given up",
        "agents/link.py",
        "if not form.handed_over and now - since > _STALLED_S:",
        "if False:",
        f"{_HAND_OVER}an_agent_that_stops_taking_a_bundle_does_not_have_it",
    ),
    _of(
        "slots are respected",
        "agents/registry.py",
        "return link.slots is None or held.get(link.name, 0) < link.slots",
        "return True",
        f"{_REGISTRY}the_smallest_share_of_slots_in_use_gets_the_next_job_and_none_gets_too_many",
    ),
    _of(
        "the sweep takes no more than there are slots",
        "stages/send.py",
        "free = min(slots, fairshare.room(service, held))",
        "free = fairshare.room(service, held)",
        f"{_STAGES}users_take_turns_also_where_slots_are_few",
    ),
    _of(
        "nobody gets two while another waits for one",
        "stages/send.py",
        "if len(users) == free or",
        "if len(chosen) == free or",
        f"{_STAGES}users_take_turns_also_where_slots_are_few",
    ),
    _of(
        "the least busy agent is chosen",
        "agents/registry.py",
        "return jobs / max(1, link.slots or jobs + 1), jobs",
        "return 0.0, 0",
        f"{_REGISTRY}two_equal_agents_share_the_load",
        f"{_REGISTRY}the_smallest_share_of_slots_in_use_gets_the_next_job_and_none_gets_too_many",
    ),
    _of(
        "the operator's services are respected",
        "agents/registry.py",
        "return service in link.services",
        "return True",
        f"{_REGISTRY}only_services_that_operator_and_agent_name_are_given",
    ),
    _of(
        "the slot of an ended attempt is free",
        "stages/send.py",
        "load[agent] -= self._get.collecting(agent)",
        "load[agent] -= 0",
        f"{_STAGES}a_slot_is_free_as_soon_as_the_attempt_has_ended_not_when_its_result_is_here",
    ),
    _of(
        "refusals back off",
        "agents/registry.py",
        "rest = max(self._backoff.failed(which), at_least_s)",
        "rest = max(5.0, at_least_s)",
        f"{_REGISTRY}a_refusal_rests_longer_each_time_and_at_least_as_long_as_the_agent_asks",
        f"{_STAGES}a_refusing_agent_is_asked_seldom_and_the_history_does_not_grow_with_it",
    ),
    _of(
        "a refusal rests as long as the agent asks",
        "agents/registry.py",
        "rest = max(self._backoff.failed(which), at_least_s)",
        "rest = self._backoff.failed(which)",
        f"{_REGISTRY}a_refusal_rests_longer_each_time_and_at_least_as_long_as_the_agent_asks",
    ),
    _of(
        "one job tries a refusing agent out",
        "agents/registry.py",
        "if refusal is not None:  # one",
        "if False:  # one",
        f"{_REGISTRY}while_it_rests_it_gets_none_and_then_one_job_tries_it_out",
    ),
    _of(
        "repeated events are folded",
        "store/moves.py",
        "await tx.rows(_FOLD, values)",
        "pass",
        f"{_STAGES}a_refusing_agent_is_asked_seldom_and_the_history_does_not_grow_with_it",
    ),
    _of(
        "silence is monotonic",
        "agents/registry.py",
        "self._silent_since.setdefault(link.name, self._clock.monotonic())",
        "self._silent_since.setdefault(link.name, self._clock.now() / 1e6)",
        f"{_REGISTRY}silence_is_counted_on_the_clock_that_does_not_jump",
    ),
    _of(
        "a job is not refused for good while an agent is away",
        "stages/deliver.py",
        "if not self._fleet.offered(job.service):",
        "if not offered:",
        f"{_STAGES}a_job_is_not_refused_for_good_while_an_agent_that_is_away_may_take_it",
    ),
    _of(
        "deliveries are known by their attempt",
        "stages/deliver.py",
        "self._deliveries[job.key] = asyncio",
        "self._deliveries[job.key._replace(attempt=1)] = asyncio",
        f"{_STAGES}a_stale_question_leaves_a_newer_delivery_alone",
    ),
    _of(
        "resends back off",
        "stages/deliver.py",
        "delay = self._resends.failed(job.id)\n                    await",
        "delay = 0.0\n                    await",
        f"{_STAGES}what_cannot_be_sent_is_sent_again_after_growing_delays",
    ),
    _of(
        "the queue timeout ends what waits too long",
        "stages/send.py",
        "if not service.queue_timeout_s:",
        "if True:",
        f"{_STAGES}the_queue_timeout_ends_what_waited_too_long",
    ),
    _of(
        "jobs of a removed service end",
        "stages/send.py",
        "if self._clock.monotonic() >= self._removed_due:",
        "if False:",
        f"{_STAGES}jobs_of_a_service_that_was_taken_away_say_so_and_end_at_last",
    ),
    _of(
        "a cancel at an agent that is not there is not confirmed",
        "stages/cancel.py",
        'raise AgentError(f"agent {job.agent} is not in the server\'s settings")',
        'return await self._cancelled(job, "cancelled")',
        f"{_STAGES}an_agent_that_was_taken_out_of_the_settings_kills_nothing",
    ),
    _of(
        "a cancel waits for the result without asking again and again",
        "stages/cancel.py",
        "_LOOK_AGAIN_S: Final = 5.0",
        "_LOOK_AGAIN_S: Final = 0.1",
        f"{_STAGES}a_cancel_asks_once_while_the_result_is_on_its_way",
    ),
    _of(
        "jobs of agents with events are not read at every sweep",
        "stages/poll.py",
        "elif agent is not None and not agent.supports_events:",
        "elif agent is not None:",
        f"{_STAGES}jobs_of_agents_that_send_events_are_not_read_at_every_sweep",
    ),
    _of(
        "a result that comes late is used",
        "stages/get.py",
        "return payload.status is PayloadState.COMPLETED and job.cancel_requested_at is None",
        "return False",
        f"{_HOSTILE}a_result_that_comes_after_the_attempt_was_given_up_saves_another_one",
    ),
    _of(
        "a submit in progress is asked about",
        "stages/deliver.py",
        'if refusal.code == "submit_in_progress":',
        "if False:",
        f"{_STAGES}a_submit_that_is_in_progress_is_asked_about_and_not_counted_as_a_refusal",
    ),
    _of(
        "health is asked while the stream is open",
        "agents/follow.py",
        "watch = asyncio.create_task(self._watch_health())",
        "watch = asyncio.create_task(asyncio.sleep(0))",
        f"{_FOLLOW}health_is_asked_while_the_stream_is_open_and_work_goes_by_it",
    ),
    _of(
        "a silent agent is asked less and less often",
        "agents/follow.py",
        "failures = 0 if link.contacts != contacts else failures + 1",
        "failures = 0",
        f"{_FOLLOW}an_agent_that_is_not_there_is_asked_less_and_less_often",
    ),
    _of(
        "what waits for an agent hears when it is back",
        "agents/follow.py",
        "self._on_change()",
        "pass",
        f"{_FOLLOW}health_is_asked_while_the_stream_is_open_and_work_goes_by_it",
    ),
)
