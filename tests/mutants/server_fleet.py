"""Agents as the server sees them: whose word counts, who gets what, what happens when one is away."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_HOSTILE: Final = "tests/contract/test_hostile_agents.py::test_"
_REFERENCE: Final = "tests/contract/test_reference_client.py::test_"
_REGISTRY: Final = "tests/unit/server/agents/test_registry.py::test_"
_ANSWERS: Final = "tests/unit/server/agents/test_answers.py::test_"
_CLIENT: Final = "tests/contract/test_bulk_client.py::test_"
_POST_BUNDLE: Final = "tests/unit/server/agents/test_post_bundle.py::test_"
_FOLLOW: Final = "tests/unit/server/agents/test_follower.py::test_"
_OF_JOB: Final = "tests/unit/server/domain/test_payload_of_job.py::test_"
_FLEET: Final = "tests/contract/test_fleet.py::test_"
_CANCEL: Final = "tests/unit/server/stages/test_cancel.py::test_"
_STAGES: Final = "tests/unit/server/stages/test_delivery.py::test_"


def _of(protection: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant("fleet", protection, f"server/{file}", old, new, tests)


_EVENTS: Final = "tests/contract/test_agent_events.py::test_"
_EVENT_LINES: Final = "tests/unit/server/agents/test_event_lines.py::test_"
_CAME: Final = "tests/unit/server/stages/test_reported_results.py::test_"
_FLOODS: Final = "tests/unit/server/stages/test_get_floods.py::test_"

MUTANTS: Final = (
    Mutant(
        "fleet",
        "a number that no database can keep is no answer",
        "shared/wire.py",
        "Annotated[int, Field(ge=-(2**63), lt=2**63)]",
        "int",
        ("tests/unit/shared/test_wire.py::test_a_number_that_no_database_can_keep_is_refused",),
    ),
    _of(
        "agents that exchange their names get higher tokens than they have seen",
        "agents/lease_holder.py",
        "await self._leases.give_back([lease.name for lease in held])",
        "pass",
        f"{_FLEET}two_agents_that_exchange_their_names_keep_their_jobs_and_get_higher_tokens",
    ),
    _of(
        "jobs of an agent that was taken out of the settings are Unknown at once",
        "stages/poll.py",
        "elif gone or unreachable_s",
        "elif unreachable_s",
        f"{_FLEET}an_agent_that_is_taken_out_is_left_alone_and_its_jobs_go_on_when_it_is_back",
    ),
    _of(
        "an agent that was taken out of the settings is not contacted",
        "agents/lease_holder.py",
        "await self._end([self._following.pop(agent) for agent in gone])",
        "pass",
        f"{_FLEET}an_agent_that_is_taken_out_is_left_alone_and_its_jobs_go_on_when_it_is_back",
    ),
    _of(
        "a bundle that is being sent to an agent that was taken out goes to another one",
        "fleet.py",
        "before[name].client.cut_off()",
        "pass",
        f"{_FLEET}a_bundle_that_is_being_sent_to_an_agent_that_is_taken_out_goes_to_another_one",
    ),
    _of(
        "results are fetched in the way in which the agent is called now",
        "stages/get.py",
        "        self._small_results.forget_agent(agent)\n",
        "",
        f"{_FLEET}a_small_result_is_fetched_with_the_token_of_now",
    ),
    _of(
        "an agent that hangs is noticed by its heartbeats",
        "agents/event_lines.py",
        "silent_s = SILENT_S",
        "pass",
        f"{_FOLLOW}an_agent_that_hangs_is_down_when_its_heartbeats_stop",
    ),
    _of(
        "what an agent has is as its heartbeats say",
        "agents/registry.py",
        "client.health = health.model_copy(update=now)",
        "pass",
        f"{_FOLLOW}slots_and_load_are_as_the_latest_heartbeat_says_and_more_slots_get_jobs",
    ),
    _of(
        "what no job waits for takes few connections",
        "stages/unexpected_payloads.py",
        "self._discards.setdefault(agent.name, asyncio.Semaphore(_MAX_DISCARDS))",
        "self._discards.setdefault(agent.name, asyncio.Semaphore(100 * _MAX_DISCARDS))",
        f"{_FLOODS}an_agent_is_heard_no_faster_than_it_is_dealt_with",
    ),
    _of(
        "a number that an agent gave again is another payload's",
        "agents/ferryman_agent.py",
        'caller if key is None else caller | {"key": key}',
        "caller",
        f"{_HOSTILE}a_number_that_an_agent_gave_again_ends_and_forgets_nothing_else",
    ),
    _of(
        "other tasks have their turn while an agent sends events",
        "agents/event_lines.py",
        "        if not lines % _LINES:\n",
        "        if False:\n",
        f"{_FOLLOW}others_have_their_turn_however_much_an_agent_sends",
    ),
    _of(
        "an agent sends no result that was not asked for",
        "agents/event_lines.py",
        "if event.payload is None or event.result_bytes > MAX_RESULT:",
        "if False:",
        f"{_EVENT_LINES}what_was_not_asked_for_ends_the_stream",
    ),
    _of(
        "a result that came damaged with its report is fetched",
        "stages/reported_results.py",
        "return result if hashlib.sha256(result).hexdigest() == announced.sha256 else None",
        "return result",
        f"{_CAME}each_is_taken_once_and_only_as_announced",
    ),
    _of(
        "results that come faster than they are stored take little memory",
        "stages/reported_results.py",
        "if self._sizes[agent] + len(result) <= _MAX_BYTES:",
        "if True:",
        f"{_CAME}what_is_too_much_for_one_agent_is_let_go",
    ),
    Mutant(
        "fleet",
        "no change counts as sent to a server while an earlier one waits",
        "client_agent/report/event_stream.py",
        "seq = min(seq, held.changed - 1)",
        "pass",
        (f"{_EVENTS}what_ends_soon_is_reported_once_and_what_runs_on_a_little_later",),
    ),
    _of(
        "an agent that breaks off at once is called less and less often",
        "agents/follower.py",
        " and self._clock.monotonic() - since >= _STEADY_S\n",
        "\n",
        f"{_FOLLOW}a_stream_that_breaks_at_once_is_opened_less_and_less_often",
    ),
    _of(
        "a polled result is a whole ZIP",
        "agents/orchestrator_client.py",
        "if not await asyncio.to_thread(zipfile.is_zipfile, to.path):",
        "if False:",
        f"{_REFERENCE}what_is_no_whole_zip_is_no_result",
    ),
    _of(
        "redirects are not followed",
        "agents/agent_client.py",
        "allow_redirects=False",
        "allow_redirects=True",
        f"{_HOSTILE}a_stranger_gets_no_bundle_and_fails_no_job",
    ),
    _of(
        "a Ferryman agent names itself",
        "agents/ferryman_agent.py",
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
        "a request that is not taken is the fault of no job in it",
        "agents/combined_submits.py",
        "if no.final:",
        "if False:",
        f"{_CLIENT}a_request_that_is_not_taken_is_the_fault_of_none_in_it",
    ),
    _of(
        "acknowledgements that could not be carried are sent",
        "agents/combined_submits.py",
        "acknowledgements.put_back(taken)",
        "pass",
        f"{_CLIENT}what_could_not_be_carried_goes_by_itself",
    ),
    _of(
        "the answer to a submit is about that attempt",
        "agents/bulk_client.py",
        "if payload.server != self._server or payload.key != str(job.key):",
        "if False:",
        f"{_POST_BUNDLE}an_answer_about_another_attempt_is_no_answer",
    ),
    _of(
        "payloads of other servers are left alone",
        "agents/ferryman_agent.py",
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
        "agents/ferryman_agent.py",
        "payload = await self.settle(job)  # by its key",
        "return await self.fetch(job.payload_id or 0, to)  # by its key",
        f"{_HOSTILE}a_partial_result_is_that_of_the_job_whatever_its_number_is_by_now",
    ),
    _of(
        "an unhealthy agent can be talked to",
        "agents/agent_client.py",
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
        "agents/orchestrator_client.py",
        "answer.status == HTTPStatus.NOT_FOUND and _is_empty(body)",
        "answer.status == HTTPStatus.NOT_FOUND",
        f"{_REFERENCE}a_404_alone_does_not_say_that_a_job_is_dead",
    ),
    _of(
        "a page of a client counts as no answer",
        "agents/orchestrator_client.py",
        "if not isinstance(document, dict) or not document.keys() >= _FIELDS:",
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
        "code, message, retry_after(answer))",
        "code, message, None)",
        f"{_ANSWERS}refusals",
    ),
    _of(
        "downloads belong to an agent",
        "stages/results.py",
        "self._downloads.setdefault(\n                    agent.name,",
        'self._downloads.setdefault(\n                    "",',
        f"{_HOSTILE}downloads_that_hang_hold_up_their_own_agent_only",
    ),
    _of(
        "the answer to a bundle is waited for while the agent lives",
        "agents/agent_client.py",
        "elif form.sent and (not self.reachable or self.contacts != contact):",
        "elif form.sent and now - since > _STALLED_S:",
        f"{_POST_BUNDLE}an_agent_that_has_it_may_take_all_the_time_it_needs",
        f"{_POST_BUNDLE}an_agent_that_went_away_meanwhile_may_have_it",
    ),
    _of(
        "a stuck upload is given up",
        "agents/agent_client.py",
        "if not form.sent and now - since > _STALLED_S:",
        "if False:",
        f"{_POST_BUNDLE}an_agent_that_stops_taking_a_bundle_does_not_have_it",
    ),
    _of(
        "the operator's services are respected",
        "agents/registry.py",
        "return service in client.services",
        "return True",
        f"{_REGISTRY}only_services_that_operator_and_agent_name_are_given",
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
        "unreachable time is monotonic",
        "agents/registry.py",
        "self._unreachable_since[client.name] = self._clock.monotonic()",
        "self._unreachable_since[client.name] = self._clock.now() / 1e6",
        f"{_REGISTRY}unreachable_time_is_counted_on_the_clock_that_does_not_jump",
    ),
    _of(
        "a job is not refused for good while an agent is away",
        "stages/deliver.py",
        "            offered = self._fleet.offered(job.service)",
        "            offered = refusal.offered",
        f"{_STAGES}a_job_is_not_refused_for_good_while_an_agent_that_is_away_may_take_it",
    ),
    _of(
        "deliveries are known by their attempt",
        "stages/deliver.py",
        'self._deliveries.start(job.agent or "", job.key, functools',
        'self._deliveries.start(job.agent or "", job.key._replace(attempt=1), functools',
        f"{_STAGES}a_stale_question_leaves_a_newer_delivery_alone",
    ),
    _of(
        "why a cancel waits is logged once, not at each try",
        "stages/cancel.py",
        "if self._waiting.get(job_id) != str(problem):",
        "if True:",
        f"{_STAGES}why_a_cancel_waits_is_logged_once",
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
        "if service.paused:",
        "if True:",
        f"{_STAGES}the_queue_timeout_ends_what_waited_too_long",
    ),
    _of(
        "jobs of a removed service end",
        "stages/send.py",
        "if now >= self._missing_due:",
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
        "a cancel misses no move of its job",
        "stages/cancel.py",
        "                    if (job := await self._jobs.get(job_id)).ended:\n                        break\n",
        "                    if (job := await self._jobs.get(job_id)).ended:\n"
        "                        break\n"
        "                    changed.clear()\n",
        f"{_CANCEL}a_job_that_ends_just_after_it_was_read_is_answered_for_at_once",
    ),
    _of(
        "a cancel waits for the result without asking again and again",
        "stages/cancel.py",
        "_CHECK_AGAIN_S: Final = 5.0",
        "_CHECK_AGAIN_S: Final = 0.1",
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
        "domain/outcome.py",
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
        "agents/follower.py",
        "watch = asyncio.create_task(self._watch_health())",
        "watch = asyncio.create_task(asyncio.sleep(0))",
        f"{_FOLLOW}health_is_asked_while_the_stream_is_open_and_work_goes_by_it",
    ),
    _of(
        "an unreachable agent is asked less and less often",
        "agents/follower.py",
        "failures = 0 if steady else failures + 1",
        "failures = 0",
        f"{_FOLLOW}an_agent_that_is_not_there_is_asked_less_and_less_often",
    ),
    _of(
        "what waits for an agent is woken when it is back",
        "agents/follower.py",
        "            )\n            self._on_change()",
        "            )",
        f"{_FOLLOW}health_is_asked_while_the_stream_is_open_and_work_goes_by_it",
    ),
    _of(
        "the list of agents counts what runs",
        "http/agent_documents.py",
        "running[one.agent] += one.running",
        "pass",
        f"{_HOSTILE}the_list_of_agents_says_what_each_does_now",
    ),
    _of(
        "what a lost attempt left is kept",
        "stages/unexpected_payloads.py",
        "return attempt.ended_at is not None and attempt.result is None",
        "return False",
        f"{_HOSTILE}what_a_lost_attempt_left_can_be_fetched_when_it_comes_after_all",
    ),
    _of(
        "payloads that an agent names wait until others were looked at",
        "stages/get.py",
        "await in_flight.acquire()",
        "pass",
        f"{_STAGES}an_agent_that_names_payloads_without_end_is_read_no_faster_than_they_are_looked_at",
    ),
    _of(
        "whoever dies while its stream is not read is down",
        "agents/follower.py",
        "                    self._registry.mark_down(self._client, str(problem))",
        "                    pass",
        f"{_FOLLOW}an_agent_that_dies_while_its_stream_is_not_read_is_down_all_the_same",
    ),
    _of(
        "a long list of payloads leaves the others their turns",
        "agents/listing.py",
        "            await yield_to_loop()",
        "            pass",
        "tests/unit/server/agents/test_listing.py::"
        "test_everybody_else_has_a_turn_while_a_long_one_is_read",
    ),
)
